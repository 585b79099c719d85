//! The index record of a chunk: the places and checksums of its 64 blocks.
//!
//! | state of a block | place | reads as |
//! | --- | --- | --- |
//! | hole | none | zeros |
//! | unwritten | one | zeros |
//! | written | one, with a checksum | its contents |
//! | lost: a repair could not save the contents | none | an error, until it is written anew |
//!
//! On disk places are runs. In memory each block has a slot, since every operation goes by block.
//!
//! Decoding checks everything that later arithmetic relies on: runs are in order, do not overlap,
//! and lie inside their segment. A block that is marked as written and has no place is a lost one.

use crate::ids::{CHUNK_BLOCKS, Place, TargetConfig};
use crate::index_value;
use zonal_basics::to_usize;
use zonal_types::{Codec, CodecError, ErrorCode, Reader};

const BLOCKS: usize = to_usize(CHUNK_BLOCKS);

/// One chunk of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Incremented by each change.
    pub version: u64,
    /// Reserved for snapshots.
    pub birth_epoch: u64,
    /// Reserved for prepared writes.
    pub pending_version: u64,
    places: [Option<Place>; BLOCKS],
    written: u64,
    crcs: [u32; BLOCKS],
}

/// State of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockState {
    /// Nothing there.
    Hole,
    /// Space without contents; reads as zeros.
    Unwritten(Place),
    /// Contents, with their crc32c.
    Written(Place, u32),
    /// Its contents are lost.
    Lost,
}

impl BlockState {
    /// Where the block lies, if anywhere.
    #[must_use]
    pub fn place(self) -> Option<Place> {
        match self {
            Self::Hole | Self::Lost => None,
            Self::Unwritten(place) | Self::Written(place, _) => Some(place),
        }
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self {
            version: 0,
            birth_epoch: 0,
            pending_version: 0,
            places: [None; BLOCKS],
            written: 0,
            crcs: [0; BLOCKS],
        }
    }
}

/// Index of a block inside its chunk.
fn index(block: u64) -> usize {
    (block % CHUNK_BLOCKS) as usize
}

impl Chunk {
    /// State of a block (numbered in the object or in the chunk).
    #[must_use]
    pub fn get(&self, block: u64) -> BlockState {
        let at = index(block);
        match self.places[at] {
            None if self.written >> at & 1 == 1 => BlockState::Lost,
            None => BlockState::Hole,
            Some(place) if self.written >> at & 1 == 1 => BlockState::Written(place, self.crcs[at]),
            Some(place) => BlockState::Unwritten(place),
        }
    }

    /// Sets the state of a block; returns the state before.
    pub fn set(&mut self, block: u64, state: BlockState) -> BlockState {
        let old = self.get(block);
        let at = index(block);
        self.places[at] = state.place();
        self.written &= !(1 << at);
        self.crcs[at] = 0;
        match state {
            BlockState::Written(_, crc) => {
                self.written |= 1 << at;
                self.crcs[at] = crc;
            }
            BlockState::Lost => self.written |= 1 << at,
            BlockState::Hole | BlockState::Unwritten(_) => {}
        }
        old
    }

    /// A chunk whose first `blocks` blocks had contents that are all lost.
    #[must_use]
    pub fn lost(blocks: u64) -> Self {
        let mut chunk = Self::default();
        for block in 0..blocks.min(CHUNK_BLOCKS) {
            chunk.set(block, BlockState::Lost);
        }
        chunk
    }

    /// Bit set of written and of lost blocks.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether every block is a hole.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written == 0 && self.places.iter().all(Option::is_none)
    }

    /// Blocks that are not holes (index in the chunk).
    pub fn blocks(&self) -> impl Iterator<Item = (u64, BlockState)> + '_ {
        (0..CHUNK_BLOCKS)
            .map(|block| (block, self.get(block)))
            .filter(|(_, state)| *state != BlockState::Hole)
    }

    /// Blocks with a place (index in the chunk).
    pub fn placed(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        (0..CHUNK_BLOCKS).filter_map(|block| Some((block, self.places[index(block)]?)))
    }

    /// Runs of blocks whose units are consecutive: first block, number of blocks, first place.
    #[must_use]
    pub fn runs(&self) -> Vec<(u8, u8, Place)> {
        let mut runs: Vec<(u8, u8, Place)> = Vec::new();
        for (block, place) in self.placed() {
            #[expect(clippy::cast_possible_truncation, reason = "a chunk has 64 blocks")]
            let block = block as u8;
            if let Some((first, count, start)) = runs.last_mut()
                && *first + *count == block
                && start.segment == place.segment
                && start.unit.checked_add(u32::from(*count)) == Some(place.unit)
            {
                *count += 1;
                continue;
            }
            runs.push((block, 1, place));
        }
        runs
    }

    /// Encodes the value to store under `key`.
    #[must_use]
    pub fn encode(&self, key: &[u8]) -> Vec<u8> {
        index_value::seal(key, |out| {
            self.version.put(out);
            self.birth_epoch.put(out);
            self.pending_version.put(out);
            self.written.put(out);
            let runs = self.runs();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "at most one run for each of 64 blocks"
            )]
            let count = runs.len() as u8;
            out.push(count);
            for (first, count, place) in runs {
                out.extend_from_slice(&[first, count]);
                place.segment.put(out);
                place.unit.put(out);
            }
            for at in (0..BLOCKS).filter(|at| self.written >> at & 1 == 1) {
                if self.places[at].is_some() {
                    self.crcs[at].put(out);
                }
            }
        })
    }

    /// Decodes the value stored under `key`.
    ///
    /// # Errors
    /// `Corrupt` for bytes that `encode` does not write.
    pub fn decode(config: &TargetConfig, key: &[u8], value: &[u8]) -> Result<Self, ErrorCode> {
        Self::decode_body(config, index_value::open(key, value)?)
            .map_err(|_error| ErrorCode::Corrupt)
    }

    fn decode_body(config: &TargetConfig, body: &[u8]) -> Result<Self, CodecError> {
        let mut from = Reader::new(body);
        let mut chunk = Self {
            version: u64::get(&mut from)?,
            birth_epoch: u64::get(&mut from)?,
            pending_version: u64::get(&mut from)?,
            written: u64::get(&mut from)?,
            ..Self::default()
        };
        let mut behind = 0;
        let mut next = None;
        for _ in 0..u8::get(&mut from)? {
            let (first, count) = (u8::get(&mut from)?, u8::get(&mut from)?);
            let (segment, unit) = (u32::get(&mut from)?, u32::get(&mut from)?);
            let end = unit.checked_add(u32::from(count));
            let (first, count) = (usize::from(first), usize::from(count));
            let fits = end.is_some_and(|end| end <= config.segment_units);
            // A run that continues the one before it, in the chunk and on the medium, belongs to
            // that run.
            let is_split = next == Some((first, segment, unit));
            if first < behind || count == 0 || first + count > BLOCKS || !fits || is_split {
                return Err(CodecError::BadValue);
            }
            behind = first + count;
            next = end.map(|end| (behind, segment, end));
            for (unit, slot) in (unit..=u32::MAX).zip(&mut chunk.places[first..behind]) {
                *slot = Some(Place { segment, unit });
            }
        }
        for at in (0..BLOCKS).filter(|at| chunk.written >> at & 1 == 1) {
            if chunk.places[at].is_some() {
                chunk.crcs[at] = u32::get(&mut from)?;
            }
        }
        if from.left() > 0 {
            return Err(CodecError::Trailing);
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: TargetConfig = TargetConfig {
        segment_units: 1024,
        segments: 4,
        pending_blocks_max: 16,
    };

    fn sample() -> Chunk {
        let mut chunk = Chunk::default();
        for block in 0..40 {
            let place = Place {
                segment: 1,
                unit: 100 + block as u32 + (block as u32 / 20),
            };
            chunk.set(block, BlockState::Written(place, block as u32 * 7));
        }
        chunk.set(50, BlockState::Lost);
        chunk.set(
            63,
            BlockState::Unwritten(Place {
                segment: 3,
                unit: 1023,
            }),
        );
        chunk
    }

    #[test]
    fn a_chunk_decodes_to_what_was_encoded() {
        let chunk = sample();
        assert_eq!(chunk.runs().len(), 3);
        let bytes = chunk.encode(b"key");
        assert_eq!(Chunk::decode(&CONFIG, b"key", &bytes), Ok(chunk));
        assert_eq!(
            Chunk::decode(&CONFIG, b"other", &bytes),
            Err(ErrorCode::Corrupt)
        );
    }

    #[test]
    fn every_flipped_byte_is_damage() {
        let bytes = sample().encode(b"key");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(Chunk::decode(&CONFIG, b"key", &bad).is_err());
            assert!(Chunk::decode(&CONFIG, b"key", &bytes[..at]).is_err());
        }
    }

    #[test]
    fn a_wrong_chunk_with_a_right_checksum_is_damage() {
        let bytes = sample().encode(b"key");
        let body = &bytes[1..bytes.len() - 4];
        let mut refused = 0;
        for at in 0..body.len() {
            for value in 0..=255 {
                let mut bad = body.to_vec();
                bad[at] = value;
                let sealed = index_value::seal(b"key", |out| out.extend_from_slice(&bad));
                match Chunk::decode(&CONFIG, b"key", &sealed) {
                    Ok(chunk) => assert_eq!(chunk.encode(b"key"), sealed, "byte {at} is {value}"),
                    Err(_damage) => refused += 1,
                }
            }
        }
        assert!(refused > 0);
    }

    #[test]
    fn one_run_in_two_parts_is_damage() {
        let sealed = |runs: &[(u8, u8, u32, u32)]| {
            index_value::seal(b"key", |out| {
                for _ in ["version", "birth_epoch", "pending_version", "written"] {
                    0_u64.put(out);
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "at most one run for each of 64 blocks"
                )]
                let count = runs.len() as u8;
                out.push(count);
                for (first, count, segment, unit) in runs {
                    out.extend_from_slice(&[*first, *count]);
                    segment.put(out);
                    unit.put(out);
                }
            })
        };
        let decoded = |runs: &[_]| Chunk::decode(&CONFIG, b"key", &sealed(runs));
        assert!(decoded(&[(0, 2, 1, 10), (2, 1, 1, 13)]).is_ok());
        assert!(decoded(&[(0, 2, 1, 10), (2, 1, 2, 12)]).is_ok());
        assert_eq!(
            decoded(&[(0, 2, 1, 10), (2, 1, 1, 12)]),
            Err(ErrorCode::Corrupt)
        );
    }
}
