//! Compares inodes with objects: the objects that layouts require, and those that targets store.
//!
//! Facts of both sides, sorted by data id, are joined group by group. A group has as many objects
//! as a file has columns.

use crate::data_fact::{DataClaim, DataFact, DataOwner};
use crate::finding::FindingKind;
use crate::ranges::Ranges;
use zonal_layout::stripe;
use zonal_object::ObjectId;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{
    Column, Component, ComponentKind, DataId, Layout, LayoutGen, Redundancy, TargetId, ZoneId,
};
use zonal_zonemap::{StripeSet, ZoneMap};

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
    Short(DataId, DataOwner, u64),
}

struct Group {
    data_id: DataId,
    owner: Option<(DataOwner, u64, u64)>,
    deleted: bool,
    found: Vec<(u16, TargetId, u64, u64, u64, bool)>,
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
            } => {
                if self.group.found.len() < OBJECTS_MAX {
                    let found = (column, target, bytes, blocks, truncate_seq, deleting);
                    self.group.found.push(found);
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
                    .filter(|found| !found.5)
                    .map(
                        |&(column, target, bytes, blocks, truncate_seq, _)| UnownedObject {
                            column,
                            target,
                            bytes,
                            blocks,
                            truncate_seq,
                        },
                    )
                    .collect();
                if !unowned.is_empty() {
                    (self.tell)(JoinOutcome::Unowned(group.data_id, unowned));
                }
            }
        }
    }

    fn compare(&mut self, group: &Group, owner: &DataOwner, allocated: u64, seq: u64) {
        let (ino, data_id) = (owner.ino, group.data_id);
        let component = component_of(data_id, owner);
        let set = self.map.set(owner.component.0);
        let (Some(set), Ok(())) = (set, stripe::check_component(&component)) else {
            return (self.tell)(JoinOutcome::Wrong(
                None,
                *owner,
                FindingKind::Layout { ino },
            ));
        };
        let (blocks, end) = self.add_up(group, owner, (set, &component), seq);
        let found = blocks.saturating_mul(zonal_object::ids::BLOCK);
        if !self.has_all_targets(owner, (set, &component), found < allocated) {
            return;
        }
        if found < allocated {
            (self.tell)(JoinOutcome::Short(data_id, *owner, allocated - found));
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

    /// Adds up the objects that lie where the layout says: their blocks, and the end of the file by
    /// them. Reports misplaced objects and truncations that the inode lacks.
    fn add_up(
        &mut self,
        group: &Group,
        owner: &DataOwner,
        (set, component): (&StripeSet, &Component),
        seq: u64,
    ) -> (u64, u64) {
        let (mut blocks, mut end, mut shrinks) = (0_u64, 0_u64, seq);
        for &(column, target, bytes, own_blocks, own_seq, _) in &group.found {
            let right = target_of(set, component, column);
            if right != Some(target) {
                let is_copy = group
                    .found
                    .iter()
                    .any(|other| other.0 == column && Some(other.1) == right);
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
        (set, component): (&StripeSet, &Component),
        lacks_blocks: bool,
    ) -> bool {
        let mut complete = true;
        for Column(column) in stripe::objects(component) {
            let Some(target) = target_of(set, component, column) else {
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
        }
    }
}

/// The component of an owner's layout.
#[must_use]
pub fn component_of(data_id: DataId, owner: &DataOwner) -> Component {
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
        relocations: Vec::new(),
    }
}

/// The target that stores a column of a component.
#[must_use]
pub fn target_of(set: &StripeSet, component: &Component, column: u16) -> Option<TargetId> {
    let width = u16::try_from(set.slots.len()).ok()?;
    let slot = stripe::slot_of(component, Column(column), width).ok()?;
    set.slots.get(usize::from(slot)).map(|slot| slot.target)
}

/// Guesses a layout for bytes without an inode, from the places of their objects; also returns the
/// file's size.
///
/// The stripe unit is the default: with one column it does not matter, with more it is a guess.
/// Returns `None` where no layout agrees with the places.
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
    let agrees =
        |object: &UnownedObject| target_of(set, &component, object.column) == Some(object.target);
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
