//! Number of a partition's inodes. Each request that makes or removes inodes stores it with them,
//! so that a killed shard knows it. It is apart from the reserved numbers, which are flushed at
//! once.

use crate::keys;
use zonal_types::{Codec, ErrorCode, KvRead, PartitionId};

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

/// Inodes of all partitions.
pub(crate) fn load(kv: &dyn KvRead, partitions: &[PartitionId]) -> Result<u64, ErrorCode> {
    let mut all: u64 = 0;
    for partition in partitions {
        let stored = kv.get(&keys::inode_count(*partition))?;
        all = all.saturating_add(decode(stored.as_deref())?);
    }
    Ok(all)
}
