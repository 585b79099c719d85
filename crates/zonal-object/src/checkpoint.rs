//! Checkpoint of pending blocks: moves them into extents.
//!
//! 1. Plan, under the lock: takes space and copies the blocks.
//! 2. The shell writes the copies to segments.
//! 3. Commit, under the lock: moves the blocks that have not changed since, as ordinary records of
//!    the log.
//!
//! A block that a write superseded in between keeps its newer contents, and the commit gives its
//! copy's space back. Blocks that are pending when the engine freezes are stored with the
//! checkpoint ([`StorageTarget::freeze`]). So a write never waits for a checkpoint, and no window
//! is left.

use crate::edit::STEP_CHUNKS;
use crate::ids::{BLOCK, CHUNK_BLOCKS, Extent, ObjectId, Place};
use crate::note::{BlockBytes, EffectRecord};
use crate::object_update::{Batch, ObjectUpdate};
use crate::target::StorageTarget;
use zonal_types::{ErrorCode, KvRead};

/// Longest single write of a checkpoint, in blocks.
const WRITE_BLOCKS: usize = 256;

#[derive(Debug)]
struct Move {
    object: ObjectId,
    block: u64,
    generation: u64,
    place: Place,
    bytes: BlockBytes,
}

/// Blocks being moved to extents. The plan holds space until it is committed or aborted.
#[derive(Debug, Default)]
pub struct CheckpointPlan {
    moves: Vec<Move>,
    extents: Vec<Extent>,
}

/// One write of a checkpoint.
#[derive(Debug)]
pub struct CheckpointWrite<'a> {
    first: Place,
    moves: &'a [Move],
}

impl CheckpointWrite<'_> {
    /// Where the write begins.
    #[must_use]
    pub fn place(&self) -> Place {
        self.first
    }

    /// Replaces the contents of `buffer` with the bytes to write.
    pub fn copy_to(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        for entry in self.moves {
            buffer.extend_from_slice(entry.bytes.as_slice());
        }
    }
}

impl CheckpointPlan {
    /// True where there is nothing to write or commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
    }

    /// The writes in order: runs of blocks whose places follow one another.
    pub fn runs(&self) -> impl Iterator<Item = CheckpointWrite<'_>> {
        let mut rest = self.moves.as_slice();
        std::iter::from_fn(move || {
            let first = rest.first()?.place;
            let follows = |(entry, step): &(&Move, u32)| {
                entry.place.segment == first.segment && entry.place.unit == first.unit + step
            };
            let most = rest.iter().take(WRITE_BLOCKS);
            let count = most.zip(0..).take_while(follows).count();
            let (moves, behind) = rest.split_at(count);
            rest = behind;
            Some(CheckpointWrite { first, moves })
        })
    }

    /// Bytes to write.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.moves.len() as u64 * BLOCK
    }
}

impl StorageTarget {
    /// Takes space for up to `blocks_max` pending blocks. The plan is empty where no block is
    /// pending or no space is free.
    pub fn plan_checkpoint(&mut self, blocks_max: usize) -> CheckpointPlan {
        let count = self.pending.len().min(blocks_max);
        let count = count.min(usize::try_from(self.space.free()).unwrap_or(usize::MAX));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count == 0 {
            return CheckpointPlan::default();
        }
        let Some(extents) = self.space.allocate(count) else {
            return CheckpointPlan::default();
        };
        let places = extents.iter().flat_map(|extent| extent.places());
        let moves: Vec<Move> = self
            .pending
            .iter()
            .zip(places)
            .map(|(((object, block), found), place)| Move {
                object: *object,
                block: *block,
                generation: found.generation,
                place,
                bytes: found.bytes.clone(),
            })
            .collect();
        assert_eq!(
            moves.len(),
            count as usize,
            "a checkpoint plan has one place for each block"
        );
        CheckpointPlan { moves, extents }
    }

    /// Commits the plan; the caller appends the records in the same critical section, in order.
    ///
    /// A chunk whose index record is damaged is skipped: its blocks stay pending.
    ///
    /// # Errors
    /// Those of `kv`; the plan is then aborted.
    pub fn commit_checkpoint(
        &mut self,
        kv: &dyn KvRead,
        plan: CheckpointPlan,
    ) -> Result<Vec<EffectRecord>, ErrorCode> {
        let CheckpointPlan { moves, extents } = plan;
        let result = self.move_all(kv, &moves);
        // Gives back the space of blocks that were not moved. Moved blocks are live by now and
        // stay.
        self.space.release(&extents);
        result
    }

    fn move_all(
        &mut self,
        kv: &dyn KvRead,
        moves: &[Move],
    ) -> Result<Vec<EffectRecord>, ErrorCode> {
        // All fallible work comes before the first change of state. Batches touch different chunks.
        let mut batches = vec![Batch::default()];
        let mut chunks = 0;
        let mut rest = moves;
        while let Some(first) = rest.first() {
            let same = |entry: &&Move| {
                entry.object == first.object
                    && entry.block / CHUNK_BLOCKS == first.block / CHUNK_BLOCKS
            };
            let count = rest.iter().take_while(same).count();
            let (group, behind) = rest.split_at(count);
            rest = behind;
            if chunks == STEP_CHUNKS {
                batches.push(Batch::default());
                chunks = 0;
            }
            chunks += 1;
            let Some(batch) = batches.last_mut() else {
                break;
            };
            match self.move_group(kv, group, batch) {
                Ok(()) | Err(ErrorCode::Corrupt | ErrorCode::WrongVersion) => {}
                Err(error) => return Err(error),
            }
        }
        batches
            .into_iter()
            .filter(|batch| !batch.changes.is_empty())
            .map(|batch| self.apply(batch))
            .collect()
    }

    fn move_group(
        &self,
        kv: &dyn KvRead,
        group: &[Move],
        batch: &mut Batch,
    ) -> Result<(), ErrorCode> {
        let current: Vec<&Move> = group
            .iter()
            .filter(|entry| {
                self.pending
                    .get(entry.object, entry.block)
                    .is_some_and(|found| found.generation == entry.generation)
            })
            .collect();
        // Superseded or deleted: the object may be gone, and this move must not bring it back.
        let Some(first) = current.first() else {
            return Ok(());
        };
        let mut update = ObjectUpdate::load(kv, &self.config, &self.pending, first.object)?;
        for entry in current {
            let crc = crc_fast::crc32_iscsi(entry.bytes.as_slice());
            update.set_written(entry.block, entry.place, crc)?;
        }
        update.finish(batch);
        Ok(())
    }

    /// Gives back the space of a plan whose writes failed.
    pub fn abort_checkpoint(&mut self, plan: CheckpointPlan) {
        self.space.release(&plan.extents);
        drop(plan);
    }
}
