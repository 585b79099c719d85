//! Number ranges: gives inode numbers and data ids, which each partition counts apart from one
//! another. A range is reserved in the store before a number of it is given. So a crash skips
//! numbers and never gives one twice.

use crate::keys;
use std::collections::BTreeMap;
use zonal_types::limits::RESTORE_STEP;
use zonal_types::{Codec, ErrorCode, KvRead, PartitionId};

/// First inode number given; smaller ones are the shard's own (the root is 1).
pub(crate) const FIRST: u64 = 16;
/// First data id given: far above the inode numbers of a young partition, so that code which
/// confuses the two is found out.
pub(crate) const DATA_FIRST: u64 = 1 << 20;
/// First number that does not fit.
const END: u64 = 1 << zonal_types::ids::INO_SEQUENCE_BITS;

/// The counters of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    Inodes,
    Data,
}

impl Counter {
    pub const ALL: [Self; 2] = [Self::Inodes, Self::Data];

    /// The key of a partition's record.
    pub fn key(self, partition: PartitionId) -> Vec<u8> {
        match self {
            Self::Inodes => keys::ids(partition),
            Self::Data => keys::data_ids(partition),
        }
    }

    /// The counter whose records have this tag.
    pub fn of_tag(tag: u8) -> Option<Self> {
        match tag {
            keys::TAG_IDS => Some(Self::Inodes),
            keys::TAG_DATA_IDS => Some(Self::Data),
            _ => None,
        }
    }

    /// The first number given.
    pub fn first(self) -> u64 {
        match self {
            Self::Inodes => FIRST,
            Self::Data => DATA_FIRST,
        }
    }

    /// Numbers reserved at a time. Each reservation costs a flush: one for a thousand files, and a
    /// quarter more for their data.
    fn step(self) -> u64 {
        match self {
            Self::Inodes => 1024,
            Self::Data => 4096,
        }
    }

    /// The stored value which says that no number from `reserved` on has been given.
    pub fn record(self, reserved: u64) -> Vec<u8> {
        match self {
            // Earlier programs kept an approximate number of inodes beside it.
            Self::Inodes => (reserved, 0_u64).to_bytes(),
            Self::Data => reserved.to_bytes(),
        }
    }

    /// The first number that was not given, by a stored value.
    pub fn reserved_in(self, bytes: &[u8]) -> Option<u64> {
        match self {
            Self::Inodes => Some(<(u64, u64)>::from_bytes(bytes).ok()?.0),
            Self::Data => u64::from_bytes(bytes).ok(),
        }
    }

    /// The record of a shard that is restored from a backup: it skips all numbers that may have
    /// been given since.
    pub fn restored(self, stored: Option<&[u8]>) -> Result<Vec<u8>, ErrorCode> {
        let reserved = match stored {
            Some(bytes) => self.reserved_in(bytes).ok_or(ErrorCode::Corrupt)?,
            None => self.first(),
        };
        let reserved = reserved.saturating_add(RESTORE_STEP);
        if reserved >= END {
            return Err(ErrorCode::NoSpace);
        }
        Ok(self.record(reserved))
    }
}

/// Reserved numbers of a partition that may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRange {
    counter: Counter,
    next: u64,
    reserved: u64,
}

impl IdRange {
    /// The next number, and whether the range grew. The caller then stores [`Self::record`].
    pub fn take(&mut self) -> Result<(u64, bool), ErrorCode> {
        if self.next >= END {
            return Err(ErrorCode::NoSpace);
        }
        let grew = self.next >= self.reserved;
        if grew {
            self.reserved = self.next + self.counter.step();
        }
        self.next += 1;
        assert!(
            self.next <= self.reserved,
            "number {} lies behind the reserved ones, up to {}",
            self.next - 1,
            self.reserved
        );
        Ok((self.next - 1, grew))
    }

    pub fn counts(&self, counter: Counter) -> bool {
        self.counter == counter
    }

    /// The value to store: no number from here on has been given.
    pub fn record(&self) -> Vec<u8> {
        self.counter.record(self.reserved)
    }
}

/// The ranges of all partitions, loaded at first use.
#[derive(Debug, Default)]
pub(crate) struct IdRanges {
    ranges: BTreeMap<(Counter, PartitionId), IdRange>,
}

impl IdRanges {
    pub fn get(&self, counter: Counter, partition: PartitionId) -> Option<IdRange> {
        self.ranges.get(&(counter, partition)).copied()
    }

    pub fn set(&mut self, partition: PartitionId, range: IdRange) {
        let before = self.ranges.insert((range.counter, partition), range);
        assert!(
            before.is_none_or(|old| old.next <= range.next && old.reserved <= range.reserved),
            "numbers of partition {partition} fall: {before:?} to {range:?}"
        );
    }

    /// Loads the range of a partition from the store.
    pub fn load(
        kv: &dyn KvRead,
        counter: Counter,
        partition: PartitionId,
    ) -> Result<IdRange, ErrorCode> {
        let next = match kv.get(&counter.key(partition))? {
            Some(bytes) => counter.reserved_in(&bytes).ok_or(ErrorCode::Corrupt)?,
            None => counter.first(),
        };
        Ok(IdRange {
            counter,
            next,
            reserved: next,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITION: PartitionId = PartitionId(1);

    fn range(next: u64, reserved: u64) -> IdRange {
        IdRange {
            counter: Counter::Inodes,
            next,
            reserved,
        }
    }

    #[test]
    fn a_range_grows_before_its_last_number_is_given() {
        let mut range = range(16, 17);
        assert_eq!(range.take(), Ok((16, false)));
        assert_eq!(range.take(), Ok((17, true)));
        assert_eq!(range.reserved, 17 + 1024);
    }

    #[test]
    #[should_panic(expected = "numbers of partition")]
    fn the_numbers_of_a_partition_never_fall() {
        let mut ids = IdRanges::default();
        ids.set(PARTITION, range(20, 1040));
        ids.set(PARTITION, range(19, 1040));
    }
}
