//! A file of two columns with an object that moves from target 1 to 4: what its targets may have.

use super::*;
use zonal_meta::check::FileDataFact;
use zonal_types::{CellId, Epoch, MapVersion, NodeId, Redundancy, RelocationState, StripeSetId};
use zonal_zonemap::{Slot, StripeSet, Target};

const DATA: DataId = DataId(9);
const INO: Ino = Ino(5);
const UNIT: u32 = 65_536;
/// Blocks of each object: the file has two units.
const BLOCKS: u64 = 16;

/// Targets 1 to 5 in one set.
fn map() -> ZoneMap {
    let mut map = ZoneMap::new(CellId([1; 16]));
    map.targets = (1..=5)
        .map(|target| Target {
            id: TargetId(target),
            node: NodeId(target),
            uuid: [7; 16],
            capacity: 1 << 30,
            state: TargetState::Serving,
        })
        .collect();
    let slots = (1..=5).map(|target| Slot {
        target: TargetId(target),
        previous: None,
        state: SlotState::Serving,
        slot_epoch: Epoch(1),
    });
    map.sets = vec![StripeSet {
        id: StripeSetId(1),
        zone: ZoneId(1),
        is_open: true,
        slots: slots.collect(),
    }];
    map
}

/// A map in which a target leaves, has left, or is not any more.
fn map_with(target: u32, state: Option<TargetState>) -> ZoneMap {
    let mut map = map();
    match state {
        Some(state) => {
            let own = map.targets.iter_mut().find(|of| of.id == TargetId(target));
            own.unwrap().state = state;
        }
        None => map.targets.retain(|of| of.id != TargetId(target)),
    }
    if matches!(state, None | Some(TargetState::Drained)) {
        let slots = map.sets.iter_mut().flat_map(|set| &mut set.slots);
        for slot in slots.filter(|slot| slot.target == TargetId(target)) {
            slot.state = SlotState::Out;
        }
    }
    map
}

fn record(slot: u16, state: RelocationState) -> Relocation {
    Relocation {
        object: Column(0),
        set: StripeSetId(1),
        slot,
        state,
        as_of: MapVersion(3),
    }
}

/// The findings of a join. Objects: column, target and blocks.
fn join(
    map: &ZoneMap,
    relocations: &[Relocation],
    objects: &[(u16, u32, u64)],
) -> Vec<FindingKind> {
    let data = FileDataFact {
        data_id: DATA,
        set: StripeSetId(1),
        start_column: 0,
        count: 2,
        unit: UNIT,
        redundancy: Redundancy::Copies { copies: 1, step: 0 },
        size: 2 * u64::from(UNIT),
        allocated: 2 * u64::from(UNIT),
        truncate_seq: 0,
        inline: 0,
    };
    let mut facts = vec![DataFact::expected(INO, None, &data)];
    facts.extend(relocations.iter().map(|relocation| DataFact {
        data_id: DATA,
        about: DataClaim::Relocated {
            ino: INO,
            relocation: *relocation,
        },
    }));
    facts.extend(objects.iter().map(|&(column, target, blocks)| DataFact {
        data_id: DATA,
        about: DataClaim::Found {
            column,
            target: TargetId(target),
            bytes: blocks * zonal_object::ids::BLOCK,
            blocks,
            truncate_seq: 0,
            deleting: false,
            order: 0,
            digest: Some(0),
        },
    }));
    joined(map, &facts)
        .into_iter()
        .filter_map(|found| match found {
            JoinOutcome::Wrong(_, _, what) => Some(what),
            _ => None,
        })
        .collect()
}

/// The outcome of facts, sorted as a check sorts them.
fn joined(map: &ZoneMap, facts: &[DataFact]) -> Vec<JoinOutcome> {
    let mut bytes: Vec<_> = facts
        .iter()
        .map(|fact| fact.encode(&mut Vec::new()))
        .collect();
    bytes.sort_unstable();
    let mut heard = Vec::new();
    let mut tell = |outcome| heard.push(outcome);
    let is_there = |target| map.target(target).is_some() && !is_drained(map, target);
    let mut join = ObjectJoin::new(map, &is_there, &mut tell);
    for fact in bytes.iter().filter_map(DataFact::decode) {
        join.take(&fact);
    }
    join.finish();
    heard
}

const OTHER: (u16, u32, u64) = (1, 2, BLOCKS);
const BEFORE: (u16, u32, u64) = (0, 1, BLOCKS);
const NEW: (u16, u32, u64) = (0, 4, BLOCKS);

#[test]
fn an_object_that_moves_counts_once_at_its_main_place() {
    use RelocationState::{Filled, Filling};
    let map = map_with(1, Some(TargetState::Draining));
    // Fewer blocks, and older ones, are all right in the place that does not count.
    let partial = (0, 4, 3);
    let old = (0, 1, BLOCKS + 1);
    let cases: [(_, &[_]); 6] = [
        (Filling, &[BEFORE, OTHER]),
        (Filling, &[BEFORE, OTHER, partial]),
        (Filling, &[BEFORE, OTHER, NEW]),
        (Filled, &[OTHER, NEW]),
        (Filled, &[BEFORE, OTHER, NEW]),
        (Filled, &[old, OTHER, NEW]),
    ];
    for (state, objects) in cases {
        let found = join(&map, &[record(3, state)], objects);
        assert_eq!(found, [], "{state:?} {objects:?}");
    }
    // The place that counts lacks blocks.
    let wrong: [(_, &[_]); 2] = [
        (Filling, &[OTHER, NEW]),
        (Filled, &[BEFORE, OTHER, partial]),
    ];
    for (state, objects) in wrong {
        let found = join(&map, &[record(3, state)], objects);
        let is_counted = matches!(found.as_slice(), [FindingKind::Allocated { .. }]);
        assert!(is_counted, "{state:?} {objects:?}: {found:?}");
    }
}

#[test]
fn an_object_that_has_moved_does_not_need_the_target_that_it_left() {
    let settled = [record(3, RelocationState::Settled)];
    for state in [Some(TargetState::Drained), None] {
        let map = map_with(1, state);
        assert_eq!(join(&map, &settled, &[OTHER, NEW]), [], "{state:?}");
        assert_eq!(join(&map, &settled, &[BEFORE, OTHER, NEW]), [], "{state:?}");
        let filled = [record(3, RelocationState::Filled)];
        assert_eq!(join(&map, &filled, &[OTHER, NEW]), [], "{state:?}");
    }
    // It moves again, from target 4 to 5.
    let map = map_with(4, Some(TargetState::Draining));
    let again = [settled[0], record(4, RelocationState::Filling)];
    assert_eq!(join(&map, &again, &[OTHER, NEW]), []);
    assert_eq!(join(&map, &again, &[OTHER, NEW, (0, 5, 2)]), []);
    let map = map_with(4, Some(TargetState::Drained));
    let again = [record(4, RelocationState::Settled)];
    assert_eq!(join(&map, &again, &[OTHER, NEW, (0, 5, BLOCKS)]), []);
    // A file whose object did not leave the target lost it.
    let map = map_with(1, None);
    let found = join(&map, &[], &[OTHER]);
    let is_lost = matches!(found.as_slice(), [FindingKind::LostWithTarget { .. }]);
    assert!(is_lost, "{found:?}");
}

#[test]
fn an_object_that_no_record_explains_is_misplaced() {
    let is_misplaced =
        |found: &[FindingKind]| matches!(found, [FindingKind::Misplaced { is_copy: true, .. }]);
    // No record; another object's record; a record of another place.
    let mut other = record(3, RelocationState::Filling);
    other.object = Column(1);
    let elsewhere = record(4, RelocationState::Filling);
    for records in [vec![], vec![other], vec![elsewhere]] {
        let found = join(&map(), &records, &[BEFORE, OTHER, NEW]);
        assert!(is_misplaced(&found), "{records:?}: {found:?}");
    }
    // Its target serves: it should not have the object any more, unless it is yet to delete it.
    let settled = [record(3, RelocationState::Settled)];
    let found = join(&map(), &settled, &[BEFORE, OTHER, NEW]);
    assert!(is_misplaced(&found), "{found:?}");
    let left = [settled[0], record(0, RelocationState::Leftover)];
    assert_eq!(join(&map(), &left, &[BEFORE, OTHER, NEW]), []);
    assert_eq!(join(&map(), &left, &[OTHER, NEW]), []);
}

#[test]
fn objects_of_removed_files_are_no_leak_on_a_drained_target_alone() {
    let fact = |target: u32| DataFact {
        data_id: DATA,
        about: DataClaim::Found {
            column: 0,
            target: TargetId(target),
            bytes: 4096,
            blocks: 1,
            truncate_seq: 0,
            deleting: false,
            order: 0,
            digest: Some(0),
        },
    };
    let drained = map_with(1, Some(TargetState::Drained));
    assert_eq!(joined(&drained, &[fact(1)]), []);
    let JoinOutcome::Unowned(_, unowned) = &joined(&drained, &[fact(1), fact(2)])[0] else {
        panic!("nothing is unowned");
    };
    assert_eq!(unowned.len(), 1);
    assert_eq!(unowned[0].target, TargetId(2));
    assert_eq!(joined(&map(), &[fact(1)]).len(), 1);
}
