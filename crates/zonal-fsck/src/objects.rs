//! Inodes against objects: what layouts say should lie on targets, and what does.
//!
//! Facts of both sides, sorted by data id, are joined group by group; a group has as many objects as a file has columns.

use crate::finding::What;
use crate::ranges::Ranges;
use zonal_layout::stripe;
use zonal_meta::check::Data;
use zonal_meta::check::sorted::{self, FACT_BYTES};
use zonal_object::{KnownObject, ObjectId};
use zonal_types::{
    Column, Component, ComponentKind, DataId, Ino, Layout, LayoutGen, Redundancy, StripeSetId,
    TargetId, ZoneId, codec_enum,
};
use zonal_zonemap::{StripeSet, ZoneMap};

/// Unit of the bytes that a shard keeps.
const BLOCK: u32 = zonal_types::limits::BLOCK_BYTES as u32;
/// Objects of one data id that are looked at; more than any layout has.
const OBJECTS_MAX: usize = 1 << 16;

codec_enum! {
    /// What is said of a data id.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum About {
        /// An inode's layout names it.
        Expected = 1 {
            /// The inode.
            ino: Ino,
            /// The directory of its entry (0: none).
            dir: Ino,
            /// The entry's cookie.
            cookie: u64,
            /// The stripe set.
            set: StripeSetId,
            /// Slot of column 0.
            start_column: u16,
            /// Columns.
            count: u16,
            /// Bytes per object in a row.
            unit: u32,
            /// The file's size.
            size: u64,
            /// Allocated bytes, as the inode says.
            allocated: u64,
            /// The last shrink.
            truncate_seq: u32,
            /// First bytes that are in the shard's store, in blocks.
            inline: u8,
        },
        /// A deletion covers it.
        Deleted = 2,
        /// A target has an object of it.
        Found = 3 {
            /// The column.
            column: u16,
            /// The target.
            target: TargetId,
            /// Length of the object.
            bytes: u64,
            /// Its blocks.
            blocks: u64,
            /// The last shrink that was applied.
            truncate_seq: u64,
            /// Its deletion has begun.
            deleting: bool,
        },
    }
}

/// One fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFact {
    /// Of which bytes.
    pub data_id: DataId,
    /// What.
    pub about: About,
}

impl DataFact {
    /// The fact as bytes that sort by data id. `scratch` saves an allocation.
    #[must_use]
    pub fn encode(&self, scratch: &mut Vec<u8>) -> [u8; FACT_BYTES] {
        sorted::encode(self.data_id.0, &self.about, scratch)
    }

    /// The fact in bytes that [`Self::encode`] gave.
    #[must_use]
    pub fn decode(bytes: &[u8; FACT_BYTES]) -> Option<Self> {
        let (data_id, about) = sorted::decode(bytes)?;
        let data_id = DataId(data_id);
        Some(Self { data_id, about })
    }

    /// What an inode says.
    #[must_use]
    pub fn expected(ino: Ino, name: Option<(Ino, u64)>, data: &Data) -> Self {
        let (dir, cookie) = name.unwrap_or_default();
        Self {
            data_id: data.data_id,
            about: About::Expected {
                ino,
                dir,
                cookie,
                set: data.set,
                start_column: data.start_column,
                count: data.count,
                unit: data.unit,
                size: data.size,
                allocated: data.allocated,
                truncate_seq: u32::try_from(data.truncate_seq).unwrap_or(u32::MAX),
                inline: u8::try_from(data.inline / BLOCK).unwrap_or(u8::MAX),
            },
        }
    }

    /// The file that a fact of an inode is about.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        let About::Expected {
            ino,
            dir,
            cookie,
            set,
            start_column,
            count,
            unit,
            size,
            inline,
            ..
        } = self.about
        else {
            return None;
        };
        Some(Owner {
            ino,
            name: (dir != Ino(0)).then_some((dir, cookie)),
            component: (set, start_column, count, unit),
            size,
            inline: u64::from(inline) * u64::from(BLOCK),
        })
    }

    /// What a target has.
    #[must_use]
    pub fn found(target: TargetId, known: &KnownObject) -> Self {
        Self {
            data_id: known.object.data_id,
            about: About::Found {
                column: known.object.column.0,
                target,
                bytes: known.bytes,
                blocks: known.blocks,
                truncate_seq: known.truncate_seq,
                deleting: known.deleting,
            },
        }
    }
}

/// The file that bytes belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Its inode.
    pub ino: Ino,
    /// Its entry: directory and cookie; no directory where it has none.
    pub name: Option<(Ino, u64)>,
    /// Its layout, as far as it matters here.
    pub component: (StripeSetId, u16, u16, u32),
    /// Its size.
    pub size: u64,
    /// First bytes that are in the shard's store.
    pub inline: u64,
}

/// An object without an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lonely {
    /// Its column.
    pub column: u16,
    /// Where it is.
    pub target: TargetId,
    /// Its length.
    pub bytes: u64,
    /// Its blocks.
    pub blocks: u64,
    /// The last shrink applied.
    pub truncate_seq: u64,
}

/// What a join tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// Something is wrong with a file's bytes; the target, where it is one's.
    Wrong(Option<TargetId>, Owner, What),
    /// Bytes without an inode.
    Lonely(DataId, Vec<Lonely>),
    /// A file whose objects could not be compared with what its inode counts, as its target is not there or damaged:
    /// allocated bytes that are missing, and for each column the bytes that it should have.
    Short(DataId, Owner, u64),
}

struct Group {
    data_id: DataId,
    owner: Option<(Owner, u64, u64)>,
    deleted: bool,
    found: Vec<(u16, TargetId, u64, u64, u64, bool)>,
}

/// Joins facts that come sorted.
pub struct Join<'a> {
    map: &'a ZoneMap,
    /// Whether a target's store could be read.
    is_there: &'a dyn Fn(TargetId) -> bool,
    tell: &'a mut dyn FnMut(Joined),
    group: Group,
}

impl<'a> Join<'a> {
    /// A join of the facts of a whole cell.
    pub fn new(
        map: &'a ZoneMap,
        is_there: &'a dyn Fn(TargetId) -> bool,
        tell: &'a mut dyn FnMut(Joined),
    ) -> Self {
        Self {
            map,
            is_there,
            tell,
            group: Group::of(DataId(0)),
        }
    }

    /// Takes the next fact; facts are sorted by their bytes.
    pub fn take(&mut self, fact: &DataFact) {
        if fact.data_id != self.group.data_id {
            self.end_group();
            self.group = Group::of(fact.data_id);
        }
        match fact.about {
            About::Expected {
                allocated,
                truncate_seq,
                ..
            } => {
                let Some(owner) = fact.owner() else {
                    return;
                };
                match &self.group.owner {
                    Some((first, ..)) => {
                        let what = What::Shared {
                            data_id: fact.data_id,
                            ino: owner.ino,
                            other: first.ino,
                        };
                        (self.tell)(Joined::Wrong(None, owner, what));
                    }
                    None => {
                        self.group.owner = Some((owner, allocated, u64::from(truncate_seq)));
                    }
                }
            }
            About::Deleted => self.group.deleted = true,
            About::Found {
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

    /// After the last fact.
    pub fn finish(mut self) {
        self.end_group();
    }

    fn end_group(&mut self) {
        let group = std::mem::replace(&mut self.group, Group::of(DataId(0)));
        match group.owner {
            Some((owner, allocated, seq)) => self.compare(&group, &owner, allocated, seq),
            None if group.deleted => {}
            None => {
                let lonely: Vec<Lonely> = group
                    .found
                    .iter()
                    .filter(|found| !found.5)
                    .map(|&(column, target, bytes, blocks, truncate_seq, _)| Lonely {
                        column,
                        target,
                        bytes,
                        blocks,
                        truncate_seq,
                    })
                    .collect();
                if !lonely.is_empty() {
                    (self.tell)(Joined::Lonely(group.data_id, lonely));
                }
            }
        }
    }

    fn compare(&mut self, group: &Group, owner: &Owner, allocated: u64, seq: u64) {
        let (ino, data_id) = (owner.ino, group.data_id);
        let component = component_of(data_id, owner);
        let set = self.map.set(owner.component.0);
        let (Some(set), Ok(())) = (set, stripe::check_component(&component)) else {
            return (self.tell)(Joined::Wrong(None, *owner, What::Layout { ino }));
        };
        let (mut blocks, mut end, mut shrinks) = (0_u64, 0_u64, seq);
        for &(column, target, bytes, own_blocks, own_seq, _) in &group.found {
            let right = target_of(set, &component, column);
            if right != Some(target) {
                let is_copy = group
                    .found
                    .iter()
                    .any(|other| other.0 == column && Some(other.1) == right);
                let column = Column(column);
                let object = ObjectId { data_id, column };
                let what = What::Misplaced {
                    object,
                    ino,
                    is_copy,
                };
                (self.tell)(Joined::Wrong(Some(target), *owner, what));
                continue;
            }
            blocks = blocks.saturating_add(own_blocks);
            shrinks = shrinks.max(own_seq);
            // A target that is behind cuts before it reads or writes.
            if bytes > 0 && own_seq >= seq {
                let last = stripe::file_offset_of(&component, Column(column), bytes - 1);
                end = end.max(last.saturating_add(1));
            }
        }
        if shrinks > seq {
            let what = What::Shrinks {
                ino,
                known: seq,
                found: shrinks,
            };
            (self.tell)(Joined::Wrong(None, *owner, what));
        }
        let found = blocks.saturating_mul(zonal_object::ids::BLOCK);
        let mut complete = true;
        for column in 0..component.count {
            let Some(target) = target_of(set, &component, column) else {
                continue;
            };
            if (self.is_there)(target) {
                continue;
            }
            complete = false;
            let unit = u64::from(component.unit);
            let count = u64::from(component.count);
            let ranges =
                Ranges::of_column(owner.inline..owner.size, unit, count, u64::from(column));
            if ranges.bytes > 0 && found < allocated {
                let what = What::LostWithTarget {
                    ino,
                    target,
                    ranges,
                };
                (self.tell)(Joined::Wrong(Some(target), *owner, what));
            }
        }
        if !complete {
            return;
        }
        if found < allocated {
            (self.tell)(Joined::Short(data_id, *owner, allocated - found));
        }
        if end > owner.size.max(owner.inline) {
            let size = owner.size;
            (self.tell)(Joined::Wrong(
                None,
                *owner,
                What::BehindSize { ino, size, end },
            ));
        }
        if found != allocated {
            let what = What::Allocated {
                ino,
                counted: allocated,
                found,
            };
            (self.tell)(Joined::Wrong(None, *owner, what));
        }
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
pub fn component_of(data_id: DataId, owner: &Owner) -> Component {
    let (set, start_column, count, unit) = owner.component;
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
        redundancy: Redundancy::None,
    }
}

/// The target that a column of a component lies on.
#[must_use]
pub fn target_of(set: &StripeSet, component: &Component, column: u16) -> Option<TargetId> {
    let width = u16::try_from(set.slots.len()).ok()?;
    let slot = stripe::slot_of(component, Column(column), width).ok()?;
    set.slots.get(usize::from(slot)).map(|slot| slot.target)
}

/// A layout for bytes without an inode that agrees with where their objects lie, and the size that they make. The
/// stripe unit is the default: with one column it does not matter, with more it is a guess. `None` where no layout agrees.
#[must_use]
pub fn guess_layout(map: &ZoneMap, data_id: DataId, lonely: &[Lonely]) -> Option<(Layout, u64)> {
    let first = lonely.first()?;
    let last = lonely.iter().map(|object| object.column).max()?;
    let set = map.sets.iter().rev().find(|set| {
        let holds = |target| set.slots.iter().any(|slot| slot.target == target);
        lonely.iter().all(|object| holds(object.target))
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
    };
    let agrees = |object: &Lonely| target_of(set, &component, object.column) == Some(object.target);
    if !lonely.iter().all(agrees) {
        return None;
    }
    let ends = lonely
        .iter()
        .filter(|object| object.bytes > 0)
        .map(|object| {
            let end = stripe::file_offset_of(&component, Column(object.column), object.bytes - 1);
            end.saturating_add(1)
        });
    let size = ends.max().unwrap_or(0);
    Some((
        Layout {
            layout_gen: LayoutGen(1),
            components: vec![component],
        },
        size,
    ))
}
