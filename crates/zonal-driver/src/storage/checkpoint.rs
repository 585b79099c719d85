//! Records and checkpoints: appended where the target changes, moved to segments and to the index
//! later.

use super::{Note, TargetDriver, TargetHost};
use std::sync::atomic::Ordering;
use zonal_object::{CheckpointPlan, EffectRecord, StorageTarget};
use zonal_types::limits::BLOCK_BYTES;

/// Blocks moved at once by a checkpoint.
const MOVE_BLOCKS: usize = 1024;

impl<H: TargetHost> TargetDriver<H> {
    /// Appends in the critical section of the change; a failure ends service.
    pub(super) fn append(&self, record: EffectRecord) -> Result<H::Position, H::Error> {
        self.host
            .append(record)
            .inspect_err(|error| self.stop_serving(&format!("its log takes no record: {error}")))
    }

    /// Has a checkpoint made soon where the target wants one.
    pub(super) fn ask_for_checkpoint(&self, target: &StorageTarget) {
        if target.wants_checkpoint() {
            self.host.request_checkpoint();
        }
    }

    /// Moves pending blocks to segments, then makes a checkpoint of the index.
    ///
    /// # Errors
    /// What the host says.
    pub async fn checkpoint(&self) -> Result<(), H::Error> {
        self.checkpoint_after(u64::MAX).await
    }

    /// As [`Self::checkpoint`], unless there were more than `seen` by the time of our turn: of many
    /// who want one, one makes it.
    ///
    /// # Errors
    /// As [`Self::checkpoint`].
    pub(super) async fn checkpoint_after(&self, seen: u64) -> Result<(), H::Error> {
        let _turn = self.host.checkpoint_turn().await;
        if self.checkpoints() > seen {
            return Ok(());
        }
        self.move_pending().await?;
        let begun = {
            let mut target = self.lock();
            let changes = target.freeze();
            self.host.begin_checkpoint(changes)
        };
        self.host.commit_checkpoint(begun).await?;
        let mut target = self.lock();
        target.checkpoint_done();
        self.checkpoints.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Checkpoints that are done.
    pub(super) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Acquire)
    }

    /// Moves what is pending now to segments. What cannot be moved stays pending and goes into the
    /// checkpoint as it is.
    async fn move_pending(&self) -> Result<(), H::Error> {
        let mut left = self.lock().pending_bytes().0 as usize / BLOCK_BYTES;
        while left > 0 {
            let plan = self.lock().plan_checkpoint(MOVE_BLOCKS.min(left));
            if plan.is_empty() {
                break;
            }
            left = left.saturating_sub(plan.bytes() as usize / BLOCK_BYTES);
            if let Err(error) = self.write_moves(&plan).await {
                self.lock().abort_checkpoint(plan);
                self.host.note(Note::CannotMove { why: &error });
                break;
            }
            let mut target = self.lock();
            match target.commit_checkpoint(self.host.store(), plan) {
                Ok(records) => {
                    for record in records {
                        self.append(record)?;
                    }
                }
                Err(code) => {
                    self.host.note(Note::CannotMove { why: &code });
                    break;
                }
            }
        }
        Ok(())
    }

    async fn write_moves(&self, plan: &CheckpointPlan) -> Result<(), H::Error> {
        let mut buffer = Vec::new();
        for run in plan.runs() {
            run.copy_to(&mut buffer);
            let place = run.place();
            self.write_segment(place.segment, place.offset(), &buffer)
                .await?;
        }
        Ok(())
    }
}
