//! Digest of an object's contents, from the checksums of its blocks: no data is read. The check of
//! a cell compares the copies of a column by it.
//!
//! Invariants:
//! 1. Objects with equal bytes have equal digests. A block of zeros counts as a hole, wherever it
//!    is stored, and the length of the object does not count.
//! 2. An object with a block whose contents nobody knows has no digest.
//!
//! The digest is a sum over blocks, so their order does not matter. Two objects that differ have
//! equal digests once in 2^64; two blocks that differ have equal checksums once in 2^32.

use crate::chunk::{BlockState, Chunk};
use crate::ids::{CHUNK_BLOCKS, ObjectId, TargetConfig};
use crate::key::{self, IndexKey};
use crate::note::BlockBytes;
use crate::target::StorageTarget;
use zonal_basics::SplitMix64;
use zonal_types::{ErrorCode, KvRead};

/// The crc32c of a block of zeros.
const ZEROS: u32 = 0x98f9_4189;
/// Accepts any geometry: only checksums are read.
const ANY: TargetConfig = TargetConfig {
    segment_units: u32::MAX,
    segments: u32::MAX,
    pending_blocks_max: 0,
};

/// The digest of the blocks that were added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ContentDigest {
    sum: u64,
    is_unknown: bool,
}

impl ContentDigest {
    /// Adds a block by its checksum.
    pub fn add(&mut self, block: u64, crc: u32) {
        if crc != ZEROS {
            let place = SplitMix64(block).bits();
            let term = SplitMix64(place ^ u64::from(crc)).bits();
            self.sum = self.sum.wrapping_add(term);
        }
    }

    /// Adds a block that is not in a segment yet.
    pub fn add_pending(&mut self, block: u64, bytes: &BlockBytes) {
        self.add(block, crc_fast::crc32_iscsi(bytes.as_slice()));
    }

    /// Adds a block by its state in the index.
    pub fn add_state(&mut self, block: u64, state: BlockState) {
        match state {
            BlockState::Written(_, crc) => self.add(block, crc),
            BlockState::Lost => self.make_unknown(),
            BlockState::Hole | BlockState::Unwritten(_) => {}
        }
    }

    /// Notes a block whose contents nobody knows.
    pub fn make_unknown(&mut self) {
        self.is_unknown = true;
    }

    /// The digest; 0 for an object of zeros, `None` where a block is not known.
    pub fn value(self) -> Option<u64> {
        (!self.is_unknown).then_some(self.sum)
    }
}

/// Blocks of an object that are not in a segment yet. They are newer than those of the index.
#[derive(Debug, Default)]
pub struct PendingContents(Vec<(u64, BlockBytes)>);

impl StorageTarget {
    /// The pending blocks of an object, for [`content_digest`]. They share the target's memory.
    #[must_use]
    pub fn pending_contents(&self, object: ObjectId) -> PendingContents {
        let blocks = self.pending.range(object, 0, u64::MAX);
        let contents = blocks.filter_map(|block| {
            let found = self.pending.get(object, block)?;
            Some((block, found.bytes.clone()))
        });
        PendingContents(contents.collect())
    }
}

/// The digest of an object, and the number of chunks that were read for it. The pending blocks are
/// taken before the index is read: a block that moves to a segment meanwhile keeps its contents.
///
/// An object that changes meanwhile has any digest. One with a damaged record has none.
///
/// # Errors
/// Those of `kv`.
pub fn content_digest(
    kv: &dyn KvRead,
    object: ObjectId,
    pending: &PendingContents,
) -> Result<(Option<u64>, usize), ErrorCode> {
    let mut digest = ContentDigest::default();
    for (block, bytes) in &pending.0 {
        digest.add_pending(*block, bytes);
    }
    let is_pending = |block: &u64| pending.0.binary_search_by_key(block, |(at, _)| *at).is_ok();
    let mut chunks = 0;
    let (_, end) = key::object_range(object);
    kv.scan(&key::chunk(object, 0), &end, &mut |key, value| {
        chunks += 1;
        let decoded = (key::parse(key), Chunk::decode(&ANY, key, value));
        let (Ok(IndexKey::Chunk(_, number)), Ok(chunk)) = decoded else {
            digest.make_unknown();
            return false;
        };
        let first = number.saturating_mul(CHUNK_BLOCKS);
        for (step, state) in chunk.blocks() {
            let block = first.saturating_add(step);
            if !is_pending(&block) {
                digest.add_state(block, state);
            }
        }
        true
    })?;
    Ok((digest.value(), chunks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Place;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use zonal_types::limits::BLOCK_BYTES;
    use zonal_types::{Column, DataId};

    const OBJECT: ObjectId = ObjectId {
        data_id: DataId(7),
        column: Column(1),
    };

    fn written(unit: u32, crc: u32) -> BlockState {
        BlockState::Written(Place { segment: 3, unit }, crc)
    }

    /// The digest of an object with these blocks in the index, and these that are pending.
    fn digest(stored: &[(u64, BlockState)], pending: &[(u64, u8)]) -> Option<u64> {
        let mut chunks: BTreeMap<u64, Chunk> = BTreeMap::new();
        for (block, state) in stored {
            let chunk = chunks.entry(block / CHUNK_BLOCKS).or_default();
            chunk.set(*block, *state);
        }
        let mut kv = BTreeMap::new();
        for (number, chunk) in &chunks {
            let key = key::chunk(OBJECT, *number);
            let value = chunk.encode(&key);
            kv.insert(key, value);
        }
        let bytes = |fill: u8| Arc::new([fill; BLOCK_BYTES]);
        let pending = pending.iter().map(|(block, fill)| (*block, bytes(*fill)));
        let pending = PendingContents(pending.collect());
        let (digest, read) = content_digest(&kv, OBJECT, &pending).unwrap();
        assert_eq!(read, chunks.len());
        digest
    }

    #[test]
    fn zeros_are_holes_in_whatever_form_they_are_stored() {
        assert_eq!(crc_fast::crc32_iscsi(&[0; BLOCK_BYTES]), ZEROS);
        let plain = digest(&[(1, written(9, 5))], &[]);
        let place = Place {
            segment: 1,
            unit: 2,
        };
        let zeros = [
            (0, written(1, ZEROS)),
            (1, written(70, 5)),
            (2, BlockState::Unwritten(place)),
        ];
        assert_eq!(digest(&zeros, &[(200, 0)]), plain);
        assert_eq!(digest(&[], &[]), Some(0));
        assert_eq!(digest(&[(64, written(1, ZEROS))], &[]), Some(0));
    }

    #[test]
    fn other_bytes_and_other_places_in_the_object_are_other_contents() {
        let all = [
            digest(&[(1, written(9, 5)), (2, written(8, 6))], &[]),
            digest(&[(1, written(9, 6)), (2, written(8, 5))], &[]),
            digest(&[(1, written(9, 5))], &[]),
            digest(&[(65, written(9, 5))], &[]),
            digest(&[], &[]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{all:?}");
        }
    }

    #[test]
    fn a_pending_block_replaces_that_of_the_index() {
        let crc = crc_fast::crc32_iscsi(&[3; BLOCK_BYTES]);
        let stored = digest(&[(70, written(1, crc))], &[]);
        assert_eq!(digest(&[], &[(70, 3)]), stored);
        assert_eq!(digest(&[(70, written(1, 9))], &[(70, 3)]), stored);
        assert_eq!(digest(&[(70, BlockState::Lost)], &[(70, 3)]), stored);
    }

    #[test]
    fn an_object_with_a_lost_block_has_no_digest() {
        assert_eq!(digest(&[(5, BlockState::Lost)], &[]), None);
    }
}
