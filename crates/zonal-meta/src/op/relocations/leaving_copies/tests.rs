//! Tests of files that get fewer copies.

use super::super::forget_deleted;
use super::super::tests::{fenced, file, layout, map};
use super::*;
use crate::inode::Inode;
use zonal_types::{StripeSetId, ZoneId};
use zonal_zonemap::MapEdit;

const OBJECT: Column = Column(0);

/// A file of one column with three copies.
fn tripled(map: &ZoneMap) -> Layout {
    let mut layout = layout(map);
    layout.components[0].redundancy = Redundancy::Copies { copies: 3, step: 1 };
    layout
}

fn begin_one(layout: &mut Layout, map: &ZoneMap, stay: u16) -> Result<()> {
    let known = layout.clone();
    begin(&mut layout.components[0], &known, map, (stay, false))
}

fn target(layout: &Layout, map: &ZoneMap, object: u16) -> TargetId {
    let at = map.slot_of_place(&layout.components[0], Column(object));
    at.unwrap().slot.target
}

fn states(layout: &Layout) -> Vec<(u16, RelocationState)> {
    let records = layout.relocations();
    records.map(|of| (of.object.0, of.state)).collect()
}

fn out(map: &ZoneMap, target: TargetId) -> ZoneMap {
    let edited = map.edited(&[MapEdit::TakeOut { target }]);
    edited.unwrap().unwrap()
}

#[test]
fn copies_go_once_their_targets_know_the_fence_and_count_until_they_are_counted() {
    use RelocationState::{Dropped, Leaving, Leftover, Unread};
    let first = map();
    let mut layout = tripled(&first);
    let (second, third) = (target(&layout, &first, 1), target(&layout, &first, 2));
    begin_one(&mut layout, &first, 1).unwrap();
    assert_eq!(states(&layout), [(1, Leaving), (2, Leaving)]);
    assert_eq!(staying(&layout.components[0]).copies(), 1);
    let whole = first.whole_places(&layout, &layout.components[0], 0, true);
    assert_eq!(whole, [OBJECT], "a copy that goes is no source");
    // Without a fence, and with one that the target does not know, nothing happens.
    let later = fenced(&first);
    assert!(!advance(&mut layout, &first, Some((second, first.version))));
    assert!(!advance(&mut layout, &later, Some((second, first.version))));
    assert!(!advance(&mut layout, &first, Some((second, later.version))));
    assert!(advance(&mut layout, &later, Some((second, later.version))));
    assert_eq!(states(&layout), [(1, Unread), (2, Leaving)]);
    assert!(advance(&mut layout, &later, Some((third, later.version))));
    assert_eq!(states(&layout), [(1, Dropped), (2, Dropped)]);
    let one = Redundancy::Copies { copies: 1, step: 0 };
    assert_eq!(layout.components[0].redundancy, one);
    assert!(later.has_leftover(&layout.components[0], Column(2), third));

    // The target counts after one more fence, and deletes after another.
    let object = [(DataId(1), Column(1))];
    let count = |layout: &mut Layout, map: &ZoneMap, as_of| {
        note_counted(layout, map, second, (&object, as_of))
    };
    let early = count(&mut layout, &later, later.version);
    assert_eq!(early, Err(ErrorCode::NotReady));
    let counting = fenced(&later);
    count(&mut layout, &counting, counting.version).unwrap();
    assert_eq!(states(&layout), [(1, Leftover), (2, Dropped)]);
    let counted = layout.clone();
    count(&mut layout, &counting, counting.version).unwrap();
    // The message again: no deletion is noted by it.
    let again = (&object[..], counting.version);
    forget_deleted(&mut layout, &counting, second, again);
    assert_eq!(layout, counted);
    let deleting = fenced(&counting);
    let deleted = (&object[..], deleting.version);
    forget_deleted(&mut layout, &deleting, second, deleted);
    assert_eq!(states(&layout), [(2, Dropped)]);
}

#[test]
fn no_copy_goes_while_one_that_stays_is_not_whole() {
    let map = map();
    let whole = tripled(&map);
    let (first, second) = (target(&whole, &map, 0), target(&whole, &map, 1));
    let begun = |layout: &Layout, map: &ZoneMap, stay| begin_one(&mut layout.clone(), map, stay);
    let mut stale = whole.clone();
    stale.stale = vec![second];
    assert_eq!(begun(&stale, &map, 2), Err(ErrorCode::Busy));
    assert_eq!(begun(&stale, &map, 1), Ok(()));
    assert_eq!(begun(&whole, &out(&map, first), 2), Err(ErrorCode::Busy));

    // One that stays misses changes by the time when the others could go.
    let mut layout = whole.clone();
    begin_one(&mut layout, &map, 2).unwrap();
    layout.stale = vec![second];
    let later = fenced(&map);
    let third = target(&layout, &map, 2);
    let heard = Some((third, later.version));
    assert!(advance(&mut layout, &later, heard));
    assert_eq!(states(&layout), [(2, RelocationState::Unread)]);
    layout.stale.clear();
    assert!(advance(&mut layout, &later, heard));
    assert_eq!(states(&layout), [(2, RelocationState::Dropped)]);
}

#[test]
fn a_copy_on_a_target_that_is_out_goes_at_once() {
    let map = map();
    let mut layout = tripled(&map);
    let away = out(&map, target(&layout, &map, 2));
    begin_one(&mut layout, &away, 2).unwrap();
    assert!(advance(&mut layout, &away, None));
    assert_eq!(states(&layout), [(2, RelocationState::Dropped)]);
    let two = Redundancy::Copies { copies: 2, step: 1 };
    assert_eq!(layout.components[0].redundancy, two);
}

#[test]
fn copies_stay_after_all_where_no_other_one_is_whole() {
    let map = map();
    let mut layout = tripled(&map);
    let first = target(&layout, &map, 0);
    begin_one(&mut layout, &map, 1).unwrap();
    let lost = out(&map, first);
    assert!(advance(&mut layout, &lost, None));
    assert_eq!(layout, tripled(&map));
    // Nothing would be won with copies that miss changes.
    begin_one(&mut layout, &map, 1).unwrap();
    layout.stale = (1..3).map(|object| target(&layout, &map, object)).collect();
    layout.stale.sort_unstable();
    assert!(!advance(&mut layout, &lost, None));
}

#[test]
fn a_mark_that_would_leave_no_whole_copy_keeps_those_that_were_to_go() {
    let map = map();
    let mut inode = file(tripled(&map));
    let first = target(&inode.layout, &map, 0);
    let third = target(&inode.layout, &map, 2);
    begin_one(&mut inode.layout, &map, 1).unwrap();
    // One that goes is marked as others are.
    let away = out(&map, third);
    let mut marked = inode.clone();
    let mark =
        |inode: &mut Inode, map: &ZoneMap, of| crate::op::stale_copies::mark_in(inode, map, &[of]);
    assert_eq!(mark(&mut marked, &away, third), Ok(true));
    assert_eq!(marked.layout.stale, [third]);
    assert_eq!(states(&marked.layout).len(), 2);
    // The one that stays is out: the others do.
    let lost = out(&map, first);
    assert_eq!(mark(&mut inode, &lost, first), Ok(true));
    assert_eq!(inode.layout.stale, [first]);
    assert!(inode.layout.components[0].relocations.is_empty());
}

#[test]
fn a_wide_file_loses_as_many_copies_as_there_is_room_for_records() {
    let map = map();
    let stays = |count, stay, records| {
        let mut layout = tripled(&map);
        let component = &mut layout.components[0];
        component.count = count;
        component.relocations = vec![
            Relocation {
                object: OBJECT,
                set: StripeSetId(9),
                slot: 0,
                state: RelocationState::Settled,
                as_of: map.version,
            };
            records
        ];
        let room = RELOCATIONS_MAX - records;
        let fit = u16::try_from(room / usize::from(count)).unwrap();
        (kept_of(component, stay), fit)
    };
    assert_eq!(stays(128, 1, 0), (Some(1), 2));
    assert_eq!(stays(129, 1, 0), (Some(2), 1));
    assert_eq!(stays(128, 1, 1), (Some(2), 1));
    assert_eq!(stays(256, 2, 0), (Some(2), 1));
    assert_eq!(stays(256, 2, 1), (None, 0));
}

#[test]
fn a_copy_in_another_zone_goes_or_stays_where_its_number_allows_it() {
    let (zone, set) = (ZoneId(2), StripeSetId(9));
    let made = Redundancy::Copies { copies: 2, step: 1 }.with_also_zone(zone, set);
    // Copies: in the zone, in the zone, in the other one.
    assert_eq!(made.lowered(1, true), None);
    let without = Redundancy::Copies { copies: 2, step: 1 };
    assert_eq!(made.lowered(2, false), Some(without));
    let only = Redundancy::Copies { copies: 1, step: 0 };
    assert_eq!(made.lowered(1, false), Some(only));
    // It came before the last ones.
    let early = Redundancy::None.with_also_zone(zone, set);
    let raised = early.with_zone_copies(3, 1);
    assert_eq!(raised.lowered(1, true), Some(early));
    assert_eq!(raised.lowered(3, false), None);
    assert_eq!(raised.lowered(1, false), Some(only));
}
