//! Spare partitions: those of the shard without inodes. A new first-level directory takes one, and
//! all that is made below it has numbers of the same: so a subtree is a partition.
//!
//! *Invariants*:
//! 1. Each partition of the shard without inodes is in `candidates`.
//! 2. A candidate is spare only if the store has no inode of it. The last orphan of a removed
//!    directory may go later than the directory.

use crate::keys;
use crate::moves::Departure;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{ErrorCode, KvRead, PartitionId};

/// Partitions that may be spare.
#[derive(Debug, Default)]
pub(crate) struct SparePartitions {
    candidates: BTreeSet<PartitionId>,
}

fn has_inodes(kv: &dyn KvRead, partition: PartitionId) -> Result<bool, ErrorCode> {
    let (first, end) = keys::tag_range(partition.0, keys::TAG_INODE);
    let mut found = false;
    kv.scan(&first, &end, &mut |_key, _value| {
        found = true;
        false
    })?;
    Ok(found)
}

impl SparePartitions {
    /// Looks for those of the shard in its store.
    pub(crate) fn load(kv: &dyn KvRead, partitions: &[PartitionId]) -> Result<Self, ErrorCode> {
        let mut candidates = BTreeSet::new();
        for partition in partitions {
            if !has_inodes(kv, *partition)? {
                candidates.insert(*partition);
            }
        }
        Ok(Self { candidates })
    }

    /// Adopts the partitions of a newer map.
    pub(crate) fn change(&mut self, before: &[PartitionId], now: &[PartitionId]) {
        let is_of = |list: &[PartitionId], of: &PartitionId| list.binary_search(of).is_ok();
        self.candidates.retain(|known| is_of(now, known));
        let new = now.iter().filter(|partition| !is_of(before, partition));
        self.candidates.extend(new);
    }

    /// A spare partition, where there is one.
    pub(crate) fn find(
        &self,
        kv: &dyn KvRead,
        leaving: &BTreeMap<PartitionId, Departure>,
    ) -> Result<Option<PartitionId>, ErrorCode> {
        for partition in &self.candidates {
            if !leaving.contains_key(partition) && !has_inodes(kv, *partition)? {
                return Ok(Some(*partition));
            }
        }
        Ok(None)
    }

    /// True where there may be one.
    pub(crate) fn may_have(&self) -> bool {
        !self.candidates.is_empty()
    }

    pub(crate) fn taken(&mut self, partition: PartitionId) {
        self.candidates.remove(&partition);
    }

    pub(crate) fn left(&mut self, partition: PartitionId) {
        self.candidates.insert(partition);
    }
}
