//! Writes: plan (under the target's lock), segment writes (no lock), commit (under the lock).
//!
//! A write has one or more ranges, in order and without overlap; their bytes are consecutive in the
//! payload. Whole blocks of 64 KiB or more together go to new extents: for many ranges that is one
//! piece of a segment. Unaligned edges and small writes become whole pending blocks, replayed from
//! the log; each block once for all ranges that touch it. The old contents of a partly written
//! block are its *base*: zeros, pending bytes, or a stored block that the shell reads in between.
//!
//! Commit merges writes: it reads the index as it is at that time and replaces only the blocks of
//! this write. Another write or a checkpoint may have changed the base of an edge since it was
//! read. Then commit returns `Again` and the shell reads the new base. So plans of overlapping
//! writes may interleave freely. The last commit wins block by block, and byte by byte at the
//! edges.
//!
//! | cost of an aligned write | 1 MiB | 4 KiB |
//! | --- | --- | --- |
//! | look-ups | 6 (header twice, 4 chunks) | 3 |
//! | allocations of space | 1 | none |
//! | checksums | 256, outside of the lock | none |
//! | index values | 4 of 300 bytes | none, unless the object grew or a hole was filled |
//! | besides | a header if the object grew or has copies | a note with the block |

use crate::edit::Edit;
use crate::ids::{
    BLOCK, ChangeAttempt, Extent, LARGE_WRITE_BYTES, ObjectId, TargetConfig, Truncation,
};
use crate::note::EffectRecord;
use crate::object_update::{Batch, ObjectUpdate};
use crate::old_blocks::OldBlocks;
use crate::read::{Damage, ReadPlan};
use crate::target::{ChangeOutcome, StorageTarget};
use std::ops::Range;
use std::sync::Arc;
use zonal_basics::to_usize;
use zonal_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX, STORAGE_IO_BYTES_MAX, WRITE_RANGES_MAX};
use zonal_types::{ErrorCode, KvRead};

/// Most blocks of one record that has more than one range. A record of 256 blocks is a megabyte,
/// well below the free part of the smallest log.
pub const RECORD_BLOCKS_MAX: u64 = 256;

/// A write to plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRequest<'a> {
    /// The object.
    pub object: ObjectId,
    /// The file's last truncation, as the sender knows it.
    pub truncation: Truncation,
    /// Its sender and attempt.
    pub attempt: ChangeAttempt,
    /// First byte and number of bytes of each range, in order and without overlap.
    pub ranges: &'a [(u64, u32)],
}

/// One write to a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentWrite {
    /// Segment number.
    pub segment: u32,
    /// First byte in the segment.
    pub offset: u64,
    /// The bytes of the payload to write.
    pub payload: Range<usize>,
}

/// A range of a plan.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    /// Its first byte in the payload.
    at: usize,
}

/// Consecutive whole blocks.
#[derive(Debug, Clone, Copy)]
struct Large {
    first: u64,
    count: u32,
    /// Their first byte in the payload.
    at: usize,
}

/// A block that goes through the log, and the pieces that touch it.
#[derive(Debug, Clone)]
struct Small {
    block: u64,
    pieces: Range<usize>,
}

/// A planned write. It holds space until it is committed or aborted, exactly once.
#[derive(Debug)]
pub struct WritePlan {
    object: ObjectId,
    truncation: Truncation,
    attempt: ChangeAttempt,
    pieces: Vec<Piece>,
    /// Blocks that go to extents.
    large: Vec<Large>,
    small: Vec<Small>,
    extents: Vec<Extent>,
    /// Blocks that will be pending, counted in the target until the commit.
    promised: u64,
    crcs: Vec<u32>,
    old_blocks: OldBlocks,
    /// It was committed or aborted, and holds nothing any more.
    is_settled: bool,
}

/// The result of [`StorageTarget::plan_write`].
#[derive(Debug)]
pub enum WriteDecision {
    /// Go on with this plan.
    Ready(WritePlan),
    /// The object has not applied the last truncation: run this edit, then plan again.
    TruncateFirst(Edit),
}

/// The result of [`StorageTarget::commit_write`].
#[derive(Debug)]
pub enum Committed {
    /// Append the record in the same critical section, then reply.
    Done {
        /// The record to append.
        record: EffectRecord,
        /// The outcome for the reply.
        outcome: ChangeOutcome,
    },
    /// Read [`WritePlan::old_blocks`] again, then commit again.
    Again,
}

impl WritePlan {
    /// Checks the ranges and assigns each block to extents or to the log.
    fn new(request: &WriteRequest<'_>) -> Result<Self, ErrorCode> {
        let ranges = request.ranges;
        if ranges.is_empty() || ranges.len() > WRITE_RANGES_MAX {
            return Err(ErrorCode::Invalid);
        }
        let mut pieces: Vec<Piece> = Vec::with_capacity(ranges.len());
        let (mut behind, mut at) = (0, 0);
        for (start, length) in ranges {
            let end = start
                .checked_add(u64::from(*length))
                .filter(|end| *end <= FILE_BYTES_MAX)
                .ok_or(ErrorCode::FileTooBig)?;
            if *length == 0 || *start < behind {
                return Err(ErrorCode::Invalid);
            }
            let start = *start;
            pieces.push(Piece { start, end, at });
            behind = end;
            at += *length as usize;
            if at > STORAGE_IO_BYTES_MAX {
                return Err(ErrorCode::Invalid);
            }
        }
        let mut plan = Self {
            object: request.object,
            truncation: request.truncation,
            attempt: request.attempt,
            large: pieces.iter().filter_map(Piece::whole_blocks).collect(),
            pieces,
            small: Vec::new(),
            extents: Vec::new(),
            promised: 0,
            crcs: Vec::new(),
            old_blocks: OldBlocks::default(),
            is_settled: false,
        };
        if u64::from(plan.large_units()) * BLOCK < LARGE_WRITE_BYTES {
            plan.large.clear();
        }
        plan.find_small();
        Ok(plan)
    }

    fn find_small(&mut self) {
        let mut large = self.large.iter().peekable();
        for (number, piece) in self.pieces.iter().enumerate() {
            let (mut block, behind) = (piece.start / BLOCK, piece.end.div_ceil(BLOCK));
            while block < behind {
                if let Some(whole) = large.next_if(|whole| whole.first == block) {
                    block += u64::from(whole.count);
                    continue;
                }
                match self.small.last_mut() {
                    Some(last) if last.block == block => last.pieces.end = number + 1,
                    _ => self.small.push(Small {
                        block,
                        pieces: number..number + 1,
                    }),
                }
                block += 1;
            }
        }
    }

    fn large_units(&self) -> u32 {
        self.large.iter().map(|large| large.count).sum()
    }

    fn payload_bytes(&self) -> usize {
        let last = self.pieces.last();
        last.map_or(0, |piece| piece.at + to_usize(piece.end - piece.start))
    }

    /// The segment writes to make before the commit.
    pub fn writes(&self) -> impl Iterator<Item = SegmentWrite> + use<> {
        let mut writes: Vec<SegmentWrite> = Vec::with_capacity(self.extents.len());
        let blocks = self.large.iter().flat_map(|large| {
            let step = |index| large.at + index as usize * BLOCK_BYTES;
            (0..large.count).map(step)
        });
        let places = self.extents.iter().flat_map(|extent| extent.places());
        for (at, place) in blocks.zip(places) {
            match writes.last_mut() {
                Some(last)
                    if last.segment == place.segment
                        && last.payload.end == at
                        && last.offset + last.payload.len() as u64 == place.offset() =>
                {
                    last.payload.end += BLOCK_BYTES;
                }
                _ => writes.push(SegmentWrite {
                    segment: place.segment,
                    offset: place.offset(),
                    payload: at..at + BLOCK_BYTES,
                }),
            }
        }
        writes.into_iter()
    }

    /// Computes the checksums of the blocks that go to extents; call it outside of the lock, before
    /// the commit.
    pub fn checksum(&mut self, payload: &[u8]) {
        if self.crcs.is_empty() {
            let parts = self.large.iter().flat_map(|large| {
                let bytes = payload.get(large.at..).unwrap_or(&[]);
                bytes.chunks_exact(BLOCK_BYTES).take(large.count as usize)
            });
            self.crcs = parts.map(crc_fast::crc32_iscsi).collect();
        }
    }

    /// Blocks to read before the commit, if any; pass the buffer to [`Self::supply`].
    #[must_use]
    pub fn old_blocks(&self) -> Option<&ReadPlan> {
        self.old_blocks.plan()
    }

    /// Verifies and keeps the bytes read for [`Self::old_blocks`].
    ///
    /// # Errors
    /// The damaged block. It may have moved since the plan: see [`StorageTarget::refresh_write`].
    pub fn supply(&mut self, buffer: &mut [u8]) -> Result<(), Damage> {
        self.old_blocks.supply(buffer)
    }

    fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.pieces.iter().map(|piece| piece.start..piece.end)
    }

    fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |piece| piece.end)
    }
}

impl Piece {
    fn whole_blocks(&self) -> Option<Large> {
        let (first, behind) = (self.start.div_ceil(BLOCK), self.end / BLOCK);
        let count = u32::try_from(behind.checked_sub(first)?).ok()?;
        (count > 0).then(|| Large {
            first,
            count,
            at: self.at + to_usize(first * BLOCK - self.start),
        })
    }
}

/// Number of the leading `ranges` that fit into one plan and its record, by their blocks; at least
/// one, unless `ranges` is empty.
#[must_use]
pub fn ranges_of_one_record(config: &TargetConfig, ranges: &[(u64, u32)]) -> usize {
    let bound = (config.pending_blocks_max as u64 / 4).clamp(1, RECORD_BLOCKS_MAX);
    let mut blocks = 0;
    let fits = |(start, length): &&(u64, u32)| {
        let end = start.saturating_add(u64::from(*length));
        blocks += end.div_ceil(BLOCK).saturating_sub(start / BLOCK);
        blocks <= bound
    };
    let fitting = ranges.iter().take_while(fits).count();
    fitting.max(1).min(ranges.len())
}

/// The part of `block` that `start..end` covers.
pub(crate) fn part_of_block(block: u64, start: u64, end: u64) -> Range<usize> {
    let base = block * BLOCK;
    let from = start.saturating_sub(base).min(BLOCK);
    let to = end.saturating_sub(base).min(BLOCK);
    from as usize..to as usize
}

impl StorageTarget {
    /// Plans a write: checks it and takes space.
    ///
    /// # Errors
    /// `Invalid`, `FileTooBig`, `StaleTruncate`, `Fenced`, `Superseded`, `Overtaken`, `Stale`
    /// (being deleted), `Corrupt`. `NoSpace`: a checkpoint may help where
    /// [`StorageTarget::reclaimable`] is not 0. `Overloaded`: a checkpoint must run first, since
    /// there are too many pending blocks.
    pub fn plan_write(
        &mut self,
        kv: &dyn KvRead,
        request: WriteRequest<'_>,
    ) -> Result<WriteDecision, ErrorCode> {
        let mut plan = WritePlan::new(&request)?;
        self.fences.admit(request.attempt.sender)?;
        self.attempts.admit(request.object, request.attempt)?;
        let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, request.object)?;
        if self.check_truncation(&update, request.truncation)? {
            zonal_types::mark!(TruncateFirst);
            let truncation = Edit::truncate_for_write(request.object, request.truncation);
            return Ok(WriteDecision::TruncateFirst(truncation));
        }
        self.orders
            .admit(update.ordered(), plan.attempt, plan.ranges())?;
        Self::find_bases(&mut update, &mut plan)?;
        let large_units = plan.large_units();
        let small_units = plan.small.len() as u64;
        self.check_room(&mut update, &plan, u64::from(large_units), small_units)?;
        drop(update);
        if large_units > 0 {
            let extents = self.space.allocate_for(request.object, large_units);
            plan.extents = extents.ok_or(ErrorCode::NoSpace)?;
        }
        plan.promised = small_units;
        self.promised += small_units;
        Ok(WriteDecision::Ready(plan))
    }

    /// Looks up the bases of partly written blocks; true where some must be read.
    fn find_bases(update: &mut ObjectUpdate<'_>, plan: &mut WritePlan) -> Result<bool, ErrorCode> {
        let WritePlan {
            object,
            pieces,
            small,
            old_blocks,
            ..
        } = plan;
        old_blocks.begin();
        for Small { block, pieces: of } in small {
            if Self::needs_base(update, *block, pieces.get(of.clone()).unwrap_or(&[])) {
                old_blocks.current(update, *block)?;
            }
        }
        Ok(old_blocks.settle(*object))
    }

    /// Whether a partly written block needs its base. A block that the write covers up to the
    /// object's end does not.
    fn needs_base(update: &ObjectUpdate<'_>, block: u64, pieces: &[Piece]) -> bool {
        let length = update.header.object_bytes;
        let holds = length.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        let mut covered = 0;
        for piece in pieces {
            let part = part_of_block(block, piece.start, piece.end);
            if part.start > covered {
                break;
            }
            covered = part.end;
        }
        covered < holds
    }

    /// Checks space: a write that uses space for good leaves the reserve, one that only replaces
    /// leaves the floor.
    fn check_room(
        &self,
        update: &mut ObjectUpdate<'_>,
        plan: &WritePlan,
        large: u64,
        small: u64,
    ) -> Result<(), ErrorCode> {
        let pending = self.pending.len() as u64 + self.promised + small;
        if small > 0 && pending > self.config.pending_blocks_max as u64 {
            return Err(ErrorCode::Overloaded);
        }
        let (available, count) = (self.available(), large + small);
        if available >= count + self.config.reserve_units() {
            return Ok(());
        }
        // Nearly full: only now it matters which blocks are new.
        let mut new = 0;
        let small = plan.small.iter().map(|small| small.block);
        let large = plan.large.iter();
        let large = large.flat_map(|large| large.first..large.first + u64::from(large.count));
        for block in small.chain(large) {
            new += u64::from(!update.is_allocated(block)?);
        }
        let needed = (count + self.config.floor_units()).max(if new > 0 {
            new + self.config.reserve_units()
        } else {
            0
        });
        if available < needed {
            zonal_types::mark!(TargetFull);
            return Err(ErrorCode::NoSpace);
        }
        Ok(())
    }

    /// Makes the write part of the object. On `Again` the plan stays; on an error it is aborted.
    ///
    /// # Errors
    /// * `StaleTruncate` or `Stale`: the object was truncated or deleted since the plan.
    /// * `Superseded`: the sender has sent it again.
    /// * `Overtaken`: it meets a change with a higher order.
    /// * `Invalid`: `payload` does not have the planned length.
    /// * `Corrupt`; errors of `kv`.
    pub fn commit_write(
        &mut self,
        kv: &dyn KvRead,
        plan: &mut WritePlan,
        payload: &[u8],
    ) -> Result<Committed, ErrorCode> {
        assert!(
            !plan.is_settled,
            "a write plan is committed after it was committed or aborted"
        );
        let result = self.try_commit(kv, plan, payload);
        match &result {
            Ok(Committed::Done { .. }) => {
                plan.extents.clear();
                self.abort_write(plan);
            }
            Ok(Committed::Again) => {}
            Err(_) => self.abort_write(plan),
        }
        result
    }

    fn try_commit(
        &mut self,
        kv: &dyn KvRead,
        plan: &mut WritePlan,
        payload: &[u8],
    ) -> Result<Committed, ErrorCode> {
        plan.checksum(payload);
        if payload.len() != plan.payload_bytes() || plan.crcs.len() != plan.large_units() as usize {
            return Err(ErrorCode::Invalid);
        }
        self.fences.admit(plan.attempt.sender)?;
        self.attempts.admit(plan.object, plan.attempt)?;
        let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, plan.object)?;
        if self.check_truncation(&update, plan.truncation)? {
            // Only after a deletion and a new creation of the object between plan and commit.
            return Err(ErrorCode::StaleTruncate);
        }
        let ordered = update.ordered();
        self.orders.admit(ordered, plan.attempt, plan.ranges())?;
        if !update.exists() {
            update.header.truncate_seq = plan.truncation.seq;
        }
        if Self::find_bases(&mut update, plan)? {
            zonal_types::mark!(CommitAgain);
            return Ok(Committed::Again);
        }
        for Small { block, pieces } in &plan.small {
            let pieces = plan.pieces.get(pieces.clone()).unwrap_or(&[]);
            let mut bytes = [0; BLOCK_BYTES];
            if Self::needs_base(&update, *block, pieces) {
                let base = plan.old_blocks.current(&mut update, *block)?;
                bytes = base.ok_or(ErrorCode::Io)?;
            }
            for piece in pieces {
                let part = part_of_block(*block, piece.start, piece.end);
                let from = piece.at + to_usize(block * BLOCK + part.start as u64 - piece.start);
                let source = payload.get(from..from + part.len()).ok_or(ErrorCode::Io)?;
                bytes[part].copy_from_slice(source);
            }
            update.put_pending(*block, Arc::new(bytes))?;
        }
        let placed: u32 = plan.extents.iter().map(|extent| extent.count).sum();
        assert_eq!(
            placed,
            plan.large_units(),
            "a write plan holds one unit for each block that goes to extents"
        );
        let places = plan.extents.iter().flat_map(|extent| extent.places());
        let blocks = plan.large.iter();
        let blocks = blocks.flat_map(|large| large.first..large.first + u64::from(large.count));
        for ((block, place), crc) in blocks.zip(places).zip(&plan.crcs) {
            update.set_written(block, place, *crc)?;
        }
        let end = plan.end();
        update.grow(end);
        update.header.order = update.header.order.max(plan.attempt.order);
        let mut outcome = ChangeOutcome {
            allocated_delta: update.allocated_delta(),
            object_bytes: update.header.object_bytes,
        };
        let mut batch = Batch::default();
        update.finish(&mut batch);
        let record = self.apply(batch)?;
        self.orders.note(ordered, plan.attempt, plan.ranges());
        outcome.allocated_delta += self.unreported_truncations.take(plan.object);
        Ok(Committed::Done { record, outcome })
    }

    /// Notes a change of allocated bytes that this request cannot report, because a later part of
    /// it failed. The next reply for the object reports it.
    pub fn report_later(&mut self, object: ObjectId, delta: i64) {
        self.unreported_truncations.add(object, delta);
    }

    /// Gives back the space of a plan that will not be committed.
    pub fn abort_write(&mut self, plan: &mut WritePlan) {
        self.space.release(&std::mem::take(&mut plan.extents));
        let promised = std::mem::take(&mut plan.promised);
        assert!(
            promised <= self.promised,
            "more pending blocks are given back than were promised"
        );
        self.promised -= promised;
        plan.is_settled = true;
    }

    /// Plans the old blocks again after a mismatch of one. True: the block has moved since; read
    /// [`WritePlan::old_blocks`] again, or commit if there are none left. False: it is damaged.
    ///
    /// # Errors
    /// `Corrupt`; errors of `kv`.
    pub fn refresh_write(&self, kv: &dyn KvRead, plan: &mut WritePlan) -> Result<bool, ErrorCode> {
        let before = plan.old_blocks.plan.take();
        let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, plan.object)?;
        Self::find_bases(&mut update, plan)?;
        Ok(before != plan.old_blocks.plan)
    }
}
