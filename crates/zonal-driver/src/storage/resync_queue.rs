//! Files that a target has to fill, for several threads at once.

use super::leftovers::{LeftObjects, has_leaving};
use super::resync::{ResyncRound, has_unfenced};
use super::{Refused, TargetDriver, TargetHost};
use crate::joined_futures::all;
use std::sync::{Mutex, PoisonError};
use zonal_types::{ErrorCode, FileData, Ino, ShardId};

/// Files that a target fills at a time. One alone waits for the other target, then for its own
/// disk, while the link between them is idle.
pub const RESYNC_FILES_AT_ONCE: usize = 6;

/// Files of a shard. Each is taken by one thread.
#[derive(Debug)]
pub struct ResyncQueue {
    pub(super) shard: ShardId,
    state: Mutex<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    files: std::vec::IntoIter<(Ino, FileData)>,
    round: ResyncRound,
    failure: Option<Refused>,
}

/// Runs threads, each of which calls [`TargetDriver::resync_queued`], and waits for them all.
pub trait ResyncThreads<H> {
    /// As many threads as there is work for, [`RESYNC_FILES_AT_ONCE`] at most.
    fn fill(
        &self,
        driver: &TargetDriver<H>,
        queue: &ResyncQueue,
        threads: usize,
    ) -> impl Future<Output = ()>;
}

/// Tasks of a host whose calls do not block.
#[derive(Debug, Clone, Copy)]
pub struct ResyncTasks;

impl<H: TargetHost> ResyncThreads<H> for ResyncTasks {
    async fn fill(&self, driver: &TargetDriver<H>, queue: &ResyncQueue, threads: usize) {
        all((0..threads).map(|_thread| driver.resync_queued(queue))).await;
    }
}

impl ResyncQueue {
    pub(super) fn new(shard: ShardId, files: Vec<(Ino, FileData)>) -> Self {
        let state = QueueState {
            files: files.into_iter(),
            round: ResyncRound::default(),
            failure: None,
        };
        Self {
            shard,
            state: Mutex::new(state),
        }
    }

    /// Workers that find a file.
    pub(super) fn threads(&self) -> usize {
        self.with(|state| state.files.len().min(RESYNC_FILES_AT_ONCE))
    }

    fn with<T>(&self, run: impl FnOnce(&mut QueueState) -> T) -> T {
        run(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that a thread could not go on. The others end, and so does the round.
    pub fn fail(&self, failure: Refused) {
        self.with(|state| state.failure = Some(failure));
    }

    fn next(&self) -> Option<(Ino, FileData)> {
        self.with(|state| match state.failure {
            None => state.files.next(),
            Some(_) => None,
        })
    }

    /// The outcome of all threads' work.
    ///
    /// # Errors
    /// The target does not serve any more.
    pub(super) fn finish(self) -> Result<ResyncRound, Refused> {
        let state = self.state.into_inner();
        let QueueState { round, failure, .. } = state.unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(round), Err)
    }
}

impl<H: TargetHost> TargetDriver<H> {
    /// Fills files of a queue until none is left.
    pub async fn resync_queued(&self, queue: &ResyncQueue) {
        while let Some((ino, data)) = queue.next() {
            if let Some(why) = self.failure() {
                queue.fail(Refused::new(ErrorCode::Io, why));
                return;
            }
            let map = self.host.map();
            let left = LeftObjects::at(&map, self.id, &data);
            if left.is_unfenced || has_unfenced(&map, self.id, &data) {
                queue.with(|state| {
                    state.round.left += 1;
                    state.round.unfenced += 1;
                });
                continue;
            }
            let filled = self.resync_file(queue.shard, ino, &data).await;
            if matches!(&filled, Err(refused) if refused.code == ErrorCode::NoSpace) {
                self.give_up_places(queue.shard, ino).await;
            }
            queue.with(|QueueState { round, .. }| match filled {
                Ok(bytes) => {
                    let goes_on = has_leaving(&map, self.id, &data);
                    round.left += u64::from(goes_on);
                    round.mended += u64::from(!goes_on);
                    round.bytes += bytes;
                }
                Err(_refused) => round.left += 1,
            });
        }
    }
}
