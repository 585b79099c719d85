//! Progress of a copy: which keys were sent, and which of them have changed since.

use std::collections::BTreeSet;
use zonal_meta::keys;
use zonal_types::{Blob, ErrorCode, KvChange, KvRead, PartitionId};
use zonal_wire::MovedEntry;

/// Bytes of keys and values in one page, about.
const PAGE_BYTES: usize = 256 << 10;
/// Entries in one page.
const PAGE_ENTRIES: usize = 2_048;

/// A partition that is being copied.
///
/// *Invariant*: each key before `next` was sent with its present value, or is in `changed`.
pub(in crate::shard) struct CopyProgress {
    partition: PartitionId,
    /// The next key to read; `None`: all were read.
    next: Option<Vec<u8>>,
    changed: BTreeSet<Vec<u8>>,
}

/// The copy as people see it.
#[derive(Debug, Default)]
pub(in crate::shard) struct MoveProgress {
    pub partition: PartitionId,
    /// Number of the last attempt.
    pub number: u64,
    /// Inodes sent by this attempt.
    pub sent: u64,
    /// Attempts in this life of the process.
    pub attempts: u32,
    /// Why the last one ended.
    pub failure: Option<ErrorCode>,
}

impl MoveProgress {
    /// Notes a new attempt.
    pub fn begin(&mut self, partition: PartitionId, number: u64) {
        let is_same = self.partition == partition;
        let attempts = if is_same { self.attempts } else { 0 };
        *self = Self {
            partition,
            number,
            sent: 0,
            attempts: attempts.saturating_add(1),
            failure: self.failure.filter(|_code| is_same),
        };
    }
}

impl CopyProgress {
    /// Begins at the partition's first key.
    pub fn new(partition: PartitionId) -> Self {
        Self {
            partition,
            next: Some(keys::partition_range(partition).0),
            changed: BTreeSet::new(),
        }
    }

    /// Notes changes that the shard makes.
    pub fn note(&mut self, effect: &[KvChange]) {
        let prefix = self.partition.0.to_be_bytes();
        let is_sent = |key: &Vec<u8>| self.next.as_ref().is_none_or(|next| key < next);
        let own = effect.iter().map(|change| &change.key);
        let own = own.filter(|key| key.starts_with(&prefix) && is_sent(key));
        self.changed.extend(own.cloned());
    }

    /// Changes that are left once all keys were read.
    pub fn changes_left(&self) -> Option<usize> {
        self.next.is_none().then_some(self.changed.len())
    }

    /// The next page: changes, then keys that were not read yet. Adds inodes to `sent`.
    pub fn next_page(
        &mut self,
        kv: &dyn KvRead,
        sent: &mut u64,
    ) -> Result<Vec<MovedEntry>, ErrorCode> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < PAGE_ENTRIES
            && bytes < PAGE_BYTES
            && let Some(key) = self.changed.pop_first()
        {
            let value = kv.get(&key)?;
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            entries.push(MovedEntry {
                key: Blob(key),
                value: value.map(Blob),
            });
        }
        let Some(from) = self.next.clone() else {
            return Ok(entries);
        };
        let end = keys::partition_range(self.partition).1;
        let mut stopped = None;
        kv.scan(&from, &end, &mut |key, value| {
            if entries.len() >= PAGE_ENTRIES || bytes >= PAGE_BYTES {
                stopped = Some(key.to_vec());
                return false;
            }
            bytes += key.len() + value.len();
            *sent += u64::from(key.get(4) == Some(&keys::TAG_INODE));
            entries.push(MovedEntry {
                key: Blob(key.to_vec()),
                value: Some(Blob(value.to_vec())),
            });
            true
        })?;
        self.next = stopped;
        Ok(entries)
    }
}
