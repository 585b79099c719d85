//! Room of targets for objects that move: what they have free, less what they are to get already.

use super::DrainHost;
use super::shedding::ALL;
use std::collections::BTreeMap;
use zonal_types::TargetId;
use zonal_wire::TargetRoom;
use zonal_zonemap::ZoneMap;

/// The part of a target that stays free of objects which move, as a divisor.
const RESERVE: u64 = 20;

/// Space of a target, bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TargetSpace {
    /// Its capacity.
    pub total: u64,
    /// Free.
    pub free: u64,
}

#[derive(Debug, Default)]
struct Room {
    space: TargetSpace,
    /// Bytes on their way to it.
    promised: u64,
}

/// The room of all targets that answer.
#[derive(Debug, Default)]
pub(super) struct Rooms(BTreeMap<TargetId, Room>);

impl Rooms {
    /// Asks the targets that serve. What came since counts as promised before.
    pub(super) async fn refresh<H: DrainHost>(&mut self, host: &H) {
        let map = host.map();
        let serving = map.targets.iter().filter(|of| of.state.takes_files());
        let asked: Vec<TargetId> = serving
            .map(|of| of.id)
            .filter(|target| !map.is_out(*target))
            .collect();
        let spaces = host.spaces(&asked).await;
        let mut before = std::mem::take(&mut self.0);
        for (target, space) in asked.into_iter().zip(spaces) {
            let mut room = before.remove(&target).unwrap_or_default();
            // One that gives no answer has no room.
            let Some(space) = space else {
                continue;
            };
            let came = room.space.free.saturating_sub(space.free);
            room.promised = room.promised.saturating_sub(came);
            room.space = space;
            self.0.insert(target, room);
        }
    }

    /// Targets get these bytes.
    pub(super) fn promise(&mut self, placed: &[TargetRoom]) {
        for of in placed {
            if let Some(room) = self.0.get_mut(&of.target) {
                room.promised = room.promised.saturating_add(of.bytes);
            }
        }
    }

    /// Nothing is on its way.
    pub(super) fn forget_promises(&mut self) {
        self.0.values_mut().for_each(|room| room.promised = 0);
    }

    /// Room for the objects of targets that leave.
    pub(super) fn all(&self) -> Vec<TargetRoom> {
        self.with(|_target, room| {
            let kept = room.space.total / RESERVE + room.promised;
            room.space.free.saturating_sub(kept)
        })
    }

    /// Room of the targets in a target's zone that are less full than the goal.
    pub(super) fn below(&self, map: &ZoneMap, shedding: TargetId, goal: u16) -> Vec<TargetRoom> {
        let of_target = |target| map.target(target);
        let zone_of = |target| Some(map.node(of_target(target)?.node)?.zone);
        let zone = zone_of(shedding);
        self.with(|target, room| {
            let gives = of_target(target).is_none_or(|of| of.state.is_shedding());
            if gives || zone_of(target) != zone {
                return 0;
            }
            let used = room.space.total.saturating_sub(room.space.free);
            let kept = room.space.total / RESERVE + room.promised;
            let even = at(room.space.total, goal).saturating_sub(used + room.promised);
            even.min(room.space.free.saturating_sub(kept))
        })
    }

    fn with(&self, bytes: impl Fn(TargetId, &Room) -> u64) -> Vec<TargetRoom> {
        let all = self.0.iter().map(|(target, room)| TargetRoom {
            target: *target,
            bytes: bytes(*target, room),
        });
        all.filter(|room| room.bytes > 0).collect()
    }

    /// Bytes of a target above the goal, and all that it has.
    pub(super) fn excess(&self, target: TargetId, goal: u16) -> Option<(u64, u64)> {
        let space = self.0.get(&target)?.space;
        let used = space.total.saturating_sub(space.free);
        Some((used.saturating_sub(at(space.total, goal)), used))
    }

    /// Capacity of a target.
    pub(super) fn total(&self, target: TargetId) -> u64 {
        self.0.get(&target).map_or(0, |room| room.space.total)
    }
}

/// A part of a capacity, in ten-thousandths.
fn at(total: u64, goal: u16) -> u64 {
    let part = u128::from(total) * u128::from(goal) / u128::from(ALL);
    u64::try_from(part).unwrap_or(u64::MAX)
}
