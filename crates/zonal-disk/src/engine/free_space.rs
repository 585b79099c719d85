//! Free space for records that add to a store: space on the disk, and unused pages inside the
//! index's own file.
//!
//! The index's file hardly ever shrinks. Pages that deletions free stay in it, and later commits
//! reuse them before they take new ones. If the index has used up the disk's free space, the disk
//! alone would look full for ever. So while the disk is short of space, the unused pages of the
//! file count as well.
//!
//! Invariants:
//! 1. A counted page has space on the disk, and neither the last commit nor an earlier one needs
//!    it. The bytes that later commits write are subtracted.
//! 2. A count walks the whole index. None is made while the disk has enough space, and counts take
//!    at most a tenth of the time after that.
//! 3. While the disk is short of space the overlay is kept small, so that a checkpoint needs
//!    little.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::engine::{Engine, Tail};
use crate::files::error::DiskError;
use crate::files::group_commit::lock;

/// Memory of the overlay that makes a checkpoint due while the disk is short.
const SHORT_OVERLAY: usize = 1 << 20;
/// While the disk is short of space, additions wait as long as the overlay is larger than this.
const SHORT_OVERLAY_MAX: usize = 4 << 20;
/// Least time from the end of one count to the next, and how many times the duration of the last
/// count.
const PAUSE: Duration = Duration::from_millis(200);
/// See [`PAUSE`].
const PAUSE_TIMES: u32 = 9;
/// With less free on the disk, no commit is made only to have pages counted.
const FREE_MIN: u64 = 1 << 20;

/// Unused space inside an index's file, as far as it is known.
#[derive(Default)]
pub(crate) struct IndexFreeSpace {
    /// The disk had less than required at the last request.
    short: AtomicBool,
    /// A count is requested.
    wanted: AtomicBool,
    /// The index has committed since the last count.
    changed: AtomicBool,
    /// Counts made, successful or not.
    counts: AtomicU64,
    /// Bytes of pages that can be written again.
    reusable: AtomicU64,
    /// Earliest time of the next count.
    due: Mutex<Option<Instant>>,
}

impl IndexFreeSpace {
    /// Whether the overlay should be written by now.
    pub(crate) fn is_due(&self, overlay_bytes: usize) -> bool {
        overlay_bytes >= SHORT_OVERLAY && self.short.load(Ordering::Relaxed)
    }

    /// Bytes that can be written without more space of the disk.
    pub(crate) fn reusable(&self) -> u64 {
        self.reusable.load(Ordering::Relaxed)
    }

    /// Subtracts the bytes that a commit has taken, approximately.
    pub(crate) fn spend(&self, bytes: u64) {
        let left = self.reusable().saturating_sub(bytes);
        self.reusable.store(left, Ordering::Relaxed);
        self.changed.store(true, Ordering::Relaxed);
    }

    fn counts(&self) -> u64 {
        self.counts.load(Ordering::Acquire)
    }
}

impl Engine {
    /// Whether additions may be made that leave `headroom` bytes for checkpoints. The bytes are
    /// free on the disk, or at least half of them are there and the rest is inside the index. Waits
    /// for a new count where only that can tell.
    #[must_use]
    pub fn has_room(&self, headroom: u64) -> bool {
        let Some(free) = self.free_below() else {
            return true;
        };
        let is_short = free < headroom;
        self.index_space.short.store(is_short, Ordering::Relaxed);
        if !is_short {
            return true;
        }
        if free < headroom / 2 {
            return false;
        }
        let suffices = || free.saturating_add(self.index_space.reusable()) >= headroom;
        if suffices() && self.wait_for_small(0) && suffices() {
            return true;
        }
        self.wait_for_count() && suffices()
    }

    /// Waits for `counts` counts, and for an overlay that a small checkpoint writes.
    fn wait_for_small(&self, counts: u64) -> bool {
        let ready = |tail: &Tail| {
            self.index_space.counts() >= counts && self.overlay_bytes(tail) <= SHORT_OVERLAY_MAX
        };
        self.wait_until(lock(&self.append_lock), ready).is_ok()
    }

    /// Waits for a new count; false where it would find nothing new, or cannot be made.
    fn wait_for_count(&self) -> bool {
        let before = self.index_space.counts();
        let is_same = before > 0 && !self.index_space.changed.load(Ordering::Relaxed);
        if is_same && self.overlay_bytes(&lock(&self.append_lock)) == 0 {
            return false;
        }
        let due = *lock(&self.index_space.due);
        let pause = due.map_or(Duration::ZERO, |due| {
            due.saturating_duration_since(Instant::now())
        });
        std::thread::sleep(pause.min(self.config.room_wait));
        if self.index_space.counts() == before {
            self.index_space.wanted.store(true, Ordering::Release);
        }
        self.wait_for_small(before + 1)
    }

    /// Whether additions are refused for lack of space, as of the last request.
    #[must_use]
    pub fn is_short(&self, headroom: u64) -> bool {
        let free = self.free_below().unwrap_or(u64::MAX);
        free < headroom
            && (free < headroom / 2 || free.saturating_add(self.index_space.reusable()) < headroom)
    }

    /// Bytes that may be added before additions are refused: an estimate by the last count inside
    /// the index. 0 where they are refused already.
    #[must_use]
    pub fn room_left(&self, headroom: u64) -> u64 {
        let Some(free) = self.free_below() else {
            return u64::MAX;
        };
        if self.is_short(headroom) {
            return 0;
        }
        free.saturating_add(self.index_space.reusable())
            .saturating_sub(headroom)
    }

    /// Counts the reusable pages, where a count is requested and due. Only within a checkpoint's
    /// turn.
    pub(crate) fn count_reusable(&self) -> Result<(), DiskError> {
        let start = Instant::now();
        let is_early = lock(&self.index_space.due).is_some_and(|due| start < due);
        if is_early || !self.index_space.wanted.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        self.index_space.changed.store(false, Ordering::Relaxed);
        let found = self.count_reusable_pages();
        let end = Instant::now();
        let pause = (end - start).saturating_mul(PAUSE_TIMES).max(PAUSE);
        *lock(&self.index_space.due) = Some(end + pause);
        let bytes = found.as_ref().copied().unwrap_or(0);
        self.index_space.reusable.store(bytes, Ordering::Relaxed);
        self.index_space.counts.fetch_add(1, Ordering::AcqRel);
        self.wake_waiters();
        found.map(drop)
    }

    fn count_reusable_pages(&self) -> Result<u64, DiskError> {
        let free = self.free_below().unwrap_or(0);
        if free >= FREE_MIN {
            // Pages that the last commit has freed become free after the next one.
            let progress = self.index.progress()?;
            let released = self.index.commit(std::iter::empty(), &progress);
            released.inspect_err(|error| self.index_failed(error))?;
        }
        self.index.reusable()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use zonal_types::KvChange;

    use super::*;
    use crate::engine::{EngineConfig, LogRoom};
    use crate::{StoreIdentity, StoreKind, spawn_checkpointer};

    const DISK: u64 = 48 << 20;
    const HEADROOM: u64 = 24 << 20;

    fn key(number: u32) -> Vec<u8> {
        number.to_be_bytes().to_vec()
    }

    /// A store whose disk has [`DISK`] bytes.
    fn small(dir: &std::path::Path) -> Arc<Engine> {
        let identity = StoreIdentity {
            cell: [1; 16],
            kind: StoreKind::Shard,
            id: 1,
        };
        let config = EngineConfig {
            log_bytes: 4 << 20,
            ..EngineConfig::default()
        };
        if !dir.join("identity").exists() {
            Engine::format(dir, identity, &config).unwrap();
        }
        let mut engine = Engine::open(dir, &identity, config, &mut |_, _, _| true).unwrap();
        let index = dir.join("index.redb");
        engine.free_space = Some(Box::new(move || {
            Ok(DISK.saturating_sub(index.metadata()?.blocks() * 512))
        }));
        Arc::new(engine)
    }

    fn add(engine: &Engine, from: u32) -> u32 {
        let mut next = from;
        while engine.has_room(HEADROOM) {
            engine.wait_for_room().unwrap();
            let value = Some(vec![next as u8; 4000]);
            let change = KvChange {
                key: key(next),
                value,
            };
            engine
                .append_with(vec![change], &[], LogRoom::Normal)
                .unwrap();
            next += 1;
            assert!(next - from < 100_000, "the disk is never full");
        }
        next - from
    }

    fn remove(engine: &Engine, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let change = KvChange {
                key: key(number),
                value: None,
            };
            engine.wait_for_room().unwrap();
            engine
                .append_with(vec![change], &[], LogRoom::Reserve)
                .unwrap();
        }
    }

    #[test]
    fn pages_freed_inside_the_index_are_reused() {
        let scratch = zonal_testkit::Scratch::new("inside");
        let dir = scratch.join("store");
        let mut first = 0;
        for round in 0..4 {
            // Each time after a restart, without a count.
            let engine = small(&dir);
            let job = Box::new(|engine: &Engine| engine.checkpoint(&mut || Ok(())));
            let report = Box::new(|error| panic!("a checkpoint failed: {error}"));
            let checkpointer = spawn_checkpointer(&engine, job, report).unwrap();
            let next = round * 100_000;
            let added = add(&engine, next);
            assert!(engine.is_short(HEADROOM));
            assert_eq!(engine.room_left(HEADROOM), 0);
            if round == 0 {
                first = added;
                assert!(added > 1000, "{added} entries fit");
            } else {
                assert!(
                    added > first / 4,
                    "{added} entries fit again, {first} did first"
                );
            }
            assert!(
                engine.free_below().unwrap() > HEADROOM / 2,
                "the reserve is used up"
            );
            let end = next + added;
            remove(
                &engine,
                end - first / 2..end.min(end - first / 2 + first / 2),
            );
            drop(checkpointer);
        }
    }
}
