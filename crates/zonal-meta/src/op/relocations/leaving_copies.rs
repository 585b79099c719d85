//! Copies that go: a file gets fewer copies, beside readers and writers
//! (docs/rfcs/2026-11-27-relocations.md).
//!
//! *Invariants*:
//! 1. A copy goes only while all copies that stay are whole and in service.
//! 2. It is part of the layout until no target serves a client that may read it.
//! 3. A copy that goes and has no mark has each change. So it can stay after all.

use super::super::Result;
use super::is_at;
use zonal_layout::{PlaceUse, object_count, object_of, place_use, staying_copies};
use zonal_types::limits::RELOCATIONS_MAX;
use zonal_types::{
    Column, Component, DataId, ErrorCode, Layout, MapVersion, Redundancy, Relocation,
    RelocationState, TargetId,
};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::map::SlotState;

/// The redundancy of a component without the copies that go.
pub(crate) fn staying(component: &Component) -> Redundancy {
    let copies = staying_copies(component);
    let now = component.redundancy;
    if copies == now.copies() {
        return now;
    }
    let also = matches!(now, Redundancy::AlsoZone { at, .. } if at < copies);
    let of_zone = copies.saturating_sub(u16::from(also));
    now.lowered(of_zone, also).unwrap_or(now)
}

/// Has the last copies of a component go, so that these stay. As many as there is room for records.
///
/// # Errors
/// `NotSupported` where one goes that is before one that stays. `Busy` while one that stays is not
/// whole, or not in service. `Range` where there is no room for the records of one copy.
pub(super) fn begin(
    component: &mut Component,
    layout: &Layout,
    map: &ZoneMap,
    (copies, also): (u16, bool),
) -> Result<()> {
    let now = component.redundancy;
    let wanted = now.lowered(copies, also).ok_or(ErrorCode::NotSupported)?;
    if !map.knows_sets(component) {
        return Err(ErrorCode::NotReady);
    }
    let kept = kept_of(component, wanted.copies()).ok_or(ErrorCode::Range)?;
    if !are_whole(component, layout, map, kept) {
        return Err(ErrorCode::Busy);
    }
    for object in kept * component.count..object_count(component) {
        let object = Column(object);
        let at = map.slot_of_place(component, object);
        let at = at.ok_or(ErrorCode::Corrupt)?;
        component.relocations.push(Relocation {
            object,
            set: at.set,
            slot: at.number,
            state: RelocationState::Leaving,
            as_of: map.version,
        });
    }
    zonal_types::mark!(CopyLeaves);
    Ok(())
}

/// The copies that stay where `wanted` are to: more where the records of the others have no room.
/// `None`: not one can go.
fn kept_of(component: &Component, wanted: u16) -> Option<u16> {
    let room = RELOCATIONS_MAX.saturating_sub(component.relocations.len());
    let fit = room.checked_div(component.count.into()).unwrap_or(0);
    let fit = u16::try_from(fit).unwrap_or(u16::MAX);
    let now = component.redundancy.copies();
    let kept = wanted.max(now.saturating_sub(fit));
    (kept < now).then_some(kept)
}

/// True where the first `kept` copies of each column have all changes, and are in service.
fn are_whole(component: &Component, layout: &Layout, map: &ZoneMap, kept: u16) -> bool {
    let objects = kept.saturating_mul(component.count);
    (0..component.count).all(|column| {
        let whole = map.whole_places(layout, component, column, true);
        let stays = |place: &&Column| object_of(component, **place).0 < objects;
        whole.iter().filter(stays).count() == usize::from(kept)
    })
}

/// Goes on with copies that go, as far as possible now. Returns whether the layout has changed.
/// `heard`: a target, and the map that it knows.
pub(in crate::op) fn advance(
    layout: &mut Layout,
    map: &ZoneMap,
    heard: Option<(TargetId, MapVersion)>,
) -> bool {
    if !layout.relocations().any(|of| of.state.is_leaving()) {
        return false;
    }
    let before = layout.clone();
    for component in &mut layout.components {
        let has_leaving = component.relocations.iter().any(|of| of.state.is_leaving());
        if !has_leaving || !map.knows_sets(component) {
            continue;
        }
        if let Some(heard) = heard {
            note_unread(component, map, heard);
        }
        let kept = staying_copies(component);
        if is_unread(component, map) && are_whole(component, &before, map, kept) {
            drop_copies(component, map);
        } else if has_none_whole(component, &before, map) {
            keep(component);
        }
    }
    super::forget_unused_marks(layout, map);
    *layout != before
}

/// Notes that a target serves no client that may read the copies which go.
fn note_unread(component: &mut Component, map: &ZoneMap, (target, as_of): (TargetId, MapVersion)) {
    if !map.knows_outages(component, as_of) {
        return;
    }
    let is_its = |of: &Relocation| {
        of.state == RelocationState::Leaving
            && is_at(map, of, target)
            && map.is_fenced(component, of.as_of)
    };
    let its: Vec<bool> = component.relocations.iter().map(is_its).collect();
    for (of, is_its) in component.relocations.iter_mut().zip(its) {
        if is_its {
            of.state = RelocationState::Unread;
            of.as_of = map.version;
        }
    }
}

/// True where nobody reads the copies that go. A target that is out serves nobody. It comes back
/// with newer epochs than all layouts that name the copy.
fn is_unread(component: &Component, map: &ZoneMap) -> bool {
    let mut going = component.relocations.iter();
    going.all(|of| {
        let slot = map.slot_of_relocation(of);
        let is_out = slot.is_some_and(|slot| slot.state == SlotState::Out);
        of.state != RelocationState::Leaving || is_out
    })
}

/// Takes the copies that go out of the layout.
fn drop_copies(component: &mut Component, map: &ZoneMap) {
    zonal_types::mark!(CopiesDropped);
    let redundancy = staying(component);
    let objects = redundancy.copies().saturating_mul(component.count);
    let is_kept = |of: &Relocation| of.object.0 < objects || of.state != RelocationState::Settled;
    component.relocations.retain(is_kept);
    for of in &mut component.relocations {
        if of.state.is_leaving() {
            of.state = RelocationState::Dropped;
            of.as_of = map.version;
        }
    }
    component.redundancy = redundancy;
}

/// True where a column has no whole copy in service, but one that goes.
fn has_none_whole(component: &Component, layout: &Layout, map: &ZoneMap) -> bool {
    let would_do = |place: &Column| {
        let slot = map.slot_of_place(component, *place).map(|of| of.slot);
        place_use(component, *place) == PlaceUse::Leaving
            && slot
                .is_some_and(|slot| slot.state != SlotState::Out && !layout.is_stale(slot.target))
    };
    (0..component.count).any(|column| {
        let mut places = zonal_layout::places_of_column(component, column);
        let none = map.whole_places(layout, component, column, true).is_empty();
        none && places.any(|place| would_do(&place))
    })
}

/// Has the copies stay that were to go.
fn keep(component: &mut Component) {
    zonal_types::mark!(LeavingCopyKept);
    component.relocations.retain(|of| !of.state.is_leaving());
}

/// As [`advance`] where a mark would leave a column without a whole copy: the copies stay.
pub(in crate::op) fn keep_all(layout: &mut Layout) -> bool {
    let is_leaving = |of: &Relocation| of.state.is_leaving();
    let mut any = false;
    for component in &mut layout.components {
        if component.relocations.iter().any(is_leaving) {
            keep(component);
            any = true;
        }
    }
    any
}

/// Notes that the bytes of these objects of a target do not count in the file any more.
///
/// # Errors
/// `NotReady` where the target may have counted too early, or the shard's map is older.
pub(in crate::op) fn note_counted(
    layout: &mut Layout,
    map: &ZoneMap,
    target: TargetId,
    (objects, as_of): (&[(DataId, Column)], MapVersion),
) -> Result<()> {
    for component in &mut layout.components {
        let data_id = component.data_id;
        for of in &mut component.relocations {
            let is_its = of.state == RelocationState::Dropped
                && is_at(map, of, target)
                && objects.contains(&(data_id, of.object));
            if !is_its {
                continue;
            }
            if as_of > map.version || of.as_of >= as_of {
                return Err(ErrorCode::NotReady);
            }
            of.state = RelocationState::Leftover;
            of.as_of = map.version;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
