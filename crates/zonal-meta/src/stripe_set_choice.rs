//! Choice of a new file's stripe set: the zone's default sets in turn by data id, wider ones more
//! often.
//!
//! *Invariant*: only an open set is given, by the shard's own map or by a newer one of which the
//! manager told. Where the map has no open default set, the root shard is asked to open them: its
//! process keeps the map. While the root shard does not answer, files get sets that are open
//! already.

use crate::dentry::siphash;
use std::collections::BTreeMap;
use zonal_types::{
    Column, DataId, ErrorCode, Instant, Layout, MapVersion, NodeId, Placement, StripePolicy,
    StripeSetId, TargetId, ZoneId,
};
use zonal_zonemap::map::SlotState;
use zonal_zonemap::{StripeSet, ZoneMap};

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

/// A set for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChosenSet {
    pub(crate) set: StripeSetId,
    /// Its slots.
    pub(crate) width: u16,
    /// Its zone.
    pub(crate) zone: ZoneId,
    /// The slot on which the whole file is to lie.
    pub(crate) slot: Option<Column>,
}

/// The choice for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetChoice {
    Take(ChosenSet),
    /// The default sets of this zone have to be opened first.
    Open(ZoneId),
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

    /// Chooses the set for a file that is created at `site`: in a directory of that zone, on that
    /// node.
    pub fn choose_for(
        &self,
        map: &ZoneMap,
        policy: &StripePolicy,
        site: (ZoneId, NodeId),
        data_id: DataId,
        now: Instant,
    ) -> SetChoice {
        let (home, node) = site;
        match policy.placement {
            Placement::Zone => self.choose(map, home, data_id, now),
            Placement::Cell => self.choose(map, ZoneId::CELL, data_id, now),
            Placement::Node => {
                let on_node = self.choose_on_node(map, node, data_id, now);
                on_node.unwrap_or_else(|| self.choose(map, home, data_id, now))
            }
        }
    }

    /// Chooses the set for a file of a zone, or of the cell.
    pub fn choose(&self, map: &ZoneMap, zone: ZoneId, data_id: DataId, now: Instant) -> SetChoice {
        let told = self.told.get(&zone).map(|told| told.sets.as_slice());
        let of_map: Vec<_> = map.default_sets(zone).map(named).collect();
        let sets = told.unwrap_or(&of_map);
        // `None`: the zone's first targets may have joined since.
        let chosen = in_turn(sets, zone, data_id);
        let is_open = |id| told.is_some() || map.set(id).is_some_and(|set| set.is_open);
        if let Some(chosen) = chosen.filter(|chosen| is_open(chosen.set)) {
            return SetChoice::Take(chosen);
        }
        if self.may_ask(now) {
            return SetChoice::Open(zone);
        }
        choose_open(map, zone, data_id).map_or(SetChoice::Later, SetChoice::Take)
    }

    /// Chooses a set and its slot of a target on this node. `None` where the node has no target
    /// that serves, or where none of its targets is in a set that can be opened now.
    pub fn choose_on_node(
        &self,
        map: &ZoneMap,
        node: NodeId,
        data_id: DataId,
        now: Instant,
    ) -> Option<SetChoice> {
        let zone = map.node(node)?.zone;
        let targets = map.targets.iter();
        let targets: Vec<TargetId> = targets
            .filter(|target| target.node == node && target.state.takes_files())
            .map(|target| target.id)
            .collect();
        let turn = usize::try_from(data_id.0).unwrap_or(0);
        let target = *targets.get(turn.checked_rem(targets.len())?)?;
        let slot_in = |set: &StripeSet| {
            let slot = set.slots.iter().position(|slot| slot.target == target)?;
            Some(ChosenSet {
                set: set.id,
                width: u16::try_from(set.slots.len()).ok()?,
                zone: set.zone,
                slot: Some(Column(u16::try_from(slot).ok()?)),
            })
        };
        let told = self.told.get(&zone);
        let is_told = |id| told.is_some_and(|told| told.sets.iter().any(|(of, _)| *of == id));
        let mut defaults = map.default_sets(zone);
        let open = defaults.find(|set| (set.is_open || is_told(set.id)) && slot_in(set).is_some());
        if let Some(chosen) = open.and_then(slot_in) {
            return Some(SetChoice::Take(chosen));
        }
        // Sets that a newer map has may hold the target; this map does not show their slots.
        if told.is_none() && self.may_ask(now) {
            return Some(SetChoice::Open(zone));
        }
        let mut sets = map.sets.iter().rev().filter(|set| set.is_open);
        sets.find_map(slot_in).map(SetChoice::Take)
    }

    /// Chooses the set for a file's copy in another zone than `own`, where the policy wants one.
    /// Any zone, or its own one: the other zones are taken in turn, those first whose targets all
    /// serve. Targets that are out fill the copy when they are back.
    ///
    /// `None` also where no other zone has targets: the file is made without that copy.
    pub fn choose_also(
        &self,
        map: &ZoneMap,
        policy: &StripePolicy,
        own: ZoneId,
        data_id: DataId,
        now: Instant,
    ) -> Option<SetChoice> {
        let (wanted, _) = policy.redundancy.also_zone()?;
        if own == ZoneId::CELL {
            return None;
        }
        let is_any = wanted == ZoneId::CELL || wanted == own;
        let zones = map.zones.iter().map(|zone| zone.id);
        let others = zones.filter(|zone| *zone != own && (is_any || *zone == wanted));
        let slots = |zone: ZoneId| map.default_sets(zone).flat_map(|set| &set.slots);
        let mut zones: Vec<ZoneId> = others
            .filter(|zone| slots(*zone).next().is_some())
            .collect();
        let serves = |zone: &ZoneId| slots(*zone).all(|slot| slot.state == SlotState::Serving);
        if zones.iter().any(serves) {
            zones.retain(serves);
        }
        let turn = usize::try_from(data_id.0).unwrap_or(0);
        let zone = *zones.get(turn.checked_rem(zones.len())?)?;
        match self.choose(map, zone, data_id, now) {
            SetChoice::Later => None,
            choice => Some(choice),
        }
    }

    fn may_ask(&self, now: Instant) -> bool {
        self.silent_until.is_none_or(|until| until <= now)
    }
}

/// A set that is open already, for a file whose zone's default sets nobody opens now.
pub(crate) fn choose_open(map: &ZoneMap, zone: ZoneId, data_id: DataId) -> Option<ChosenSet> {
    let open: Vec<_> = map.default_sets(zone).filter(|set| set.is_open).collect();
    let serves = |set: &&StripeSet| {
        let mut targets = set.slots.iter().map(|slot| map.target(slot.target));
        targets.all(|target| target.is_some_and(|of| of.state.takes_files()))
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
    in_turn(&sets, zone, data_id)
}

/// The layout of a new file over the set that was chosen for it, and one for its copy in another
/// zone.
///
/// # Errors
/// `Corrupt` for an invalid policy or a set without slots. `NotReady` for a file with copies, where
/// this map does not show the set yet.
pub(crate) fn layout_over(
    map: &ZoneMap,
    (choice, also): (&ChosenSet, Option<&ChosenSet>),
    policy: &StripePolicy,
    data_id: DataId,
    inline_bytes: u32,
) -> Result<Layout, ErrorCode> {
    let ChosenSet {
        set, width, zone, ..
    } = *choice;
    let step = match (policy.redundancy.zone_copies(), map.set(set)) {
        (1, _) => 1,
        (copies, Some(slots)) => map.copy_step(slots, copies.min(width), data_id),
        (_, None) => return Err(ErrorCode::NotReady),
    };
    let layout = zonal_layout::new_layout(policy, set, (width, step), zone, data_id);
    let layout = match (policy.placement, choice.slot) {
        (Placement::Node, slot) => layout.and_then(|layout| {
            let start = layout.components.first().map(|of| of.start_column);
            zonal_layout::on_slot(layout, slot.or(start).unwrap_or_default())
        }),
        _ => layout,
    };
    let layout = match also {
        Some(also) => layout.and_then(|of| zonal_layout::with_also_zone(of, also.zone, also.set)),
        None => layout,
    };
    layout
        .and_then(|layout| zonal_layout::with_inline(layout, inline_bytes))
        .map_err(|_error| ErrorCode::Corrupt)
}

/// The layout that a shard gives to a new file where the map's sets are open: for models of a cell
/// that have no shard. `site` is the zone of the directory and the node of the client.
///
/// # Errors
/// `NotReady` where a set is not open, else as the shard's own.
pub fn layout_of_new_file(
    map: &ZoneMap,
    policy: &StripePolicy,
    site: (ZoneId, NodeId),
    data_id: DataId,
) -> Result<Layout, ErrorCode> {
    let chooser = StripeSetChooser::default();
    match chooser.choose_for(map, policy, site, data_id, Instant(0)) {
        SetChoice::Take(choice) => {
            let also = match chooser.choose_also(map, policy, choice.zone, data_id, Instant(0)) {
                Some(SetChoice::Take(also)) => Some(also),
                _ => None,
            };
            layout_over(map, (&choice, also.as_ref()), policy, data_id, 0)
        }
        SetChoice::Open(_) | SetChoice::Later => Err(ErrorCode::NotReady),
    }
}

fn named(set: &StripeSet) -> (StripeSetId, u16) {
    (set.id, set.width())
}

/// Takes the sets in turn, so that each slot gets the same share of files.
fn in_turn(sets: &[(StripeSetId, u16)], zone: ZoneId, data_id: DataId) -> Option<ChosenSet> {
    let slots: u64 = sets.iter().map(|(_, width)| u64::from(*width)).sum();
    let mut turn = siphash(&data_id.0.to_le_bytes()).checked_rem(slots)?;
    let chosen = sets.iter().copied().find(|(_, width)| {
        let is_it = turn < u64::from(*width);
        turn = turn.saturating_sub(u64::from(*width));
        is_it
    });
    let (set, width) = chosen?;
    Some(ChosenSet {
        set,
        width,
        zone,
        slot: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{CellId, PartitionId};
    use zonal_wire::JoinTarget;
    use zonal_zonemap::{MapEdit, TargetState};

    const ZONE: ZoneId = ZoneId(1);

    fn join(id: u32) -> MapEdit {
        join_in(ZONE, id)
    }

    fn join_in(zone: ZoneId, id: u32) -> MapEdit {
        MapEdit::Join {
            node: NodeId(id),
            zone,
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

    fn take(set: StripeSetId, width: u16) -> SetChoice {
        SetChoice::Take(ChosenSet {
            set,
            width,
            zone: ZONE,
            slot: None,
        })
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
            let SetChoice::Take(chosen) = choice else {
                panic!("{choice:?}");
            };
            *files.entry((chosen.set, chosen.width)).or_insert(0_u32) += 1;
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
        assert_eq!(choose(&sets, &map, now), SetChoice::Open(ZONE));
        assert_eq!(
            sets.choose(&map, ZoneId(2), file(7), now),
            SetChoice::Open(ZoneId(2))
        );
        sets.unanswered(now);
        assert_eq!(choose(&sets, &map, now), SetChoice::Later);
        assert_eq!(
            choose(&sets, &map, now.plus_ms(SILENCE_MS)),
            SetChoice::Open(ZONE)
        );
        map = edited(&map, &[MapEdit::OpenSets { zone: ZONE }]);
        let old = map.sets[0].id;
        assert_eq!(choose(&sets, &map, now), take(old, 2));
        map = edited(&map, &[join(3)]);
        let new = map.sets[1].id;
        // The manager is away: the open set still serves.
        assert_eq!(choose(&sets, &map, now), take(old, 2));
        let later = now.plus_ms(SILENCE_MS);
        assert_eq!(choose(&sets, &map, later), SetChoice::Open(ZONE));
        let by = MapVersion(map.version.0 + 1);
        sets.opened(ZONE, by, vec![(new, 3)]);
        assert_eq!(choose(&sets, &map, now), take(new, 3));
        map = edited(&map, &[MapEdit::OpenSets { zone: ZONE }]);
        sets.map_changed(&map);
        assert!(sets.told.is_empty());
        assert_eq!(choose(&sets, &map, now), take(new, 3));
    }

    #[test]
    fn files_over_the_cell_take_the_zones_in_turn() {
        let joins: Vec<MapEdit> = (1..=6)
            .map(|id| join_in(ZoneId(1 + id as u16 % 2), id))
            .collect();
        let mut map = edited(&ZoneMap::new(CellId::default()), &joins);
        let sets = StripeSetChooser::default();
        let choose = |map: &ZoneMap| sets.choose(map, ZoneId::CELL, file(7), Instant(0));
        assert_eq!(choose(&map), SetChoice::Open(ZoneId::CELL));
        assert!(map.cell_sets.is_empty());
        map = edited(&map, &[MapEdit::OpenSets { zone: ZoneId::CELL }]);
        let SetChoice::Take(chosen) = choose(&map) else {
            panic!("the sets are open");
        };
        assert_eq!((chosen.width, chosen.zone), (6, ZoneId::CELL));
        let set = map.set(chosen.set).unwrap();
        let zones = set.slots.iter().map(|slot| 1 + slot.target.0 % 2);
        assert_eq!(zones.collect::<Vec<_>>(), [1, 2, 1, 2, 1, 2]);
        // A target that joins gets into the cell's sets as well.
        map = edited(&map, &[join(7)]);
        assert_eq!(choose(&map), SetChoice::Open(ZoneId::CELL));
        map = edited(&map, &[MapEdit::OpenSets { zone: ZoneId::CELL }]);
        assert!(matches!(choose(&map), SetChoice::Take(chosen) if chosen.width == 7));
        assert!(map.check().is_empty());
    }

    #[test]
    fn a_file_on_a_node_lies_on_its_targets_slot() {
        let joins: Vec<MapEdit> = (1..=6)
            .map(|id| join_in(ZoneId(1 + id as u16 % 2), id))
            .collect();
        let mut map = edited(&ZoneMap::new(CellId::default()), &joins);
        let mut sets = StripeSetChooser::default();
        let now = Instant(0);
        let choose = |sets: &StripeSetChooser, map: &ZoneMap, node| {
            sets.choose_on_node(map, NodeId(node), file(7), now)
        };
        assert_eq!(choose(&sets, &map, 0), None);
        assert_eq!(choose(&sets, &map, 9), None);
        assert_eq!(choose(&sets, &map, 4), Some(SetChoice::Open(ZoneId(1))));
        sets.unanswered(now);
        assert_eq!(choose(&sets, &map, 4), None, "no open set has the target");
        map = edited(&map, &[MapEdit::OpenSets { zone: ZoneId(1) }]);
        let Some(SetChoice::Take(chosen)) = choose(&sets, &map, 4) else {
            panic!("the set is open");
        };
        let set = map.set(chosen.set).unwrap();
        let slot = usize::from(chosen.slot.unwrap().0);
        assert_eq!(set.slots[slot].target, TargetId(4));
        assert_eq!(chosen.zone, ZoneId(1));
        // A target out of use gets no file.
        map = edited(
            &map,
            &[MapEdit::UseTarget {
                target: TargetId(4),
                state: TargetState::Offline,
            }],
        );
        assert_eq!(choose(&sets, &map, 4), None);
    }
}
