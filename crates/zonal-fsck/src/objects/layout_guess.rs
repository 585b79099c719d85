//! Guesses the layout of bytes whose inode is lost.

use super::UnownedObject;
use zonal_layout::stripe;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{
    Column, Component, ComponentKind, DataId, Layout, LayoutGen, Redundancy, TargetId,
};
use zonal_zonemap::{StripeSet, ZoneMap};

/// The target of a slot that is computed from the component alone.
fn computed_target(set: &StripeSet, component: &Component, column: u16) -> Option<TargetId> {
    let width = u16::try_from(set.slots.len()).ok()?;
    let slot = stripe::slot_of(component, Column(column), width).ok()?;
    set.slots.get(usize::from(slot)).map(|slot| slot.target)
}

/// Guesses a layout for bytes without an inode, from the places of their objects; also returns the
/// file's size.
///
/// The stripe unit is the default: with one column it does not matter, with more it is a guess.
/// Returns `None` where no layout agrees with the places: an object that moved would make any of
/// them agree.
#[must_use]
pub fn guess_layout(
    map: &ZoneMap,
    data_id: DataId,
    unowned: &[UnownedObject],
) -> Option<(Layout, u64)> {
    let first = unowned.first()?;
    let last = unowned.iter().map(|object| object.column).max()?;
    let set = map.sets.iter().rev().find(|set| {
        let holds = |target| set.slots.iter().any(|slot| slot.target == target);
        set.is_open && unowned.iter().all(|object| holds(object.target))
    })?;
    let width = u16::try_from(set.slots.len()).ok()?;
    let slot = set
        .slots
        .iter()
        .position(|slot| slot.target == first.target)?;
    let slot = u16::try_from(slot).ok()?;
    if last >= width {
        return None;
    }
    let start_column = (slot + width - first.column % width) % width;
    let component = Component {
        kind: ComponentKind::Striped,
        start: 0,
        end: u64::MAX,
        data_id,
        zone: set.zone,
        set: set.id,
        start_column: Column(start_column),
        count: if last == 0 { 1 } else { width },
        unit: zonal_types::StripePolicy::default().unit,
        span: 0,
        redundancy: Redundancy::None,
        relocations: Vec::new(),
    };
    let agrees = |object: &UnownedObject| {
        computed_target(set, &component, object.column) == Some(object.target)
    };
    if !unowned.iter().all(agrees) {
        return None;
    }
    let ends = unowned
        .iter()
        .filter(|object| object.bytes > 0)
        .map(|object| {
            let end = stripe::file_offset_of(&component, Column(object.column), object.bytes - 1);
            end.saturating_add(1)
        });
    let size = ends.max().unwrap_or(0).min(FILE_BYTES_MAX);
    Some((
        Layout {
            layout_gen: LayoutGen(1),
            components: vec![component],
            stale: Vec::new(),
        },
        size,
    ))
}
