//! Stale copies: marks the targets whose copies of a file miss changes
//! (docs/rfcs/2026-11-27-outages.md).
//!
//! *Invariant*: each column of a file with copies has one on a target without a mark.

use super::Result;
use crate::inode::Inode;
use crate::tx::Tx;
use zonal_layout::slot_of;
use zonal_types::limits::STALE_TARGETS_MAX;
use zonal_types::{Component, ErrorCode, Ino, LayoutGen, TargetId};
use zonal_wire::MetaReply;
use zonal_zonemap::ZoneMap;

/// Marks the copies of a file on these targets.
pub(crate) fn mark(tx: &mut Tx<'_>, ino: Ino, targets: &[TargetId]) -> Result {
    let mut inode = tx.inode(ino)?;
    if !inode.is_file() {
        return Err(ErrorCode::Invalid);
    }
    let map = tx.env.map;
    if targets.iter().any(|target| !map.is_out(*target)) {
        return Err(ErrorCode::WrongTarget);
    }
    if mark_in(&mut inode, map, targets)? {
        tx.save(inode.clone());
    }
    Ok(MetaReply::Attr {
        attr: inode.attr(),
        data: Some(inode.data()),
        attr_ms: 0,
    })
}

/// Marks targets in the layout. False: nothing changed.
fn mark_in(inode: &mut Inode, map: &ZoneMap, targets: &[TargetId]) -> Result<bool> {
    let layout = &inode.layout;
    let mut stale = layout.stale.clone();
    for component in &layout.components {
        let of_columns = (0..component.count).map(|column| copies_of(component, column, map));
        for copies in of_columns {
            let copies = copies?;
            // The only copy is waited for.
            if copies.len() > 1 {
                stale.extend(copies.iter().filter(|target| targets.contains(target)));
            }
        }
    }
    stale.sort_unstable();
    stale.dedup();
    if stale == layout.stale {
        return Ok(false);
    }
    let is_stale = |target: &TargetId| stale.binary_search(target).is_ok();
    for component in &layout.components {
        for column in 0..component.count {
            let copies = copies_of(component, column, map)?;
            if copies.len() > 1 && copies.iter().all(is_stale) {
                return Err(ErrorCode::Io);
            }
        }
    }
    if stale.len() > STALE_TARGETS_MAX {
        return Err(ErrorCode::Io);
    }
    let layout = &mut inode.layout;
    layout.stale = stale;
    layout.layout_gen = LayoutGen(layout.layout_gen.0.saturating_add(1));
    Ok(true)
}

/// The targets of a column's copies.
fn copies_of(component: &Component, column: u16, map: &ZoneMap) -> Result<Vec<TargetId>> {
    let set = map.set(component.set).ok_or(ErrorCode::NotReady)?;
    let objects = zonal_layout::copies_of_column(component, column);
    let target = |object| {
        let slot = slot_of(component, object, set.width()).ok()?;
        set.slots.get(usize::from(slot)).map(|slot| slot.target)
    };
    let targets: Option<Vec<TargetId>> = objects.map(target).collect();
    targets.ok_or(ErrorCode::Corrupt)
}
