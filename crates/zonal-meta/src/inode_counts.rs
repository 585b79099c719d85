//! Number of a partition's inodes. Each request that makes or removes inodes stores it with them,
//! so that a killed shard knows it. It is apart from the reserved numbers, which are flushed at
//! once.

use crate::keys;
use zonal_types::{Codec, ErrorCode, KvChange, KvRead, PartitionId};

/// True for the key of a count.
pub(crate) fn is_count(key: &[u8]) -> bool {
    key.len() == 5
        && key[4] == keys::TAG_INODE_COUNT
        && !key.starts_with(&keys::SHARD_PARTITION.to_be_bytes())
}

/// The count in a stored value.
pub(crate) fn decode(stored: Option<&[u8]>) -> Result<u64, ErrorCode> {
    match stored {
        Some(bytes) => u64::from_bytes(bytes).map_err(|_error| ErrorCode::Corrupt),
        None => Ok(0),
    }
}

/// The value of a partition that gets or loses inodes, by the stored one.
pub(crate) fn changed(stored: Option<&[u8]>, change: i64) -> Result<Vec<u8>, ErrorCode> {
    let count = decode(stored)?.saturating_add_signed(change);
    Ok(count.to_bytes())
}

/// The counts of partitions that have inodes and no count, as earlier programs left them: the
/// changes to log before the shard is loaded.
///
/// # Errors
/// The store's error.
pub fn missing_counts(
    kv: &dyn KvRead,
    partitions: &[PartitionId],
) -> Result<Vec<KvChange>, ErrorCode> {
    let mut changes = Vec::new();
    for partition in partitions {
        let key = keys::inode_count(*partition);
        if kv.get(&key)?.is_none() {
            let found = count(kv, *partition)?;
            changes.extend((found > 0).then(|| KvChange::put(key, found.to_bytes())));
        }
    }
    Ok(changes)
}

/// Counts the inodes of a partition.
pub(crate) fn count(kv: &dyn KvRead, partition: PartitionId) -> Result<u64, ErrorCode> {
    let (start, end) = keys::tag_range(partition.0, keys::TAG_INODE);
    let mut found: u64 = 0;
    kv.scan(&start, &end, &mut |_key, _value| {
        found += 1;
        true
    })?;
    Ok(found)
}

/// Inodes of a partition.
///
/// # Errors
/// The store's error; `Corrupt`.
pub fn inodes_of(kv: &dyn KvRead, partition: PartitionId) -> Result<u64, ErrorCode> {
    decode(kv.get(&keys::inode_count(partition))?.as_deref())
}

/// Inodes of all partitions.
pub(crate) fn load(kv: &dyn KvRead, partitions: &[PartitionId]) -> Result<u64, ErrorCode> {
    let mut all: u64 = 0;
    for partition in partitions {
        all = all.saturating_add(inodes_of(kv, *partition)?);
    }
    Ok(all)
}
