//! Join of sorted facts: compares each inode with its names, entries and records.

use super::Broken;
use super::facts::{Fact, FactKind, FileDataFact};
use crate::inode::{FLAG_DETACHED, FLAG_ORPHAN};
use crate::op::inline_data;
use std::collections::BTreeSet;
use zonal_types::{DataId, FileKind, Ino, Relocation, TargetId};

/// An entry that leads to an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamingEntry {
    /// The directory.
    pub dir: Ino,
    /// The entry's cookie.
    pub cookie: u64,
    /// The type that the entry names.
    pub kind: FileKind,
}

/// An inode that exists, with what leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeSummary {
    /// Its number.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// The directory that it names as its own.
    pub parent: Ino,
    /// The first entry that leads to it. For a directory with several, the entry in the parent that
    /// it names.
    pub name: Option<NamingEntry>,
    /// Where its bytes are; `allocated` does not count those that the shard stores.
    pub data: Option<FileDataFact>,
    /// True where its entry in the root is not settled.
    pub is_detached: bool,
}

/// A result of the join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinResult {
    /// A broken invariant.
    Broken(Broken),
    /// An inode.
    Known(InodeSummary),
    /// An entry that leads to another shard's inode.
    Elsewhere(Ino, NamingEntry),
    /// Bytes that are to be deleted.
    Deleted(DataId),
    /// An object of an inode lies, or shall lie, in another slot.
    Relocated(Ino, DataId, Relocation),
    /// The copies of an inode's bytes on a target are marked as stale.
    Stale(Ino, DataId, TargetId),
}

#[derive(Default)]
struct Group {
    ino: Ino,
    inode: Option<(FileKind, u32, u64, Ino, u32, u8)>,
    data: Option<FileDataFact>,
    /// Data ids of its layout, and data ids whose index key leads to it.
    data_ids: BTreeSet<DataId>,
    indexed: BTreeSet<DataId>,
    inline: Option<u32>,
    xattrs: Option<u8>,
    orphan: bool,
    deletion: bool,
    detached: bool,
    entries: Option<(u64, u32)>,
    names: u32,
    name: Option<NamingEntry>,
    /// Entries of a directory besides `name`.
    others: Vec<NamingEntry>,
}

/// Data ids leading to one inode, looked at in one pass: more than a layout has components.
const INDEXED_MAX: usize = 4096;

/// Other entries of one directory, reported in one pass.
const OTHERS_MAX: usize = 64;

/// Joins sorted facts.
pub struct Join<'a> {
    is_ours: &'a dyn Fn(Ino) -> bool,
    tell: &'a mut dyn FnMut(JoinResult),
    group: Group,
}

impl<'a> Join<'a> {
    /// A join of the facts of one shard. `is_ours` says whether an inode number belongs to it;
    /// `tell` gets the results.
    pub fn new(is_ours: &'a dyn Fn(Ino) -> bool, tell: &'a mut dyn FnMut(JoinResult)) -> Self {
        Self {
            is_ours,
            tell,
            group: Group::default(),
        }
    }

    fn broken(&mut self, broken: Broken) {
        (self.tell)(JoinResult::Broken(broken));
    }

    /// Takes the next fact; facts are sorted by their bytes.
    pub fn take(&mut self, fact: &Fact) {
        if fact.ino != self.group.ino {
            self.end_group();
            self.group.ino = fact.ino;
        }
        let group = &mut self.group;
        match fact.statement {
            FactKind::Inode {
                kind,
                nlink,
                size,
                parent,
                flags,
                xattrs,
            } => group.inode = Some((kind, nlink, size, parent, flags, xattrs)),
            FactKind::Data { data } => {
                group.data_ids.insert(data.data_id);
                group.data = Some(data);
            }
            FactKind::Indexed { data_id } if group.indexed.len() < INDEXED_MAX => {
                group.indexed.insert(data_id);
            }
            FactKind::Indexed { .. } => {}
            FactKind::Inline { bytes } => group.inline = Some(bytes),
            FactKind::Xattr { flags } => *group.xattrs.get_or_insert(0) |= flags,
            FactKind::Orphan => group.orphan = true,
            FactKind::Deletion { data_id } => {
                group.deletion = true;
                (self.tell)(JoinResult::Deleted(data_id));
            }
            FactKind::Relocated {
                data_id,
                relocation,
            } => {
                let ino = fact.ino;
                (self.tell)(JoinResult::Relocated(ino, data_id, relocation));
            }
            FactKind::Stale { data_id, target } => {
                let ino = fact.ino;
                (self.tell)(JoinResult::Stale(ino, data_id, target));
            }
            FactKind::Detached => group.detached = true,
            FactKind::Entries {
                entries,
                directories,
            } => group.entries = Some((entries, directories)),
            FactKind::Name { dir, cookie, kind } => self.name(NamingEntry { dir, cookie, kind }),
        }
    }

    /// Ends the join after the last fact.
    pub fn finish(mut self) {
        self.end_group();
    }

    fn name(&mut self, named: NamingEntry) {
        let (ino, NamingEntry { dir, cookie, .. }) = (self.group.ino, named);
        self.group.names += 1;
        match self.group.inode {
            None if (self.is_ours)(ino) => {
                self.broken(Broken::LeadsNowhere { dir, cookie, ino });
                return;
            }
            None => {
                (self.tell)(JoinResult::Elsewhere(ino, named));
                return;
            }
            Some((kind, ..)) if kind != named.kind => {
                self.broken(Broken::WrongType { dir, cookie, ino });
            }
            _ => {}
        }
        let parent = self.group.inode.map(|inode| inode.3);
        let other = match self.group.name {
            Some(before) if Some(before.dir) != parent && Some(dir) == parent => Some(before),
            Some(_) => Some(named),
            None => None,
        };
        if other != Some(named) {
            self.group.name = Some(named);
        }
        let is_dir = self
            .group
            .inode
            .is_some_and(|inode| inode.0 == FileKind::Directory);
        if is_dir && self.group.others.len() < OTHERS_MAX {
            self.group.others.extend(other);
        }
    }

    fn end_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        let ino = group.ino;
        let Some((kind, nlink, size, parent, flags, xattrs)) = group.inode else {
            self.judge_missing_inode(group);
            return;
        };
        if kind == FileKind::Directory {
            self.judge_directory(&group, parent, (size, nlink));
        } else {
            self.judge_links(&group, nlink);
        }
        self.judge_records(&group, flags, xattrs);
        self.judge_data_ids(&group);
        let mut data = group.data;
        if let Some(bytes) = group.inline {
            let room = data.map_or(0, |data| size.min(data.inline.into()));
            if u64::from(bytes) > room {
                self.broken(Broken::Inline { ino, bytes, room });
            }
            if let Some(data) = &mut data {
                let own = inline_data::allocated(bytes as usize);
                data.allocated = data.allocated.saturating_sub(own);
            }
        }
        (self.tell)(JoinResult::Known(InodeSummary {
            ino,
            kind,
            parent,
            name: group.name,
            data,
            is_detached: flags & FLAG_DETACHED != 0,
        }));
    }

    /// Reports the facts about an inode that does not exist.
    fn judge_missing_inode(&mut self, group: Group) {
        let ino = group.ino;
        if let Some((entries, _)) = group.entries {
            self.broken(Broken::NotInDirectory { dir: ino, entries });
        }
        let has_bytes = group.inline.is_some();
        let mut indexed = group.indexed.into_iter();
        if has_bytes || group.xattrs.is_some() || group.orphan || group.detached {
            // A file made anew for its first bytes has no data id left; these are the others.
            let data_id = indexed.next();
            self.broken(Broken::Homeless { ino, data_id });
        }
        for data_id in indexed {
            self.broken(Broken::StrayData { ino, data_id });
        }
    }

    /// Compares a directory with its names and its entries. `counted`: its size and its links.
    fn judge_directory(&mut self, group: &Group, parent: Ino, counted: (u64, u32)) {
        let ino = group.ino;
        let wrong = if ino == Ino::ROOT { group.name } else { None };
        for NamingEntry { dir, cookie, .. } in group.others.iter().copied().chain(wrong) {
            self.broken(Broken::SecondName { dir, cookie, ino });
        }
        let (entries, directories) = group.entries.unwrap_or_default();
        let is_first_level = parent == Ino::ROOT;
        if group.names == 0 && !is_first_level {
            self.broken(Broken::NoName { ino });
        } else if group.name.is_some_and(|name| name.dir != parent) {
            let dir = group.name.map_or(parent, |name| name.dir);
            self.broken(Broken::WrongParent { ino, parent, dir });
        }
        if counted != (entries, directories.saturating_add(2)) {
            self.broken(Broken::Counts {
                ino,
                counted,
                found: (entries, directories),
            });
        }
    }

    /// Compares a file's count of links with its names.
    fn judge_links(&mut self, group: &Group, nlink: u32) {
        let (ino, names) = (group.ino, group.names);
        if let Some((entries, _)) = group.entries {
            self.broken(Broken::NotInDirectory { dir: ino, entries });
        }
        if names == 0 && !group.orphan {
            self.broken(Broken::NoName { ino });
        } else if nlink != names {
            self.broken(Broken::Links {
                ino,
                counted: nlink,
                names,
            });
        }
    }

    /// Compares an inode's flags with the records beside it, which must agree.
    fn judge_records(&mut self, group: &Group, flags: u32, xattrs: u8) {
        let ino = group.ino;
        let is_orphan = flags & FLAG_ORPHAN != 0;
        if is_orphan != group.orphan || (group.orphan && group.names > 0) {
            self.broken(Broken::OrphanMark {
                ino,
                has_record: group.orphan,
            });
        }
        let is_detached = flags & FLAG_DETACHED != 0;
        if is_detached != group.detached {
            self.broken(Broken::DetachedMark {
                ino,
                has_record: group.detached,
            });
        }
        if group.deletion {
            self.broken(Broken::AliveDeletion { ino });
        }
        let missing = group.xattrs.unwrap_or(0) & !xattrs;
        if missing != 0 {
            self.broken(Broken::Xattrs { ino, missing });
        }
    }

    /// Compares the data ids of an inode with the index of data ids.
    fn judge_data_ids(&mut self, group: &Group) {
        let ino = group.ino;
        for data_id in group.indexed.difference(&group.data_ids).copied() {
            self.broken(Broken::StrayData { ino, data_id });
        }
        for data_id in group.data_ids.difference(&group.indexed).copied() {
            // The comparison with the targets checks data ids of other shards.
            if (self.is_ours)(Ino(data_id.0)) {
                self.broken(Broken::Unindexed { ino, data_id });
            }
        }
    }
}
