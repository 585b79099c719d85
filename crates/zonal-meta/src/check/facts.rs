//! Scan of a shard's store: turns each key into facts of fixed size about inodes.
//!
//! Key order is no useful order of facts. Sorted by inode number, in memory or outside of it,
//! [`super::join::Join`] reads them. The scan reports at once what is wrong with a single key.

use super::Broken;
use super::fact_bytes::{self, FACT_BYTES};
use crate::dentry::{Dentry, name_cookie};
use crate::fences::FenceRecord;
use crate::id_ranges::Counter;
use crate::inode::Inode;
use crate::inode_counts;
use crate::keys;
use crate::moves::{Arrival, Departure, MovedSession};
use crate::op::detached_directories::DetachedRecord;
use crate::op::xattr::flag_of;
use crate::session::{SessionRecord, SlotRecord};
use crate::tx::OrphanRecord;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{
    Codec, DataId, FileKind, Ino, Layout, PartitionId, Redundancy, Relocation, StripeSetId,
    TargetId, codec_enum, codec_struct,
};

codec_struct! {
    /// Where a file's bytes are, as far as a check needs it. One fact per component.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct FileDataFact {
        /// Identity of the bytes.
        data_id: DataId,
        /// The stripe set.
        set: StripeSetId,
        /// Slot of column 0.
        start_column: u16,
        /// Columns.
        count: u16,
        /// Bytes per object in a row.
        unit: u32,
        /// Redundancy.
        redundancy: Redundancy,
        /// The file's size.
        size: u64,
        /// Allocated bytes, as reported.
        allocated: u64,
        /// Number of the last truncation (`truncate_seq`).
        truncate_seq: u64,
        /// First bytes that its layout leaves to the shard.
        inline: u32,
    }
}

codec_enum! {
    /// A statement about an inode. The order of the tags is the order in which facts are joined.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FactKind {
        /// It exists.
        Inode = 1 {
            /// Its type.
            kind: FileKind,
            /// Links that it counts.
            nlink: u32,
            /// Its size; of a directory the entries that it counts.
            size: u64,
            /// The directory of its entry.
            parent: Ino,
            /// Its flags.
            flags: u32,
            /// Kinds of extended attributes that it knows.
            xattrs: u8,
        },
        /// It has bytes.
        Data = 2 {
            /// Where.
            data: FileDataFact,
        },
        /// It has an extended attribute of these kinds.
        Xattr = 3 {
            /// The kinds.
            flags: u8,
        },
        /// It has an orphan's record.
        Orphan = 4,
        /// These bytes of it are to be deleted. One fact per component.
        Deletion = 5 {
            /// Their identity.
            data_id: DataId,
        },
        /// It has a record of a directory that is not settled.
        Detached = 6,
        /// So many entries lie in it.
        Entries = 7 {
            /// All.
            entries: u64,
            /// Those that are directories.
            directories: u32,
        },
        /// An entry leads to it.
        Name = 8 {
            /// The directory.
            dir: Ino,
            /// The entry's cookie.
            cookie: u64,
            /// The type that the entry names.
            kind: FileKind,
        },
        /// The index says that it has these bytes.
        Indexed = 10 {
            /// Their identity.
            data_id: DataId,
        },
        /// An object of it lies, or shall lie, in another slot. One fact per record.
        Relocated = 11 {
            /// Identity of the bytes.
            data_id: DataId,
            /// The record.
            relocation: Relocation,
        },
        /// The copies of these bytes on a target are marked as stale. One fact per mark.
        Stale = 12 {
            /// Identity of the bytes.
            data_id: DataId,
            /// The target.
            target: TargetId,
        },
        /// So many of its first bytes are stored with it.
        Inline = 9 {
            /// Bytes.
            bytes: u32,
        },
    }
}

/// One fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// The inode that the fact is about.
    pub ino: Ino,
    /// The statement.
    pub statement: FactKind,
}

impl Fact {
    /// Encodes the fact as bytes that sort by inode number and tag. `scratch` saves an allocation.
    #[must_use]
    pub fn encode(&self, scratch: &mut Vec<u8>) -> [u8; FACT_BYTES] {
        fact_bytes::encode(self.ino.0, &self.statement, scratch)
    }

    /// Decodes the bytes that [`Self::encode`] gave.
    #[must_use]
    pub fn decode(bytes: &[u8; FACT_BYTES]) -> Option<Self> {
        let (ino, statement) = fact_bytes::decode(bytes)?;
        let ino = Ino(ino);
        Some(Self { ino, statement })
    }
}

/// A directory whose entries are being scanned.
struct Directory {
    ino: Ino,
    entries: u64,
    directories: u32,
    /// The newest first entry of a hash chain.
    first: u64,
}

/// Turns keys and values, in key order, into facts.
pub struct Scan<'a> {
    hash_bits: u32,
    emit: &'a mut dyn FnMut(Fact),
    broken: &'a mut dyn FnMut(Broken),
    directory: Option<Directory>,
    numbers: Numbers,
    /// Partitions that are not the shard's, though it has keys of them.
    passed_over: BTreeSet<PartitionId>,
}

/// Numbers of a partition, by [`Counter`]: the first that was not given, and the last in use.
#[derive(Default)]
struct Numbers {
    partition: u32,
    reserved: BTreeMap<Counter, u64>,
    last: BTreeMap<Counter, u64>,
}

impl Numbers {
    fn used(&mut self, counter: Counter, number: u64) {
        let last = self.last.entry(counter).or_default();
        *last = number.max(*last);
    }

    /// Notes a data id of this partition as used.
    fn used_data(&mut self, id: DataId) {
        if id.partition() == PartitionId(self.partition) {
            self.used(Counter::Data, id.sequence());
        }
    }
}

impl<'a> Scan<'a> {
    /// A scan that passes facts to `emit` and broken keys to `broken`.
    pub fn new(
        hash_bits: u32,
        emit: &'a mut dyn FnMut(Fact),
        broken: &'a mut dyn FnMut(Broken),
    ) -> Self {
        Self {
            hash_bits,
            emit,
            broken,
            directory: None,
            numbers: Numbers::default(),
            passed_over: BTreeSet::new(),
        }
    }

    /// Passes over keys of partitions that are coming to the shard or have left it.
    pub fn pass_over(&mut self, partitions: BTreeSet<PartitionId>) {
        self.passed_over = partitions;
    }

    /// Takes the next key. Keys behind those of a shard ([`keys::SHARD_PARTITION`] from tag 0x80
    /// on) belong to the manager.
    pub fn take(&mut self, key: &[u8], value: &[u8]) {
        let partition = key.first_chunk::<4>().map(|of| u32::from_be_bytes(*of));
        if partition.is_some_and(|of| self.passed_over.contains(&PartitionId(of))) {
            return;
        }
        if self.decode(key, value).is_none() {
            (self.broken)(Broken::Key { key: key.to_vec() });
        }
    }

    /// Ends the scan after the last key.
    pub fn finish(mut self) {
        self.leave_directory();
        self.leave_partition(0);
    }

    fn leave_partition(&mut self, next: u32) {
        let next = Numbers {
            partition: next,
            ..Numbers::default()
        };
        let left = std::mem::replace(&mut self.numbers, next);
        let partition = PartitionId(left.partition);
        for (counter, last) in left.last {
            let reserved = left.reserved.get(&counter).copied();
            let reserved = reserved.unwrap_or_default().max(counter.first());
            if last < reserved {
                continue;
            }
            (self.broken)(match counter {
                Counter::Inodes => Broken::Ids {
                    partition,
                    reserved,
                    last,
                },
                Counter::Data => Broken::DataIds {
                    partition,
                    reserved,
                    last,
                },
            });
        }
    }

    fn decode(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let partition = u32::from_be_bytes(*key.first_chunk::<4>()?);
        let tag = *key.get(4)?;
        if tag != keys::TAG_DENTRY {
            self.leave_directory();
        }
        if partition == keys::SHARD_PARTITION {
            return of_shard(tag, key, value);
        }
        if partition != self.numbers.partition {
            self.leave_partition(partition);
        }
        if let Some(counter) = Counter::of_tag(tag) {
            let reserved = counter.reserved_in(value)?;
            self.numbers.reserved.insert(counter, reserved);
            return (key.len() == 5).then_some(());
        }
        if tag == keys::TAG_JOINED {
            return (keys::moved_partition(key).is_some() && value.is_empty()).then_some(());
        }
        if tag == keys::TAG_INODE_COUNT {
            inode_counts::decode(Some(value)).ok()?;
            return (key.len() == 5).then_some(());
        }
        let ino = keys::ino_of(key)?;
        if ino.partition() != PartitionId(partition) || !ino.is_valid() {
            return None;
        }
        let is_plain = key.len() == 13;
        let statement = match tag {
            keys::TAG_INODE if is_plain => return self.inode(ino, value),
            keys::TAG_INLINE if is_plain && !value.is_empty() => FactKind::Inline {
                bytes: u32::try_from(value.len()).ok()?,
            },
            keys::TAG_DATA => {
                let data_id = keys::data_of(key)?;
                let ino = Ino::from_bytes(value).ok()?;
                self.numbers.used_data(data_id);
                let statement = FactKind::Indexed { data_id };
                (self.emit)(Fact { ino, statement });
                return Some(());
            }
            keys::TAG_DENTRY => return self.entry(ino, key, value),
            keys::TAG_XATTR => FactKind::Xattr {
                flags: flag_of(key.get(keys::XATTR_NAME_AT..)?),
            },
            keys::TAG_ORPHAN if is_plain => {
                OrphanRecord::from_bytes(value).ok()?;
                FactKind::Orphan
            }
            keys::TAG_DELETION if is_plain => {
                for component in Layout::from_bytes(value).ok()?.components {
                    let data_id = component.data_id;
                    self.numbers.used_data(data_id);
                    let statement = FactKind::Deletion { data_id };
                    (self.emit)(Fact { ino, statement });
                }
                return Some(());
            }
            keys::TAG_STALE if is_plain && value.is_empty() => return Some(()),
            keys::TAG_DETACHED if is_plain => {
                DetachedRecord::from_bytes(value).ok()?;
                FactKind::Detached
            }
            _ => return None,
        };
        (self.emit)(Fact { ino, statement });
        Some(())
    }

    fn inode(&mut self, ino: Ino, value: &[u8]) -> Option<()> {
        self.numbers.used(Counter::Inodes, ino.sequence());
        let inode = Inode::decode(ino, value).ok()?;
        let statement = FactKind::Inode {
            kind: inode.kind,
            nlink: inode.nlink,
            size: inode.size,
            parent: inode.parent,
            flags: inode.flags,
            xattrs: inode.xattrs,
        };
        (self.emit)(Fact { ino, statement });
        for component in &inode.layout.components {
            self.numbers.used_data(component.data_id);
            let data = FileDataFact {
                data_id: component.data_id,
                set: component.set,
                start_column: component.start_column.0,
                count: component.count,
                unit: component.unit,
                redundancy: component.redundancy,
                size: inode.size,
                allocated: inode.allocated_bytes(),
                truncate_seq: inode.truncate_seq,
                inline: inode.layout.inline_bytes(),
            };
            let statement = FactKind::Data { data };
            (self.emit)(Fact { ino, statement });
            for relocation in &component.relocations {
                let statement = FactKind::Relocated {
                    data_id: component.data_id,
                    relocation: *relocation,
                };
                (self.emit)(Fact { ino, statement });
            }
            for target in inode.layout.stale.iter().copied() {
                let data_id = component.data_id;
                let statement = FactKind::Stale { data_id, target };
                (self.emit)(Fact { ino, statement });
            }
        }
        Some(())
    }

    fn entry(&mut self, dir: Ino, key: &[u8], value: &[u8]) -> Option<()> {
        let cookie = keys::dentry_cookie(key)?;
        let dentry = Dentry::decode(value).ok()?;
        if self.directory.as_ref().is_none_or(|now| now.ino != dir) {
            self.leave_directory();
        }
        let now = self.directory.get_or_insert(Directory {
            ino: dir,
            entries: 0,
            directories: 0,
            first: 0,
        });
        if cookie & 0xff == 0 {
            now.first = cookie;
        }
        if dentry.is_mark() {
            return Some(());
        }
        now.entries += 1;
        now.directories += u32::from(dentry.kind == FileKind::Directory);
        let first = cookie & !0xff;
        if name_cookie(dentry.name.as_bytes(), self.hash_bits) != first || first == 0 {
            (self.broken)(Broken::WrongPlace { dir, cookie });
        } else if now.first != first {
            (self.broken)(Broken::NoFirstPlace { dir, cookie });
        }
        let kind = dentry.kind;
        let statement = FactKind::Name { dir, cookie, kind };
        (self.emit)(Fact {
            ino: dentry.ino,
            statement,
        });
        Some(())
    }

    fn leave_directory(&mut self) {
        if let Some(left) = self.directory.take() {
            let statement = FactKind::Entries {
                entries: left.entries,
                directories: left.directories,
            };
            (self.emit)(Fact {
                ino: left.ino,
                statement,
            });
        }
    }
}

fn of_shard(tag: u8, key: &[u8], value: &[u8]) -> Option<()> {
    let length = match tag {
        keys::TAG_FORMAT => {
            <(u16, (zonal_types::ShardId, u32))>::from_bytes(value).ok()?;
            5
        }
        keys::TAG_IDS => {
            u64::from_bytes(value).ok()?;
            5
        }
        keys::TAG_REMOTE_DATA => {
            u8::from_bytes(value).ok()?;
            5
        }
        keys::TAG_SESSION => {
            SessionRecord::from_bytes(value).ok()?;
            13
        }
        keys::TAG_FENCE => {
            FenceRecord::from_bytes(value).ok()?;
            21
        }
        keys::TAG_OWNERSHIP => {
            u64::from_bytes(value).ok()?;
            5
        }
        keys::TAG_DEPARTURE => {
            Departure::from_bytes(value).ok()?;
            9
        }
        keys::TAG_ARRIVAL => {
            Arrival::from_bytes(value).ok()?;
            9
        }
        keys::TAG_MOVED_SESSION => {
            MovedSession::from_bytes(value).ok()?;
            17
        }
        keys::TAG_HOLDER => {
            String::from_bytes(value).ok()?;
            13
        }
        keys::TAG_SLOT => {
            SlotRecord::from_bytes(value).ok()?;
            17
        }
        _ => return None,
    };
    (key.len() == length).then_some(())
}
