//! Writes: plan (under the target's lock), segment writes (no lock), commit (under the lock).
//!
//! The part of a write that is 64 KiB and more of whole blocks goes to new extents. Ragged edges and
//! small writes become whole pending blocks, redone from the log. What a partly written block held
//! before is its *base*: zeros, pending bytes, or a stored block that the shell reads in between.
//!
//! Writes are merged at commit: it reads the index as it is then and replaces just the blocks of this
//! write. If the base of an edge has changed since it was read (another write, a checkpoint), commit
//! says `Again` and the shell reads the new one. So plans of overlapping writes may interleave freely,
//! and the last commit wins block by block, byte by byte at the edges.
//!
//! Cost of an aligned 1 MiB write: 6 look-ups (header twice, 4 chunks), 1 allocation of space, 256
//! checksums (outside of the lock), 4 index values of 300 bytes, a header if the object grew. Of an
//! aligned 4 KiB write: 3 look-ups, a note with the block, no index value unless the object grew or a
//! hole was filled.

use crate::bases::Bases;
use crate::draft::{Batch, Draft};
use crate::edit::Edit;
use crate::ids::{Attempt, BLOCK, Cut, Extent, LARGE_WRITE_BYTES, ObjectId};
use crate::note::Record;
use crate::read::{Damage, ReadPlan};
use crate::target::{Outcome, Target};
use std::ops::Range;
use std::sync::Arc;
use zonal_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX, STORAGE_IO_BYTES_MAX};
use zonal_types::{ErrorCode, KvRead};

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRequest {
    /// The object.
    pub object: ObjectId,
    /// What the sender knows of truncations.
    pub cut: Cut,
    /// Who sends it.
    pub attempt: Attempt,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: usize,
}

/// One write to a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentWrite {
    /// Segment number.
    pub segment: u32,
    /// First byte in the segment.
    pub offset: u64,
    /// Which bytes of the payload.
    pub payload: Range<usize>,
}

/// A planned write. It holds space until it is committed or aborted.
#[derive(Debug)]
pub struct WritePlan {
    request: WriteRequest,
    /// Blocks that go to extents.
    large: Range<u64>,
    extents: Vec<Extent>,
    /// Blocks that will be pending, counted in the target until the commit.
    promised: u64,
    crcs: Vec<u32>,
    bases: Bases,
}

/// The answer to [`Target::plan_write`].
#[derive(Debug)]
pub enum Planned {
    /// Go on with this.
    Ready(WritePlan),
    /// The object has not seen the last truncation: run this edit, then plan again.
    CutFirst(Edit),
}

/// The answer to [`Target::commit_write`].
#[derive(Debug)]
pub enum Committed {
    /// Append the record in the same critical section, then reply.
    Done {
        /// For the log.
        record: Record,
        /// For the reply.
        outcome: Outcome,
    },
    /// Read [`WritePlan::old_blocks`] again, then commit again.
    Again,
}

impl WritePlan {
    /// What to write to segments before the commit.
    pub fn writes(&self) -> impl Iterator<Item = SegmentWrite> + '_ {
        let mut at = (self.large.start * BLOCK).saturating_sub(self.request.offset) as usize;
        self.extents.iter().map(move |extent| {
            let from = at;
            at += extent.count as usize * BLOCK_BYTES;
            SegmentWrite {
                segment: extent.segment,
                offset: u64::from(extent.unit) * BLOCK,
                payload: from..at,
            }
        })
    }

    /// Computes the checksums of the large part; outside of the lock, before the commit.
    pub fn checksum(&mut self, payload: &[u8]) {
        if self.crcs.is_empty() {
            let from = (self.large.start * BLOCK).saturating_sub(self.request.offset) as usize;
            let bytes = payload.get(from..).unwrap_or(&[]);
            let count = (self.large.end - self.large.start) as usize;
            let blocks = bytes.chunks_exact(BLOCK_BYTES).take(count);
            self.crcs = blocks.map(crc_fast::crc32_iscsi).collect();
        }
    }

    /// Blocks to read before the commit, if any; hand the buffer to [`Self::supply`].
    #[must_use]
    pub fn old_blocks(&self) -> Option<&ReadPlan> {
        self.bases.plan()
    }

    /// Verifies and keeps what was read for [`Self::old_blocks`].
    ///
    /// # Errors
    /// The damaged block. It may have moved since the plan: see [`Target::refresh_write`].
    pub fn supply(&mut self, buffer: &mut [u8]) -> Result<(), Damage> {
        self.bases.supply(buffer)
    }

    fn end(&self) -> u64 {
        self.request.offset + self.request.length as u64
    }

    /// Blocks that go by the log.
    fn small(&self) -> impl Iterator<Item = u64> + use<> {
        let (first, behind) = (self.request.offset / BLOCK, self.end().div_ceil(BLOCK));
        let large = self.large.clone();
        (first..behind).filter(move |block| !large.contains(block))
    }
}

/// The part of `block` that `start..end` covers.
pub(crate) fn part_of_block(block: u64, start: u64, end: u64) -> Range<usize> {
    let base = block * BLOCK;
    let from = start.saturating_sub(base).min(BLOCK);
    let to = end.saturating_sub(base).min(BLOCK);
    from as usize..to as usize
}

impl Target {
    /// Plans a write: checks it and takes space.
    ///
    /// # Errors
    /// `Invalid`, `FileTooBig`, `StaleTruncate`, `Superseded`, `Stale` (being deleted), `Corrupt`. `NoSpace`: a
    /// checkpoint may help where [`Target::reclaimable`] is not 0. `Overloaded`: a checkpoint must run
    /// first, since there are too many pending blocks.
    pub fn plan_write(
        &mut self,
        kv: &dyn KvRead,
        request: WriteRequest,
    ) -> Result<Planned, ErrorCode> {
        if request.length == 0 || request.length > STORAGE_IO_BYTES_MAX {
            return Err(ErrorCode::Invalid);
        }
        let end = request
            .offset
            .checked_add(request.length as u64)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(ErrorCode::FileTooBig)?;
        let (first, behind) = (request.offset.div_ceil(BLOCK), end / BLOCK);
        let large = if behind.saturating_sub(first) * BLOCK >= LARGE_WRITE_BYTES {
            first..behind
        } else {
            // Empty, at a block of the write, so that nothing underflows.
            let at = request.offset / BLOCK;
            at..at
        };
        let mut plan = WritePlan {
            request,
            large,
            extents: Vec::new(),
            promised: 0,
            crcs: Vec::new(),
            bases: Bases::default(),
        };
        self.attempts.admit(request.object, request.attempt)?;
        let mut draft = Draft::load(kv, &self.config, &self.pending, request.object)?;
        if self.check_cut(&draft, request.cut)? {
            zonal_types::mark!(CutFirst);
            let cut = Edit::truncate_for_write(request.object, request.cut);
            return Ok(Planned::CutFirst(cut));
        }
        Self::find_bases(&mut draft, &mut plan)?;
        let large_units = plan.large.end - plan.large.start;
        let small_units = plan.small().count() as u64;
        self.check_room(&mut draft, &plan, large_units, small_units)?;
        drop(draft);
        if large_units > 0 {
            let count = u32::try_from(large_units).map_err(|_error| ErrorCode::Invalid)?;
            plan.extents = self.space.allocate(count).ok_or(ErrorCode::NoSpace)?;
        }
        plan.promised = small_units;
        self.promised += small_units;
        Ok(Planned::Ready(plan))
    }

    /// Looks the bases of partly written blocks up; true where some must be read.
    fn find_bases(draft: &mut Draft<'_>, plan: &mut WritePlan) -> Result<bool, ErrorCode> {
        let (start, end) = (plan.request.offset, plan.end());
        plan.bases.begin();
        for block in plan.small() {
            if Self::needs_base(draft, block, start, end) {
                plan.bases.current(draft, block)?;
            }
        }
        Ok(plan.bases.settle(plan.request.object))
    }

    /// A block that the write covers up to the object's end needs nothing of what was there.
    fn needs_base(draft: &Draft<'_>, block: u64, start: u64, end: u64) -> bool {
        let length = draft.header.object_bytes;
        let holds = length.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        let part = part_of_block(block, start, end);
        holds > 0 && (part.start > 0 || part.end < holds)
    }

    /// Space rules: what takes space for good leaves the reserve; what only replaces leaves its floor.
    fn check_room(
        &self,
        draft: &mut Draft<'_>,
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
        for block in plan.request.offset / BLOCK..plan.end().div_ceil(BLOCK) {
            new += u64::from(!draft.is_allocated(block)?);
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
    /// `StaleTruncate` or `Stale` where the object was cut or deleted since the plan, `Superseded` where its sender has sent it
    /// again; `Invalid` where
    /// `payload` is not of the length planned; `Corrupt`, or what `kv` gives.
    pub fn commit_write(
        &mut self,
        kv: &dyn KvRead,
        plan: &mut WritePlan,
        payload: &[u8],
    ) -> Result<Committed, ErrorCode> {
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
        let large = (plan.large.end - plan.large.start) as usize;
        if payload.len() != plan.request.length || plan.crcs.len() != large {
            return Err(ErrorCode::Invalid);
        }
        let request = plan.request;
        self.attempts.admit(request.object, request.attempt)?;
        let mut draft = Draft::load(kv, &self.config, &self.pending, request.object)?;
        if self.check_cut(&draft, request.cut)? {
            // Only after a deletion and a new life of the object between plan and commit.
            return Err(ErrorCode::StaleTruncate);
        }
        if !draft.exists() {
            draft.header.truncate_seq = request.cut.seq;
        }
        if Self::find_bases(&mut draft, plan)? {
            zonal_types::mark!(CommitAgain);
            return Ok(Committed::Again);
        }
        let (start, end) = (request.offset, plan.end());
        for block in plan.small() {
            let part = part_of_block(block, start, end);
            let mut bytes = [0; BLOCK_BYTES];
            if Self::needs_base(&draft, block, start, end) {
                bytes = plan
                    .bases
                    .current(&mut draft, block)?
                    .ok_or(ErrorCode::Io)?;
            }
            let from = (block * BLOCK + part.start as u64 - start) as usize;
            let source = payload.get(from..from + part.len()).ok_or(ErrorCode::Io)?;
            bytes[part].copy_from_slice(source);
            draft.put_pending(block, Arc::new(bytes))?;
        }
        let places = plan.extents.iter().flat_map(|extent| extent.places());
        for ((block, place), crc) in plan.large.clone().zip(places).zip(&plan.crcs) {
            draft.set_written(block, place, *crc)?;
        }
        draft.grow(end);
        let mut outcome = Outcome {
            allocated_delta: draft.allocated_delta(),
            object_bytes: draft.header.object_bytes,
        };
        let mut batch = Batch::default();
        draft.finish(&mut batch);
        let record = self.apply(batch)?;
        outcome.allocated_delta += self.untold.take(request.object);
        Ok(Committed::Done { record, outcome })
    }

    /// Gives the space of a plan back that will not be committed.
    pub fn abort_write(&mut self, plan: &mut WritePlan) {
        self.space.release(&std::mem::take(&mut plan.extents));
        self.promised = self
            .promised
            .saturating_sub(std::mem::take(&mut plan.promised));
    }

    /// After a mismatch of an old block: true where the block has moved since (read
    /// [`WritePlan::old_blocks`] again, or commit if there are none left), false where it is damage.
    ///
    /// # Errors
    /// `Corrupt`, or what `kv` gives.
    pub fn refresh_write(&self, kv: &dyn KvRead, plan: &mut WritePlan) -> Result<bool, ErrorCode> {
        let before = plan.bases.plan.take();
        let mut draft = Draft::load(kv, &self.config, &self.pending, plan.request.object)?;
        Self::find_bases(&mut draft, plan)?;
        Ok(before != plan.bases.plan)
    }
}
