//! Repairs of a target's store for the defects that [`crate::check`] found.
//!
//! A target's records carry notes for its allocator; repairs carry none. So a checkpoint brings
//! them into the index. The first of them ([`anchor`]) adds everything that only the log's notes
//! held: pending blocks, and an allocation that covers all used or marked units. Until
//! [`allocation`] makes it exact, space is missing and nothing is overwritten. Blocks whose
//! contents cannot be restored are marked as lost: reads of them are errors until they are written
//! anew.

mod double_claims;
mod lost_blocks;

pub use double_claims::{Claim, claims, settle};
pub use lost_blocks::{LOSE_BLOCKS_MAX, lose, lose_missing};

use crate::check::{Survey, TargetDefect};
use crate::chunk::Chunk;
use crate::edit::BLOCKS_END;
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, TargetConfig};
use crate::index_value::{self, ObjectHeader, TargetRecord};
use crate::key::{self, IndexKey};
use crate::unit_bitmap::UnitBitmap;
use std::collections::BTreeSet;
use zonal_types::{ErrorCode, KvChange, KvRead};

type Result<T> = std::result::Result<T, ErrorCode>;

/// The first changes: they bring state that only the log has into the index, and mark every unit
/// that is used or marked.
#[must_use]
pub fn anchor(config: &TargetConfig, kv: &dyn KvRead, survey: &Survey) -> Vec<KvChange> {
    let mut marked = survey.marked.clone();
    marked.add(&survey.used);
    let mut changes = store_allocation(config, &marked, survey.objects);
    let mut now = BTreeSet::new();
    for (object, block, bytes) in survey.pending() {
        let key = key::pending(object, block);
        let value = index_value::seal(&key, |out| out.extend_from_slice(bytes.as_slice()));
        now.insert(key.clone());
        changes.push(KvChange::put(key, value));
    }
    // A failed scan is damage that a repair of its key removes.
    let _ = kv.scan(&[key::PENDING], &[key::PENDING + 1], &mut |key, _value| {
        if !now.contains(key) {
            changes.push(KvChange::remove(key.to_vec()));
        }
        true
    });
    changes
}

/// The last changes: the exact allocation, from the units that a survey found in use.
#[must_use]
pub fn allocation(config: &TargetConfig, survey: &Survey) -> Vec<KvChange> {
    let mut used = survey.used.clone();
    // A segment without used units has a bitmap too.
    for (segment, _) in survey.marked.segments() {
        used.touch(segment);
    }
    store_allocation(config, &used, survey.objects)
}

fn store_allocation(config: &TargetConfig, used: &UnitBitmap, objects: u64) -> Vec<KvChange> {
    let words = (config.segment_units as usize).div_ceil(64);
    let mut changes = Vec::new();
    for (segment, own) in used.segments() {
        let key = key::segment(segment);
        let value = index_value::seal(&key, |out| {
            for at in 0..words {
                out.extend_from_slice(&own.get(at).unwrap_or(&0).to_le_bytes());
            }
        });
        changes.push(KvChange::put(key, value));
    }
    let record = TargetRecord {
        segment_units: config.segment_units,
        objects,
        epoch: 0,
    };
    let key = key::target();
    let value = index_value::encode(&key, &record);
    changes.push(KvChange::put(key, value));
    changes
}

/// An object as its inode describes it: number of the last truncation, and bytes that the object
/// should have.
pub type Expect<'a> = dyn Fn(ObjectId) -> Option<(u64, u64)> + 'a;

/// The changes that repair one broken invariant; `expect` serves headers that are made anew.
/// [`settle`] repairs units with more than one claim.
///
/// # Errors
/// Those of `kv`; `Corrupt` where a damaged record of the same object has to be repaired first.
pub fn repair(
    config: &TargetConfig,
    kv: &dyn KvRead,
    broken: &TargetDefect,
    expect: &Expect<'_>,
) -> Result<Vec<KvChange>> {
    match broken {
        TargetDefect::Key { key } => damaged(config, kv, key),
        TargetDefect::NoHeader(object) | TargetDefect::Blocks { object, .. } => {
            recount(config, kv, *object, expect)
        }
        TargetDefect::Outside { object, block, .. } => {
            lose(config, kv, *object, *block, *block + 1)
        }
        TargetDefect::Tombstone(object) => Ok(vec![KvChange::remove(key::tombstone(*object))]),
        TargetDefect::HalfDeleted(object) => {
            let key = key::tombstone(*object);
            let value = index_value::seal(&key, |_| {});
            Ok(vec![KvChange::put(key, value)])
        }
        TargetDefect::Unreadable(_)
        | TargetDefect::Note
        | TargetDefect::Geometry { .. }
        | TargetDefect::Twice { .. }
        | TargetDefect::NotMarked(_)
        | TargetDefect::Leaked(_)
        | TargetDefect::Objects { .. } => Ok(Vec::new()),
    }
}

fn read<T: zonal_types::Codec>(kv: &dyn KvRead, key: &[u8]) -> Result<Option<T>> {
    kv.get(key)?
        .map(|value| index_value::decode(key, &value))
        .transpose()
}

/// Removes a damaged key or value. A chunk or pending block had contents: they become lost blocks.
fn damaged(config: &TargetConfig, kv: &dyn KvRead, key: &[u8]) -> Result<Vec<KvChange>> {
    let is_beyond = |block: u64| block >= BLOCKS_END;
    match key::parse(key) {
        // No file has a block there.
        Ok(IndexKey::Chunk(_, number)) if is_beyond(number.saturating_mul(CHUNK_BLOCKS)) => {
            Ok(vec![KvChange::remove(key.to_vec())])
        }
        Ok(IndexKey::Pending(_, block)) if is_beyond(block) => {
            Ok(vec![KvChange::remove(key.to_vec())])
        }
        Ok(IndexKey::Chunk(object, number)) => {
            let stored = kv.get(key).ok().flatten();
            let is_bad = stored.is_none_or(|value| Chunk::decode(config, key, &value).is_err());
            if !is_bad {
                return Ok(Vec::new());
            }
            let header: Option<ObjectHeader> = read(kv, &key::header(object)).unwrap_or(None);
            // Without a length, any of its blocks may have had contents.
            let blocks = header.map_or(CHUNK_BLOCKS, |header| {
                let first = number.saturating_mul(CHUNK_BLOCKS);
                header.object_bytes.div_ceil(BLOCK).saturating_sub(first)
            });
            let chunk = Chunk::lost(blocks);
            Ok(vec![if chunk.is_empty() {
                KvChange::remove(key.to_vec())
            } else {
                KvChange::put(key.to_vec(), chunk.encode(key))
            }])
        }
        Ok(IndexKey::Pending(object, block)) => {
            let mut changes = lose(config, kv, object, block, block + 1)?;
            changes.push(KvChange::remove(key.to_vec()));
            Ok(changes)
        }
        _ => Ok(vec![KvChange::remove(key.to_vec())]),
    }
}

/// The pending blocks of an object.
fn pending_blocks(kv: &dyn KvRead, object: ObjectId) -> Result<BTreeSet<u64>> {
    let mut blocks = BTreeSet::new();
    let (start, end) = key::pending_range(object);
    kv.scan(&start, &end, &mut |key, _value| {
        if let Ok(IndexKey::Pending(_, block)) = key::parse(key) {
            blocks.insert(block);
        }
        true
    })?;
    Ok(blocks)
}

/// The header with correct counts.
fn recount(
    config: &TargetConfig,
    kv: &dyn KvRead,
    object: ObjectId,
    expect: &Expect<'_>,
) -> Result<Vec<KvChange>> {
    let mut blocks = BTreeSet::new();
    let mut failed = None;
    let (start, end) = (key::chunk(object, 0), key::object_range(object).1);
    kv.scan(&start, &end, &mut |key, value| {
        match (key::parse(key), Chunk::decode(config, key, value)) {
            (Ok(IndexKey::Chunk(_, number)), Ok(chunk)) => {
                let first = number.saturating_mul(CHUNK_BLOCKS);
                blocks.extend(chunk.blocks().map(|(step, _)| first.saturating_add(step)));
            }
            _ => failed = Some(ErrorCode::Corrupt),
        }
        true
    })?;
    blocks.extend(pending_blocks(kv, object)?);
    if let Some(code) = failed {
        return Err(code);
    }
    let key = key::header(object);
    let mut header = match read::<ObjectHeader>(kv, &key) {
        Ok(Some(header)) if header.is_sound() => header,
        _ if blocks.is_empty() => return Ok(vec![KvChange::remove(key)]),
        _ => {
            let end = blocks
                .last()
                .map_or(0, |last| (last + 1).saturating_mul(BLOCK));
            let (truncate_seq, bytes) = expect(object).unwrap_or((0, end));
            ObjectHeader {
                truncate_seq,
                object_bytes: bytes,
                ..ObjectHeader::default()
            }
        }
    };
    header.blocks = blocks.len() as u64;
    let value = index_value::encode(&key, &header);
    Ok(vec![KvChange::put(key, value)])
}

/// Removes all of an object.
///
/// # Errors
/// Those of `kv`.
pub fn remove(kv: &dyn KvRead, object: ObjectId) -> Result<Vec<KvChange>> {
    let mut changes = Vec::new();
    for (start, end) in [key::object_range(object), key::pending_range(object)] {
        kv.scan(&start, &end, &mut |key, _value| {
            changes.push(KvChange::remove(key.to_vec()));
            true
        })?;
    }
    changes.push(KvChange::remove(key::tombstone(object)));
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::BlockState;
    use crate::ids::Place;
    use crate::object_update::read_header;
    use std::collections::BTreeMap;
    use zonal_types::limits::TRUNCATION_NUMBER_MAX;
    use zonal_types::{Column, DataId};

    #[test]
    fn a_header_with_impossible_numbers_is_rebuilt() {
        let config = TargetConfig {
            segment_units: 256,
            segments: 4,
            pending_blocks_max: 16,
        };
        let object = ObjectId {
            data_id: DataId(9),
            column: Column(0),
        };
        let (of_header, of_chunk) = (key::header(object), key::chunk(object, 0));
        let mut chunk = Chunk::default();
        let place = Place {
            segment: 0,
            unit: 1,
        };
        chunk.set(0, BlockState::Written(place, 1));
        for (truncate_seq, object_bytes) in [
            (u64::MAX, 10),
            (TRUNCATION_NUMBER_MAX + 1, 10),
            (4, u64::MAX),
        ] {
            let header = ObjectHeader {
                truncate_seq,
                object_bytes,
                ..ObjectHeader::default()
            };
            let mut kv = BTreeMap::new();
            kv.insert(of_header.clone(), index_value::encode(&of_header, &header));
            kv.insert(of_chunk.clone(), chunk.encode(&of_chunk));
            assert_eq!(read_header(&kv, object), Err(ErrorCode::Corrupt));
            let changes = recount(&config, &kv, object, &|_object| Some((6, 4096))).unwrap();
            for change in &changes {
                change.apply_to(&mut kv);
            }
            let made = read_header(&kv, object).unwrap().unwrap();
            assert_eq!((made.truncate_seq, made.object_bytes), (6, 4096));
            assert_eq!(made.blocks, 1);
        }
    }
}
