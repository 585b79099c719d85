//! Orders drains of targets, ends them, and loses targets for good, while programs and faults run.

use crate::coverage::FaultKind;
use crate::net::LinkFaults;
use crate::rng::SimRng;
use crate::world::World;
use std::rc::Rc;
use zonal_types::{Ino, TargetId, ZoneId};
use zonal_wire::{MetaReply, MetaRequest};
use zonal_zonemap::{MapEdit, TargetState, ZoneMap};

/// Longest pause between two orders, ms.
const EVERY_MS_MAX: u64 = 15_000;
/// Of 1000 orders beside a drain, those that end it.
const CANCELLED: u64 = 300;
/// Of 1000 orders that may move objects, those that even out.
const REBALANCED: u64 = 400;
/// Of 1000 orders beside a drained target, those that take it out of the cell.
const REMOVED: u64 = 300;
/// Of 1000 orders in a cell with copies, those that lose a target.
const LOST: u64 = 300;
/// Of 1000 orders in a cell with copies in other zones, those that take a zone away.
const ZONES_AWAY: u64 = 400;
/// Longest time for which a zone is away, ms: targets that are out for so long are rebuilt.
const ZONE_AWAY_MS_MAX: u64 = 45_000;

/// Orders drains until the programs have ended or the world heals.
pub async fn order(world: Rc<World>, mut rng: SimRng) {
    loop {
        let pause = rng.between(100, EVERY_MS_MAX);
        world.clock.sleep(pause * 1_000_000).await;
        if !world.faults_wanted() {
            return;
        }
        let map = world.map.borrow().clone();
        let is_going = |target: &zonal_zonemap::Target| {
            world.is_lost(target.id) && target.state != TargetState::Drained
        };
        if map.targets.iter().any(is_going) || has_ended_one(&world, &map, &mut rng) {
            continue;
        }
        let serving = in_state(&map, TargetState::takes_files);
        let is_calm = in_state(&map, |state| state == TargetState::Returning).is_empty();
        let may_go = world.size().also_zone && is_calm && rng.chance(ZONES_AWAY);
        if may_go && is_whole(&world).await && !world.has_storage_fault() {
            take_zone_away(&world, &mut rng).await;
            continue;
        }
        // Room for all copies on other targets, in each zone; some files get more copies.
        let least = usize::from(world.size().copies_max()) + 1;
        let Some(target) = rng.pick(&serving).copied() else {
            continue;
        };
        let zone_of = |target: TargetId| Some(map.node(map.target(target)?.node)?.zone);
        let near = serving
            .iter()
            .filter(|other| zone_of(**other) == zone_of(target));
        if near.count() < least || !is_calm {
            continue;
        }
        let may_lose = world.size().has_copies() && !world.has_lost();
        if may_lose && rng.chance(LOST) && is_whole(&world).await && !world.has_storage_fault() {
            // Lost messages could take another target out.
            world.network.set_faults(LinkFaults::NONE);
            world.network.count(FaultKind::TargetLost);
            world.lose_target(target);
            continue;
        }
        if rng.chance(REBALANCED) {
            rebalance(&world, target, rng.between(0, 1_000_000));
            continue;
        }
        if set(&world, target, TargetState::Draining) {
            world.network.count(FaultKind::Drain);
        }
    }
}

fn in_state(map: &ZoneMap, wanted: fn(TargetState) -> bool) -> Vec<TargetId> {
    let found = map.targets.iter().filter(|target| wanted(target.state));
    found.map(|target| target.id).collect()
}

/// Takes a drained target out of the cell, or ends a rebalance or a drain, by chance. True also
/// where a drain goes on: there is one at a time.
fn has_ended_one(world: &World, map: &ZoneMap, rng: &mut SimRng) -> bool {
    let drained = in_state(map, |state| state == TargetState::Drained);
    if let Some(target) = rng.pick(&drained).copied()
        && rng.chance(REMOVED)
    {
        // Layouts name it still.
        world.edit_map(&[MapEdit::RemoveTarget { target }]);
        return true;
    }
    let shedding = in_state(map, TargetState::is_shedding);
    if let Some(target) = rng.pick(&shedding).copied()
        && rng.chance(CANCELLED)
    {
        world.network.count(FaultKind::RebalanceEnded);
        set(world, target, TargetState::Serving);
        return true;
    }
    let leaving = in_state(map, TargetState::is_leaving);
    let Some(target) = rng.pick(&leaving).copied() else {
        return false;
    };
    if rng.chance(CANCELLED) && !world.is_lost(target) {
        world.network.count(FaultKind::DrainEnded);
        set(world, target, TargetState::Serving);
    }
    true
}

/// Has all storage servers of a zone end, and come back after a while.
async fn take_zone_away(world: &Rc<World>, rng: &mut SimRng) {
    let zones: Vec<ZoneId> = world
        .map
        .borrow()
        .zones
        .iter()
        .map(|zone| zone.id)
        .collect();
    let Some(zone) = rng.pick(&zones).copied() else {
        return;
    };
    // Lost messages could take targets of another zone out.
    world.network.set_faults(LinkFaults::NONE);
    world.network.count(FaultKind::ZoneAway);
    world.take_zone_away(zone, true);
    let away = rng.between(100, ZONE_AWAY_MS_MAX);
    world.clock.sleep(away * 1_000_000).await;
    world.take_zone_away(zone, false);
}

/// Whether no copy misses anything: a loss of one target is survived then.
async fn is_whole(world: &Rc<World>) -> bool {
    let map = world.map.borrow().clone();
    if map.targets.iter().any(|target| map.is_out(target.id)) {
        return false;
    }
    for node in world.meta_nodes() {
        let request = MetaRequest::StaleFiles {
            target: TargetId(0),
            after: Ino(0),
        };
        let reply = crate::moves::ask(world, &node, request).await;
        let is_none = |files: &[_]| files.is_empty();
        if !matches!(&reply, Some(MetaReply::Files { files, next: None }) if is_none(files)) {
            return false;
        }
    }
    world.storage_nodes().len() == world.storage_indices().len()
}

/// Has a target give objects to emptier ones.
fn rebalance(world: &World, target: TargetId, salt: u64) {
    let state = TargetState::Shedding {
        salt: u32::try_from(salt).unwrap_or(0),
        is_ending: false,
    };
    if set(world, target, state) {
        world.network.count(FaultKind::Rebalance);
    }
}

fn set(world: &World, target: TargetId, state: TargetState) -> bool {
    world.edit_map(&[MapEdit::UseTarget { target, state }])
}

/// Whether no object is on its way from a target.
#[must_use]
pub fn are_over(world: &World) -> bool {
    let map = world.map.borrow();
    let mut targets = map.targets.iter();
    targets.all(|target| {
        let moves = target.state.is_moving();
        // A lost target is out first.
        let waits = world.is_lost(target.id) && target.state != TargetState::Drained;
        !moves && !waits
    })
}
