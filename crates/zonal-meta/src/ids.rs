//! Inode numbers. Each partition counts its own; a range is reserved in the store before a number of it is given,
//! so that a crash skips numbers and never gives one twice. A file's data id is the number of its inode.

use crate::keys;
use std::collections::BTreeMap;
use zonal_types::limits::RESTORE_STEP;
use zonal_types::{Codec, ErrorCode, KvRead, PartitionId, codec_struct};

/// Numbers reserved at a time.
const RESERVE: u64 = 1024;
/// First number given; smaller ones are for what the shard makes itself (the root is 1).
pub(crate) const FIRST: u64 = 16;
/// First number that does not fit any more.
const END: u64 = 1 << zonal_types::ids::INO_SEQUENCE_BITS;

codec_struct! {
    /// The stored value.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Record {
        /// No number from here on has been given.
        reserved: u64,
        /// Inodes of the shard at that time, for statfs.
        live_inodes: u64,
    }
}

/// The first number that was not given, as a stored value says.
pub(crate) fn reserved_in(bytes: &[u8]) -> Option<u64> {
    Some(Record::from_bytes(bytes).ok()?.reserved)
}

/// A value to store.
pub(crate) fn record(reserved: u64, live_inodes: u64) -> Vec<u8> {
    Record {
        reserved,
        live_inodes,
    }
    .to_bytes()
}

/// Numbers of a partition that may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRange {
    next: u64,
    reserved: u64,
}

impl IdRange {
    /// The next number, and whether the range grew (then [`Self::record`] is to be stored).
    pub fn take(&mut self) -> Result<(u64, bool), ErrorCode> {
        if self.next >= END {
            return Err(ErrorCode::NoSpace);
        }
        let grew = self.next >= self.reserved;
        if grew {
            self.reserved = self.next + RESERVE;
        }
        self.next += 1;
        Ok((self.next - 1, grew))
    }

    /// The value to store.
    pub fn record(&self, live_inodes: u64) -> Vec<u8> {
        let reserved = self.reserved;
        Record {
            reserved,
            live_inodes,
        }
        .to_bytes()
    }
}

/// What a partition's record becomes when its shard is restored from a backup: what was given since is never given again.
pub(crate) fn restored(stored: Option<&[u8]>) -> Result<Vec<u8>, ErrorCode> {
    let mut record = match stored {
        Some(bytes) => Record::from_bytes(bytes).map_err(|_error| ErrorCode::Corrupt)?,
        None => Record {
            reserved: FIRST,
            live_inodes: 0,
        },
    };
    record.reserved = record.reserved.saturating_add(RESTORE_STEP);
    if record.reserved >= END {
        return Err(ErrorCode::NoSpace);
    }
    Ok(record.to_bytes())
}

/// The ranges of all partitions, read when first used.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    ranges: BTreeMap<PartitionId, IdRange>,
}

impl Ids {
    pub fn get(&self, partition: PartitionId) -> Option<IdRange> {
        self.ranges.get(&partition).copied()
    }

    pub fn set(&mut self, partition: PartitionId, range: IdRange) {
        self.ranges.insert(partition, range);
    }

    /// What the store says of a partition.
    pub fn load(kv: &dyn KvRead, partition: PartitionId) -> Result<IdRange, ErrorCode> {
        let next = match kv.get(&keys::ids(partition))? {
            Some(bytes) => {
                Record::from_bytes(&bytes)
                    .map_err(|_error| ErrorCode::Corrupt)?
                    .reserved
            }
            None => FIRST,
        };
        Ok(IdRange {
            next,
            reserved: next,
        })
    }

    /// Inodes of the shard when numbers were last reserved.
    pub fn load_live_inodes(kv: &dyn KvRead, partitions: &[PartitionId]) -> Result<u64, ErrorCode> {
        let mut newest = Record {
            reserved: 0,
            live_inodes: 0,
        };
        for partition in partitions {
            if let Some(bytes) = kv.get(&keys::ids(*partition))? {
                let record = Record::from_bytes(&bytes).map_err(|_error| ErrorCode::Corrupt)?;
                newest.live_inodes = newest.live_inodes.max(record.live_inodes);
            }
        }
        Ok(newest.live_inodes)
    }
}
