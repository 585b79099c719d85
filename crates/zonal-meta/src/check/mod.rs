//! Checks every invariant of a shard's store, for tests, the simulator and fsck. The check reads a
//! store in key order ([`Scan`]), sorts the facts by inode number, and joins them ([`Join`]).

pub mod fact_bytes;
mod facts;
mod join;

pub use facts::{Fact, FactKind, FileDataFact, Scan};
pub use join::{InodeSummary, Join, JoinResult, NamingEntry};

use crate::keys;
use crate::shard::MetaShard;
use crate::tx::OrphanRecord;
use std::collections::{BTreeMap, BTreeSet};
use zonal_basics::Hex;
use zonal_types::{Codec, DataId, Ino, KvRead, codec_of};

/// An invariant of a shard's store that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A key that no shard writes, or a value that cannot be read.
    #[error("key {} or its value is damaged", Hex(.key))]
    Key {
        /// The key.
        key: Vec<u8>,
    },
    /// An entry that a look-up of its name does not find.
    #[error("the entry at {cookie:x} of directory {dir} is in the wrong place")]
    WrongPlace {
        /// The directory.
        dir: Ino,
        /// The entry's cookie.
        cookie: u64,
    },
    /// An entry behind a first place that is empty: a look-up does not find it.
    #[error("the entry at {cookie:x} of directory {dir} has no first place")]
    NoFirstPlace {
        /// The directory.
        dir: Ino,
        /// The entry's cookie.
        cookie: u64,
    },
    /// Entries in something that is no directory or is not there.
    #[error("{entries} entries are in {dir}, which is no directory")]
    NotInDirectory {
        /// Where they are.
        dir: Ino,
        /// How many.
        entries: u64,
    },
    /// An entry without an inode.
    #[error("the entry at {cookie:x} of directory {dir} leads to {ino}, which is not there")]
    LeadsNowhere {
        /// The directory.
        dir: Ino,
        /// The entry's cookie.
        cookie: u64,
        /// The inode.
        ino: Ino,
    },
    /// An entry that names another type than its inode.
    #[error("the entry at {cookie:x} of directory {dir} has another type than inode {ino}")]
    WrongType {
        /// The directory.
        dir: Ino,
        /// The entry's cookie.
        cookie: u64,
        /// The inode.
        ino: Ino,
    },
    /// A directory that names another directory than the one of its entry.
    #[error("directory {ino} says that it is in {parent}, its entry is in {dir}")]
    WrongParent {
        /// The directory.
        ino: Ino,
        /// The parent that it names.
        parent: Ino,
        /// Where its entry is.
        dir: Ino,
    },
    /// An inode that no path leads to and nobody holds open.
    #[error("no entry leads to inode {ino}")]
    NoName {
        /// The inode.
        ino: Ino,
    },
    /// Another entry of a directory, which has one already.
    #[error(
        "the entry at {cookie:x} of directory {dir} leads to directory {ino}, which has another"
    )]
    SecondName {
        /// The directory that it is in.
        dir: Ino,
        /// The entry's cookie.
        cookie: u64,
        /// The directory that it leads to.
        ino: Ino,
    },
    /// Directories that contain one another and cannot be reached from the root. A join sees one
    /// inode at a time and cannot report it.
    #[error("directory {ino} is below itself, by the entry at {cookie:x} of {dir}")]
    Cycle {
        /// The directory that it is in.
        dir: Ino,
        /// The entry's cookie.
        cookie: u64,
        /// The directory that it leads to.
        ino: Ino,
    },
    /// Inode numbers that are in use may be given again.
    #[error(
        "numbers of partition {partition} from {reserved} on are taken for free, {last} is in use"
    )]
    Ids {
        /// The partition.
        partition: zonal_types::PartitionId,
        /// The first number taken for free.
        reserved: u64,
        /// The last one in use.
        last: u64,
    },
    /// Data ids that are in use may be given again.
    #[error(
        "data ids of partition {partition} from {reserved} on are taken for free, {last} is in use"
    )]
    DataIds {
        /// The partition.
        partition: zonal_types::PartitionId,
        /// The first one taken for free.
        reserved: u64,
        /// The last one in use.
        last: u64,
    },
    /// Bytes that do not lead to their inode.
    #[error("inode {ino} has data {data_id}, which does not lead to it")]
    Unindexed {
        /// The inode.
        ino: Ino,
        /// Its bytes.
        data_id: DataId,
    },
    /// A data id that leads to an inode which is not there or has other bytes.
    #[error("data {data_id} leads to inode {ino}, which does not have it")]
    StrayData {
        /// The inode.
        ino: Ino,
        /// The bytes that it does not have.
        data_id: DataId,
    },
    /// A directory that counts wrongly: entries and links counted, entries and directories found.
    #[error(
        "directory {ino} counts {} entries and {} links, has {} and {} directories",
        counted.0, counted.1, found.0, found.1
    )]
    Counts {
        /// The directory.
        ino: Ino,
        /// Entries and links, as it says.
        counted: (u64, u32),
        /// Entries and directories, as they are.
        found: (u64, u32),
    },
    /// An inode whose links are counted wrongly.
    #[error("inode {ino} counts {counted} links, has {names} names")]
    Links {
        /// The inode.
        ino: Ino,
        /// Links that it counts.
        counted: u32,
        /// Entries that lead to it.
        names: u32,
    },
    /// An orphan's mark and record do not agree, or it has a name.
    #[error("inode {ino} is half an orphan (it has {} record)", if *.has_record {"a"} else {"no"})]
    OrphanMark {
        /// The inode.
        ino: Ino,
        /// Whether the record is there.
        has_record: bool,
    },
    /// Mark and record of a directory that is not settled do not agree.
    #[error("directory {ino} is half detached (it has {} record)", if *.has_record {"a"} else {"no"})]
    DetachedMark {
        /// The directory.
        ino: Ino,
        /// Whether the record is there.
        has_record: bool,
    },
    /// A deletion would take the objects of a file that lives.
    #[error("the objects of living inode {ino} are to be deleted")]
    AliveDeletion {
        /// The inode.
        ino: Ino,
    },
    /// Extended attributes that the inode does not know of.
    #[error("inode {ino} does not know all its extended attributes")]
    Xattrs {
        /// The inode.
        ino: Ino,
        /// Kinds that it does not know.
        missing: u8,
    },
    /// More first bytes than the file has, or than its layout leaves to the shard.
    #[error("{bytes} bytes are stored with inode {ino}, which has {room} of them")]
    Inline {
        /// The inode.
        ino: Ino,
        /// Bytes stored.
        bytes: u32,
        /// Bytes that there should be at most.
        room: u64,
    },
    /// Extended attributes, bytes or records of an inode that is not there.
    #[error("something is left of inode {ino}, which is not there")]
    Homeless {
        /// The inode.
        ino: Ino,
        /// Bytes that lead to it.
        data_id: Option<DataId>,
    },
}

codec_of!(Broken {
    1 = Key { key },
    2 = WrongPlace { dir, cookie },
    3 = NoFirstPlace { dir, cookie },
    4 = NotInDirectory { dir, entries },
    5 = LeadsNowhere { dir, cookie, ino },
    6 = WrongType { dir, cookie, ino },
    7 = WrongParent { ino, parent, dir },
    8 = NoName { ino },
    9 = SecondName { dir, cookie, ino },
    10 = Cycle { dir, cookie, ino },
    11 = Ids { partition, reserved, last },
    12 = Counts { ino, counted, found },
    13 = Links { ino, counted, names },
    14 = OrphanMark { ino, has_record },
    15 = DetachedMark { ino, has_record },
    16 = AliveDeletion { ino },
    17 = Xattrs { ino, missing },
    18 = Inline { ino, bytes, room },
    19 = Homeless { ino, data_id },
    20 = DataIds { partition, reserved, last },
    21 = Unindexed { ino, data_id },
    22 = StrayData { ino, data_id },
});

impl MetaShard {
    /// Every broken invariant as text. Sorts in memory: for stores of tests.
    #[must_use]
    pub fn check(&self, kv: &dyn KvRead) -> Vec<String> {
        let mut told = Vec::new();
        for broken in self.check_store(kv, &mut told) {
            told.push(broken.to_string());
        }
        self.check_memory(kv, &mut told);
        told
    }

    /// Every broken invariant of the store. Sorts in memory; `failed` gets read errors.
    #[must_use]
    pub fn check_store(&self, kv: &dyn KvRead, failed: &mut Vec<String>) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut facts = Vec::new();
        let mut scratch = Vec::new();
        let mut emit = |fact: Fact| facts.push(fact.encode(&mut scratch));
        let mut tell = |found| broken.push(found);
        let mut scan = Scan::new(self.config.hash_bits, &mut emit, &mut tell);
        let whole = std::iter::once(zonal_types::PartitionId(keys::SHARD_PARTITION));
        for partition in self.partitions.iter().copied().chain(whole) {
            let (start, _) = keys::tag_range(partition.0, 0);
            let (end, _) = keys::tag_range(partition.0, keys::TAG_END);
            let scanned = kv.scan(&start, &end, &mut |key, value| {
                scan.take(key, value);
                true
            });
            if let Err(code) = scanned {
                failed.push(format!("partition {partition} cannot be read: {code}"));
            }
        }
        scan.finish();
        facts.sort_unstable();
        let is_ours = |ino: Ino| self.partitions.binary_search(&ino.partition()).is_ok();
        let mut tell = |joined| {
            if let JoinResult::Broken(found) = joined {
                broken.push(found);
            }
        };
        let mut join = Join::new(&is_ours, &mut tell);
        for fact in facts.iter().filter_map(Fact::decode) {
            join.take(&fact);
        }
        join.finish();
        broken
    }

    fn check_memory(&self, kv: &dyn KvRead, told: &mut Vec<String>) {
        let mut stored: BTreeMap<Ino, BTreeSet<_>> = BTreeMap::new();
        for partition in &self.partitions {
            let (start, end) = keys::tag_range(partition.0, keys::TAG_ORPHAN);
            let scanned = kv.scan(&start, &end, &mut |key, value| {
                if let (Some(ino), Ok(record)) =
                    (keys::ino_of(key), OrphanRecord::from_bytes(value))
                {
                    stored.insert(ino, record.sessions.into_iter().collect());
                }
                true
            });
            let (start, end) = keys::tag_range(partition.0, keys::TAG_DELETION);
            let deletions = kv.scan(&start, &end, &mut |key, _value| {
                if let Some(ino) = keys::ino_of(key).filter(|ino| !self.deletions.may_have(*ino)) {
                    told.push(format!(
                        "no round of deletions finds the objects of removed inode {ino}"
                    ));
                }
                true
            });
            if scanned.is_err() || deletions.is_err() {
                return;
            }
        }
        if self.opens.orphans != stored {
            told.push("orphans differ in memory and in the store".to_owned());
        }
        let bounds = [
            ("sessions", self.sessions.len(), self.config.sessions_max),
            // Reclaim may stop short of the bound, and an open never passes it.
            ("opens", self.opens.len(), self.config.opens_max),
        ];
        for (what, count, limit) in bounds {
            if count > limit {
                told.push(format!("{count} {what}, at most {limit} allowed"));
            }
        }
        told.extend(self.locks.check());
    }
}

#[cfg(test)]
mod tests {
    use super::fact_bytes::FACT_BYTES;
    use super::*;
    use zonal_types::{
        Column, FileKind, MapVersion, Redundancy, Relocation, RelocationState, StripeSetId,
        TargetId, ZoneId,
    };

    #[test]
    fn every_fact_fits_its_bytes_and_comes_back() {
        let data = FileDataFact {
            data_id: DataId(u64::MAX),
            set: StripeSetId(7),
            start_column: 1,
            count: 2,
            unit: 1 << 20,
            redundancy: Redundancy::AlsoZone {
                copies: 3,
                step: 256,
                zone: ZoneId(4),
                set: StripeSetId(9),
                at: 3,
            },
            size: u64::MAX,
            allocated: 5,
            truncate_seq: 6,
            inline: 4096,
        };
        let kind = FileKind::Directory;
        let (ino, dir) = (Ino(5), Ino(9));
        let mut scratch = Vec::new();
        for statement in [
            FactKind::Inode {
                kind,
                nlink: 1,
                size: 2,
                parent: dir,
                flags: 3,
                xattrs: 4,
            },
            FactKind::Data { data },
            FactKind::Xattr { flags: 1 },
            FactKind::Inline { bytes: 5 },
            FactKind::Orphan,
            FactKind::Deletion { data_id: DataId(1) },
            FactKind::Indexed { data_id: DataId(2) },
            FactKind::Detached,
            FactKind::Relocated {
                data_id: DataId(u64::MAX),
                relocation: Relocation {
                    object: Column(u16::MAX),
                    set: StripeSetId(u32::MAX),
                    slot: u16::MAX,
                    state: RelocationState::Settled,
                    as_of: MapVersion(u64::MAX),
                },
            },
            FactKind::Stale {
                data_id: DataId(u64::MAX),
                target: TargetId(u32::MAX),
            },
            FactKind::Entries {
                entries: 1,
                directories: 2,
            },
            FactKind::Name {
                dir,
                cookie: 1 << 60,
                kind,
            },
        ] {
            let fact = Fact { ino, statement };
            let bytes = fact.encode(&mut scratch);
            assert!(scratch.len() <= FACT_BYTES, "{fact:?}");
            assert_eq!(Fact::decode(&bytes), Some(fact));
        }
    }
}
