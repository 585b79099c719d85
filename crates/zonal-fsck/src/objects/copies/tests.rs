//! A file of one column with three copies, on targets 1 to 3.

use super::*;
use crate::data_fact::{DataClaim, DataFact};
use crate::objects::ObjectJoin;
use zonal_meta::check::FileDataFact;
use zonal_types::{
    CellId, DataId, Epoch, Ino, MapVersion, NodeId, Redundancy, Relocation, RelocationState,
    StripeSetId, TargetId, ZoneId,
};
use zonal_zonemap::{Slot, StripeSet, Target, TargetState, ZoneMap};

const DATA: DataId = DataId(9);
const INO: Ino = Ino(5);
const SIZE: u64 = 65_536;

fn map(out: Option<u32>) -> ZoneMap {
    let mut map = ZoneMap::new(CellId([1; 16]));
    map.targets = (1..=4)
        .map(|target| Target {
            id: TargetId(target),
            node: NodeId(target),
            uuid: [7; 16],
            capacity: 1 << 30,
            state: TargetState::Serving,
        })
        .collect();
    let slots = (1..=4).map(|target| Slot {
        target: TargetId(target),
        previous: None,
        state: match out == Some(target) {
            true => SlotState::Out,
            false => SlotState::Serving,
        },
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

/// A copy on target `1 + object`.
#[derive(Debug, Clone, Copy)]
struct Copy {
    object: u16,
    digest: Option<u64>,
    order: u64,
    bytes: u64,
    truncate_seq: u64,
}

fn copy(object: u16, digest: u64) -> Copy {
    Copy {
        object,
        digest: Some(digest),
        order: 10,
        bytes: SIZE,
        truncate_seq: 2,
    }
}

/// The differences of a join: targets with right copies, targets with wrong ones, and why.
type Difference = (Vec<u32>, Vec<u32>, CopyChoice);

fn join(map: &ZoneMap, copies: &[Copy], notes: &[DataClaim], lost: Option<u32>) -> Vec<Difference> {
    let data = FileDataFact {
        data_id: DATA,
        set: StripeSetId(1),
        start_column: 0,
        count: 1,
        unit: 65_536,
        redundancy: Redundancy::Copies { copies: 3, step: 1 },
        size: SIZE,
        allocated: 0,
        truncate_seq: 2,
        inline: 0,
    };
    let mut facts = vec![DataFact::expected(INO, None, &data)];
    let of_data = |about| DataFact {
        data_id: DATA,
        about,
    };
    facts.extend(notes.iter().copied().map(of_data));
    facts.extend(copies.iter().map(|copy| {
        of_data(DataClaim::Found {
            column: copy.object,
            target: TargetId(u32::from(copy.object) + 1),
            bytes: copy.bytes,
            blocks: 16,
            truncate_seq: copy.truncate_seq,
            deleting: false,
            order: copy.order,
            digest: copy.digest,
        })
    }));
    let encoded = facts.iter().map(|fact| fact.encode(&mut Vec::new()));
    let mut bytes: Vec<_> = encoded.collect();
    bytes.sort_unstable();
    let mut heard = Vec::new();
    let mut tell = |outcome| heard.push(outcome);
    let is_there = |target: TargetId| Some(target.0) != lost;
    let mut join = ObjectJoin::new(map, &is_there, &mut tell);
    for fact in bytes.iter().filter_map(DataFact::decode) {
        join.take(&fact);
    }
    join.finish();
    let targets = |copies: &[ColumnCopy]| copies.iter().map(|copy| copy.target.0).collect();
    let differs = |outcome| match outcome {
        JoinOutcome::Wrong(
            _,
            _,
            FindingKind::CopiesDiffer {
                right,
                wrong,
                chosen,
                ..
            },
        ) => Some((targets(&right), targets(&wrong), chosen)),
        _ => None,
    };
    heard.into_iter().filter_map(differs).collect()
}

fn compared(copies: &[Copy]) -> Vec<Difference> {
    join(&map(None), copies, &[], None)
}

#[test]
fn copies_with_equal_contents_are_no_finding_whatever_their_orders_and_lengths_are() {
    let mut newer = copy(1, 7);
    newer.order = 99;
    let mut shorter = copy(2, 7);
    shorter.bytes = 4096;
    assert_eq!(compared(&[copy(0, 7), newer, shorter]), []);
    // No object is a copy of zeros.
    assert_eq!(compared(&[copy(0, 0), copy(1, 0)]), []);
    assert_eq!(compared(&[]), []);
}

#[test]
fn the_latest_change_decides_then_the_majority_then_the_first_copy() {
    let mut newer = copy(2, 5);
    newer.order = 11;
    let newest = (vec![3], vec![1, 2], CopyChoice::Newest);
    assert_eq!(compared(&[copy(0, 7), copy(1, 7), newer]), [newest]);
    let majority = (vec![2, 3], vec![1], CopyChoice::Majority);
    assert_eq!(compared(&[copy(0, 7), copy(1, 5), copy(2, 5)]), [majority]);
    let first = (vec![1], vec![2, 3], CopyChoice::First);
    assert_eq!(compared(&[copy(0, 7), copy(1, 5), copy(2, 6)]), [first]);
    // An older copy that is equal to the newest one is right, too.
    let mut older = copy(0, 5);
    older.order = 3;
    let newest = (vec![1, 3], vec![2], CopyChoice::Newest);
    assert_eq!(compared(&[older, copy(1, 7), newer]), [newest]);
    // A copy without an object has no changes.
    let none = (vec![1, 3], vec![2], CopyChoice::Newest);
    assert_eq!(compared(&[copy(0, 7), copy(2, 7)]), [none]);
}

#[test]
fn copies_that_may_lawfully_differ_are_not_compared() {
    let good = [copy(0, 7), copy(1, 7)];
    let wrong = copy(2, 5);
    let with = |copy: Copy| [good[0], good[1], copy];
    let is_silent = |copies: &[Copy], notes: &[DataClaim], lost| {
        assert_eq!(
            join(&map(None), copies, notes, lost),
            [],
            "{copies:?} {notes:?}"
        );
    };
    assert_eq!(compared(&with(wrong)).len(), 1, "the copy does differ");
    let target = TargetId(3);
    is_silent(&with(wrong), &[DataClaim::Stale { ino: INO, target }], None);
    let moves = |state| DataClaim::Relocated {
        ino: INO,
        relocation: Relocation {
            object: Column(2),
            set: StripeSetId(1),
            slot: if state == RelocationState::Missing {
                2
            } else {
                3
            },
            state,
            as_of: MapVersion(3),
        },
    };
    for state in [
        RelocationState::Missing,
        RelocationState::Filling,
        RelocationState::Filled,
    ] {
        is_silent(&with(wrong), &[moves(state)], None);
    }
    is_silent(&with(wrong), &[], Some(3));
    let mut longer = wrong;
    longer.bytes = SIZE + 1;
    is_silent(&with(longer), &[], None);
    let mut behind = wrong;
    behind.truncate_seq = 1;
    is_silent(&with(behind), &[], None);
    let mut damaged = wrong;
    damaged.digest = None;
    is_silent(&with(damaged), &[], None);
    assert_eq!(join(&map(Some(3)), &with(wrong), &[], None), []);
    // All that have an object are behind: the third one may have been cut.
    let mut old = [wrong, wrong];
    (old[0].object, old[1].object) = (0, 1);
    old.iter_mut().for_each(|copy| copy.truncate_seq = 1);
    is_silent(&old, &[], None);
    // A mark of another inode, or of another target, excuses nothing.
    let (ino, other) = (Ino(6), TargetId(2));
    for note in [
        DataClaim::Stale { ino, target },
        DataClaim::Stale {
            ino: INO,
            target: other,
        },
    ] {
        let found = join(&map(None), &with(wrong), &[note], None);
        assert_eq!(found.len(), 1, "{note:?}");
    }
}
