//! Records and checkpoints: records are appended where the target changes; checkpoints move them to
//! segments and to the index.

use super::{TargetDriver, TargetHost, TargetNote};
use std::sync::atomic::Ordering;
use zonal_basics::to_usize;
use zonal_object::{CheckpointPlan, EffectRecord, StorageTarget};
use zonal_types::limits::BLOCK_BYTES;

/// Blocks that a checkpoint moves at once.
const MOVE_BLOCKS: usize = 1024;

impl<H: TargetHost> TargetDriver<H> {
    /// Appends a record in the critical section of the change; a failure ends service.
    pub(super) fn append(&self, record: EffectRecord) -> Result<H::Position, H::Error> {
        self.host
            .append(record)
            .inspect_err(|error| self.stop_serving(&format!("its log takes no record: {error}")))
    }

    /// Requests a checkpoint where the target wants one.
    pub(super) fn ask_for_checkpoint(&self, target: &StorageTarget) {
        if target.wants_checkpoint() {
            self.host.request_checkpoint();
        }
    }

    /// Moves pending blocks to segments, then makes a checkpoint of the index.
    ///
    /// # Errors
    /// The host's error.
    pub async fn checkpoint(&self) -> Result<(), H::Error> {
        self.checkpoint_after(u64::MAX).await
    }

    /// As [`Self::checkpoint`], unless more than `seen` checkpoints are done when our turn comes.
    /// Of many requests that want a checkpoint, one makes it.
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

    /// Number of finished checkpoints.
    pub(super) fn checkpoints(&self) -> u64 {
        self.checkpoints.load(Ordering::Acquire)
    }

    /// Moves pending blocks to segments. Blocks that cannot be moved stay pending and go into the
    /// checkpoint as they are.
    async fn move_pending(&self) -> Result<(), H::Error> {
        let mut left = to_usize(self.lock().pending_bytes().0) / BLOCK_BYTES;
        while left > 0 {
            let plan = self.lock().plan_checkpoint(MOVE_BLOCKS.min(left));
            if plan.is_empty() {
                break;
            }
            left = left.saturating_sub(to_usize(plan.bytes()) / BLOCK_BYTES);
            if let Err(error) = self.write_moves(&plan).await {
                self.lock().abort_checkpoint(plan);
                self.host.note(TargetNote::CannotMove { why: &error });
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
                    self.host.note(TargetNote::CannotMove { why: &code });
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
