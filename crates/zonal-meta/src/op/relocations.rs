//! Relocations: gives the objects of a draining target other places, and notes which of them are
//! filled (docs/rfcs/2026-11-27-relocations.md).
//!
//! *Invariant*: an object has a relocation under way only where a place of its column has all
//! changes.

use super::Result;
use crate::inode::Inode;
use crate::keys;
use crate::tx::Tx;
use zonal_basics::SplitMix64;
use zonal_layout::{PlaceUse, object_of, place_use, places_of_column, relocation_of};
use zonal_types::limits::RELOCATIONS_MAX;
use zonal_types::{
    Column, Component, DataId, ErrorCode, Ino, Layout, LayoutGen, MapVersion, NodeId, Redundancy,
    Relocation, RelocationState, StripeSetId, TargetId, ZoneId,
};
use zonal_wire::MetaReply;
use zonal_zonemap::ZoneMap;
use zonal_zonemap::map::{Slot, SlotState, TargetState};

/// Files looked at for one reply.
const FILES_AT_ONCE: usize = 256;
/// Files changed for one reply: they are one record of the log.
const CHANGES_AT_ONCE: usize = 64;

/// Counts of one reply.
#[derive(Debug, Default)]
struct Counts {
    begun: u64,
    filling: u64,
    unfenced: u64,
    stuck: u64,
}

/// A target that may get objects.
struct Candidate {
    target: TargetId,
    node: NodeId,
    zone: ZoneId,
}

/// Relocates the objects of a draining target in the files behind `after`.
pub(crate) fn relocate(
    tx: &mut Tx<'_>,
    (target, settled): (TargetId, MapVersion),
    after: Ino,
    unfinished: bool,
) -> Result {
    let map = tx.env.map;
    let state = map.target_state(target);
    let returns = state == Some(TargetState::Returning);
    if !returns && !state.is_some_and(TargetState::is_leaving) {
        return Err(ErrorCode::WrongTarget);
    }
    if !tx.env.frozen.is_empty() {
        return Err(ErrorCode::NotReady);
    }
    let tag = match unfinished {
        true => keys::TAG_STALE,
        false => keys::TAG_INODE,
    };
    let (inos, more) = inos_behind(tx, tag, after)?;
    let candidates = candidates(map);
    let (mut counts, mut next) = (Counts::default(), None);
    let mut changed = 0;
    for ino in inos {
        if changed >= CHANGES_AT_ONCE {
            return Ok(reply(&counts, next));
        }
        next = Some(ino);
        let Some(mut inode) = tx.find(ino)? else {
            continue;
        };
        let before = counts.begun;
        match returns {
            true => return_file(&mut inode, map, (target, settled), &mut counts),
            false => relocate_file(&mut inode, map, target, &candidates, &mut counts),
        }
        if counts.begun > before {
            changed += 1;
            tx.save(inode);
        }
    }
    Ok(reply(&counts, next.filter(|_| more)))
}

fn reply(counts: &Counts, next: Option<Ino>) -> MetaReply {
    MetaReply::Relocations {
        begun: counts.begun,
        filling: counts.filling,
        unfenced: counts.unfenced,
        stuck: counts.stuck,
        next,
    }
}

/// Inodes with a key of this tag behind `after`, and whether there may be more.
fn inos_behind(tx: &Tx<'_>, tag: u8, after: Ino) -> Result<(Vec<Ino>, bool)> {
    let mut inos = Vec::new();
    let behind = |of: &&zonal_types::PartitionId| **of >= after.partition();
    for partition in tx.env.partitions.iter().filter(behind) {
        let (start, end) = keys::tag_range(partition.0, tag);
        tx.kv().scan(&start, &end, &mut |key, _value| {
            inos.extend(keys::ino_of(key).filter(|ino| *ino > after));
            inos.len() < FILES_AT_ONCE
        })?;
        if inos.len() >= FILES_AT_ONCE {
            return Ok((inos, true));
        }
    }
    Ok((inos, false))
}

/// Targets that take new objects.
fn candidates(map: &ZoneMap) -> Vec<Candidate> {
    let serving = map.targets.iter().filter(|target| {
        let serves = target.state.takes_files();
        serves && !map.is_out(target.id)
    });
    let known = serving.filter_map(|target| {
        Some(Candidate {
            target: target.id,
            node: target.node,
            zone: map.node(target.node)?.zone,
        })
    });
    known.collect()
}

fn relocate_file(
    inode: &mut Inode,
    map: &ZoneMap,
    target: TargetId,
    candidates: &[Candidate],
    counts: &mut Counts,
) {
    let layout = inode.layout.clone();
    let begun = counts.begun;
    for (index, component) in layout.components.iter().enumerate() {
        let Some(own) = inode.layout.components.get_mut(index) else {
            continue;
        };
        for object in zonal_layout::objects(component) {
            relocate_object((own, &layout), map, object, target, candidates, counts);
        }
    }
    if counts.begun > begun {
        let layout_gen = &mut inode.layout.layout_gen;
        *layout_gen = LayoutGen(layout_gen.0.saturating_add(1));
    }
}

/// Ends the relocations of objects that leave a target which is back. Those under way are dropped,
/// those that are filled stay where they are.
///
/// A target that answers under an older map could still give the bytes that it had. So `settled` is
/// a fence that is older than a lease.
fn return_file(
    inode: &mut Inode,
    map: &ZoneMap,
    (target, settled): (TargetId, MapVersion),
    counts: &mut Counts,
) {
    let begun = counts.begun;
    let before = inode.layout.clone();
    for (component, known) in inode.layout.components.iter_mut().zip(&before.components) {
        for relocation in &known.relocations {
            let at = map.slot_of_place(known, relocation.object);
            if at.is_none_or(|at| at.slot.target != target) {
                continue;
            }
            match relocation.state {
                RelocationState::Filling => {
                    give_up(component, map, relocation);
                    counts.begun += 1;
                }
                RelocationState::Filled if relocation.as_of < settled => {
                    leave(component, map, relocation);
                    counts.begun += 1;
                }
                RelocationState::Filled => {
                    counts.filling += 1;
                    counts.unfenced += 1;
                }
                RelocationState::Settled | RelocationState::Missing | RelocationState::Leftover => {
                }
            }
        }
    }
    if counts.begun > begun {
        let layout_gen = &mut inode.layout.layout_gen;
        *layout_gen = LayoutGen(layout_gen.0.saturating_add(1));
    }
}

/// The object stays at the place before. What is at the new one is to be deleted.
fn give_up(component: &mut Component, map: &ZoneMap, filling: &Relocation) {
    component.relocations.retain(|record| record != filling);
    let place = (filling.set, filling.slot);
    note_leftover(component, map, filling.object, place);
}

/// The object lies at its new place alone. What is at the place before is to be deleted.
fn leave(component: &mut Component, map: &ZoneMap, filled: &Relocation) {
    let before = map.slot_of_place(component, filled.object);
    let before = before.map(|at| (at.set, at.number));
    end_relocation(component, map, filled);
    if let Some(place) = before {
        note_leftover(component, map, filled.object, place);
    }
}

fn note_leftover(
    component: &mut Component,
    map: &ZoneMap,
    object: Column,
    (set, slot): (StripeSetId, u16),
) {
    zonal_types::mark!(ObjectLeft);
    component.relocations.push(Relocation {
        object,
        set,
        slot,
        state: RelocationState::Leftover,
        as_of: map.version,
    });
}

/// The object lies at its new place alone. A record of the computed place is not needed.
fn end_relocation(component: &mut Component, map: &ZoneMap, filled: &Relocation) {
    forget(component, filled.object);
    let computed = computed_slot(component, map, filled.object);
    let computed = computed.map(|(number, _)| (component.set, number));
    if computed != Some((filled.set, filled.slot)) {
        component.relocations.push(Relocation {
            state: RelocationState::Settled,
            ..*filled
        });
    }
}

/// Removes the records of an object, but for those of places where something is to be deleted.
fn forget(component: &mut Component, object: Column) {
    let is_kept = |of: &Relocation| of.object != object || of.state == RelocationState::Leftover;
    component.relocations.retain(is_kept);
}

fn relocate_object(
    (component, layout): (&mut Component, &Layout),
    map: &ZoneMap,
    object: Column,
    target: TargetId,
    candidates: &[Candidate],
    counts: &mut Counts,
) {
    settle(component, map, object);
    let new_place = Column(
        object
            .0
            .saturating_add(zonal_layout::object_count(component)),
    );
    let at = |place| Some(map.slot_of_place(component, place)?.slot.target);
    let (before, new) = (at(object), at(new_place));
    match relocation_of(component, object).copied() {
        None if before == Some(target) => {
            match destination(component, layout, map, object, candidates) {
                Some((set, slot)) => {
                    zonal_types::mark!(ObjectRelocated);
                    begin(component, map, object, (set, slot));
                    counts.begun += 1;
                    counts.filling += 1;
                    counts.unfenced += 1;
                }
                None => counts.stuck += 1,
            }
        }
        Some(found) if found.state == RelocationState::Filling && new == Some(target) => {
            // Its new target leaves, too: the object stays at the place before.
            give_up(component, map, &found);
            counts.begun += 1;
            counts.filling += 1;
        }
        Some(found) if found.state == RelocationState::Filling && before == Some(target) => {
            counts.filling += 1;
            counts.unfenced += u64::from(!map.is_fenced(component, found.as_of));
        }
        Some(found) if found.state == RelocationState::Missing && before == Some(target) => {
            // Nothing is there yet: another target makes it.
            match destination(component, layout, map, object, candidates) {
                Some(place) => {
                    let known = map.slot_of_place(component, object);
                    let known = known.map(|at| (at.set, at.number));
                    forget(component, object);
                    make_missing(component, map, object, place);
                    if let Some(known) = known {
                        note_leftover(component, map, object, known);
                    }
                    counts.begun += 1;
                    counts.filling += 1;
                    counts.unfenced += 1;
                }
                None => counts.stuck += 1,
            }
        }
        // It waits for the drain of the place before.
        Some(_filled) if new == Some(target) => counts.stuck += 1,
        _ => {}
    }
}

/// Ends a relocation whose place before is gone for good, and forgets what is left there.
fn settle(component: &mut Component, map: &ZoneMap, object: Column) {
    let is_gone = |slot: &Slot| slot.state == SlotState::Out && map.is_gone_for_good(slot.target);
    component.relocations.retain(|of| {
        let is_left = of.object == object && of.state == RelocationState::Leftover;
        !(is_left && map.slot_of_relocation(of).is_some_and(is_gone))
    });
    let Some(found) = relocation_of(component, object).copied() else {
        return;
    };
    let before = map.slot_of_place(component, object);
    let is_gone = before.is_some_and(|before| is_gone(before.slot));
    if found.state == RelocationState::Filled && is_gone {
        end_relocation(component, map, &found);
    }
}

fn begin(component: &mut Component, map: &ZoneMap, object: Column, place: (StripeSetId, u16)) {
    if component.redundancy == Redundancy::None {
        component.redundancy = Redundancy::Copies { copies: 1, step: 0 };
    }
    component.relocations.push(Relocation {
        object,
        set: place.0,
        slot: place.1,
        state: RelocationState::Filling,
        as_of: map.version,
    });
}

/// Notes a new object, which its target is to fill.
fn make_missing(
    component: &mut Component,
    map: &ZoneMap,
    object: Column,
    (set, slot): (StripeSetId, u16),
) {
    let record = |state| Relocation {
        object,
        set,
        slot,
        state,
        as_of: map.version,
    };
    let computed = map.slot_of_place(component, object);
    if computed.is_none_or(|at| (at.set, at.number) != (set, slot)) {
        component.relocations.push(record(RelocationState::Settled));
    }
    component.relocations.push(record(RelocationState::Missing));
}

/// Gives a file more copies of its columns, which their targets fill. Fewer copies than it has are
/// refused.
///
/// # Errors
/// `NotSupported` for fewer copies. `Busy` while objects of the file move. `Range` where there are
/// too few nodes.
pub(super) fn add_copies(tx: &Tx<'_>, inode: &mut Inode, copies: u16) -> Result<bool> {
    let map = tx.env.map;
    let candidates = candidates(map);
    let mut layout = inode.layout.clone();
    for component in &mut layout.components {
        let now = component.redundancy.copies();
        if copies == now {
            continue;
        }
        if copies < now {
            return Err(ErrorCode::NotSupported);
        }
        let is_moving = |of: &Relocation| of.state.is_under_way();
        if component.relocations.iter().any(is_moving) {
            return Err(ErrorCode::Busy);
        }
        let set = map.set(component.set).ok_or(ErrorCode::NotReady)?;
        let step = match component.redundancy {
            Redundancy::Copies { step, copies } if copies > 1 => step,
            _ => map.copy_step(set, copies),
        };
        component.redundancy = Redundancy::Copies { copies, step };
        let first = component.count.saturating_mul(now);
        for object in first..component.count.saturating_mul(copies) {
            let object = Column(object);
            // Until it has a place, it counts as missing at its computed one.
            let computed = map.slot_of_place(component, object);
            let computed = computed.map(|at| (at.set, at.number));
            let before = component.relocations.len();
            make_missing(component, map, object, computed.ok_or(ErrorCode::Corrupt)?);
            if is_sound(component, map, object) {
                continue;
            }
            component.relocations.truncate(before);
            let place = destination(component, &inode.layout, map, object, &candidates);
            make_missing(component, map, object, place.ok_or(ErrorCode::Range)?);
        }
        if component.relocations.len() > RELOCATIONS_MAX {
            return Err(ErrorCode::Range);
        }
    }
    if layout == inode.layout {
        return Ok(false);
    }
    layout.layout_gen = LayoutGen(layout.layout_gen.0.saturating_add(1));
    inode.layout = layout;
    Ok(true)
}

/// True where an object's place is on a target that takes files, and on no node with another copy.
fn is_sound(component: &Component, map: &ZoneMap, object: Column) -> bool {
    let node_of = |place| {
        let target = map.slot_of_place(component, place)?.slot.target;
        let found = map.target(target)?;
        let is_good = found.state.takes_files()
            && !map.is_out(target)
            && !map.has_leftover(component, object, target);
        Some((found.node, is_good))
    };
    let column = object.0 % component.count.max(1);
    let mut others = places_of_column(component, column).filter(|place| *place != object);
    node_of(object).is_some_and(|(node, is_good)| {
        is_good && others.all(|other| node_of(other).is_none_or(|(other, _)| other != node))
    })
}

/// The slot for an object that leaves its place: on a node without another copy of the column,
/// else on another target. `None`: nothing has the bytes, or no target is left.
fn destination(
    component: &Component,
    layout: &Layout,
    map: &ZoneMap,
    object: Column,
    candidates: &[Candidate],
) -> Option<(StripeSetId, u16)> {
    let column = object.0 % component.count.max(1);
    let has_source = !map.whole_places(layout, component, column, true).is_empty();
    if !has_source || !has_room(component) {
        return None;
    }
    let slot = map.slot_of_place(component, object)?;
    let zone = map.set(slot.set)?.zone;
    let places: Vec<(Column, TargetId)> = places_of_column(component, column)
        .filter_map(|place| Some((place, map.slot_of_place(component, place)?.slot.target)))
        .collect();
    let others = places.iter().filter(|(place, _)| {
        object_of(component, *place) != object && place_use(component, *place) != PlaceUse::Left
    });
    let nodes: Vec<NodeId> = others
        .filter_map(|(_, target)| Some(map.target(*target)?.node))
        .collect();
    let is_free = |candidate: &&Candidate| {
        (zone == ZoneId::CELL || candidate.zone == zone)
            && places.iter().all(|(_, target)| *target != candidate.target)
            && !map.has_leftover(component, object, candidate.target)
    };
    let rank = |candidate: &&Candidate| {
        // Each object orders the targets in its own way: they share the objects equally.
        let number = (u64::from(object.0) << 32) | u64::from(candidate.target.0);
        let order = SplitMix64(component.data_id.0 ^ SplitMix64(number).bits()).bits();
        (nodes.contains(&candidate.node), order)
    };
    let mut free: Vec<&Candidate> = candidates.iter().filter(is_free).collect();
    free.sort_by_cached_key(rank);
    let computed = computed_slot(component, map, object);
    let mut slots = free.into_iter().filter_map(|candidate| {
        let own = computed.filter(|(_, slot)| slot.target == candidate.target);
        let own = own.map(|(number, _)| (component.set, number));
        own.or_else(|| map.open_slot_of(candidate.target, component.set))
    });
    slots.next()
}

/// The slot in which an object lies without a record.
fn computed_slot<'a>(
    component: &Component,
    map: &'a ZoneMap,
    object: Column,
) -> Option<(u16, &'a Slot)> {
    let set = map.set(component.set)?;
    let number = zonal_layout::stripe::slot_of(component, object, set.width()).ok()?;
    Some((number, set.slots.get(usize::from(number))?))
}

/// True where a component has room for one more record, and for what the ends of all relocations
/// leave.
fn has_room(component: &Component) -> bool {
    let records = component.relocations.iter();
    let moving = records.filter(|of| of.state.is_under_way()).count();
    component.relocations.len() + moving + 2 <= RELOCATIONS_MAX
}

/// True where a target has to fill an object of the file, or to delete what is left of one.
/// Target 0: where any has to fill one.
pub(super) fn is_work_of(layout: &Layout, map: &ZoneMap, target: TargetId) -> bool {
    layout.relocations().any(|of| match target {
        TargetId(0) => of.state.is_filled_now(),
        _ => of.state.is_unfinished() && is_at(map, of, target),
    })
}

/// True where the place of a record is on this target.
fn is_at(map: &ZoneMap, relocation: &Relocation, target: TargetId) -> bool {
    let slot = map.slot_of_relocation(relocation);
    slot.is_some_and(|slot| slot.target == target)
}

/// Forgets what a target has deleted. `as_of`: the map by which the target knew that no client uses
/// it. A late message has an older one than each record that was made since.
pub(super) fn forget_deleted(
    layout: &mut Layout,
    map: &ZoneMap,
    target: TargetId,
    (deleted, as_of): (&[(DataId, Column)], MapVersion),
) {
    if as_of > map.version {
        return;
    }
    for component in &mut layout.components {
        let data_id = component.data_id;
        component.relocations.retain(|of| {
            let is_deleted = of.state == RelocationState::Leftover
                && of.as_of < as_of
                && is_at(map, of, target)
                && deleted.contains(&(data_id, of.object));
            if is_deleted {
                zonal_types::mark!(LeftoverDeleted);
            }
            !is_deleted
        });
    }
}

/// Notes the objects that a target has filled. Not while its other copies of the file are stale.
pub(super) fn fill(
    layout: &mut Layout,
    map: &ZoneMap,
    target: TargetId,
    filled: &[(DataId, Column)],
    now: MapVersion,
) {
    if layout.is_stale(target) {
        return;
    }
    for component in &mut layout.components {
        let data_id = component.data_id;
        for relocation in &mut component.relocations {
            let is_its =
                is_at(map, relocation, target) && filled.contains(&(data_id, relocation.object));
            if is_its && relocation.state == RelocationState::Filling {
                zonal_types::mark!(RelocationFilled);
                relocation.state = RelocationState::Filled;
                relocation.as_of = now;
            }
        }
        component.relocations.retain(|relocation| {
            let is_whole = relocation.state == RelocationState::Missing
                && is_at(map, relocation, target)
                && filled.contains(&(data_id, relocation.object));
            !is_whole
        });
    }
    // A target that has no place of the file any more needs no mark.
    let components = layout.components.clone();
    let is_used = |target: &TargetId| {
        let mut components = components.iter();
        components.any(|component| {
            zonal_layout::places(component).any(|place| {
                let slot = map.slot_of_place(component, place);
                place_use(component, place) == PlaceUse::Main
                    && slot.is_some_and(|of| of.slot.target == *target)
            })
        })
    };
    layout.stale.retain(is_used);
}
