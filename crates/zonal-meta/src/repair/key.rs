//! A damaged key of a shard's store, made harmless: it goes, but numbers that were reserved by it stay unused.

use super::Result;
use crate::keys;
use zonal_types::{Codec, KvChange, KvRead, PartitionId};

/// Numbers left out where it is not known which were given.
const IDS_MARGIN: u64 = 1 << 20;

/// The changes that make a damaged key harmless. Works without a shard, which may not load before it.
///
/// # Errors
/// What `kv` gives.
pub fn repair_key(kv: &dyn KvRead, key: &[u8]) -> Result<Vec<KvChange>> {
    let partition = key
        .first_chunk::<4>()
        .map(|bytes| u32::from_be_bytes(*bytes));
    let is_ids = key.get(4) == Some(&keys::TAG_IDS) && key.len() == 5;
    match partition {
        Some(keys::SHARD_PARTITION) if is_ids => {
            let (start, end) = keys::tag_range(keys::SHARD_PARTITION, keys::TAG_SESSION);
            let mut last = 0;
            kv.scan(&start, &end, &mut |key, _value| {
                last = keys::ino_of(key).map_or(last, |id| id.0.max(last));
                true
            })?;
            let next = last.saturating_add(IDS_MARGIN);
            Ok(vec![KvChange::put(keys::session_ids(), next.to_bytes())])
        }
        Some(partition) if is_ids => reserve_again(kv, PartitionId(partition)),
        _ => Ok(vec![KvChange::remove(key.to_vec())]),
    }
}

/// Reserves numbers behind all that are in use.
pub(super) fn reserve_again(kv: &dyn KvRead, partition: PartitionId) -> Result<Vec<KvChange>> {
    let (start, end) = keys::tag_range(partition.0, keys::TAG_INODE);
    let mut last = 0;
    kv.scan(&start, &end, &mut |key, _value| {
        last = keys::ino_of(key).map_or(last, |ino| ino.sequence().max(last));
        true
    })?;
    let value = crate::ids::record(last.saturating_add(IDS_MARGIN), 0);
    Ok(vec![KvChange::put(keys::ids(partition), value)])
}
