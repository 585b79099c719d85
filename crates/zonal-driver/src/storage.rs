//! A target on its host: drives the core [`StorageTarget`] as `zonal_object` tells, with what a
//! [`TargetHost`] has of a log, an index and segments.
//!
//! A request plans under the target's mutex, reads and writes segments outside of it, and commits
//! with the append of its record under it. Checksums are computed outside. The bytes of a read go
//! from the segment to the reply's room.
//!
//! Invariants: records are appended in the order in which the target changed; a plan that took
//! space is committed or aborted; once an append failed, nothing is served until a restart (the
//! target is ahead of its log); the mutex is held over no await. Lock order: the host's turn for
//! checkpoints, the target's mutex, then the host's own.

mod admission;
mod checkpoint;
mod edits;
mod fence_gate;
mod host;
mod reads;
mod requests;
mod space;
mod writes;

pub use admission::NotAdmitted;
pub use host::{Below, Note, ReplyRoom, TargetHost, WriteFailure};
pub use requests::{Asker, named};

use fence_gate::FenceGate;
use std::fmt::Display;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use zonal_object::StorageTarget;
use zonal_types::{ErrorCode, TargetId};

/// Why a request failed, with words for the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What crosses the wire.
    pub code: ErrorCode,
    /// For people.
    pub detail: String,
}

impl Refused {
    /// With words.
    #[must_use]
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
        }
    }

    /// What a host says.
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

/// A target that serves.
#[derive(Debug)]
pub struct TargetDriver<H> {
    id: TargetId,
    target: Mutex<StorageTarget>,
    host: H,
    /// Why it does not serve any more.
    failed: OnceLock<String>,
    /// Checkpoints that are done. Counted under the target's mutex, together with the space that
    /// they free.
    checkpoints: AtomicU64,
    gate: FenceGate,
}

impl<H: TargetHost> TargetDriver<H> {
    /// Puts an opened target to work. [`Self::resume`] comes before the first request.
    #[must_use]
    pub fn new(id: TargetId, target: StorageTarget, host: H) -> Self {
        Self {
            id,
            target: Mutex::new(target),
            host,
            failed: OnceLock::new(),
            checkpoints: AtomicU64::new(0),
            gate: FenceGate::default(),
        }
    }

    /// Which target it is.
    #[must_use]
    pub fn id(&self) -> TargetId {
        self.id
    }

    /// What it runs on.
    #[must_use]
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The target, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, StorageTarget> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The target, when there is room in the log for any one record: an append under the mutex must
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

    /// Why it does not serve, where it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let own = self.failed.get().cloned();
        own.or_else(|| self.host.failure())
    }

    /// Ends service until a restart.
    fn stop_serving(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            self.host.note(Note::Stopped { why });
        }
    }

    /// Makes everything up to a position durable. The first failure is told with what becomes of
    /// the target.
    async fn flush(&self, upto: H::Position) -> Result<(), Refused> {
        let flushed = self.host.flush(upto).await;
        flushed.map_err(Refused::by_host).inspect_err(|refused| {
            let why = self.host.failure();
            self.stop_serving(&why.unwrap_or_else(|| refused.detail.clone()));
        })
    }

    /// Writes to a segment. A medium that takes no writes is not asked to acknowledge any more.
    async fn write_segment(&self, segment: u32, offset: u64, bytes: &[u8]) -> Result<(), H::Error> {
        let written = self.host.write_segment(segment, offset, bytes).await;
        written.map_err(|failure| match failure {
            WriteFailure::NoSpace(error) => {
                // Space in segments that are there is used up first.
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
