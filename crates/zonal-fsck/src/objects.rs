//! Compares inodes with objects: the objects that layouts require, and those that targets store.
//!
//! Facts of both sides, sorted by data id, are joined group by group. A group has as many objects
//! as a file has columns.

mod copies;
mod layout_guess;
#[cfg(test)]
mod tests;

pub use layout_guess::guess_layout;

use crate::data_fact::{DataClaim, DataFact, DataOwner};
use crate::finding::FindingKind;
use crate::ranges::Ranges;
use zonal_layout::stripe;
use zonal_object::ObjectId;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{
    Column, Component, ComponentKind, DataId, Ino, Relocation, RelocationState, TargetId, ZoneId,
};
use zonal_zonemap::{SlotState, TargetState, ZoneMap};

/// Objects of one data id that are compared; more than any layout has.
const OBJECTS_MAX: usize = 1 << 16;

/// An object without an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnownedObject {
    /// The object's column.
    pub column: u16,
    /// The target that stores it.
    pub target: TargetId,
    /// Its length.
    pub bytes: u64,
    /// Its blocks.
    pub blocks: u64,
    /// The last truncation that the target applied.
    pub truncate_seq: u64,
}

/// A result of the join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinOutcome {
    /// Something is wrong with a file's bytes. The target is given where only one is concerned.
    Wrong(Option<TargetId>, DataOwner, FindingKind),
    /// Objects without an inode.
    Unowned(DataId, Vec<UnownedObject>),
    /// A target of the file is missing or damaged, so its objects cannot be compared with the
    /// inode's count. The number is the allocated bytes that were not found.
    Short(Box<Component>, DataOwner, u64),
}

struct Group {
    data_id: DataId,
    owner: Option<(DataOwner, u64, u64)>,
    deleted: bool,
    found: Vec<FoundObject>,
    relocations: Vec<(Ino, Relocation)>,
    /// Targets whose copies are marked as stale.
    stale: Vec<(Ino, TargetId)>,
}

/// An object that a target stores.
#[derive(Debug, Clone, Copy)]
struct FoundObject {
    column: u16,
    target: TargetId,
    bytes: u64,
    blocks: u64,
    truncate_seq: u64,
    deleting: bool,
    order: u64,
    digest: Option<u64>,
}

/// Joins facts, which arrive sorted.
pub struct ObjectJoin<'a> {
    map: &'a ZoneMap,
    /// Whether a target's store could be read.
    is_there: &'a dyn Fn(TargetId) -> bool,
    tell: &'a mut dyn FnMut(JoinOutcome),
    group: Group,
}

impl<'a> ObjectJoin<'a> {
    /// Begins a join of the facts of a whole cell. `tell` receives the results.
    pub fn new(
        map: &'a ZoneMap,
        is_there: &'a dyn Fn(TargetId) -> bool,
        tell: &'a mut dyn FnMut(JoinOutcome),
    ) -> Self {
        Self {
            map,
            is_there,
            tell,
            group: Group::of(DataId(0)),
        }
    }

    /// Takes the next fact. Facts arrive in the order of their encoded bytes.
    pub fn take(&mut self, fact: &DataFact) {
        if fact.data_id != self.group.data_id {
            self.end_group();
            self.group = Group::of(fact.data_id);
        }
        match fact.about {
            DataClaim::Expected {
                allocated,
                truncate_seq,
                ..
            } => {
                let Some(owner) = fact.owner() else {
                    return;
                };
                match &self.group.owner {
                    Some((first, ..)) => {
                        let what = FindingKind::Shared {
                            data_id: fact.data_id,
                            ino: owner.ino,
                            other: first.ino,
                        };
                        (self.tell)(JoinOutcome::Wrong(None, owner, what));
                    }
                    None => {
                        self.group.owner = Some((owner, allocated, truncate_seq));
                    }
                }
            }
            DataClaim::Deleted => self.group.deleted = true,
            DataClaim::Found {
                column,
                target,
                bytes,
                blocks,
                truncate_seq,
                deleting,
                order,
                digest,
            } => {
                if self.group.found.len() < OBJECTS_MAX {
                    self.group.found.push(FoundObject {
                        column,
                        target,
                        bytes,
                        blocks,
                        truncate_seq,
                        deleting,
                        order,
                        digest,
                    });
                }
            }
            DataClaim::Stale { ino, target } => {
                if self.group.stale.len() < OBJECTS_MAX {
                    self.group.stale.push((ino, target));
                }
            }
            DataClaim::Relocated { ino, relocation } => {
                if self.group.relocations.len() < OBJECTS_MAX {
                    self.group.relocations.push((ino, relocation));
                }
            }
        }
    }

    /// Ends the join, after the last fact.
    pub fn finish(mut self) {
        self.end_group();
    }

    fn end_group(&mut self) {
        let group = std::mem::replace(&mut self.group, Group::of(DataId(0)));
        match group.owner {
            Some((owner, allocated, seq)) => self.compare(&group, &owner, allocated, seq),
            None if group.deleted => {}
            None => {
                let unowned: Vec<UnownedObject> = group
                    .found
                    .iter()
                    .filter(|found| !found.deleting && !is_drained(self.map, found.target))
                    .map(|found| UnownedObject {
                        column: found.column,
                        target: found.target,
                        bytes: found.bytes,
                        blocks: found.blocks,
                        truncate_seq: found.truncate_seq,
                    })
                    .collect();
                if !unowned.is_empty() {
                    (self.tell)(JoinOutcome::Unowned(group.data_id, unowned));
                }
            }
        }
    }

    fn compare(&mut self, group: &Group, owner: &DataOwner, allocated: u64, seq: u64) {
        let (ino, data_id) = (owner.ino, group.data_id);
        let own = group.relocations.iter().filter(|(of, _)| *of == ino);
        let relocations = own.map(|(_, relocation)| *relocation).collect();
        let component = component_of(data_id, owner, relocations);
        let set = self.map.set(owner.component.0);
        let (Some(_), Ok(())) = (set, stripe::check_component(&component)) else {
            return (self.tell)(JoinOutcome::Wrong(
                None,
                *owner,
                FindingKind::Layout { ino },
            ));
        };
        self.compare_copies(group, (owner, seq), &component);
        let (blocks, end) = self.add_up(group, owner, &component, seq);
        let found = blocks.saturating_mul(zonal_object::ids::BLOCK);
        if !self.has_all_targets(owner, &component, found < allocated) {
            return;
        }
        if found < allocated {
            let missing = allocated - found;
            (self.tell)(JoinOutcome::Short(Box::new(component), *owner, missing));
        }
        if end > owner.size.max(owner.inline) {
            let size = owner.size;
            (self.tell)(JoinOutcome::Wrong(
                None,
                *owner,
                FindingKind::BehindSize { ino, size, end },
            ));
        }
        if found != allocated {
            let what = FindingKind::Allocated {
                ino,
                counted: allocated,
                found,
            };
            (self.tell)(JoinOutcome::Wrong(None, *owner, what));
        }
    }

    /// Adds up the objects at their main places: their blocks, and the end of the file by them.
    /// Reports misplaced objects and truncations that the inode lacks.
    fn add_up(
        &mut self,
        group: &Group,
        owner: &DataOwner,
        component: &Component,
        seq: u64,
    ) -> (u64, u64) {
        let (mut blocks, mut end, mut shrinks) = (0_u64, 0_u64, seq);
        for &FoundObject {
            column,
            target,
            bytes,
            blocks: own_blocks,
            truncate_seq: own_seq,
            ..
        } in &group.found
        {
            let right = target_of(self.map, component, column);
            // It counts once its target has filled it.
            if is_missing(component, Column(column)) && right == Some(target) {
                continue;
            }
            if right != Some(target) {
                if may_be_left(self.map, component, Column(column), target) {
                    if is_counted(self.map, component, Column(column), target) {
                        blocks = blocks.saturating_add(own_blocks);
                    }
                    continue;
                }
                let is_copy = group
                    .found
                    .iter()
                    .any(|other| other.column == column && Some(other.target) == right);
                let (data_id, column) = (group.data_id, Column(column));
                let what = FindingKind::Misplaced {
                    object: ObjectId { data_id, column },
                    ino: owner.ino,
                    is_copy,
                };
                (self.tell)(JoinOutcome::Wrong(Some(target), *owner, what));
                continue;
            }
            blocks = blocks.saturating_add(own_blocks);
            shrinks = shrinks.max(own_seq);
            // A target that lags behind truncates before it reads or writes.
            if bytes > 0 && own_seq >= seq {
                let last = stripe::file_offset_of(component, Column(column), bytes - 1);
                end = end.max(last.saturating_add(1)).min(FILE_BYTES_MAX);
            }
        }
        if shrinks > seq {
            let what = FindingKind::Shrinks {
                ino: owner.ino,
                known: seq,
                found: shrinks,
            };
            (self.tell)(JoinOutcome::Wrong(None, *owner, what));
        }
        (blocks, end)
    }

    /// Whether all targets of a file could be read. Where blocks were not found, reports the ranges
    /// of the targets that could not.
    fn has_all_targets(
        &mut self,
        owner: &DataOwner,
        component: &Component,
        lacks_blocks: bool,
    ) -> bool {
        let mut complete = true;
        for Column(column) in stripe::objects(component) {
            let Some(target) = target_of(self.map, component, column) else {
                continue;
            };
            if (self.is_there)(target) {
                continue;
            }
            complete = false;
            let unit = u64::from(component.unit);
            let count = u64::from(component.count);
            let in_row = u64::from(column) % count.max(1);
            let ranges = Ranges::of_column(owner.inline..owner.size, unit, count, in_row);
            if ranges.bytes > 0 && lacks_blocks {
                let what = FindingKind::LostWithTarget {
                    ino: owner.ino,
                    target,
                    ranges,
                };
                (self.tell)(JoinOutcome::Wrong(Some(target), *owner, what));
            }
        }
        complete
    }
}

impl Group {
    fn of(data_id: DataId) -> Self {
        Self {
            data_id,
            owner: None,
            deleted: false,
            found: Vec::new(),
            relocations: Vec::new(),
            stale: Vec::new(),
        }
    }
}

/// The component of an owner's layout.
#[must_use]
pub fn component_of(data_id: DataId, owner: &DataOwner, relocations: Vec<Relocation>) -> Component {
    let (set, start_column, count, unit, redundancy) = owner.component;
    Component {
        kind: ComponentKind::Striped,
        start: 0,
        end: u64::MAX,
        data_id,
        zone: ZoneId(0),
        set,
        start_column: Column(start_column),
        count,
        unit,
        span: 0,
        redundancy,
        relocations,
    }
}

/// The target of an object's main place: the one that clients read, and that a file counts. `None`
/// also for an object of a copy that the component had before.
#[must_use]
pub fn target_of(map: &ZoneMap, component: &Component, object: u16) -> Option<TargetId> {
    if object >= zonal_layout::object_count(component) {
        // Its copy is gone.
        return None;
    }
    let place = zonal_layout::main_place(component, Column(object));
    let found = map.slot_of_place(component, place)?;
    Some(found.slot.target)
}

/// True for an object that is noted as missing: its target fills it, and nobody reads it before.
#[must_use]
pub fn is_missing(component: &Component, object: Column) -> bool {
    let moving = zonal_layout::relocation_of(component, object);
    moving.is_some_and(|of| of.state == RelocationState::Missing)
}

/// True where no file needs anything that a target has: it is drained, or was and left the map.
#[must_use]
pub fn is_drained(map: &ZoneMap, target: TargetId) -> bool {
    let mut slots = map.sets.iter().flat_map(|set| &set.slots);
    match map.target_state(target) {
        Some(state) => state == TargetState::Drained,
        None => slots.any(|slot| slot.target == target && slot.state == SlotState::Out),
    }
}

/// True where a target has an object of a copy that is gone, and its file counts the bytes still.
#[must_use]
pub fn is_counted(map: &ZoneMap, component: &Component, object: Column, target: TargetId) -> bool {
    component.relocations.iter().any(|of| {
        let slot = map.slot_of_relocation(of);
        of.state == RelocationState::Dropped
            && of.object == object
            && slot.is_some_and(|slot| slot.target == target)
    })
}

/// True where a target may have an object of a file that does not count. The object moves there, or
/// it has left the target, which is to delete it.
#[must_use]
pub fn may_be_left(map: &ZoneMap, component: &Component, object: Column, target: TargetId) -> bool {
    let mut places = zonal_layout::places(component);
    let is_its = |place: Column| {
        let slot = map.slot_of_place(component, place).map(|of| of.slot);
        zonal_layout::object_of(component, place) == object
            && slot.is_some_and(|slot| slot.target == target)
    };
    is_drained(map, target) || places.any(is_its) || map.has_leftover(component, object, target)
}
