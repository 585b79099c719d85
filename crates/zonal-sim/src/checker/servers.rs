//! Invariants 2 and 8 by the cores' own checks, and 9: once everything was deleted, no object is left at any target.

use crate::world::World;

/// Runs the checks of all servers that are up.
pub fn check_cores(world: &World) {
    for node in world.meta_nodes() {
        for broken in node.check() {
            world.report(format!("invariant 2 or 8: {broken}"));
        }
    }
    for node in world.storage_nodes() {
        if let Some(broken) = node.check() {
            world.report(format!("invariant 5 or 10: {broken}"));
        }
    }
    for broken in world.map.borrow().check() {
        world.report(format!("invariant 1: {broken}"));
    }
}

/// True where no deletion is left to push and no object is left.
#[must_use]
pub fn is_clean(world: &World) -> bool {
    world
        .meta_nodes()
        .iter()
        .all(|node| node.deletions_left() == 0)
        && world
            .storage_nodes()
            .iter()
            .all(|node| node.object_count() == 0)
}

/// What is left, in words.
#[must_use]
pub fn left(world: &World) -> String {
    let objects: Vec<u64> = world
        .storage_nodes()
        .iter()
        .map(|node| node.object_count())
        .collect();
    let gauges: Vec<_> = world
        .meta_nodes()
        .iter()
        .map(|node| node.gauges())
        .collect();
    format!("{objects:?} objects at the targets; shards: {gauges:?}")
}
