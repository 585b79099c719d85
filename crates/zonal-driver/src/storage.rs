//! Driver of a target: runs the core [`StorageTarget`] on a [`TargetHost`], which has a log, an
//! index and segments.
//!
//! A request plans under the target's mutex, reads and writes segments outside of it, and commits
//! under it together with the append of its record. Checksums are computed outside. The bytes of a
//! read go from the segment straight to the reply's room.
//!
//! *Invariants*:
//! 1. Records are appended in the order in which the target changed.
//! 2. A plan that took space is committed or aborted.
//! 3. Once an append failed, nothing is served until a restart: the target is ahead of its log.
//! 4. The mutex is held over no await.
//!
//! *Lock order*: the host's checkpoint turn, the target's mutex, then the host's locks.

mod admission;
mod checkpoint;
mod damage_repair;
mod edits;
mod fence_gate;
mod fill_guard;
mod host;
mod leftovers;
mod reads;
mod requests;
mod resync;
mod resync_plan;
mod resync_queue;
mod space;
mod writes;

pub use admission::NotAdmitted;
pub use host::{BackingSpace, CopyBytes, ReplyRoom, TargetHost, TargetNote, WriteFailure};
pub use requests::{ChangeSender, named};
pub use resync::ResyncRound;
pub use resync_plan::ResyncPlan;
pub use resync_queue::{RESYNC_FILES_AT_ONCE, ResyncQueue, ResyncTasks, ResyncThreads};

use damage_repair::DamagedBlocks;
use fence_gate::FenceGate;
use fill_guard::FillGuard;
use std::fmt::Display;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use zonal_object::StorageTarget;
use zonal_types::{ErrorCode, TargetId};

/// The reason why a request failed, with a text for the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The code that crosses the wire.
    pub code: ErrorCode,
    /// The text, for people.
    pub detail: String,
}

impl Refused {
    /// An error with a text.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }

    /// An error of the host.
    pub fn by_host(error: impl Display + Into<ErrorCode>) -> Self {
        let detail = error.to_string();
        Self::new(error.into(), detail)
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, "")
    }
}

/// A target that serves requests.
#[derive(Debug)]
pub struct TargetDriver<H> {
    id: TargetId,
    target: Mutex<StorageTarget>,
    host: H,
    /// The reason why it serves no more.
    failed: OnceLock<String>,
    /// Number of finished checkpoints. Counted under the target's mutex, together with the space
    /// that they free.
    checkpoints: AtomicU64,
    gate: FenceGate,
    fills: FillGuard,
    damaged: DamagedBlocks,
}

impl<H: TargetHost> TargetDriver<H> {
    /// A driver for an opened target. The caller runs [`Self::resume`] before the first request.
    #[must_use]
    pub fn new(id: TargetId, target: StorageTarget, host: H) -> Self {
        Self {
            id,
            target: Mutex::new(target),
            host,
            failed: OnceLock::new(),
            checkpoints: AtomicU64::new(0),
            gate: FenceGate::default(),
            fills: FillGuard::default(),
            damaged: DamagedBlocks::default(),
        }
    }

    /// The target's id.
    #[must_use]
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// The host that it runs on.
    #[must_use]
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Locks the target.
    pub fn lock(&self) -> MutexGuard<'_, StorageTarget> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the target once the log has room for any one record. An append under the mutex must
    /// not wait for a checkpoint, which needs the mutex.
    async fn lock_with_room(&self) -> Result<MutexGuard<'_, StorageTarget>, Refused> {
        loop {
            self.host.wait_for_room().await.map_err(Refused::by_host)?;
            let target = self.lock();
            if self.host.has_room() {
                return Ok(target);
            }
        }
    }

    /// The reason why the target does not serve, where it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let own = self.failed.get().cloned();
        own.or_else(|| self.host.failure())
    }

    /// Ends service until a restart.
    fn stop_serving(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            self.host.note(TargetNote::Stopped { why });
        }
    }

    /// Makes all records up to a position durable. The first failure ends service, and its error
    /// says so.
    async fn flush(&self, upto: H::Position) -> Result<(), Refused> {
        let flushed = self.host.flush(upto).await;
        flushed.map_err(Refused::by_host).inspect_err(|refused| {
            let why = self.host.failure();
            self.stop_serving(&why.unwrap_or_else(|| refused.detail.clone()));
        })
    }

    /// Writes to a segment. Once the medium refuses a write, the target acknowledges no more.
    async fn write_segment(&self, segment: u32, offset: u64, bytes: &[u8]) -> Result<(), H::Error> {
        let written = self.host.write_segment(segment, offset, bytes).await;
        written.map_err(|failure| match failure {
            WriteFailure::NoSpace(error) => {
                // Use up the space in existing segments first.
                self.lock().limit_segments(Some(segment));
                error
            }
            WriteFailure::Medium(error) => {
                self.stop_serving(&format!("the medium takes no writes: {error}"));
                error
            }
            WriteFailure::Bytes(error) => error,
        })
    }
}
