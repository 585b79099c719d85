//! Truncate, punch and allocate: changes of the index alone; zeroed edges go through the log.
//!
//! An edit is a value that the shell carries from step to step. Each step makes one bounded record.
//! A crash between two steps leaves the edit half done. Each kind tolerates it: the shard repeats a
//! truncation, and the bytes concerned are already no part of the file.
//!
//! Cost of a step: one header and the chunk records in its range, at most 256.

use crate::chunk::BlockState;
use crate::ids::{BLOCK, CHUNK_BLOCKS, ChangeAttempt, ObjectId, Truncation};
use crate::note::EffectRecord;
use crate::object_update::{Batch, ObjectUpdate};
use crate::old_blocks::OldBlocks;
use crate::read::{Damage, ReadPlan};
use crate::target::{ChangeOutcome, StorageTarget};
use crate::write::part_of_block;
use std::ops::Range;
use std::sync::Arc;
use zonal_basics::to_usize;
use zonal_types::limits::{CHUNK_BYTES, FILE_BYTES_MAX, STORAGE_STEP_BYTES};
use zonal_types::{ErrorCode, KvRead, truncation};

/// Chunk records that a step may change.
pub(crate) const STEP_CHUNKS: usize = to_usize(STORAGE_STEP_BYTES) / CHUNK_BYTES;
/// The first block number past the last block that an object can have.
pub(crate) const BLOCKS_END: u64 = FILE_BYTES_MAX / BLOCK + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Truncate,
    Punch,
    Allocate,
    Zero,
}

/// An edit in progress.
#[derive(Debug)]
pub struct Edit {
    object: ObjectId,
    truncation: Truncation,
    attempt: ChangeAttempt,
    kind: Kind,
    /// Bytes of the object.
    range: Range<u64>,
    /// Blocks before this one are done: by the truncation (`truncated_to`), by the edit itself
    /// (`at`).
    truncated_to: u64,
    at: u64,
    old_blocks: OldBlocks,
    delta: i64,
    /// It precedes a write, whose reply reports what the edit freed.
    is_for_write: bool,
}

/// The shell's next action for an edit.
#[derive(Debug)]
pub enum EditStep {
    /// Read [`Edit::old_blocks`] without the lock, [`Edit::supply`] them, and step again.
    Read,
    /// Append the record in the same critical section. `done`: the edit is complete; otherwise step
    /// again.
    Log {
        /// The record to append.
        record: EffectRecord,
        /// The outcome for the reply, at the end.
        done: Option<ChangeOutcome>,
    },
    /// Complete; nothing to append.
    Done(ChangeOutcome),
}

impl Edit {
    /// The object that it changes.
    #[must_use]
    pub fn object(&self) -> ObjectId {
        self.object
    }

    fn new(object: ObjectId, truncation: Truncation, kind: Kind, range: Range<u64>) -> Self {
        Self {
            object,
            truncation,
            attempt: ChangeAttempt::default(),
            kind,
            at: range.start / BLOCK,
            range,
            truncated_to: 0,
            old_blocks: OldBlocks::default(),
            delta: 0,
            is_for_write: false,
        }
    }

    /// Sets the sender and its attempt. Truncations are numbered on their own.
    #[must_use]
    pub fn sent_by(self, attempt: ChangeAttempt) -> Self {
        Self { attempt, ..self }
    }

    /// Truncates the object to `truncation.bytes`, unless it has applied `truncation.seq` already.
    #[must_use]
    pub fn truncate(object: ObjectId, truncation: Truncation) -> Self {
        Self::new(object, truncation, Kind::Truncate, 0..0)
    }

    /// [`Self::truncate`] ahead of a write that is the first to bring news of a truncation. Its own
    /// outcome is not reported.
    pub(crate) fn truncate_for_write(object: ObjectId, truncation: Truncation) -> Self {
        Self {
            is_for_write: true,
            ..Self::truncate(object, truncation)
        }
    }

    fn ranged(
        object: ObjectId,
        truncation: Truncation,
        kind: Kind,
        offset: u64,
        length: u64,
    ) -> Result<Self, ErrorCode> {
        let end = offset.checked_add(length).ok_or(ErrorCode::FileTooBig)?;
        if length == 0 {
            return Err(ErrorCode::Invalid);
        }
        if offset > FILE_BYTES_MAX || (end > FILE_BYTES_MAX && kind != Kind::Punch) {
            return Err(ErrorCode::FileTooBig);
        }
        Ok(Self::new(
            object,
            truncation,
            kind,
            offset..end.min(FILE_BYTES_MAX),
        ))
    }

    /// Makes a range a hole. The object's length stays.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `FileTooBig` for one past the limit.
    pub fn punch(
        object: ObjectId,
        truncation: Truncation,
        offset: u64,
        length: u64,
    ) -> Result<Self, ErrorCode> {
        Self::ranged(object, truncation, Kind::Punch, offset, length)
    }

    /// Gives every block of a range a place. The object's length stays. `zero`: data in the range
    /// reads as zeros afterwards.
    ///
    /// # Errors
    /// `Invalid` for an empty range, `FileTooBig` for one past the limit.
    pub fn allocate(
        object: ObjectId,
        truncation: Truncation,
        offset: u64,
        length: u64,
        zero: bool,
    ) -> Result<Self, ErrorCode> {
        let kind = if zero { Kind::Zero } else { Kind::Allocate };
        Self::ranged(object, truncation, kind, offset, length)
    }

    /// Blocks to read before the next step, if any; pass the buffer to [`Self::supply`].
    #[must_use]
    pub fn old_blocks(&self) -> Option<&ReadPlan> {
        self.old_blocks.plan()
    }

    /// Verifies and keeps the bytes read for [`Self::old_blocks`].
    ///
    /// # Errors
    /// The damaged block. Step again: if the step asks for the same plan, the damage is real.
    pub fn supply(&mut self, buffer: &mut [u8]) -> Result<(), Damage> {
        self.old_blocks.supply(buffer)
    }

    /// Zeroes the part of `block` that `zero` covers, where there is data. False: the block's old
    /// contents must be read first.
    fn zero_part(
        &mut self,
        update: &mut ObjectUpdate<'_>,
        block: u64,
        zero: &Range<u64>,
    ) -> Result<bool, ErrorCode> {
        let pending = update.pending_bytes(block).is_some();
        if !pending && !matches!(update.stored(block)?, BlockState::Written(..)) {
            return Ok(true);
        }
        let Some(mut bytes) = self.old_blocks.current(update, block)? else {
            return Ok(false);
        };
        bytes[part_of_block(block, zero.start, zero.end)].fill(0);
        update.put_pending(block, Arc::new(bytes))?;
        Ok(true)
    }

    /// Whether it changes bytes by an order.
    fn is_ordered(&self) -> bool {
        self.attempt.order > 0 && matches!(self.kind, Kind::Punch | Kind::Zero)
    }

    /// Ends a step: its record, its effect on allocation, and the outcome if it was the last.
    fn log(update: ObjectUpdate<'_>, last: bool) -> Logged {
        let ordered = update.ordered();
        let delta = update.allocated_delta();
        let end = last.then_some(update.header.object_bytes);
        let mut batch = Batch::default();
        update.finish(&mut batch);
        Logged {
            batch,
            delta,
            end,
            ordered,
        }
    }
}

/// A step that is prepared and not applied yet.
struct Logged {
    batch: Batch,
    /// Change of allocated bytes.
    delta: i64,
    /// The object's length, if this is the last step.
    end: Option<u64>,
    /// The object, and the highest order of its changes before.
    ordered: (ObjectId, u64),
}

/// Blocks that `range` covers partly: the first, the last, both or none.
fn edges(range: &Range<u64>) -> Vec<u64> {
    let mut out = Vec::with_capacity(2);
    if !range.start.is_multiple_of(BLOCK) {
        out.push(range.start / BLOCK);
    }
    let last = range.end / BLOCK;
    if !range.end.is_multiple_of(BLOCK) && out.first() != Some(&last) {
        out.push(last);
    }
    out
}

impl StorageTarget {
    /// Makes the next step of an edit, under the target's lock.
    ///
    /// # Errors
    /// `StaleTruncate`, `Fenced`, `Superseded`, `Overtaken`, `Stale` (being deleted), `NoSpace`,
    /// `Overloaded` (as for writes), `Corrupt`.
    pub fn edit_step(&mut self, kv: &dyn KvRead, edit: &mut Edit) -> Result<EditStep, ErrorCode> {
        edit.old_blocks.begin();
        self.fences.admit(edit.attempt.sender)?;
        self.attempts.admit(edit.object, edit.attempt)?;
        let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, edit.object)?;
        let object_bytes = update.header.object_bytes;
        let behind = match self.check_truncation(&update, edit.truncation) {
            Err(ErrorCode::StaleTruncate) if edit.kind == Kind::Truncate => {
                return Ok(EditStep::Done(self.outcome(edit, object_bytes)));
            }
            result => result?,
        };
        if edit.is_ordered() {
            let ranges = [edit.range.clone()];
            self.orders.admit(update.ordered(), edit.attempt, ranges)?;
        }
        let first_truncation =
            edit.kind == Kind::Truncate && !update.exists() && edit.truncation.seq > 0;
        if !update.exists() {
            update.header.truncate_seq = edit.truncation.seq;
        }
        let is_truncation = behind || first_truncation;
        let built = if is_truncation {
            self.truncate_step(&mut update, edit)?
                .map(|last| Edit::log(update, last && edit.kind == Kind::Truncate))
        } else {
            match edit.kind {
                Kind::Truncate => return Ok(EditStep::Done(self.outcome(edit, object_bytes))),
                Kind::Punch if !update.exists() && !edit.is_ordered() => {
                    return Ok(EditStep::Done(self.outcome(edit, object_bytes)));
                }
                Kind::Punch => {
                    update.header.order = update.header.order.max(edit.attempt.order);
                    self.punch_step(&mut update, edit)?
                        .map(|last| Edit::log(update, last))
                }
                Kind::Allocate | Kind::Zero => {
                    return self.allocate_step(kv, edit);
                }
            }
        };
        let Some(logged) = built else {
            return Ok(EditStep::Read);
        };
        self.log_step(edit, logged, is_truncation)
    }

    fn log_step(
        &mut self,
        edit: &mut Edit,
        logged: Logged,
        is_truncation: bool,
    ) -> Result<EditStep, ErrorCode> {
        let record = self.apply(logged.batch)?;
        if !is_truncation && edit.is_ordered() {
            let ranges = [edit.range.clone()];
            self.orders.note(logged.ordered, edit.attempt, ranges);
        }
        if is_truncation && truncation::is_disowning(edit.truncation.seq) {
            // Nobody told the shard that it was taken.
        } else if edit.kind == Kind::Truncate {
            // Also counts the step of an edit that ends behind this one.
            self.unreported_truncations.add(edit.object, logged.delta);
        } else {
            edit.delta += logged.delta;
        }
        let done = logged.end.map(|end| self.outcome(edit, end));
        Ok(EditStep::Log { record, done })
    }

    /// The outcome for the reply.
    fn outcome(&mut self, edit: &Edit, object_bytes: u64) -> ChangeOutcome {
        let unreported = if edit.is_for_write {
            0
        } else {
            self.unreported_truncations.take(edit.object)
        };
        ChangeOutcome {
            allocated_delta: edit.delta + unreported,
            object_bytes,
        }
    }

    /// Checks the space for a zeroed edge: it needs a unit at the next checkpoint, from the floor
    /// of the reserve if necessary.
    fn check_edge_room(&self) -> Result<(), ErrorCode> {
        if self.available() < 2 || self.pending.len() > self.config.pending_blocks_max * 2 {
            return Err(ErrorCode::Overloaded);
        }
        Ok(())
    }

    /// One step of a truncation. `None`: an edge must be read first. Otherwise whether the
    /// truncation is complete.
    fn truncate_step(
        &self,
        update: &mut ObjectUpdate<'_>,
        edit: &mut Edit,
    ) -> Result<Option<bool>, ErrorCode> {
        let to = edit.truncation.bytes;
        let first = to.div_ceil(BLOCK).min(BLOCKS_END);
        let from = edit.truncated_to.max(first);
        let edge = !to.is_multiple_of(BLOCK) && update.header.object_bytes > to;
        // Clears first and commits last: an update that is dropped for a read has changed nothing.
        let done = update.clear(from, BLOCKS_END, STEP_CHUNKS)?;
        if done < BLOCKS_END || from > first {
            // After the last part the step starts again from the beginning: an older write may have
            // come in behind it.
            edit.truncated_to = if done < BLOCKS_END { done } else { first };
            return Ok(Some(false));
        }
        if edge {
            self.check_edge_room()?;
            if !edit.zero_part(update, to / BLOCK, &(to..u64::MAX))? {
                edit.old_blocks.settle(edit.object);
                return Ok(None);
            }
        }
        update.header.truncate_seq = edit.truncation.seq;
        update.header.object_bytes = update.header.object_bytes.min(to);
        Ok(Some(true))
    }

    fn punch_step(
        &self,
        update: &mut ObjectUpdate<'_>,
        edit: &mut Edit,
    ) -> Result<Option<bool>, ErrorCode> {
        let range = edit.range.clone();
        let end = range.end / BLOCK;
        let from = edit.at.max(range.start.div_ceil(BLOCK));
        let done = update.clear(from, end, STEP_CHUNKS)?;
        if done < end {
            assert!(edit.at <= done, "the position of an edit never falls");
            edit.at = done;
            return Ok(Some(false));
        }
        let mut complete = true;
        for block in edges(&range) {
            self.check_edge_room()?;
            complete &= edit.zero_part(update, block, &range)?;
        }
        if !complete {
            edit.old_blocks.settle(edit.object);
            return Ok(None);
        }
        Ok(Some(true))
    }

    fn allocate_step(&mut self, kv: &dyn KvRead, edit: &mut Edit) -> Result<EditStep, ErrorCode> {
        let range = edit.range.clone();
        let end = range.end.div_ceil(BLOCK);
        if end - edit.at > self.config.units() {
            return Err(ErrorCode::NoSpace);
        }
        let chunk_end = (edit.at / CHUNK_BLOCKS + STEP_CHUNKS as u64) * CHUNK_BLOCKS;
        let stop = end.min(chunk_end);
        let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, edit.object)?;
        if !update.exists() {
            update.header.truncate_seq = edit.truncation.seq;
        }
        if edit.is_ordered() {
            update.header.order = update.header.order.max(edit.attempt.order);
        }
        let edges = edges(&range);
        let (mut needs, mut complete) = (Vec::new(), true);
        for block in edit.at..stop {
            let stored = update.stored(block)?;
            let pending = update.pending_bytes(block).is_some();
            let zero = edit.kind == Kind::Zero;
            match stored {
                BlockState::Hole if !pending => needs.push(block),
                _ if zero && edges.contains(&block) => {
                    self.check_edge_room()?;
                    complete &= edit.zero_part(&mut update, block, &range)?;
                }
                BlockState::Hole | BlockState::Lost if zero => needs.push(block),
                BlockState::Written(place, _) | BlockState::Unwritten(place) if zero => {
                    update.set(block, BlockState::Unwritten(place))?;
                }
                _ => {}
            }
        }
        if !complete {
            edit.old_blocks.settle(edit.object);
            return Ok(EditStep::Read);
        }
        let count = needs.len() as u64;
        if count > 0 && self.available() < count + self.config.reserve_units() {
            return Err(ErrorCode::NoSpace);
        }
        let units = u32::try_from(count).map_err(|_error| ErrorCode::Invalid)?;
        let extents = match units {
            0 => Vec::new(),
            some => {
                let extents = self.space.allocate_for(edit.object, some);
                extents.ok_or(ErrorCode::NoSpace)?
            }
        };
        let places = extents.iter().flat_map(|extent| extent.places());
        let set = needs
            .iter()
            .zip(places)
            .try_for_each(|(block, place)| update.set(*block, BlockState::Unwritten(place)));
        if let Err(error) = set {
            drop(update);
            self.space.release(&extents);
            return Err(error);
        }
        assert!(edit.at <= stop, "the position of an edit never falls");
        edit.at = stop;
        let logged = Edit::log(update, stop == end);
        self.log_step(edit, logged, false)
    }
}
