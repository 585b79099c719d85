//! The durable ordered store of shards and targets: log, overlay, index.
//!
//! Invariants:
//! - The overlay and the log change in the same order, under the append lock.
//! - A record's changes become visible to reads when `append` returns, all or none of them.
//! - Records survive a kill of the process once `append` has returned, and power loss once `sync`
//!   has. The surviving records are a prefix, apart from those that the replay's caller drops.
//! - The log's tail never passes the position up to which the index is durable.
//!
//! Costs: see [`append`]; `sync` is one `fdatasync` for all waiting calls, see
//! [`crate::files::group_commit`].

mod append;
mod cache_misses;
pub mod checkpoint;
mod free_space;
pub mod held_records;
#[cfg(test)]
mod invariant_tests;
mod read;
pub mod view;

pub use append::LogRoom;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use zonal_types::KvChange;

use crate::engine::cache_misses::CacheMisses;
use crate::engine::checkpoint::Signal;
use crate::engine::free_space::IndexFreeSpace;
use crate::engine::read::Views;
use crate::files::disk::{DataSync, LogFile};
use crate::files::error::DiskError;
use crate::files::group_commit::{GroupCommit, lock};
use crate::files::power_loss::UnflushedWrites;
use crate::index::Index;
use crate::index::index_copy::IndexCopy;
use crate::index::overlay::Overlay;
use crate::log;
use crate::log::record::Lsn;

/// Bounds of one engine.
#[derive(Debug, Clone, Copy)]
pub struct EngineConfig {
    /// Length of the log file in bytes, fixed when formatting: a multiple of 4096, at least 1 MiB.
    pub log_bytes: u64,
    /// Memory of the overlay in bytes that makes a checkpoint due; at twice this, appends wait.
    pub overlay_bytes: usize,
    /// Cache of the index in bytes.
    pub cache_bytes: usize,
    /// How long an append waits for a checkpoint to free space in the log.
    pub room_wait: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            log_bytes: 16 << 20,
            overlay_bytes: 16 << 20,
            cache_bytes: 16 << 20,
            room_wait: Duration::from_secs(10),
        }
    }
}

/// Statistics of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Records appended since opening.
    pub appends: u64,
    /// Flushes of the log since opening.
    pub flushes: u64,
    /// Checkpoints finished since opening.
    pub checkpoints: u64,
    /// Bytes of the log in use.
    pub log_used: u64,
    /// Bytes of the log.
    pub log_capacity: u64,
    /// Memory of the active overlay in bytes.
    pub overlay_bytes: usize,
    /// Reads of the index's blocks that failed their checksum since opening.
    pub damaged_blocks: u64,
}

/// State under the append lock.
pub(crate) struct Tail {
    /// Where the next record goes.
    pub head: u64,
    /// Where the part of the log in use begins.
    pub tail: u64,
    /// Memory of the frozen overlay.
    pub frozen_bytes: usize,
    /// Checkpoints that have ended, successfully or not.
    pub attempts: u64,
    /// Whether the last one failed.
    pub attempt_failed: bool,
    /// Where the first record begins whose changes are applied later.
    pub held_from: Option<held_records::RecordPlace>,
}

/// One durable ordered store. Shared by reference; every method locks what it needs.
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) log: Box<dyn LogFile>,
    pub(crate) index: Index,
    pub(crate) capacity: u64,
    pub(crate) store: u64,
    pub(crate) epoch: u64,
    pub(crate) append_lock: Mutex<Tail>,
    pub(crate) room: Condvar,
    pub(crate) views: RwLock<Views>,
    pub(crate) group: GroupCommit,
    /// End of the log's contents: [`Tail::head`], readable without the lock.
    written: AtomicU64,
    tail: AtomicU64,
    active_bytes: AtomicUsize,
    /// The log was announced to the kernel up to here.
    announced: AtomicU64,
    appends: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pool: Mutex<Vec<Vec<u8>>>,
    pub(crate) signal: Arc<Signal>,
    /// Held during a checkpoint; has the copy of the index, where there is one.
    pub(crate) checkpoint_turn: Mutex<Option<IndexCopy>>,
    pub(crate) free_space: Option<Box<dyn Fn() -> std::io::Result<u64> + Send + Sync>>,
    pub(crate) index_space: IndexFreeSpace,
    pub(crate) misses: CacheMisses,
    pub(crate) past: UnflushedWrites,
    pub(crate) verifier: u64,
    /// Held, so that no other process opens the store.
    pub(crate) _directory_lock: Option<std::fs::File>,
}

/// State that an opening hands to the engine.
pub(crate) struct Start {
    pub config: EngineConfig,
    pub log: Box<dyn LogFile>,
    pub index: Index,
    pub origin: log::Origin,
    pub extent: log::LogExtent,
    pub overlay: Overlay,
}

impl Engine {
    pub(crate) fn start(start: Start) -> Result<Self, DiskError> {
        let snapshot = Arc::new(start.index.snapshot()?);
        let head = start.extent.end;
        Ok(Self {
            config: start.config,
            log: start.log,
            index: start.index,
            capacity: start.origin.capacity,
            store: start.origin.store,
            epoch: start.origin.epoch,
            append_lock: Mutex::new(Tail {
                head,
                tail: start.origin.applied,
                frozen_bytes: 0,
                attempts: 0,
                attempt_failed: false,
                held_from: None,
            }),
            room: Condvar::new(),
            active_bytes: AtomicUsize::new(start.overlay.bytes()),
            views: RwLock::new(Views {
                active: start.overlay,
                frozen: None,
                snapshot,
            }),
            group: GroupCommit::new(start.extent.synced),
            written: AtomicU64::new(head),
            tail: AtomicU64::new(start.origin.applied),
            appends: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            pool: Mutex::new(Vec::new()),
            signal: Arc::new(Signal::default()),
            checkpoint_turn: Mutex::new(None),
            free_space: None,
            index_space: IndexFreeSpace::default(),
            misses: CacheMisses::default(),
            past: UnflushedWrites::Lost,
            verifier: 0,
            _directory_lock: None,
        })
    }

    /// Sets the caller's data that every sync also makes durable. Call it once, before the first
    /// sync.
    ///
    /// # Errors
    /// When it was set before, or its thread cannot be started.
    pub fn set_data_sync(&self, hook: Arc<dyn DataSync>) -> Result<(), DiskError> {
        self.group.set_data(hook)
    }

    /// Applies changes without a record: changes that a checkpoint makes durable anyway, or that
    /// may be lost.
    pub fn apply_unlogged(&self, changes: Vec<KvChange>) {
        let guard = lock(&self.append_lock);
        self.apply(changes);
        let due = self.is_due(&guard);
        drop(guard);
        if due {
            self.signal.request();
        }
    }

    /// Returns when every record up to `lsn` is durable, with the caller's data.
    ///
    /// # Errors
    /// `Io` for the flush that failed, `Failed` from then on.
    pub fn sync(&self, lsn: Lsn) -> Result<(), DiskError> {
        let result = self.group.sync(self.log.as_ref(), &self.written, lsn.0);
        if result.is_err() {
            // Calls that wait for space must not wait for a checkpoint that cannot happen.
            self.wake_waiters();
        }
        result
    }

    /// Returns when everything appended before the call is durable.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub fn sync_all(&self) -> Result<(), DiskError> {
        self.sync(self.head())
    }

    /// The position after the last record.
    #[must_use]
    pub fn head(&self) -> Lsn {
        Lsn(self.written.load(Ordering::Acquire))
    }

    /// Everything up to here is durable.
    #[must_use]
    pub fn synced(&self) -> Lsn {
        Lsn(self.group.synced())
    }

    /// Whether an earlier failure has stopped all changes.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.group.failed()
    }

    /// The failure that has stopped all changes, in words.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.group.failure()
    }

    /// Counts the openings of the store.
    #[must_use]
    pub fn opening(&self) -> u64 {
        self.epoch
    }

    /// The fate of writes that were not flushed when the store was last open.
    #[must_use]
    pub fn past(&self) -> UnflushedWrites {
        self.past
    }

    /// The verifier: stays the same as long as everything acknowledged is there, flushed or not.
    /// Another number means that unflushed writes may be lost.
    #[must_use]
    pub fn verifier(&self) -> u64 {
        self.verifier
    }

    /// Bytes free on the file system below, where it reports them.
    #[must_use]
    pub fn free_below(&self) -> Option<u64> {
        self.free_space.as_ref().and_then(|free| free().ok())
    }

    /// Statistics for gauges and tests.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            appends: self.appends.load(Ordering::Relaxed),
            flushes: self.group.flushes(),
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            log_used: self
                .head()
                .0
                .saturating_sub(self.tail.load(Ordering::Acquire)),
            log_capacity: self.capacity,
            overlay_bytes: self.active_bytes.load(Ordering::Relaxed),
            damaged_blocks: self.index.damaged(),
        }
    }

    /// Memory of both overlays now, and its bound. Changes wait at twice the configured size; those
    /// admitted before end below four times.
    #[must_use]
    pub fn overlay_memory(&self) -> (u64, u64) {
        let frozen = lock(&self.append_lock).frozen_bytes;
        let bytes = frozen + self.active_bytes.load(Ordering::Relaxed);
        let bound = self.config.overlay_bytes.saturating_mul(4);
        (bytes as u64, bound as u64)
    }

    /// Memory that the index may take to cache its pages.
    #[must_use]
    pub fn index_cache_bytes(&self) -> u64 {
        self.config.cache_bytes as u64
    }

    /// Whether a checkpoint is due: the log is half full or the overlay has reached its bound.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.is_due(&lock(&self.append_lock))
    }

    /// Wakes the checkpointer, where one runs.
    pub fn request_checkpoint(&self) {
        self.signal.request();
    }

    pub(crate) fn views(&self) -> RwLockReadGuard<'_, Views> {
        self.views.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the views. The caller holds the append lock, so that the order is the log's.
    pub(crate) fn change_views<T>(&self, change: impl FnOnce(&mut Views) -> T) -> T {
        let mut views = self.views.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut views);
        self.active_bytes
            .store(views.active.bytes(), Ordering::Relaxed);
        result
    }

    pub(crate) fn set_tail(&self, guard: &mut Tail, tail: u64) {
        assert!(
            (guard.tail..=guard.head).contains(&tail),
            "the tail of the log never falls and never passes its head"
        );
        guard.tail = tail;
        self.tail.store(tail, Ordering::Release);
    }

    /// Stops all changes after a failure that leaves the stored state in doubt.
    pub(crate) fn fail(&self, why: String) {
        self.group.fail(why);
        self.wake_waiters();
    }

    pub(crate) fn wake_waiters(&self) {
        drop(lock(&self.append_lock));
        self.room.notify_all();
    }

    fn apply(&self, changes: Vec<KvChange>) {
        self.change_views(|views| {
            for change in changes {
                views.active.apply(change);
            }
        });
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.signal.stop();
    }
}
