//! Where an object goes that leaves its place.

use super::{computed_slot, has_room};
use zonal_basics::SplitMix64;
use zonal_layout::{PlaceUse, object_of, place_use, places_of_column};
use zonal_types::{Column, Component, Layout, NodeId, StripeSetId, TargetId, ZoneId};
use zonal_wire::TargetRoom;
use zonal_zonemap::ZoneMap;

/// Room of each target where nobody told it.
const UNKNOWN_ROOM: u64 = 1 << 50;

/// Why an object stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoDestination {
    /// Nothing in service has its bytes, or its component has no room for a record.
    Source,
    /// No target of its zone may have it.
    Target,
    /// Targets may have it, but none has room.
    Room,
}

/// A target that may get objects.
struct Candidate {
    target: TargetId,
    node: NodeId,
    zone: ZoneId,
    room: u64,
    /// Bytes of the objects that it got.
    taken: u64,
}

/// The targets that may get objects.
pub(super) struct Candidates {
    all: Vec<Candidate>,
    /// An object stays where each other node has a copy of its column.
    only_far: bool,
}

/// Targets that take new objects.
pub(super) fn all(map: &ZoneMap) -> Candidates {
    let serving = map.targets.iter().filter(|target| {
        let serves = target.state.takes_files();
        serves && !map.is_out(target.id)
    });
    let known = serving.filter_map(|target| {
        Some(Candidate {
            target: target.id,
            node: target.node,
            zone: map.node(target.node)?.zone,
            room: UNKNOWN_ROOM,
            taken: 0,
        })
    });
    Candidates {
        all: known.collect(),
        only_far: false,
    }
}

/// As [`all`], with their room. Those that are not named have none.
/// `only_far`: no object gets near another copy of its column.
pub(super) fn with_room(map: &ZoneMap, room: &[TargetRoom], only_far: bool) -> Candidates {
    let mut candidates = all(map);
    candidates.only_far = only_far;
    for candidate in &mut candidates.all {
        let of = room.iter().find(|of| of.target == candidate.target);
        candidate.room = of.map_or(0, |of| of.bytes);
    }
    candidates
}

impl Candidates {
    /// A target gets an object.
    pub(super) fn take(&mut self, target: TargetId, bytes: u64) {
        let found = self.all.iter_mut().find(|of| of.target == target);
        if let Some(found) = found {
            found.room = found.room.saturating_sub(bytes);
            found.taken = found.taken.saturating_add(bytes);
        }
    }

    /// The slot and the target for an object of so many bytes: on a node without another copy of
    /// the column. Where there is none, on another target. Targets with more room get more objects.
    ///
    /// # Errors
    /// Why it stays.
    pub(super) fn choose(
        &self,
        component: &Component,
        layout: &Layout,
        map: &ZoneMap,
        (object, bytes): (Column, u64),
    ) -> Result<((StripeSetId, u16), TargetId), NoDestination> {
        let column = object.0 % component.count.max(1);
        let has_source = !map.whole_places(layout, component, column, true).is_empty();
        if !has_source || !has_room(component) {
            return Err(NoDestination::Source);
        }
        let slot = map.slot_of_place(component, object);
        let set = slot.and_then(|slot| map.set(slot.set));
        let zone = set.ok_or(NoDestination::Source)?.zone;
        let places: Vec<(Column, TargetId)> = places_of_column(component, column)
            .filter_map(|place| Some((place, map.slot_of_place(component, place)?.slot.target)))
            .collect();
        let others = places.iter().filter(|(place, _)| {
            object_of(component, *place) != object && place_use(component, *place) != PlaceUse::Left
        });
        let nodes: Vec<NodeId> = others
            .filter_map(|(_, target)| Some(map.target(*target)?.node))
            .collect();
        let is_free = |candidate: &&Candidate| {
            (zone == ZoneId::CELL || candidate.zone == zone)
                && places.iter().all(|(_, target)| *target != candidate.target)
                && !map.has_leftover(component, object, candidate.target)
        };
        let (far, near): (Vec<_>, Vec<_>) = self
            .all
            .iter()
            .filter(is_free)
            .partition(|candidate| !nodes.contains(&candidate.node));
        let mut fit = if far.is_empty() && !self.only_far {
            near
        } else {
            far
        };
        if fit.is_empty() {
            return Err(NoDestination::Target);
        }
        fit.retain(|candidate| candidate.room >= bytes.max(1));
        let order = SplitMix64(component.data_id.0 ^ SplitMix64(object.0.into()).bits()).bits();
        let target = by_room_and_load(&fit, order).ok_or(NoDestination::Room)?;
        let own = computed_slot(component, map, object);
        let own = own.filter(|(_, slot)| slot.target == target);
        let own = own.map(|(number, _)| (component.set, number));
        let place = own.or_else(|| map.open_slot_of(target, component.set));
        Ok((place.ok_or(NoDestination::Target)?, target))
    }
}

/// The less busy of two candidates, which are chosen by their room. So a target that may get most
/// objects, as the neighbour of both neighbours of a lost one, does not get more than the others.
fn by_room_and_load(fit: &[&Candidate], order: u64) -> Option<TargetId> {
    let (one, other) = (by_room(fit, order)?, by_room(fit, order.rotate_left(32))?);
    let load = |of: &Candidate, beside: &Candidate| u128::from(of.taken) * u128::from(beside.room);
    let is_busier = load(one, other) > load(other, one);
    Some(if is_busier { other } else { one }.target)
}

/// One of the candidates, each as often as it has room.
fn by_room<'a>(fit: &[&'a Candidate], order: u64) -> Option<&'a Candidate> {
    let sum: u128 = fit.iter().map(|of| u128::from(of.room)).sum();
    let mut at = u128::from(order).checked_rem(sum)?;
    for candidate in fit {
        match at.checked_sub(u128::from(candidate.room)) {
            Some(left) => at = left,
            None => return Some(candidate),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_get_objects_as_they_have_room() {
        let candidate = |target, room| Candidate {
            target: TargetId(target),
            node: NodeId(target),
            zone: ZoneId(1),
            room,
            taken: 0,
        };
        let all = [candidate(1, 10), candidate(2, 0), candidate(3, 30)];
        let fit: Vec<&Candidate> = all.iter().collect();
        let chosen = |order| by_room(&fit, order).unwrap().target.0;
        let count = |target| (0..40).filter(|order| chosen(*order) == target).count();
        assert_eq!((count(1), count(2), count(3)), (10, 0, 30));
        assert!(by_room(&fit[1..2], 7).is_none());
    }

    #[test]
    fn the_neighbour_of_both_neighbours_gets_no_more_than_others() {
        let one = |number| Candidate {
            target: TargetId(number),
            node: NodeId(number),
            zone: ZoneId(1),
            room: UNKNOWN_ROOM,
            taken: 0,
        };
        let mut candidates = Candidates {
            all: [one(1), one(2), one(3)].into(),
            only_far: false,
        };
        // Target 4 is lost. The other copies of its objects are on 3 and 1, in turn.
        for object in 0..300_u64 {
            let other = if object % 2 == 0 { 1 } else { 3 };
            let fit: Vec<&Candidate> = candidates
                .all
                .iter()
                .filter(|of| of.target.0 != other)
                .collect();
            let target = by_room_and_load(&fit, SplitMix64(object).bits()).unwrap();
            candidates.take(target, 1 << 20);
        }
        let got: Vec<u64> = candidates.all.iter().map(|of| of.taken >> 20).collect();
        assert!(got.iter().all(|of| (90..=110).contains(of)), "{got:?}");
    }
}
