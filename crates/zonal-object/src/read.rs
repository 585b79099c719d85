//! Reads: the source of each block of a range, and the verification of the bytes read.
//!
//! A plan describes one buffer of whole blocks. The shell reads each of [`ReadPlan::reads`] from
//! its segment straight to its place in the buffer, outside of any lock. [`ReadPlan::finish`] fills
//! in holes and pending blocks, verifies every block, and returns the requested part of the buffer.
//! Nothing is copied, not even for unaligned ranges: they take up to 8 KiB more of buffer.
//!
//! Cost of an aligned 1 MiB read: 5 look-ups (header, 4 chunks), 3 allocations besides those of the
//! store, 256 checksums (about 30 us). One segment read where the range was written at once. Of 4
//! KiB: 2 look-ups, one segment read.

use crate::chunk::{BlockState, Chunk};
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, Place, Truncation};
use crate::note::BlockBytes;
use crate::object_update::{read_chunk, read_header};
use crate::target::StorageTarget;
use std::ops::Range;
use zonal_basics::to_usize;
use zonal_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX, STORAGE_IO_BYTES_MAX};
use zonal_types::{ErrorCode, KvRead};

/// A block in a segment differs from its index record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "block at byte {offset} of object {object} is damaged: segment {segment} offset {segment_offset} \
     sums to {found:#010x} instead of {expected:#010x}"
)]
pub struct Damage {
    /// The object.
    pub object: ObjectId,
    /// First byte of the block in the object.
    pub offset: u64,
    /// Segment it was read from.
    pub segment: u32,
    /// First byte of the block in the segment.
    pub segment_offset: u64,
    /// The recorded crc32c.
    pub expected: u32,
    /// The crc32c of the bytes read.
    pub found: u32,
}

impl Damage {
    /// The code that crosses the wire.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        ErrorCode::Corrupt
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Zeros,
    Pending(BlockBytes),
    Stored(Place),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// First block of the object; in a plan for single blocks they are not contiguous.
    block: u64,
    /// First byte in the buffer.
    at: usize,
    blocks: usize,
    source: Source,
    /// Index of the first block's checksum.
    crc: usize,
}

/// One read of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRead {
    /// Segment number.
    pub segment: u32,
    /// First byte in the segment.
    pub offset: u64,
    /// Its destination in the buffer.
    pub buffer: Range<usize>,
}

/// A plan to read a range. Two plans are equal where they read and expect the same bytes. After a
/// mismatch the shell plans again: an equal plan means damage, a different one that the place was
/// reused between plan and read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadPlan {
    object: ObjectId,
    object_bytes: u64,
    /// The highest order that a byte of the range may have.
    order: u64,
    result: Range<usize>,
    buffer_len: usize,
    parts: Vec<Part>,
    crcs: Vec<u32>,
}

impl ReadPlan {
    fn new(object: ObjectId, object_bytes: u64) -> Self {
        Self {
            object,
            object_bytes,
            order: 0,
            result: 0..0,
            buffer_len: 0,
            parts: Vec::new(),
            crcs: Vec::new(),
        }
    }

    /// The highest order that a byte of the range may have; 0 without copies.
    #[must_use]
    pub fn order(&self) -> u64 {
        self.order
    }

    /// The object that is read.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        self.object
    }

    /// The object's byte offset of byte `at` of the buffer.
    #[must_use]
    pub fn offset_of(&self, at: usize) -> u64 {
        let part = self.parts.iter().rev().find(|part| part.at <= at);
        part.map_or(0, |part| part.block * BLOCK + (at - part.at) as u64)
    }

    /// A plan for single written blocks, consecutive in the buffer.
    pub(crate) fn of_blocks(object: ObjectId, blocks: &[(u64, Place, u32)]) -> Self {
        let mut plan = Self::new(object, 0);
        for (block, place, crc) in blocks {
            plan.push(*block, Source::Stored(*place), *crc);
        }
        plan.result = 0..plan.buffer_len;
        plan
    }

    fn push(&mut self, block: u64, source: Source, crc: u32) {
        if let Some(last) = self.parts.last_mut() {
            let count = last.blocks as u64;
            let goes_on = match (&last.source, &source) {
                (Source::Zeros, Source::Zeros) => true,
                (Source::Stored(from), Source::Stored(to)) => {
                    from.segment == to.segment && u64::from(from.unit) + count == u64::from(to.unit)
                }
                _ => false,
            };
            if goes_on && last.block + count == block {
                last.blocks += 1;
                if matches!(source, Source::Stored(_)) {
                    self.crcs.push(crc);
                }
                self.buffer_len += BLOCK_BYTES;
                return;
            }
        }
        let at_crc = self.crcs.len();
        if matches!(source, Source::Stored(_)) {
            self.crcs.push(crc);
        }
        self.parts.push(Part {
            block,
            at: self.buffer_len,
            blocks: 1,
            source,
            crc: at_crc,
        });
        self.buffer_len += BLOCK_BYTES;
    }

    /// Length of the buffer: whole blocks.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Length of the object, for the reply.
    #[must_use]
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// The segment reads, with their destinations.
    pub fn reads(&self) -> impl Iterator<Item = SegmentRead> + '_ {
        self.parts.iter().filter_map(|part| match part.source {
            Source::Stored(place) => Some(SegmentRead {
                segment: place.segment,
                offset: place.offset(),
                buffer: part.at..part.at + part.blocks * BLOCK_BYTES,
            }),
            Source::Zeros | Source::Pending(_) => None,
        })
    }

    /// Fills in the bytes that are in no segment, verifies the rest, and returns the requested part
    /// of the buffer. A buffer of another length than [`Self::buffer_len`] counts as damage of its
    /// first block.
    ///
    /// # Errors
    /// The first damaged block; the buffer must then not be used.
    pub fn finish(&self, buffer: &mut [u8]) -> Result<Range<usize>, Damage> {
        for part in &self.parts {
            let bytes = buffer
                .get_mut(part.at..part.at + part.blocks * BLOCK_BYTES)
                .unwrap_or_default();
            match &part.source {
                Source::Zeros => bytes.fill(0),
                Source::Pending(block) if bytes.len() == BLOCK_BYTES => {
                    bytes.copy_from_slice(block.as_slice());
                }
                Source::Pending(_) => {}
                Source::Stored(place) => self.verify(part, *place, bytes)?,
            }
        }
        Ok(self.result.clone())
    }

    /// All damaged blocks of a buffer that was read as [`Self::reads`] says.
    #[must_use]
    pub fn damaged(&self, buffer: &[u8]) -> Vec<Damage> {
        let parts = self.parts.iter();
        parts
            .filter_map(|part| match part.source {
                Source::Stored(place) => {
                    let range = part.at..part.at + part.blocks * BLOCK_BYTES;
                    let bytes = buffer.get(range).unwrap_or_default();
                    Some(self.damaged_of(part, place, bytes))
                }
                Source::Zeros | Source::Pending(_) => None,
            })
            .flatten()
            .collect()
    }

    fn verify(&self, part: &Part, place: Place, bytes: &[u8]) -> Result<(), Damage> {
        match self.damaged_of(part, place, bytes).next() {
            Some(damage) => Err(damage),
            None => Ok(()),
        }
    }

    fn damaged_of(&self, part: &Part, place: Place, bytes: &[u8]) -> impl Iterator<Item = Damage> {
        let expected = self
            .crcs
            .get(part.crc..part.crc + part.blocks)
            .unwrap_or(&[]);
        let first = part.block;
        let object = self.object;
        expected
            .iter()
            .enumerate()
            .filter_map(move |(index, expected)| {
                let at = index * BLOCK_BYTES;
                let block = bytes.get(at..at + BLOCK_BYTES).unwrap_or(&[]);
                let found = crc_fast::crc32_iscsi(block);
                (found != *expected || block.is_empty()).then(|| Damage {
                    object,
                    offset: (first + index as u64) * BLOCK,
                    segment: place.segment,
                    segment_offset: place.offset() + at as u64,
                    expected: *expected,
                    found,
                })
            })
    }
}

impl StorageTarget {
    /// Plans a read of `offset..offset + length`, clipped to the object's end.
    ///
    /// `truncation` may be older or newer than the object's last truncation. If it is newer, the
    /// object reads as if it were truncated.
    ///
    /// # Errors
    /// `Invalid` for a range past the limits, `Corrupt` for a damaged index; errors of `kv`.
    pub fn plan_read(
        &self,
        kv: &dyn KvRead,
        object: ObjectId,
        truncation: Truncation,
        offset: u64,
        length: usize,
    ) -> Result<ReadPlan, ErrorCode> {
        if length > STORAGE_IO_BYTES_MAX || offset > FILE_BYTES_MAX {
            return Err(ErrorCode::Invalid);
        }
        let header = read_header(kv, object)?;
        let stored = header.as_ref().map_or(0, |header| header.order);
        let object_bytes = match header {
            Some(header) if header.deleting => 0,
            Some(header) if truncation.seq > header.truncate_seq => {
                header.object_bytes.min(truncation.bytes)
            }
            Some(header) => header.object_bytes,
            None => 0,
        };
        let mut plan = ReadPlan::new(object, object_bytes);
        if stored > 0 {
            let asked = offset..offset + length as u64;
            plan.order = self.orders.highest((object, stored), &asked);
        }
        let end = object_bytes.min(offset + length as u64);
        if offset >= end {
            return Ok(plan);
        }
        let (first, behind) = (offset / BLOCK, end.div_ceil(BLOCK));
        plan.crcs.reserve(to_usize(behind - first));
        let none_pending = self.pending.none_in(object, first, behind);
        let mut chunk: Option<(u64, Option<Chunk>)> = None;
        for block in first..behind {
            let number = block / CHUNK_BLOCKS;
            if chunk.as_ref().is_none_or(|(loaded, _)| *loaded != number) {
                chunk = Some((number, read_chunk(kv, &self.config, object, number)?));
            }
            let stored = match &chunk {
                Some((_, Some(chunk))) => chunk.get(block),
                _ => BlockState::Hole,
            };
            let pending = if none_pending {
                None
            } else {
                self.pending_block(object, block)
            };
            let (source, crc) = match (pending, stored) {
                (Some(bytes), _) => (Source::Pending(bytes.clone()), 0),
                (None, BlockState::Written(place, crc)) => (Source::Stored(place), crc),
                (None, BlockState::Lost) => return Err(ErrorCode::Corrupt),
                (None, _) => (Source::Zeros, 0),
            };
            plan.push(block, source, crc);
        }
        let head = (offset % BLOCK) as usize;
        plan.result = head..head + to_usize(end - offset);
        assert!(
            plan.result.end <= plan.buffer_len,
            "the buffer of a read plan covers the range"
        );
        Ok(plan)
    }
}
