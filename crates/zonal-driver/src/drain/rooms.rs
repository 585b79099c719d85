//! Room of targets for objects that move: what they have free, less what they are to get already.

use super::DrainHost;
use std::collections::BTreeMap;
use zonal_types::TargetId;
use zonal_wire::TargetRoom;
use zonal_zonemap::{Target, ZoneMap};

/// The part of a target that stays free of objects which move, as a divisor.
const RESERVE: u64 = 20;

/// Space of a target, bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KnownSpace {
    /// Its capacity.
    pub total: u64,
    /// Free.
    pub free: u64,
}

impl KnownSpace {
    fn used(self) -> u64 {
        self.total.saturating_sub(self.free)
    }
}

#[derive(Debug, Default)]
struct Room {
    space: KnownSpace,
    /// Bytes on their way to it, by the target that gives them.
    promised: BTreeMap<TargetId, u64>,
}

impl Room {
    /// Bytes that stay free of more objects.
    fn kept(&self) -> u64 {
        (self.space.total / RESERVE).saturating_add(self.promised())
    }

    fn promised(&self) -> u64 {
        self.promised.values().sum()
    }
}

/// The room of all targets that answer.
#[derive(Debug, Default)]
pub(super) struct Rooms(BTreeMap<TargetId, Room>);

impl Rooms {
    /// Asks the targets that serve. Promised bytes count until all of their giver's objects came.
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
            room.space = space;
            self.0.insert(target, room);
        }
    }

    /// Targets get these bytes of another one.
    pub(super) fn promise(&mut self, giver: TargetId, placed: &[TargetRoom]) {
        for of in placed {
            if let Some(room) = self.0.get_mut(&of.target) {
                let promised = room.promised.entry(giver).or_default();
                *promised = promised.saturating_add(of.bytes);
            }
        }
    }

    /// Nothing of other targets than these is on its way.
    pub(super) fn keep_promises(&mut self, gives: impl Fn(&TargetId) -> bool) {
        for room in self.0.values_mut() {
            room.promised.retain(|giver, _bytes| gives(giver));
        }
    }

    /// Objects of some target are on their way.
    pub(super) fn has_promises(&self) -> bool {
        self.0.values().any(|room| !room.promised.is_empty())
    }

    /// Room for the objects of targets that leave.
    pub(super) fn all(&self) -> Vec<TargetRoom> {
        let all = self.0.iter().map(|(target, room)| TargetRoom {
            target: *target,
            bytes: room.space.free.saturating_sub(room.kept()),
        });
        all.filter(|room| room.bytes > 0).collect()
    }

    /// The targets of a target's zone that take files, with their rooms.
    fn near<'a>(
        &'a self,
        map: &'a ZoneMap,
        target: TargetId,
    ) -> impl Iterator<Item = (&'a Target, &'a Room)> {
        let zone_of = |of: &Target| Some(map.node(of.node)?.zone);
        let zone = map.target(target).and_then(zone_of);
        let known = self.0.iter();
        let known = known.filter_map(|(id, room)| Some((map.target(*id)?, room)));
        known.filter(move |(of, _)| zone.is_some() && zone_of(of) == zone)
    }

    /// The mean fill of a target's zone: bytes that are used, of so many.
    fn mean(&self, map: &ZoneMap, target: TargetId) -> (u128, u128) {
        let near = self.near(map, target);
        near.fold((0, 0), |(used, total), (_, room)| {
            let space = room.space;
            (
                used + u128::from(space.used()),
                total + u128::from(space.total),
            )
        })
    }

    /// Room of the targets in a target's zone that are less full than the mean.
    pub(super) fn below_mean(&self, map: &ZoneMap, shedding: TargetId) -> Vec<TargetRoom> {
        let mean = self.mean(map, shedding);
        let gets = |of: &Target| !of.state.is_shedding();
        let near = self.near(map, shedding).filter(|(of, _)| gets(of));
        let rooms = near.map(|(of, room)| {
            let space = room.space;
            let even = part(mean, space.total).saturating_sub(space.used() + room.promised());
            let bytes = even.min(space.free.saturating_sub(room.kept()));
            let target = of.id;
            TargetRoom { target, bytes }
        });
        rooms.filter(|room| room.bytes > 0).collect()
    }

    /// Bytes of a target above the mean of its zone, and all that it has.
    pub(super) fn excess(&self, map: &ZoneMap, target: TargetId) -> Option<(u64, u64)> {
        let space = self.0.get(&target)?.space;
        let even = part(self.mean(map, target), space.total);
        Some((space.used().saturating_sub(even), space.used()))
    }

    /// Capacity of a target.
    pub(super) fn total(&self, target: TargetId) -> u64 {
        self.0.get(&target).map_or(0, |room| room.space.total)
    }
}

/// The bytes of a target that is as full as the mean.
fn part((used, of): (u128, u128), total: u64) -> u64 {
    let bytes = u128::from(total) * used / of.max(1);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
