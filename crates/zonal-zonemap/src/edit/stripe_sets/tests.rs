//! Joins leave a bounded number of sets and slots, and every target is in a set.

use super::*;
use crate::MapEdit;
use zonal_types::CellId;
use zonal_wire::JoinTarget;

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
            uuid: [1; 16],
            capacity: 1 << 30,
        }],
    }
}

fn edited(map: &ZoneMap, edits: &[MapEdit]) -> ZoneMap {
    let next = map.edited(edits).expect("edits").expect("a change");
    let slots = next.default_sets(ZONE).flat_map(|set| &set.slots);
    let mut used: Vec<TargetId> = slots.map(|slot| slot.target).collect();
    used.sort_unstable();
    let serving: Vec<TargetId> = next.serving(ZONE).into_iter().collect();
    assert_eq!(
        used, serving,
        "each target that serves lies in one default set"
    );
    next
}

fn with(targets: u32) -> ZoneMap {
    let joins: Vec<MapEdit> = (1..=targets).map(join).collect();
    edited(&ZoneMap::new(CellId([1; 16])), &joins)
}

fn widths(map: &ZoneMap) -> Vec<usize> {
    let sets = map.default_sets(ZONE);
    sets.map(|set| set.slots.len()).collect()
}

fn slots(map: &ZoneMap) -> usize {
    map.sets.iter().map(|set| set.slots.len()).sum()
}

const OPEN: MapEdit = MapEdit::OpenSets { zone: ZONE };

#[test]
fn joining_one_by_one_leaves_one_slot_per_target() {
    let mut map = ZoneMap::new(CellId([1; 16]));
    for target in 1..=300 {
        map = edited(&map, &[join(target)]);
        assert_eq!(slots(&map), target as usize);
    }
    assert_eq!(widths(&map), [60; 5]);
    let numbers: Vec<u32> = map.sets.iter().map(|set| set.id.0).collect();
    assert!(numbers.iter().all(|number| *number < map.next_set.0));
    // The 257th target of a zone with one wide set was refused.
    map = edited(&map, &[MapEdit::SetWidth { slots: 256 }, join(301)]);
    assert_eq!(widths(&map), [151, 150]);
}

#[test]
fn open_sets_between_joins_cost_bounded_slots() {
    let mut map = edited(&with(1), &[OPEN]);
    for target in 2..=300 {
        let before = slots(&map);
        map = edited(&map, &[join(target)]);
        map = edited(&map, &[OPEN]);
        assert!(slots(&map) - before <= 64 + 32);
        let all = widths(&map);
        let narrowest = all.iter().min().expect("a set");
        assert!(all.len() == 1 || *narrowest >= 32, "{all:?}");
    }
    assert!(slots(&map) < 300 * 64, "{}", slots(&map));
}

#[test]
fn an_open_set_stays_and_set_numbers_are_never_reused() {
    let map = edited(&with(3), &[OPEN]);
    let first = map.sets[0].clone();
    let map = edited(&map, &[join(4)]);
    let closed = map.sets[1].id;
    assert_eq!((map.sets.len(), widths(&map)), (2, vec![4]));
    let map = edited(&map, &[join(5)]);
    assert_eq!(map.set(first.id), Some(&first));
    assert_eq!(map.set(closed), None, "nobody could give it");
    assert!(
        map.sets
            .iter()
            .all(|set| set.id <= first.id || set.id > closed)
    );
    assert_eq!(
        map.edited(&[MapEdit::OpenSets { zone: ZoneId(9) }])
            .map(|_| ()),
        Err(EditError::Unknown { what: "zone" })
    );
    let map = edited(&map, &[OPEN]);
    assert_eq!(map.edited(&[OPEN]), Ok(None));
}

#[test]
fn a_wide_set_is_kept_and_new_sets_are_equally_wide() {
    let map = edited(&with(64), &[OPEN]);
    let full = map.sets[0].id;
    let mut many = join(65);
    if let MapEdit::Join { targets, .. } = &mut many {
        let first = targets[0].clone();
        targets.extend((66..=164).map(|id| JoinTarget {
            target: TargetId(id),
            ..first.clone()
        }));
    }
    let map = edited(&map, &[many]);
    assert_eq!(widths(&map), [64, 50, 50]);
    assert!(map.default_sets(ZONE).any(|set| set.id == full));
    // A target out of use makes the set that contains it unused.
    let retire = MapEdit::UseTarget {
        target: TargetId(7),
        state: TargetState::Offline,
    };
    let map = edited(&map, &[retire]);
    assert_eq!(widths(&map), [55, 54, 54]);
    assert!(map.set(full).is_some(), "its files");
}

#[test]
fn an_invalid_set_width_is_refused() {
    let map = with(2);
    for slots in [0, 257, u16::MAX] {
        let refused = map.edited(&[MapEdit::SetWidth { slots }]);
        assert!(matches!(refused, Err(EditError::Broken(_))), "{slots}");
    }
    let map = edited(&map, &[MapEdit::SetWidth { slots: 1 }, join(3)]);
    assert_eq!(widths(&map), [1, 1, 1]);
}
