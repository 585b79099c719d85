//! Relocations: gives objects of a target that leaves, or is too full, other places, and notes
//! which of them are filled (docs/rfcs/2026-11-27-relocations.md,
//! docs/rfcs/2026-11-27-rebalance.md).
//!
//! *Invariant*: an object has a relocation under way only where a place of its column has all
//! changes.

mod destinations;
pub(super) mod leaving_copies;
mod refilled_copies;
mod wanted_copies;

pub(crate) use refilled_copies::refill;

pub(super) use wanted_copies::{WantedCopies, set_copies};

use super::Result;
use crate::inode::Inode;
use crate::keys;
use crate::tx::Tx;
use destinations::{Candidates, NoDestination};
use std::collections::BTreeMap;
use zonal_basics::SplitMix64;
use zonal_layout::{place_use, relocation_of};
use zonal_types::limits::RELOCATIONS_MAX;
use zonal_types::{
    Column, Component, DataId, ErrorCode, Ino, Layout, LayoutGen, MapVersion, Redundancy,
    Relocation, RelocationState, StripeSetId, TargetId,
};
use zonal_wire::{MetaReply, RelocationPlan, TargetRoom};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::map::{Slot, SlotState, TargetState};

/// Files looked at for one reply.
const FILES_AT_ONCE: usize = 256;
/// Files changed for one reply: they are one record of the log.
const CHANGES_AT_ONCE: usize = 64;
/// All of a target's objects, in the unit of a plan's share.
const ALL: u16 = 10_000;

/// Counts of one reply.
#[derive(Debug, Default)]
struct Counts {
    begun: u64,
    filling: u64,
    unfenced: u64,
    stuck: u64,
    no_room: u64,
    placed: BTreeMap<TargetId, u64>,
}

/// One look at files.
struct Pass<'a> {
    map: &'a ZoneMap,
    target: TargetId,
    /// A fence that is older than a lease.
    settled: MapVersion,
    state: TargetState,
    /// Of 10,000 objects of a target that sheds, those that go.
    share: u16,
    candidates: Candidates,
    counts: Counts,
}

/// Relocates the objects of a target that leaves, returns or sheds, in the files behind `after`.
pub(crate) fn relocate(
    tx: &mut Tx<'_>,
    (target, settled): (TargetId, MapVersion),
    (after, unfinished): (Ino, bool),
    plan: &RelocationPlan,
) -> Result {
    let map = tx.env.map;
    let state = map.target_state(target).filter(|state| state.is_moving());
    let state = state.ok_or(ErrorCode::WrongTarget)?;
    if !tx.env.frozen.is_empty() {
        return Err(ErrorCode::NotReady);
    }
    let tag = match unfinished {
        true => keys::TAG_STALE,
        false => keys::TAG_INODE,
    };
    let (inos, more) = inos_behind(tx, tag, after)?;
    let mut pass = Pass {
        map,
        target,
        settled,
        state,
        share: plan.share,
        candidates: destinations::with_room(map, &plan.room, state.is_shedding()),
        counts: Counts::default(),
    };
    let mut next = None;
    let mut changed = 0;
    for ino in inos {
        if changed >= CHANGES_AT_ONCE {
            return Ok(reply(pass.counts, next));
        }
        next = Some(ino);
        let Some(mut inode) = tx.find(ino)? else {
            continue;
        };
        let before = pass.counts.begun;
        pass.look_at(&mut inode);
        if pass.counts.begun > before {
            let layout_gen = &mut inode.layout.layout_gen;
            *layout_gen = LayoutGen(layout_gen.0.saturating_add(1));
            changed += 1;
            tx.save(inode);
        }
    }
    Ok(reply(pass.counts, next.filter(|_| more)))
}

fn reply(counts: Counts, next: Option<Ino>) -> MetaReply {
    let placed = counts.placed.into_iter();
    MetaReply::Relocations {
        begun: counts.begun,
        filling: counts.filling,
        unfenced: counts.unfenced,
        stuck: counts.stuck,
        no_room: counts.no_room,
        placed: placed
            .map(|(target, bytes)| TargetRoom { target, bytes })
            .collect(),
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

impl Pass<'_> {
    fn look_at(&mut self, inode: &mut Inode) {
        if leaving_copies::advance(&mut inode.layout, self.map, None) {
            self.counts.begun += 1;
        }
        let layout = inode.layout.clone();
        let size = inode.size;
        for (known, own) in layout.components.iter().zip(&mut inode.layout.components) {
            match self.state {
                TargetState::Returning => self.end_relocations(own, known, true),
                TargetState::Shedding { salt, is_ending } => {
                    self.end_relocations(own, known, is_ending);
                    self.count_leftovers(own);
                    if !is_ending {
                        self.shed((own, &layout), size, salt);
                    }
                }
                _leaving => {
                    self.count_dropped(known);
                    for object in zonal_layout::objects(known) {
                        self.relocate_object((own, &layout), size, object);
                    }
                }
            }
        }
    }

    /// Ends the relocations of objects that leave a target which serves. Those that are filled stay
    /// where they are. `drops`: those under way are dropped.
    ///
    /// A target that answers under an older map could still give the bytes that it had. So
    /// `settled` is a fence that is older than a lease.
    fn end_relocations(&mut self, component: &mut Component, known: &Component, drops: bool) {
        let map = self.map;
        for relocation in &known.relocations {
            let at = map.slot_of_place(known, relocation.object);
            if at.is_none_or(|at| at.slot.target != self.target) {
                continue;
            }
            match relocation.state {
                RelocationState::Filling if drops => {
                    give_up(component, map, relocation);
                    self.counts.begun += 1;
                }
                RelocationState::Filling => self.count_filling(known, relocation),
                RelocationState::Filled if relocation.as_of < self.settled => {
                    leave(component, map, relocation);
                    self.counts.begun += 1;
                }
                // A look without a fence ends none.
                RelocationState::Filled
                    if self.state.is_shedding() && self.settled == MapVersion(0) => {}
                RelocationState::Filled => {
                    self.counts.filling += 1;
                    self.counts.unfenced += 1;
                }
                RelocationState::Settled
                | RelocationState::Missing
                | RelocationState::Leaving
                | RelocationState::Unread
                | RelocationState::Dropped
                | RelocationState::Leftover => {}
            }
        }
    }

    /// Counts a record on which a target works, once clients know it.
    fn count_filling(&mut self, component: &Component, of: &Relocation) {
        self.counts.filling += 1;
        let is_fenced = self.map.is_fenced(component, of.as_of);
        self.counts.unfenced += u64::from(!is_fenced);
    }

    /// Counts what the target has yet to delete: its space is not free before.
    fn count_leftovers(&mut self, component: &Component) {
        let map = self.map;
        for of in zonal_layout::leftovers(component) {
            if is_at(map, of, self.target) {
                self.count_filling(component, of);
            }
        }
    }

    /// Counts objects of copies that are gone, of which the target has yet to say how many bytes
    /// they have. One that is out does not say it.
    fn count_dropped(&mut self, component: &Component) {
        let map = self.map;
        let dropped = component.relocations.iter();
        for of in dropped.filter(|of| of.state == RelocationState::Dropped) {
            let slot = map.slot_of_relocation(of);
            let is_out = slot.is_none_or(|slot| slot.state == SlotState::Out);
            if !is_out && is_at(map, of, self.target) {
                self.count_filling(component, of);
            }
        }
    }

    /// Gives objects of a target to others that are less full. Those without bytes stay, and those
    /// without a place.
    fn shed(&mut self, (component, layout): (&mut Component, &Layout), size: u64, salt: u32) {
        for object in zonal_layout::objects(component) {
            let bytes = zonal_layout::object_bytes(component, size, object);
            let number = (u64::from(salt) << 32) | u64::from(object.0);
            let order = SplitMix64(component.data_id.0 ^ SplitMix64(number).bits()).bits();
            let at = self.map.slot_of_place(component, object);
            let goes = bytes > 0
                && order % u64::from(ALL) < u64::from(self.share)
                && relocation_of(component, object).is_none()
                && at.is_some_and(|at| at.slot.target == self.target);
            if !goes {
                continue;
            }
            if let Ok(place) = self.destination(component, layout, object, bytes) {
                zonal_types::mark!(ObjectShed);
                begin(component, self.map, object, place);
                self.count_begun();
            }
        }
    }

    /// The slot for an object that leaves its place.
    fn destination(
        &mut self,
        component: &Component,
        layout: &Layout,
        object: Column,
        bytes: u64,
    ) -> std::result::Result<(StripeSetId, u16), NoDestination> {
        let candidates = &mut self.candidates;
        let chosen = candidates.choose(component, layout, self.map, (object, bytes));
        let (place, target) = chosen?;
        candidates.take(target, bytes);
        let placed = self.counts.placed.entry(target).or_default();
        *placed = placed.saturating_add(bytes);
        Ok(place)
    }

    fn count_stuck(&mut self, why: NoDestination) {
        self.counts.stuck += 1;
        self.counts.no_room += u64::from(why == NoDestination::Room);
    }
}

/// The object stays at the place before. The bytes at the new one are to be deleted.
fn give_up(component: &mut Component, map: &ZoneMap, filling: &Relocation) {
    component.relocations.retain(|record| record != filling);
    let place = (filling.set, filling.slot);
    note_leftover(component, map, filling.object, place);
}

/// The object lies at its new place alone. The bytes at the place before are to be deleted.
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
    let is_kept = |of: &Relocation| of.object != object || of.state.is_left();
    component.relocations.retain(is_kept);
}

impl Pass<'_> {
    fn relocate_object(
        &mut self,
        (component, layout): (&mut Component, &Layout),
        size: u64,
        object: Column,
    ) {
        let (map, target) = (self.map, self.target);
        settle(component, map, object);
        let bytes = zonal_layout::object_bytes(component, size, object);
        let new_place = zonal_layout::object_count(component);
        let new_place = Column(object.0.saturating_add(new_place));
        let at = |place| Some(map.slot_of_place(component, place)?.slot.target);
        let (before, new) = (at(object), at(new_place));
        match relocation_of(component, object).copied() {
            None if before == Some(target) => {
                match self.destination(component, layout, object, bytes) {
                    Ok(place) => {
                        zonal_types::mark!(ObjectRelocated);
                        begin(component, map, object, place);
                        self.count_begun();
                    }
                    Err(why) => self.count_stuck(why),
                }
            }
            Some(found) if found.state == RelocationState::Filling && new == Some(target) => {
                // Its new target leaves, too: the object stays at the place before.
                give_up(component, map, &found);
                self.counts.begun += 1;
                self.counts.filling += 1;
            }
            Some(found) if found.state == RelocationState::Filling && before == Some(target) => {
                self.count_filling(component, &found);
            }
            Some(found) if found.state == RelocationState::Missing && before == Some(target) => {
                // Nothing is there yet: another target makes it.
                match self.destination(component, layout, object, bytes) {
                    Ok(place) => {
                        make_missing_elsewhere(component, map, object, place);
                        self.count_begun();
                    }
                    Err(why) => self.count_stuck(why),
                }
            }
            // Its target has it leave.
            Some(found) if found.state.is_leaving() && before == Some(target) => {
                self.count_filling(component, &found);
            }
            // It waits for the drain of the place before.
            Some(_filled) if new == Some(target) => self.count_stuck(NoDestination::Source),
            _ => {}
        }
    }

    fn count_begun(&mut self) {
        self.counts.begun += 1;
        self.counts.filling += 1;
        self.counts.unfenced += 1;
    }
}

/// Moves a new object that is not filled yet to another target.
fn make_missing_elsewhere(
    component: &mut Component,
    map: &ZoneMap,
    object: Column,
    place: (StripeSetId, u16),
) {
    let known = map.slot_of_place(component, object);
    let known = known.map(|at| (at.set, at.number));
    forget(component, object);
    make_missing(component, map, object, place);
    if let Some(known) = known {
        note_leftover(component, map, object, known);
    }
}

/// Ends a relocation whose place before is gone for good, and forgets what is left at places that
/// are gone.
fn settle(component: &mut Component, map: &ZoneMap, object: Column) {
    let is_gone = |slot: &Slot| slot.state == SlotState::Out && map.is_gone_for_good(slot.target);
    component
        .relocations
        .retain(|of| !(of.state.is_left() && map.slot_of_relocation(of).is_some_and(is_gone)));
    let Some(found) = relocation_of(component, object).copied() else {
        return;
    };
    let before = map.slot_of_place(component, object);
    let is_gone = before.is_some_and(|before| is_gone(before.slot));
    if found.state == RelocationState::Filled && is_gone {
        end_relocation(component, map, &found);
    }
}

/// As [`settle`], for all objects of a file. A drain leaves its relocations filled: clients know by
/// the map that the place before is gone.
pub(super) fn settle_all(layout: &mut Layout, map: &ZoneMap) {
    for component in &mut layout.components {
        let moved: Vec<Column> = component.relocations.iter().map(|of| of.object).collect();
        for object in moved {
            settle(component, map, object);
        }
    }
    forget_unused_marks(layout, map);
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

/// Drops the relocations of a file's objects to a target. New objects go to another one.
///
/// # Errors
/// `NoSpace` where there is none.
pub(super) fn give_up_at(inode: &mut Inode, map: &ZoneMap, target: TargetId) -> Result<bool> {
    let candidates = destinations::all(map);
    let mut layout = inode.layout.clone();
    for component in &mut layout.components {
        for of in component.relocations.clone() {
            if !is_at(map, &of, target) {
                continue;
            }
            match of.state {
                RelocationState::Filling => give_up(component, map, &of),
                RelocationState::Missing => {
                    let object = (of.object, 0);
                    let place = candidates.choose(component, &inode.layout, map, object);
                    let (place, _target) = place.map_err(|_why| ErrorCode::NoSpace)?;
                    make_missing_elsewhere(component, map, of.object, place);
                }
                _other => {}
            }
        }
    }
    if layout == inode.layout {
        return Ok(false);
    }
    layout.layout_gen = LayoutGen(layout.layout_gen.0.saturating_add(1));
    inode.layout = layout;
    Ok(true)
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
    forget_unused_marks(layout, map);
}

/// A target that has no place of the file any more needs no mark.
fn forget_unused_marks(layout: &mut Layout, map: &ZoneMap) {
    let components = layout.components.clone();
    let is_used = |target: &TargetId| {
        let mut components = components.iter();
        components.any(|component| {
            zonal_layout::places(component).any(|place| {
                let slot = map.slot_of_place(component, place);
                place_use(component, place).is_kept_whole()
                    && slot.is_some_and(|of| of.slot.target == *target)
            })
        })
    };
    layout.stale.retain(is_used);
}

#[cfg(test)]
mod tests;
