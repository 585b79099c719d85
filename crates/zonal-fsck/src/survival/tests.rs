//! Files of a zone with three nodes: 1 and 2 have a target each, 3 has two.

use super::*;
use zonal_layout::new_layout;
use zonal_types::{
    CellId, DataId, Epoch, MapVersion, Relocation, RelocationState, StripePolicy, StripeSetId,
    ZoneId,
};
use zonal_zonemap::{StripeSet, Target, TargetState};

const SET: StripeSetId = StripeSetId(1);
const UNIT: u32 = 65_536;
const ROW: u64 = 4 * UNIT as u64;

/// Nodes of targets 1 to 4.
const NODES: [u32; 4] = [1, 2, 3, 3];

fn map() -> ZoneMap {
    let mut map = ZoneMap::new(CellId([1; 16]));
    let numbers = || NODES.iter().zip(1..);
    map.targets = numbers()
        .map(|(node, target)| Target {
            id: TargetId(target),
            node: NodeId(*node),
            uuid: [7; 16],
            capacity: 1 << 30,
            state: TargetState::Serving,
        })
        .collect();
    let slots = numbers().map(|(_, target)| Slot {
        target: TargetId(target),
        previous: None,
        state: SlotState::Serving,
        slot_epoch: Epoch(1),
    });
    map.sets = vec![StripeSet {
        id: SET,
        zone: ZoneId(1),
        is_open: true,
        slots: slots.collect(),
    }];
    map
}

/// A file whose column 0 begins on target 1.
fn layout(copies: u16) -> Layout {
    let policy = StripePolicy {
        count: 0,
        unit: UNIT,
        redundancy: zonal_types::Redundancy::of_copies(copies).unwrap(),
        ..StripePolicy::default()
    };
    new_layout(&policy, SET, (4, 1), ZoneId(1), DataId(4)).unwrap()
}

fn stale(copies: u16, target: u32) -> Layout {
    let mut layout = layout(copies);
    layout.stale = vec![TargetId(target)];
    layout
}

fn take_out(map: &mut ZoneMap, target: u32) {
    let slots = map.sets.iter_mut().flat_map(|set| &mut set.slots);
    for slot in slots.filter(|slot| slot.target == TargetId(target)) {
        slot.state = SlotState::Out;
    }
}

fn ids(targets: &[u32]) -> BTreeSet<TargetId> {
    targets.iter().copied().map(TargetId).collect()
}

/// Survival, whole copies, copies asked for, and the targets.
type Judged = (Survival, u16, u16, BTreeSet<TargetId>);

fn judged(service: &TargetService<'_>, layout: &Layout, size: u64) -> Judged {
    let found = service.judge(layout, size);
    (found.survival, found.whole, found.copies, found.targets)
}

fn all_serve(map: &ZoneMap) -> TargetService<'_> {
    TargetService::new(map, BTreeSet::new(), BTreeSet::new())
}

#[test]
fn files_are_whole_where_all_targets_serve() {
    let map = map();
    let service = all_serve(&map);
    for copies in [1, 2, 3] {
        let found = judged(&service, &layout(copies), ROW);
        assert_eq!(found, (Survival::Whole, copies, copies, ids(&[])));
    }
}

#[test]
fn a_target_that_is_out_leaves_one_copy_away_and_two_endangered() {
    let mut map = map();
    take_out(&mut map, 2);
    let silent = self::map();
    let services = [
        all_serve(&map),
        TargetService::new(&silent, ids(&[2]), BTreeSet::new()),
    ];
    for service in services {
        let found = judged(&service, &layout(1), ROW);
        assert_eq!(found, (Survival::Unavailable, 0, 1, ids(&[2])));
        let found = judged(&service, &layout(2), ROW);
        assert_eq!(found, (Survival::Endangered, 1, 2, ids(&[2])));
        let found = judged(&service, &layout(3), ROW);
        assert_eq!(found, (Survival::Endangered, 2, 3, ids(&[2])));
    }
}

#[test]
fn columns_without_bytes_cannot_be_lost() {
    let map = map();
    let lost = TargetService::new(&map, BTreeSet::new(), ids(&[2]));
    let of_size = |size| lost.judge(&layout(1), size).survival;
    // Column 1 is on target 2.
    assert_eq!(of_size(0), Survival::Whole);
    assert_eq!(of_size(u64::from(UNIT)), Survival::Whole);
    assert_eq!(of_size(u64::from(UNIT) + 1), Survival::Lost);
    let mut kept = layout(1);
    kept.components[0].kind = ComponentKind::StripedInline { bytes: 4096 };
    let first = TargetService::new(&map, BTreeSet::new(), ids(&[1]));
    assert_eq!(first.judge(&kept, 4096).survival, Survival::Whole);
    assert_eq!(first.judge(&kept, 4097).survival, Survival::Lost);
    assert_eq!(first.judge(&layout(1), 4096).survival, Survival::Lost);
}

#[test]
fn a_stale_copy_does_not_count_whether_its_target_serves_or_not() {
    let mut map = map();
    let file = stale(2, 2);
    let endangered = (Survival::Endangered, 1, 2, ids(&[2]));
    assert_eq!(judged(&all_serve(&map), &file, ROW), endangered);
    take_out(&mut map, 2);
    assert_eq!(judged(&all_serve(&map), &file, ROW), endangered);
    // The whole copies of columns 1 and 0 are on targets 3 and 1.
    let lost = TargetService::new(&map, BTreeSet::new(), ids(&[3]));
    let found = judged(&lost, &file, ROW);
    assert_eq!(found, (Survival::Lost, 0, 2, ids(&[2, 3])));
    take_out(&mut map, 3);
    let found = judged(&all_serve(&map), &file, ROW);
    assert_eq!(found, (Survival::Unavailable, 0, 2, ids(&[2, 3])));
}

#[test]
fn an_outage_and_a_loss_leave_what_may_return() {
    let mut map = map();
    take_out(&mut map, 2);
    let lost = TargetService::new(&map, BTreeSet::new(), ids(&[3]));
    // Column 1 has a whole copy on target 2, which may return.
    let found = judged(&lost, &layout(2), ROW);
    assert_eq!(found, (Survival::Unavailable, 0, 2, ids(&[2, 3])));
    assert_eq!(lost.judge(&layout(1), ROW).survival, Survival::Lost);
}

#[test]
fn files_in_sets_or_on_targets_that_the_map_does_not_have_are_lost() {
    let mut map = map();
    let mut elsewhere = layout(2);
    elsewhere.components[0].set = StripeSetId(9);
    let found = judged(&all_serve(&map), &elsewhere, ROW);
    assert_eq!(found, (Survival::Lost, 0, 2, ids(&[])));
    map.targets.retain(|target| target.id != TargetId(2));
    let found = judged(&all_serve(&map), &layout(1), ROW);
    assert_eq!(found, (Survival::Lost, 0, 1, ids(&[])));
    let found = judged(&all_serve(&map), &layout(2), ROW);
    assert_eq!(found, (Survival::Endangered, 1, 2, ids(&[])));
}

#[test]
fn a_file_is_as_its_worst_component() {
    let mut map = map();
    take_out(&mut map, 1);
    let mut file = layout(2);
    file.components[0].end = ROW;
    let mut second = layout(1).components.remove(0);
    second.start = ROW;
    file.components.push(second);
    let of_size = |size| all_serve(&map).judge(&file, size).survival;
    assert_eq!(of_size(ROW), Survival::Endangered);
    assert_eq!(of_size(ROW + 1), Survival::Unavailable);
}

#[test]
fn single_points_of_failure_are_targets_and_nodes() {
    let map = map();
    let service = all_serve(&map);
    let nodes = |numbers: &[u32]| numbers.iter().copied().map(NodeId).collect();
    // The copies of column 2 are on targets 3 and 4 of one node.
    let expected = SoleHolders {
        targets: ids(&[]),
        nodes: nodes(&[3]),
    };
    assert_eq!(service.sole_holders(&layout(2), ROW), expected);
    let expected = SoleHolders {
        targets: ids(&[1, 3]),
        nodes: nodes(&[1, 3]),
    };
    assert_eq!(service.sole_holders(&stale(2, 2), ROW), expected);
    let expected = SoleHolders {
        targets: ids(&[1, 2, 3, 4]),
        nodes: nodes(&[1, 2, 3]),
    };
    assert_eq!(service.sole_holders(&layout(1), ROW), expected);
}

#[test]
fn an_object_counts_at_its_main_place_alone() {
    use RelocationState::{Filled, Filling, Settled};
    // Object 1 of column 1 moves from target 2 to target 4.
    let moves = |copies, state| {
        let mut file = layout(copies);
        file.components[0].redundancy = match copies {
            1 => zonal_types::Redundancy::Copies { copies: 1, step: 0 },
            _ => file.components[0].redundancy,
        };
        file.components[0].relocations = vec![Relocation {
            object: Column(1),
            set: SET,
            slot: 3,
            state,
            as_of: MapVersion(2),
        }];
        file
    };
    let mut drained = map();
    take_out(&mut drained, 2);
    drained.targets[1].state = TargetState::Drained;
    let mut removed = drained.clone();
    removed.targets.remove(1);
    // One column has its bytes: it is enough for a file with one copy.
    let size = 2 * u64::from(UNIT);
    for map in [&drained, &removed] {
        let service = all_serve(map);
        let state = |file: &Layout| service.judge(file, size).survival;
        for filled in [Filled, Settled] {
            assert_eq!(state(&moves(1, filled)), Survival::Whole, "{filled:?}");
            assert_eq!(
                service.sole_holders(&moves(1, filled), size).targets,
                ids(&[1, 4])
            );
        }
        assert!(state(&moves(1, Filling)) < Survival::Endangered);
    }
    let lost_new = TargetService::new(&drained, BTreeSet::new(), ids(&[4]));
    assert_eq!(
        lost_new.judge(&moves(1, Filled), size).survival,
        Survival::Lost
    );
    // While it is filled, nothing depends on the new place.
    let serving = map();
    let lost_new = TargetService::new(&serving, BTreeSet::new(), ids(&[4]));
    assert_eq!(
        lost_new.judge(&moves(1, Filling), size).survival,
        Survival::Whole
    );
    // Two copies: each column has both while one of them moves.
    let found = judged(&all_serve(&serving), &moves(2, Filling), size);
    assert_eq!(found, (Survival::Whole, 2, 2, ids(&[])));
}
