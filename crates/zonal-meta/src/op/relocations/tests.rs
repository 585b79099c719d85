//! Tests of relocations of single files.

use super::*;
use zonal_types::{
    CellId, ComponentKind, FileKind, NodeId, Timestamp, ZoneId, limits::STRIPE_UNIT_DEFAULT,
};
use zonal_wire::JoinTarget;
use zonal_zonemap::MapEdit;

const OBJECT: Column = Column(0);
const BYTES: u64 = 100;

pub(super) fn map() -> ZoneMap {
    let join = |id: u32| MapEdit::Join {
        node: NodeId(id),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: format!("127.0.0.1:{}", 7000 + id),
        shard: None,
        targets: vec![JoinTarget {
            target: TargetId(id),
            uuid: [7; 16],
            capacity: 1 << 30,
        }],
    };
    let mut edits: Vec<MapEdit> = (1..=4).map(join).collect();
    edits.push(MapEdit::OpenSets { zone: ZoneId(1) });
    let map = ZoneMap::new(CellId([1; 16]));
    map.edited(&edits).unwrap().unwrap()
}

pub(super) fn fenced(map: &ZoneMap) -> ZoneMap {
    let target = TargetId(1);
    let fenced = map.edited(&[MapEdit::RenewEpochs { target }]);
    fenced.unwrap().unwrap()
}

pub(super) fn layout(map: &ZoneMap) -> Layout {
    let set = map.default_sets(ZoneId(1)).next().unwrap();
    let component = Component {
        kind: ComponentKind::Striped,
        start: 0,
        end: u64::MAX,
        data_id: DataId(1),
        zone: ZoneId(1),
        set: set.id,
        start_column: Column(0),
        count: 1,
        unit: STRIPE_UNIT_DEFAULT,
        span: 0,
        redundancy: Redundancy::None,
        relocations: Vec::new(),
    };
    Layout {
        layout_gen: LayoutGen(1),
        components: vec![component],
        stale: Vec::new(),
    }
}

/// A file with this layout.
pub(super) fn file(layout: Layout) -> Inode {
    let mut inode = Inode::new(
        Ino(5),
        FileKind::File,
        Ino(1),
        ZoneId(1),
        Timestamp::default(),
    );
    inode.layout = layout;
    inode
}

fn place(
    layout: &Layout,
    map: &ZoneMap,
    to: u32,
) -> std::result::Result<(StripeSetId, u16), NoDestination> {
    let room = [TargetRoom {
        target: TargetId(to),
        bytes: BYTES,
    }];
    let component = &layout.components[0];
    let candidates = destinations::with_room(map, &room, true);
    let chosen = candidates.choose(component, layout, map, (OBJECT, BYTES));
    let (place, target) = chosen?;
    assert_eq!(target, TargetId(to));
    Ok(place)
}

/// Moves the object; something is left at the place before.
fn moved(layout: &mut Layout, map: &ZoneMap, to: u32) {
    let place = place(layout, map, to).unwrap();
    begin(&mut layout.components[0], map, OBJECT, place);
    fill(
        layout,
        map,
        TargetId(to),
        &[(DataId(1), OBJECT)],
        map.version,
    );
    let filled = *relocation_of(&layout.components[0], OBJECT).unwrap();
    assert_eq!(filled.state, RelocationState::Filled);
    leave(&mut layout.components[0], map, &filled);
}

fn states(layout: &Layout) -> Vec<RelocationState> {
    layout.relocations().map(|of| of.state).collect()
}

#[test]
fn an_object_comes_back_once_what_it_left_is_deleted_and_has_no_record_then() {
    use RelocationState::{Leftover, Settled};
    let map = map();
    let mut layout = layout(&map);
    let first = map.slot_of_place(&layout.components[0], OBJECT).unwrap();
    let (first, second) = (first.slot.target, TargetId(3));
    assert_ne!(first, second);
    moved(&mut layout, &map, second.0);
    assert_eq!(states(&layout), [Settled, Leftover]);
    assert!(map.has_leftover(&layout.components[0], OBJECT, first));
    assert_eq!(place(&layout, &map, first.0), Err(NoDestination::Room));

    let later = fenced(&map);
    let deleted = [(DataId(1), OBJECT)];
    let unchanged = layout.clone();
    // Late; of another target; of a map that the shard does not know.
    forget_deleted(&mut layout, &later, first, (&deleted, map.version));
    forget_deleted(&mut layout, &later, second, (&deleted, later.version));
    forget_deleted(&mut layout, &map, first, (&deleted, later.version));
    assert_eq!(layout, unchanged);
    forget_deleted(&mut layout, &later, first, (&deleted, later.version));
    assert_eq!(states(&layout), [Settled]);

    moved(&mut layout, &later, first.0);
    assert_eq!(states(&layout), [Leftover]);
    assert!(later.has_leftover(&layout.components[0], OBJECT, second));
}

#[test]
fn objects_that_a_drain_moved_are_settled_once_their_target_is_drained() {
    let map = map();
    let mut layout = layout(&map);
    let from = map.slot_of_place(&layout.components[0], OBJECT).unwrap();
    let from = from.slot.target;
    let to = (1..=4).find(|number| *number != from.0).unwrap();
    let draining = map.edited(&[MapEdit::SetTargetState {
        target: from,
        state: TargetState::Draining,
    }]);
    let draining = draining.unwrap().unwrap();
    let place = place(&layout, &draining, to).unwrap();
    begin(&mut layout.components[0], &draining, OBJECT, place);
    let moved = [(DataId(1), OBJECT)];
    fill(
        &mut layout,
        &draining,
        TargetId(to),
        &moved,
        draining.version,
    );
    settle_all(&mut layout, &draining);
    assert_eq!(states(&layout), [RelocationState::Filled], "it is in use");

    let renewed = draining.edited(&[MapEdit::RenewEpochs { target: from }]);
    let renewed = renewed.unwrap().unwrap();
    let drained = renewed.edited(&[MapEdit::Retire { target: from }]);
    let drained = drained.unwrap().unwrap();
    settle_all(&mut layout, &drained);
    assert_eq!(states(&layout), [RelocationState::Settled]);
    let now = drained
        .slot_of_place(&layout.components[0], OBJECT)
        .unwrap();
    assert_eq!(now.slot.target, TargetId(to));
}

#[test]
fn an_object_goes_only_where_its_bytes_have_room() {
    let map = map();
    let layout = layout(&map);
    let component = &layout.components[0];
    let room = |bytes| {
        let target = TargetId(3);
        let room = [TargetRoom { target, bytes }];
        let mut candidates = destinations::with_room(&map, &room, false);
        let chosen = candidates.choose(component, &layout, &map, (OBJECT, BYTES));
        candidates.take(target, 1);
        let after = candidates.choose(component, &layout, &map, (OBJECT, BYTES));
        (chosen.is_ok(), after.is_ok())
    };
    assert_eq!(room(BYTES - 1), (false, false));
    assert_eq!(room(BYTES), (true, false));
    assert_eq!(room(BYTES + 1), (true, true));
}

#[test]
fn the_only_filled_copy_of_a_column_is_not_marked_for_another_column() {
    let map = map();
    let mut inode = file(layout(&map));
    let component = &mut inode.layout.components[0];
    component.count = 2;
    component.redundancy = Redundancy::Copies { copies: 2, step: 1 };
    let target = |component: &Component, object| {
        let at = map.slot_of_place(component, Column(object));
        at.unwrap().slot.target
    };
    // The second copy of column 0 is on the target of column 1's first one.
    let both = target(component, 1);
    assert_eq!(target(component, 2), both);
    let mark = |inode: &mut Inode| super::super::stale_copies::mark_in(inode, &map, &[both]);
    assert_eq!(mark(&mut inode.clone()), Ok(true));
    inode.layout.components[0].relocations = vec![Relocation {
        object: Column(0),
        set: inode.layout.components[0].set,
        slot: 0,
        state: RelocationState::Missing,
        as_of: map.version,
    }];
    let before = inode.layout.clone();
    assert_eq!(mark(&mut inode), Err(ErrorCode::Io));
    assert_eq!(inode.layout, before);
}

#[test]
fn a_copy_that_differs_is_filled_again_at_its_place_and_counts_then() {
    let map = map();
    let wall = Timestamp::default();
    let mut inode = Inode::new(Ino(5), FileKind::File, Ino(1), ZoneId(1), wall);
    inode.layout = layout(&map);
    inode.layout.components[0].redundancy = Redundancy::Copies { copies: 2, step: 1 };
    // The second copy has moved before.
    let (data_id, copy) = (DataId(1), Column(1));
    let place = (inode.layout.components[0].set, 2);
    make_missing(&mut inode.layout.components[0], &map, copy, place);
    let target = map.slot_of_place(&inode.layout.components[0], copy);
    let target = target.unwrap().slot.target;
    fill(
        &mut inode.layout,
        &map,
        target,
        &[(data_id, copy)],
        map.version,
    );
    assert_eq!(states(&inode.layout), [RelocationState::Settled]);
    inode.count_allocated(8 * 4_096);
    let settled = inode.layout.clone();

    assert_eq!(refill(&mut inode, &map, data_id, &[(copy, 3)]), Ok(true));
    let expected = [RelocationState::Settled, RelocationState::Missing];
    assert_eq!(states(&inode.layout), expected);
    assert_eq!(inode.allocated_bytes(), 5 * 4_096);
    assert!(is_work_of(&inode.layout, &map, target));
    assert_eq!(refill(&mut inode, &map, data_id, &[(copy, 3)]), Ok(false));
    assert_eq!(inode.allocated_bytes(), 5 * 4_096);
    // The other copy is the last one that is whole.
    let marked = inode.layout.clone();
    let last = refill(&mut inode, &map, data_id, &[(OBJECT, 3)]);
    assert_eq!(last, Err(ErrorCode::Io));
    assert_eq!(inode.layout, marked);
    // Its target has filled it where it was.
    fill(
        &mut inode.layout,
        &map,
        target,
        &[(data_id, copy)],
        map.version,
    );
    assert_eq!(inode.layout.components, settled.components);
    let other = refill(&mut inode, &map, DataId(9), &[(copy, 3)]);
    assert_eq!(other, Ok(false));
}
