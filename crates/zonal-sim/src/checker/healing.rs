//! Invariant 9: after all faults have ended the cell becomes healthy by itself, and nothing leaks:
//! deletions are pushed, no object is left when all files are gone, space returns, no plan holds
//! units, no request waits for ever.

use crate::net::NETWORK;
use crate::world::World;
use std::rc::Rc;

/// Simulated time after which a quiet cell must have done what is to be done, ms.
const QUIET_MS: u64 = 600_000;

/// True where no deletion is left to push.
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
        .all(|node| node.object_count() == 0)
}

/// What is left, in words.
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

/// Lets the world run for so long.
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

/// True where nothing is under way at a target: a checkpoint goes on behind the reply of who asked
/// for it.
fn has_quiet_targets(world: &World) -> bool {
    world.storage_nodes().iter().all(|node| node.is_quiet())
}

/// Waits until deletions are pushed, then asks the targets what is broken.
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

/// Everything was removed: no object may be left, and all space must be free. Where metadata lost
/// power, objects of files whose making was taken back have no owner until there is a check of the
/// whole cell.
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
