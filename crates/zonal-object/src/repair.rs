//! What puts a target's store right where [`crate::check`] found it broken.
//!
//! A target's records carry notes for its allocator; repairs carry none. So they go into the index by a checkpoint, and
//! the first of them ([`anchor`]) brings in all that only the log's notes said: pending blocks, and an allocation that
//! holds whatever is used or marked. Until [`allocation`] makes it exact, space is missing and nothing is overwritten.
//! Contents that cannot be told are marked as lost: reads of them are errors until they are written anew.

use crate::bits::Bits;
use crate::check::{Broken, Survey};
use crate::chunk::{BlockState, Chunk};
use crate::edit::BLOCKS_END;
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, Place, TargetConfig};
use crate::key::{self, Named};
use crate::sealed::{self, Header, TargetRecord};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{ErrorCode, KvChange, KvRead};

/// Most blocks of one object that are marked as lost where it is not known which were: 64 GiB. A file of which nothing but
/// the length is left may be larger than all disks.
pub const LOSE_BLOCKS_MAX: u64 = 1 << 24;

type Result<T> = std::result::Result<T, ErrorCode>;

/// A record's claim of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// The unit.
    pub place: Place,
    /// Who refers to it.
    pub object: ObjectId,
    /// With which block.
    pub block: u64,
    /// What the block must sum to, where it has contents.
    pub crc: Option<u32>,
}

/// The first changes: what only the log knows goes into the index, and whatever is used or marked is marked.
#[must_use]
pub fn anchor(config: &TargetConfig, kv: &dyn KvRead, survey: &Survey) -> Vec<KvChange> {
    let mut marked = survey.marked.clone();
    marked.add(&survey.used);
    let mut changes = store_allocation(config, &marked, survey.objects);
    let mut now = BTreeSet::new();
    for (object, block, bytes) in survey.pending() {
        let key = key::pending(object, block);
        let value = sealed::seal(&key, |out| out.extend_from_slice(bytes.as_slice()));
        now.insert(key.clone());
        changes.push(KvChange::put(key, value));
    }
    // What cannot be scanned is damage that a repair of its key removes.
    let _ = kv.scan(&[key::PENDING], &[key::PENDING + 1], &mut |key, _value| {
        if !now.contains(key) {
            changes.push(KvChange::remove(key.to_vec()));
        }
        true
    });
    changes
}

/// The last changes: the allocation as a survey found it to be used.
#[must_use]
pub fn allocation(config: &TargetConfig, survey: &Survey) -> Vec<KvChange> {
    let mut used = survey.used.clone();
    // A segment of which nothing is used any more has a bitmap all the same.
    for (segment, _) in survey.marked.segments() {
        used.touch(segment);
    }
    store_allocation(config, &used, survey.objects)
}

fn store_allocation(config: &TargetConfig, used: &Bits, objects: u64) -> Vec<KvChange> {
    let words = (config.segment_units as usize).div_ceil(64);
    let mut changes = Vec::new();
    for (segment, own) in used.segments() {
        let key = key::segment(segment);
        let value = sealed::seal(&key, |out| {
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
    let value = sealed::encode(&key, &record);
    changes.push(KvChange::put(key, value));
    changes
}

/// What an object's inode says of it: the last shrink, and the bytes that the object should have.
pub type Expect<'a> = dyn Fn(ObjectId) -> Option<(u64, u64)> + 'a;

/// The changes for one broken invariant; `expect` is for headers made anew. Units referred to twice are [`settle`]'s.
///
/// # Errors
/// What `kv` gives, and `Corrupt` where a damaged record of the same object has to be repaired first.
pub fn repair(
    config: &TargetConfig,
    kv: &dyn KvRead,
    broken: &Broken,
    expect: &Expect<'_>,
) -> Result<Vec<KvChange>> {
    match broken {
        Broken::Key { key } => damaged(config, kv, key),
        Broken::NoHeader(object) | Broken::Blocks { object, .. } => {
            recount(config, kv, *object, expect)
        }
        Broken::Outside { object, block, .. } => lose(config, kv, *object, *block, *block + 1),
        Broken::Tombstone(object) => Ok(vec![KvChange::remove(key::tombstone(*object))]),
        Broken::HalfDeleted(object) => {
            let key = key::tombstone(*object);
            let value = sealed::seal(&key, |_| {});
            Ok(vec![KvChange::put(key, value)])
        }
        Broken::Unreadable(_)
        | Broken::Note
        | Broken::Geometry { .. }
        | Broken::Twice { .. }
        | Broken::NotMarked(_)
        | Broken::Leaked(_)
        | Broken::Objects { .. } => Ok(Vec::new()),
    }
}

fn read<T: zonal_types::Codec>(kv: &dyn KvRead, key: &[u8]) -> Result<Option<T>> {
    kv.get(key)?
        .map(|value| sealed::decode(key, &value))
        .transpose()
}

/// A damaged key or value goes; of a chunk and a pending block it is known that there were contents.
fn damaged(config: &TargetConfig, kv: &dyn KvRead, key: &[u8]) -> Result<Vec<KvChange>> {
    let is_beyond = |block: u64| block >= BLOCKS_END;
    match key::parse(key) {
        // No file reaches there.
        Ok(Named::Chunk(_, number)) if is_beyond(number.saturating_mul(CHUNK_BLOCKS)) => {
            Ok(vec![KvChange::remove(key.to_vec())])
        }
        Ok(Named::Pending(_, block)) if is_beyond(block) => {
            Ok(vec![KvChange::remove(key.to_vec())])
        }
        Ok(Named::Chunk(object, number)) => {
            let stored = kv.get(key).ok().flatten();
            let is_bad = stored.is_none_or(|value| Chunk::decode(config, key, &value).is_err());
            if !is_bad {
                return Ok(Vec::new());
            }
            let header: Option<Header> = read(kv, &key::header(object)).unwrap_or(None);
            // Without a length, all of it may have had contents.
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
        Ok(Named::Pending(object, block)) => {
            let mut changes = lose(config, kv, object, block, block + 1)?;
            changes.push(KvChange::remove(key.to_vec()));
            Ok(changes)
        }
        _ => Ok(vec![KvChange::remove(key.to_vec())]),
    }
}

/// Marks the blocks `first..end` of an object as lost; their units are free with the next allocation.
///
/// # Errors
/// `Corrupt` where a chunk of them cannot be read; what `kv` gives.
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

/// An object that should have `bytes`, of which the index or the log lost something: holes in it become lost blocks, as
/// nobody can tell them from contents that were there. Its header has the length; it counts with the next repair.
///
/// # Errors
/// `Corrupt` where a chunk of it cannot be read; what `kv` gives.
pub fn lose_missing(
    config: &TargetConfig,
    kv: &dyn KvRead,
    object: ObjectId,
    bytes: u64,
    truncate_seq: u64,
) -> Result<Vec<KvChange>> {
    let mut pending = BTreeSet::new();
    let (start, end) = key::pending_range(object);
    kv.scan(&start, &end, &mut |key, _value| {
        if let Ok(Named::Pending(_, block)) = key::parse(key) {
            pending.insert(block);
        }
        true
    })?;
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
    let mut header = read::<Header>(kv, &key)?.unwrap_or(Header {
        truncate_seq,
        ..Header::default()
    });
    if header.object_bytes < bytes {
        header.object_bytes = bytes;
        let value = sealed::encode(&key, &header);
        changes.push(KvChange::put(key, value));
    }
    Ok(changes)
}

/// A header that counts what there is.
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
            (Ok(Named::Chunk(_, number)), Ok(chunk)) => {
                let first = number.saturating_mul(CHUNK_BLOCKS);
                blocks.extend(chunk.blocks().map(|(step, _)| first.saturating_add(step)));
            }
            _ => failed = Some(ErrorCode::Corrupt),
        }
        true
    })?;
    let (start, end) = key::pending_range(object);
    kv.scan(&start, &end, &mut |key, _value| {
        if let Ok(Named::Pending(_, block)) = key::parse(key) {
            blocks.insert(block);
        }
        true
    })?;
    if let Some(code) = failed {
        return Err(code);
    }
    let key = key::header(object);
    let mut header = match read::<Header>(kv, &key) {
        Ok(Some(header)) => header,
        _ if blocks.is_empty() => return Ok(vec![KvChange::remove(key)]),
        _ => {
            let end = blocks
                .last()
                .map_or(0, |last| (last + 1).saturating_mul(BLOCK));
            let (truncate_seq, bytes) = expect(object).unwrap_or((0, end));
            Header {
                truncate_seq,
                object_bytes: bytes,
                ..Header::default()
            }
        }
    };
    header.blocks = blocks.len() as u64;
    let value = sealed::encode(&key, &header);
    Ok(vec![KvChange::put(key, value)])
}

/// Every claim of the units in `places`.
///
/// # Errors
/// What `kv` gives.
pub fn claims(
    config: &TargetConfig,
    kv: &dyn KvRead,
    places: &BTreeSet<Place>,
) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    kv.scan(&[key::OBJECT], &[key::OBJECT + 1], &mut |key, value| {
        if let (Ok(Named::Chunk(object, number)), Ok(chunk)) =
            (key::parse(key), Chunk::decode(config, key, value))
        {
            for (step, state) in chunk.blocks() {
                if let Some(place) = state.place().filter(|place| places.contains(place)) {
                    claims.push(Claim {
                        place,
                        object,
                        block: number.saturating_mul(CHUNK_BLOCKS).saturating_add(step),
                        crc: match state {
                            BlockState::Written(_, crc) => Some(crc),
                            _ => None,
                        },
                    });
                }
            }
        }
        true
    })?;
    claims.sort_unstable();
    Ok(claims)
}

/// Settles the claims of one unit, which sums to `crc` and holds `bytes` (`None`: it cannot be read). The first claim
/// that its contents satisfy keeps it; others that they satisfy get a copy; the rest is lost.
///
/// # Errors
/// As [`lose`].
pub fn settle(
    config: &TargetConfig,
    kv: &dyn KvRead,
    claims: &[Claim],
    contents: Option<(&[u8], u32)>,
) -> Result<Vec<KvChange>> {
    let fits = |claim: &Claim| claim.crc.is_some() && claim.crc == contents.map(|(_, crc)| crc);
    // Space without contents has no better right than contents that are there.
    let keeper = claims.iter().position(fits).or(claims
        .iter()
        .position(|claim| claim.crc.is_none())
        .filter(|_| claims.len() > 1));
    let mut changes = Vec::new();
    for (at, claim) in claims.iter().enumerate() {
        if Some(at) == keeper {
            continue;
        }
        match contents {
            Some((bytes, _)) if fits(claim) => {
                let key = key::pending(claim.object, claim.block);
                let value = sealed::seal(&key, |out| out.extend_from_slice(bytes));
                changes.push(KvChange::put(key, value));
                changes.extend(clear(config, kv, claim)?);
            }
            _ if claim.crc.is_none() => changes.extend(clear(config, kv, claim)?),
            _ => changes.extend(lose(
                config,
                kv,
                claim.object,
                claim.block,
                claim.block + 1,
            )?),
        }
    }
    Ok(changes)
}

/// Takes a claim's place away: the block is a hole, or pending.
fn clear(config: &TargetConfig, kv: &dyn KvRead, claim: &Claim) -> Result<Vec<KvChange>> {
    let key = key::chunk(claim.object, claim.block / CHUNK_BLOCKS);
    let Some(value) = kv.get(&key)? else {
        return Ok(Vec::new());
    };
    let mut chunk = Chunk::decode(config, &key, &value)?;
    chunk.set(claim.block, BlockState::Hole);
    chunk.version += 1;
    Ok(vec![if chunk.is_empty() {
        KvChange::remove(key)
    } else {
        let value = chunk.encode(&key);
        KvChange::put(key, value)
    }])
}

/// Removes all of an object.
///
/// # Errors
/// What `kv` gives.
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
