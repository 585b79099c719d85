//! A target on its disk: drives the core [`Target`] with an engine and segment files.
//!
//! A request plans under the target's mutex, reads and writes segments outside of it, and commits with the append of
//! its record under it. Checksums are computed outside. The bytes of a read go from the page cache to the reply's
//! buffer and from there to the socket.
//!
//! Invariants: records are appended in the order in which the target changed; a plan that took space is committed or
//! aborted; once an append failed, nothing is served until a restart (the target is ahead of its log).
//! Lock order: `Storage::checkpointing`, `Storage::target`, then the engine's own. No segment is touched under the mutex.

mod changes;
mod reads;
mod requests;

#[cfg(test)]
pub(crate) use {changes::Asker, requests::NotAdmitted};

use crate::config::StorageConfig;
use crate::map_cache::MapCache;
use crate::seldom::Seldom;
use crate::trouble::Trouble;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use zonal_disk::Room;
use zonal_disk::{DiskError, Engine, Lsn, Segments};
use zonal_object::{Cut, ObjectId, Record, Target};
use zonal_types::{ErrorCode, TargetId};
use zonal_wire::{ObjectRef, StorageReply};

/// Why a request failed, with words for the reply.
pub(crate) struct Refused {
    pub code: ErrorCode,
    pub detail: String,
}

impl Refused {
    pub(crate) fn new(code: ErrorCode, detail: String) -> Self {
        Self { code, detail }
    }
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self::new(code, String::new())
    }
}

impl From<DiskError> for Refused {
    fn from(error: DiskError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// The storage role.
pub struct Storage {
    id: TargetId,
    pub(crate) target: Mutex<Target>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) segments: Arc<Segments>,
    /// Held over a checkpoint. Before `target`.
    pub(crate) checkpointing: Mutex<()>,
    map: Arc<MapCache>,
    /// Why it does not serve any more.
    failed: OnceLock<String>,
    /// That pending blocks stay pending.
    pub(crate) cannot_move: Seldom,
    damaged: AtomicU64,
    unreadable: AtomicU64,
    pub(crate) trouble: Trouble,
}

impl Storage {
    /// Puts an opened target to work.
    #[must_use]
    pub fn new(
        config: &StorageConfig,
        target: Target,
        engine: Arc<Engine>,
        segments: Arc<Segments>,
        map: Arc<MapCache>,
    ) -> Self {
        Self {
            id: config.target,
            target: Mutex::new(target),
            engine,
            segments,
            checkpointing: Mutex::new(()),
            map,
            failed: OnceLock::new(),
            cannot_move: Seldom::default(),
            damaged: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            trouble: Trouble::default(),
        }
    }

    /// Which target it is.
    pub(crate) fn id(&self) -> TargetId {
        self.id
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends in the critical section of the change; a failure ends service.
    pub(crate) fn append(&self, record: Record) -> Result<Lsn, DiskError> {
        self.engine
            .append_with(record.changes, &record.note, Room::Reserve)
            .inspect_err(|error| self.stop_serving(&format!("its log takes no record: {error}")))
    }

    /// The target, when there is room in the log for any one record: an append under the mutex must not wait for a
    /// checkpoint, which needs the mutex.
    fn lock_with_room(&self) -> Result<MutexGuard<'_, Target>, DiskError> {
        loop {
            self.engine.wait_for_room()?;
            let target = self.lock();
            let stats = self.engine.stats();
            if stats.log_used <= stats.log_capacity / 16 * 13 {
                return Ok(target);
            }
        }
    }

    /// Ends service until a restart.
    fn stop_serving(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            tracing::error!(target_id = self.id.0, why, "the target stops serving");
        }
    }

    /// Why it does not serve, where it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let engine = self.engine.failure();
        self.failed
            .get()
            .map(String::as_str)
            .or(engine)
            .map(str::to_owned)
    }

    /// Whether it serves.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.failed.get().is_none() && !self.engine.failed()
    }

    /// Makes everything written durable. The first failure is told in the log, with what becomes of the target.
    fn sync(&self, lsn: Lsn) -> Result<(), Refused> {
        self.engine.sync(lsn).map_err(|error| {
            self.stop_serving(self.engine.failure().unwrap_or("a flush failed"));
            error.into()
        })
    }

    /// Writes to a segment. A medium that takes no writes is not asked to acknowledge any more.
    pub(crate) fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DiskError> {
        let written = self.segments.write_at(segment, offset, bytes);
        match &written {
            Err(DiskError::NoSpace(_)) => {
                // Space in segments that are there is used up first.
                self.lock().limit_segments(Some(segment));
            }
            // EFAULT is of the bytes, which a client lent, and not of the medium.
            Err(error @ DiskError::Io { source, .. })
                if Errno::from_io_error(source) != Some(Errno::FAULT) =>
            {
                self.stop_serving(&format!("the medium takes no writes: {error}"));
            }
            _ => {}
        }
        written
    }

    /// Figures for people.
    #[must_use]
    pub fn gauges(&self) -> Vec<(String, u64)> {
        let (space, pending) = {
            let target = self.lock();
            (target.statfs(), target.pending_bytes())
        };
        let stats = self.engine.stats();
        let overlay = self.engine.overlay_memory();
        vec![
            ("target_total_bytes".into(), space.total),
            ("target_free_bytes".into(), space.free),
            ("target_objects".into(), space.objects),
            ("target_pending_bytes".into(), pending.0),
            ("target_pending_bytes_max".into(), pending.1),
            ("target_log_used_bytes".into(), stats.log_used),
            ("target_log_used_bytes_max".into(), stats.log_capacity),
            ("target_overlay_bytes".into(), overlay.0),
            ("target_overlay_bytes_max".into(), overlay.1),
            (
                "target_index_cache_bytes_max".into(),
                self.engine.index_cache_bytes(),
            ),
            ("target_checkpoints_total".into(), stats.checkpoints),
            ("target_flushes_total".into(), stats.flushes),
            (
                "target_damaged_blocks_total".into(),
                self.damaged.load(Ordering::Relaxed),
            ),
            (
                "target_index_damaged_blocks_total".into(),
                stats.damaged_blocks,
            ),
            (
                "target_read_errors_total".into(),
                self.unreadable.load(Ordering::Relaxed),
            ),
            ("target_healthy".into(), u64::from(self.is_healthy())),
        ]
    }

    /// Bytes in all and free, as a client may use them.
    fn statfs(&self) -> Result<StorageReply, Refused> {
        let below = self.segments.space()?;
        let (space, is_limited) = {
            let mut target = self.lock();
            if below.unmade > 0 {
                target.limit_segments(None);
            }
            (target.statfs(), target.usable_segments().is_some())
        };
        if is_limited {
            return Ok(StorageReply::StatFs {
                total: space.total,
                free: space.free,
                objects: space.objects,
            });
        }
        let unmade = space.total.saturating_sub(below.made);
        // Where the file system below is fuller than the capacity allows for.
        let missing = unmade.saturating_sub(below.unmade);
        Ok(StorageReply::StatFs {
            total: space.total,
            free: space.free.saturating_sub(missing),
            objects: space.objects,
        })
    }

    /// Everything durable, at the end.
    ///
    /// # Errors
    /// Where the disk fails.
    pub fn finish(&self) -> Result<(), DiskError> {
        self.engine.sync_all()
    }
}

pub(crate) fn named(object: &ObjectRef) -> (ObjectId, Cut) {
    let id = ObjectId {
        data_id: object.data_id,
        column: object.column,
    };
    let cut = Cut {
        seq: object.truncate_seq,
        bytes: object.truncate_bytes,
    };
    (id, cut)
}
