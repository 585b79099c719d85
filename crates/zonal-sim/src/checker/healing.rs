//! Invariant 9: after all faults have ended the cell becomes healthy by itself, and nothing leaks.
//!
//! * Shards push all deletions; no object is left when all files are gone, and their space is free.
//! * No plan holds units, and no request waits for ever.

use crate::checker::placement::files_with_leftovers;
use crate::net::NETWORK;
use crate::world::World;
use std::rc::Rc;
use zonal_types::TargetId;

/// Simulated time within which a quiet cell must complete its work, ms.
const QUIET_MS: u64 = 600_000;

/// Whether all deletions are done.
fn has_deleted(world: &World) -> bool {
    world
        .meta_nodes()
        .iter()
        .all(|node| node.deletions_left() == 0)
}

fn has_no_objects(world: &World) -> bool {
    world
        .storage_nodes()
        .iter()
        .all(|node| node.object_count() == 0 || may_have_old_objects(world, node.id()))
}

/// The work that is left, in words.
fn left(world: &World) -> String {
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

/// Runs the world for `ms` milliseconds.
pub fn wait(world: &Rc<World>, ms: u64) {
    let next = world.clock.now().plus_ms(ms);
    let ticker = world.clock.sleep_until(next);
    world.clock.spawn(NETWORK, ticker);
    world.clock.run(next, || false);
}

fn wait_until(world: &Rc<World>, done: impl Fn(&World) -> bool) -> bool {
    let limit = world.clock.now().plus_ms(QUIET_MS);
    while !done(world) && world.clock.now() < limit && !world.clock.is_stuck() {
        wait(world, 5_000);
    }
    done(world)
}

/// Whether no target is busy: a checkpoint may outlast the request that asked for it.
fn has_quiet_targets(world: &World) -> bool {
    world.storage_nodes().iter().all(|node| node.is_quiet())
}

/// Waits until deletions are done, then checks the stores of the targets.
pub fn settle(world: &Rc<World>) {
    if !wait_until(world, has_deleted) {
        world.report(format!("invariant 9: deletions stay: {}", left(world)));
    }
    wait_until(world, has_quiet_targets);
    for node in world.storage_nodes() {
        if let Some(broken) = node.check() {
            world.report(format!("invariant 9: {broken}"));
        }
        if node.units_in_flight() > 0 {
            world.report(format!(
                "invariant 9: plans of target {} hold {} units",
                node.id(),
                node.units_in_flight()
            ));
        }
    }
}

/// Waits until no partition is on its way.
pub fn end_moves(world: &Rc<World>) {
    if !wait_until(world, crate::moves::are_over) {
        let nodes = world.meta_nodes();
        let moves: Vec<_> = nodes.iter().map(|node| node.moves_in_words()).collect();
        world.report(format!("invariant 9: a move never ends: {moves:?}"));
    }
}

/// Waits until no object is on its way from a target that leaves.
pub fn end_drains(world: &Rc<World>) {
    if !wait_until(world, crate::drains::are_over) {
        let map = world.map.borrow().clone();
        let states: Vec<_> = map.targets.iter().map(|of| (of.id, of.state)).collect();
        world.report(format!("invariant 9: a drain never ends: {states:?}"));
    }
    if !wait_until(world, |world| files_with_leftovers(world).is_empty()) {
        let files = files_with_leftovers(world);
        world.report(format!(
            "invariant 9: objects of files {files:?} have left places where they are not deleted"
        ));
    }
}

/// Whether a target may have objects that nobody needs: it is drained, or was and left the cell.
pub fn may_have_old_objects(world: &World, target: TargetId) -> bool {
    world.map.borrow().is_gone_for_good(target)
}

/// Waits until the replicas of a shard have the same log, and compares their states.
pub fn check_replicas(world: &Rc<World>) {
    if !wait_until(world, World::are_replicas_level) {
        world.report("invariant 9: the replicas of a shard do not become level");
    }
    world.history.compare_states();
}

/// Checks a cell from which everything was removed: no object may be left, and all space must be
/// free.
///
/// Where metadata lost power, objects of files whose creation was lost have no owner until a check
/// of the whole cell.
pub fn check_empty(world: &Rc<World>, free_at_start: u64) {
    if !wait_until(world, |world| has_deleted(world) && has_no_objects(world)) {
        world.report(format!(
            "invariant 9: objects are left after everything was deleted: {}",
            left(world)
        ));
        return;
    }
    wait_until(world, has_quiet_targets);
    for node in world.storage_nodes() {
        if may_have_old_objects(world, node.id()) {
            continue;
        }
        if let Err(code) = node.checkpoint() {
            world.report(format!("invariant 9: a checkpoint fails: {code}"));
        }
        let (free, _pending) = node.space();
        if free != free_at_start {
            world.report(format!(
                "invariant 9: target {} has {free} bytes free, {free_at_start} at its start",
                node.id()
            ));
        }
    }
}
