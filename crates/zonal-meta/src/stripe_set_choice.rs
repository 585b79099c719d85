//! Choice of a new file's stripe set: the zone's default sets in turn by data id, wider ones more
//! often.
//!
//! *Invariant*: only an open set is given, by the shard's own map or by a newer one of which the
//! manager told. Where the map has no open default set, the root shard is asked to open them: its
//! process keeps the map. While the root shard does not answer, files get sets that are open
//! already.

use crate::dentry::siphash;
use std::collections::BTreeMap;
use zonal_types::{DataId, Instant, MapVersion, StripeSetId, ZoneId};
use zonal_zonemap::{StripeSet, TargetState, ZoneMap};

/// Time for which nobody is asked again after a question without an answer, ms.
const SILENCE_MS: u64 = 5_000;

/// The root shard's answer for a zone.
#[derive(Debug)]
struct ZoneSets {
    by: MapVersion,
    sets: Vec<(StripeSetId, u16)>,
}

/// Open sets that the map does not show yet.
#[derive(Debug, Default)]
pub(crate) struct StripeSetChooser {
    told: BTreeMap<ZoneId, ZoneSets>,
    silent_until: Option<Instant>,
}

/// The choice for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetChoice {
    /// This set, with its width.
    Take(StripeSetId, u16),
    /// The zone's sets have to be opened first.
    Open,
    /// The zone's sets have to be opened, and nobody does that now.
    Later,
}

impl StripeSetChooser {
    /// Drops answers that the new map covers.
    pub fn map_changed(&mut self, map: &ZoneMap) {
        self.told.retain(|_zone, told| told.by > map.version);
    }

    /// Notes that these sets of a zone are open in map version `by`.
    pub fn opened(&mut self, zone: ZoneId, by: MapVersion, sets: Vec<(StripeSetId, u16)>) {
        self.told.insert(zone, ZoneSets { by, sets });
        self.silent_until = None;
    }

    /// Notes that nobody opens sets now.
    pub fn unanswered(&mut self, now: Instant) {
        self.silent_until = Some(now.plus_ms(SILENCE_MS));
    }

    /// Chooses the set for a file of a zone.
    pub fn choose(&self, map: &ZoneMap, zone: ZoneId, data_id: DataId, now: Instant) -> SetChoice {
        let told = self.told.get(&zone).map(|told| told.sets.as_slice());
        let of_map: Vec<_> = map.default_sets(zone).map(named).collect();
        let sets = told.unwrap_or(&of_map);
        // `None`: the zone's first targets may have joined since.
        let chosen = in_turn(sets, data_id);
        let is_open = |id| told.is_some() || map.set(id).is_some_and(|set| set.is_open);
        if let Some((id, width)) = chosen.filter(|(id, _)| is_open(*id)) {
            return SetChoice::Take(id, width);
        }
        if self.silent_until.is_none_or(|until| until <= now) {
            return SetChoice::Open;
        }
        choose_open(map, zone, data_id).unwrap_or(SetChoice::Later)
    }
}

/// A set that is open already, for a file whose zone's default sets nobody opens now.
pub(crate) fn choose_open(map: &ZoneMap, zone: ZoneId, data_id: DataId) -> Option<SetChoice> {
    let open: Vec<_> = map.default_sets(zone).filter(|set| set.is_open).collect();
    let serves = |set: &&StripeSet| {
        let mut targets = set.slots.iter().map(|slot| map.target(slot.target));
        targets.all(|target| target.is_some_and(|of| of.state == TargetState::Serving))
    };
    let of_before = || {
        let sets = map.sets.iter().rev();
        let mut sets = sets.filter(|set| set.zone == zone && set.is_open);
        sets.find(serves)
    };
    let sets = if open.is_empty() {
        of_before().into_iter().map(named).collect()
    } else {
        open.into_iter().map(named).collect::<Vec<_>>()
    };
    in_turn(&sets, data_id).map(|(id, width)| SetChoice::Take(id, width))
}

fn named(set: &StripeSet) -> (StripeSetId, u16) {
    (set.id, set.width())
}

/// Takes the sets in turn, so that each slot gets the same share of files.
fn in_turn(sets: &[(StripeSetId, u16)], data_id: DataId) -> Option<(StripeSetId, u16)> {
    let slots: u64 = sets.iter().map(|(_, width)| u64::from(*width)).sum();
    let mut turn = siphash(&data_id.0.to_le_bytes()).checked_rem(slots)?;
    sets.iter().copied().find(|(_, width)| {
        let is_it = turn < u64::from(*width);
        turn = turn.saturating_sub(u64::from(*width));
        is_it
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{CellId, NodeId, PartitionId, TargetId};
    use zonal_wire::JoinTarget;
    use zonal_zonemap::MapEdit;

    const ZONE: ZoneId = ZoneId(1);

    fn join(id: u32) -> MapEdit {
        MapEdit::Join {
            node: NodeId(id),
            zone: ZONE,
            zone_name: String::new(),
            address: format!("127.0.0.1:{id}"),
            shard: None,
            targets: vec![JoinTarget {
                target: TargetId(id),
                uuid: [id as u8; 16],
                capacity: 1 << 30,
            }],
        }
    }

    fn edited(map: &ZoneMap, edits: &[MapEdit]) -> ZoneMap {
        map.edited(edits).unwrap().unwrap()
    }

    fn file(number: u64) -> DataId {
        DataId::new(PartitionId(1), number)
    }

    #[test]
    fn files_use_all_targets_of_a_wide_zone_evenly() {
        let mut map = ZoneMap::new(CellId::default());
        map = edited(&map, &[MapEdit::SetWidth { slots: 64 }, join(1)]);
        for target in 2..=100 {
            map = edited(&map, &[join(target)]);
        }
        map = edited(&map, &[MapEdit::OpenSets { zone: ZONE }]);
        map = edited(&map, &(101..=138).map(join).collect::<Vec<_>>());
        map = edited(&map, &[MapEdit::OpenSets { zone: ZONE }]);
        let widths: Vec<usize> = map.default_sets(ZONE).map(|set| set.slots.len()).collect();
        assert_eq!(widths, [50, 44, 44]);
        let sets = StripeSetChooser::default();
        let mut files = BTreeMap::new();
        for number in 0..13_800 {
            let choice = sets.choose(&map, ZONE, file(number), Instant(0));
            let SetChoice::Take(set, width) = choice else {
                panic!("{choice:?}");
            };
            *files.entry((set, width)).or_insert(0_u32) += 1;
        }
        for ((set, width), files) in files {
            let each = files / u32::from(width);
            assert!((90..=110).contains(&each), "{set}: {each} a target");
        }
    }

    #[test]
    fn only_open_sets_are_given() {
        let mut map = edited(&ZoneMap::new(CellId::default()), &[join(1), join(2)]);
        let mut sets = StripeSetChooser::default();
        let now = Instant(0);
        let choose =
            |sets: &StripeSetChooser, map: &ZoneMap, now| sets.choose(map, ZONE, file(7), now);
        assert_eq!(choose(&sets, &map, now), SetChoice::Open);
        assert_eq!(sets.choose(&map, ZoneId(2), file(7), now), SetChoice::Open);
        sets.unanswered(now);
        assert_eq!(choose(&sets, &map, now), SetChoice::Later);
        assert_eq!(
            choose(&sets, &map, now.plus_ms(SILENCE_MS)),
            SetChoice::Open
        );
        map = edited(&map, &[MapEdit::OpenSets { zone: ZONE }]);
        let old = map.sets[0].id;
        assert_eq!(choose(&sets, &map, now), SetChoice::Take(old, 2));
        map = edited(&map, &[join(3)]);
        let new = map.sets[1].id;
        // The manager is away: the open set still serves.
        assert_eq!(choose(&sets, &map, now), SetChoice::Take(old, 2));
        let later = now.plus_ms(SILENCE_MS);
        assert_eq!(choose(&sets, &map, later), SetChoice::Open);
        let by = MapVersion(map.version.0 + 1);
        sets.opened(ZONE, by, vec![(new, 3)]);
        assert_eq!(choose(&sets, &map, now), SetChoice::Take(new, 3));
        map = edited(&map, &[MapEdit::OpenSets { zone: ZONE }]);
        sets.map_changed(&map);
        assert!(sets.told.is_empty());
        assert_eq!(choose(&sets, &map, now), SetChoice::Take(new, 3));
    }
}
