//! Stale copies: marks the targets whose copies of a file miss changes, and removes the marks once
//! they are filled (docs/rfcs/2026-11-27-outages.md).
//!
//! *Invariant*: each column of a file with copies has one on a target without a mark, which was in
//! service when the others were marked.

use super::relocations::leaving_copies;
use super::{Result, relocations};
use crate::inode::Inode;
use crate::keys;
use crate::tx::Tx;
use zonal_layout::{PlaceUse, place_use};
use zonal_types::limits::STALE_TARGETS_MAX;
use zonal_types::{
    Column, Component, DataId, ErrorCode, Ino, KvRead, LayoutGen, MapVersion, PartitionId, TargetId,
};
use zonal_wire::MetaReply;
use zonal_zonemap::ZoneMap;
use zonal_zonemap::map::{Slot, SlotState};

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
        data: Some(inode.data(tx.map_version())),
        attr_ms: 0,
    })
}

/// Drops the relocations of a file's objects to a target that is full.
pub(crate) fn give_up(tx: &mut Tx<'_>, ino: Ino, target: TargetId) -> Result {
    let mut inode = tx.inode(ino)?;
    if !inode.is_file() {
        return Err(ErrorCode::Invalid);
    }
    if relocations::give_up_at(&mut inode, tx.env.map, target)? {
        zonal_types::mark!(FullPlaceGivenUp);
        tx.save(inode.clone());
    }
    Ok(MetaReply::Attr {
        attr: inode.attr(),
        data: Some(inode.data(tx.map_version())),
        attr_ms: 0,
    })
}

/// Removes the mark of copies that their target has filled. `as_of`: the map by which it began.
/// `full`: it has no room, and what moves to it stays.
pub(crate) fn mend(
    tx: &mut Tx<'_>,
    (ino, target): (Ino, TargetId),
    (as_of, full): (MapVersion, bool),
    allocated_delta: i64,
    relocated: &[(DataId, Column)],
) -> Result {
    if full {
        return give_up(tx, ino, target).map(|_attr| MetaReply::Done);
    }
    let mut inode = tx.inode(ino)?;
    let map = tx.env.map;
    // Where the target went out since, clients relied on the mark.
    let is_back = |slot: &&Slot| {
        slot.state != SlotState::Out && slot.slot_epoch.0 <= as_of.0 && slot.target == target
    };
    for component in &inode.layout.components {
        let own = slots_of(map, component)?;
        let mut own = own.into_iter().filter(|slot| slot.target == target);
        if !own.all(|slot| is_back(&slot)) {
            return Err(ErrorCode::WrongTarget);
        }
    }
    let before = inode.layout.clone();
    let counted = (relocated, as_of);
    leaving_copies::note_counted(&mut inode.layout, map, target, counted)?;
    if let Ok(place) = inode.layout.stale.binary_search(&target) {
        inode.layout.stale.remove(place);
        zonal_types::mark!(CopyMended);
    }
    let now = tx.map_version();
    let deleted = (relocated, as_of);
    relocations::forget_deleted(&mut inode.layout, map, target, deleted);
    relocations::fill(&mut inode.layout, map, target, relocated, now);
    leaving_copies::advance(&mut inode.layout, map, Some((target, as_of)));
    if inode.layout != before {
        let layout_gen = &mut inode.layout.layout_gen;
        *layout_gen = LayoutGen(layout_gen.0.saturating_add(1));
        inode.count_allocated(allocated_delta);
        tx.save(inode);
    }
    Ok(MetaReply::Done)
}

/// The slots of a component's places.
fn slots_of<'a>(map: &'a ZoneMap, component: &Component) -> Result<Vec<&'a Slot>> {
    let places = zonal_layout::places(component);
    let slots = places.map(|place| map.slot_of_place(component, place).map(|of| of.slot));
    slots
        .collect::<Option<Vec<&Slot>>>()
        .ok_or(ErrorCode::WrongTarget)
}

/// The file with these bytes.
pub(crate) fn file_with(tx: &mut Tx<'_>, data_id: DataId) -> Result {
    let found = match tx.file_of(data_id)? {
        Some(ino) => tx.find(ino)?,
        None => None,
    };
    let as_of = tx.map_version();
    let files = found.map(|inode| (inode.ino, inode.data(as_of)));
    Ok(MetaReply::Files {
        files: files.into_iter().collect(),
        next: None,
    })
}

/// Files whose copies on a target are stale, behind `after`. Target 0: on any.
///
/// # Errors
/// The store's error; `Corrupt`.
pub(crate) fn files_of(
    kv: &dyn KvRead,
    partitions: &[PartitionId],
    (target, after): (TargetId, Ino),
    map: &ZoneMap,
) -> Result {
    let as_of = map.version;
    let (mut files, mut seen, mut next) = (Vec::new(), 0, None);
    for partition in partitions.iter().filter(|of| **of >= after.partition()) {
        let (first, end) = keys::tag_range(partition.0, keys::TAG_STALE);
        let start = match after.partition() == *partition {
            true => keys::stale(Ino(after.0.saturating_add(1))),
            false => first,
        };
        let mut inos = Vec::new();
        kv.scan(&start, &end, &mut |key, _mark| {
            inos.extend(keys::ino_of(key));
            seen += 1;
            seen < STALE_FILES_AT_ONCE
        })?;
        for ino in inos {
            next = Some(ino);
            // A repair may have removed the inode, and not its mark.
            let Some(record) = kv.get(&keys::inode(ino))? else {
                continue;
            };
            let inode = Inode::decode(ino, &record)?;
            let is_stale = match target {
                TargetId(0) => !inode.layout.stale.is_empty(),
                _ => inode.layout.is_stale(target),
            };
            let is_wanted = is_stale || relocations::is_work_of(&inode.layout, map, target);
            if is_wanted {
                files.push((ino, inode.data(as_of)));
            }
        }
        if seen >= STALE_FILES_AT_ONCE {
            return Ok(MetaReply::Files { files, next });
        }
    }
    Ok(MetaReply::Files { files, next: None })
}

/// Files looked at for one reply.
const STALE_FILES_AT_ONCE: usize = 64;

/// Marks targets in the layout. False: nothing changed. Copies that go stay where a column would
/// have no whole one without them.
pub(super) fn mark_in(inode: &mut Inode, map: &ZoneMap, targets: &[TargetId]) -> Result<bool> {
    let marked = mark_whole_in(inode, map, targets);
    if marked != Err(ErrorCode::Io) {
        return marked;
    }
    let mut kept = inode.clone();
    if !leaving_copies::keep_all(&mut kept.layout) {
        return marked;
    }
    let marked = mark_whole_in(&mut kept, map, targets)?;
    *inode = kept;
    Ok(marked)
}

fn mark_whole_in(inode: &mut Inode, map: &ZoneMap, targets: &[TargetId]) -> Result<bool> {
    let layout = &inode.layout;
    let mut stale = layout.stale.clone();
    for component in &layout.components {
        for column in 0..component.count {
            let copies = copies_of(component, column, map, PlaceUse::is_kept_whole)?;
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
    // A copy that is out may never come back: the marked one would be the last then. A column of
    // which the other copy is not filled yet has one: its target is not marked for other columns.
    let is_marked = |target: &TargetId| stale.binary_search(target).is_ok();
    let is_no_use = |target: &TargetId| is_marked(target) || map.is_out(*target);
    for component in &layout.components {
        for column in 0..component.count {
            let all = copies_of(component, column, map, PlaceUse::is_kept_whole)?;
            let read = copies_of(component, column, map, |of| of == PlaceUse::Main)?;
            let is_last = read.iter().all(is_marked);
            if is_last || (all.len() > 1 && read.iter().all(is_no_use)) {
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

/// The targets of a column's places of one use.
fn copies_of(
    component: &Component,
    column: u16,
    map: &ZoneMap,
    is_of_use: impl Fn(PlaceUse) -> bool,
) -> Result<Vec<TargetId>> {
    if !map.knows_sets(component) {
        return Err(ErrorCode::NotReady);
    }
    let places = zonal_layout::places_of_column(component, column);
    let main = places.filter(|place| is_of_use(place_use(component, *place)));
    let target = |place| Some(map.slot_of_place(component, place)?.slot.target);
    let targets: Option<Vec<TargetId>> = main.map(target).collect();
    targets.ok_or(ErrorCode::Corrupt)
}
