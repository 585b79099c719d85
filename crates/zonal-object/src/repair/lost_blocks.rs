//! Lost blocks: their contents cannot be restored, so reads of them are errors until they are
//! written anew.

use super::{Result, pending_blocks, read};
use crate::chunk::{BlockState, Chunk};
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, TargetConfig};
use crate::index_value::{self, ObjectHeader};
use crate::key;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use zonal_types::{KvChange, KvRead};

/// Most blocks of one object that are marked as lost where it is unknown which ones were: 64 GiB. A
/// file of which only the length is left may be larger than all disks.
pub const LOSE_BLOCKS_MAX: u64 = 1 << 24;

/// Marks the blocks `first..end` of an object as lost; the next allocation frees their units.
///
/// # Errors
/// `Corrupt` where one of their chunks cannot be decoded; errors of `kv`.
pub fn lose(
    config: &TargetConfig,
    kv: &dyn KvRead,
    object: ObjectId,
    first: u64,
    end: u64,
) -> Result<Vec<KvChange>> {
    let mut chunks: BTreeMap<u64, Chunk> = BTreeMap::new();
    for block in first..end {
        let number = block / CHUNK_BLOCKS;
        let chunk = match chunks.entry(number) {
            Entry::Occupied(chunk) => chunk.into_mut(),
            Entry::Vacant(place) => {
                let key = key::chunk(object, number);
                let stored = kv.get(&key)?;
                let chunk = stored.map(|value| Chunk::decode(config, &key, &value));
                place.insert(chunk.transpose()?.unwrap_or_default())
            }
        };
        chunk.set(block, BlockState::Lost);
    }
    let changes = chunks.into_iter().map(|(number, mut chunk)| {
        chunk.version += 1;
        let key = key::chunk(object, number);
        let value = chunk.encode(&key);
        KvChange::put(key, value)
    });
    Ok(changes.collect())
}

/// Repairs an object that should have `bytes`, of which the index or the log lost a part. Holes
/// become lost blocks, because a hole and lost contents look the same. The header gets the length;
/// the next repair corrects its counts.
///
/// # Errors
/// `Corrupt` where one of its chunks cannot be decoded; errors of `kv`.
pub fn lose_missing(
    config: &TargetConfig,
    kv: &dyn KvRead,
    object: ObjectId,
    bytes: u64,
    truncate_seq: u64,
) -> Result<Vec<KvChange>> {
    let pending = pending_blocks(kv, object)?;
    let mut changes = Vec::new();
    let blocks = bytes.div_ceil(BLOCK).min(LOSE_BLOCKS_MAX);
    for number in 0..blocks.div_ceil(CHUNK_BLOCKS) {
        let key = key::chunk(object, number);
        let stored = kv
            .get(&key)?
            .map(|value| Chunk::decode(config, &key, &value));
        let mut chunk = stored.transpose()?.unwrap_or_default();
        let first = number * CHUNK_BLOCKS;
        let before = chunk.clone();
        for block in first..blocks.min(first + CHUNK_BLOCKS) {
            if chunk.get(block) == BlockState::Hole && !pending.contains(&block) {
                chunk.set(block, BlockState::Lost);
            }
        }
        if chunk != before {
            chunk.version += 1;
            let value = chunk.encode(&key);
            changes.push(KvChange::put(key, value));
        }
    }
    let key = key::header(object);
    let mut header = read::<ObjectHeader>(kv, &key)?.unwrap_or(ObjectHeader {
        truncate_seq,
        ..ObjectHeader::default()
    });
    if header.object_bytes < bytes {
        header.object_bytes = bytes;
        let value = index_value::encode(&key, &header);
        changes.push(KvChange::put(key, value));
    }
    Ok(changes)
}
