//! Checkpoints: write the overlay into the index and advance the log's tail.
//!
//! Appends and reads go on: the old overlay is frozen and read below a fresh one. The order:
//!
//! 1. Log and data become durable.
//! 2. The caller's last step.
//! 3. The copy's record.
//! 4. One durable commit of the index with the position reached.
//! 5. The tail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;

use crate::engine::{Engine, Tail};
use crate::files::error::DiskError;
use crate::files::group_commit::{lock, wait};
use crate::index::IndexProgress;
use crate::index::index_copy::{IndexCopy, Written};
use crate::index::overlay::Overlay;
use crate::log::record::Lsn;

/// Space that an index commit may take beyond a multiple of what it writes.
const COMMIT_SLACK: u64 = 4 << 20;

/// A checkpoint that has frozen the overlay. Dropping it without [`Self::commit`] undoes it.
pub struct Checkpoint<'a> {
    engine: &'a Engine,
    lsn: Lsn,
    applied_epoch: u64,
    frozen: Option<Arc<Overlay>>,
    turn: MutexGuard<'a, Option<IndexCopy>>,
}

impl Engine {
    /// Writes everything appended before the call into the index and frees the log up to there.
    /// `before_commit` runs after the log is durable and before the index is.
    ///
    /// # Errors
    /// `NoSpace` (nothing is lost, the log keeps its records), `Failed`, or the error of
    /// `before_commit`.
    pub fn checkpoint(
        &self,
        before_commit: &mut dyn FnMut() -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        self.begin_checkpoint().commit(before_commit)
    }

    /// Freezes the overlay at the current head, or at the first held record. Waits for a running
    /// checkpoint.
    ///
    /// A caller that keeps state of its own beside the records takes its lock around this call, and
    /// nothing else. The records at or below [`Checkpoint::lsn`] are then exactly those that its
    /// state reflects.
    #[must_use]
    pub fn begin_checkpoint(&self) -> Checkpoint<'_> {
        let turn = lock(&self.checkpoint_turn);
        let mut guard = lock(&self.append_lock);
        let frozen = self.change_views(|views| {
            let frozen = Arc::new(std::mem::take(&mut views.active));
            let before = views.frozen.replace(Arc::clone(&frozen));
            assert!(
                before.is_none(),
                "one checkpoint freezes the overlay at a time"
            );
            frozen
        });
        guard.frozen_bytes = frozen.bytes();
        let (lsn, applied_epoch) = self.checkpoint_end(&guard);
        Checkpoint {
            engine: self,
            lsn,
            applied_epoch,
            frozen: Some(frozen),
            turn,
        }
    }

    fn attempt_ended(&self, guard: &mut Tail, failed: bool) {
        guard.frozen_bytes = 0;
        guard.attempts += 1;
        guard.attempt_failed = failed;
        self.room.notify_all();
    }

    /// Handles a failed commit. The medium may have lost flushed bytes of the index, as with any
    /// failed flush; a full one has not.
    pub(crate) fn index_failed(&self, error: &DiskError) {
        let why = format!("the index cannot be written: {error}");
        match error {
            DiskError::NoSpace(_) => self.fail(why),
            _ => {
                self.group.fail_flush(why);
                self.wake_waiters();
            }
        }
    }

    /// Checks the space for a commit: running out of space in a commit would end the index's use. A
    /// commit may not get all pages that are free inside the index before it takes new ones.
    fn check_space(&self, bytes: usize) -> Result<(), DiskError> {
        let Some(free_space) = &self.free_space else {
            return Ok(());
        };
        let free = free_space().map_err(|error| DiskError::io("space below", error))?;
        let need = commit_bytes(bytes).saturating_add(COMMIT_SLACK);
        if free.saturating_add(self.index_space.reusable() / 2) >= need {
            return Ok(());
        }
        self.count_reusable()?;
        let inside = self.index_space.reusable();
        if free.saturating_add(inside / 2) < need {
            let what = format!(
                "a checkpoint may need {need} bytes, {free} are free, {inside} inside the index"
            );
            return Err(DiskError::NoSpace(what));
        }
        Ok(())
    }
}

/// Bytes that a commit of an overlay of this size may write.
fn commit_bytes(overlay: usize) -> u64 {
    (overlay as u64).saturating_mul(3)
}

impl Checkpoint<'_> {
    /// The index will hold every record up to here.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Finishes the checkpoint.
    ///
    /// # Errors
    /// As [`Engine::checkpoint`].
    pub fn commit(
        mut self,
        before_commit: &mut dyn FnMut() -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let engine = self.engine;
        let Some(frozen) = self.frozen.clone() else {
            return Ok(());
        };
        engine.sync(self.lsn)?;
        assert!(
            engine.group.synced() >= self.lsn.0,
            "the index never gets ahead of the durable log"
        );
        before_commit()?;
        let unchanged = frozen.is_empty() && lock(&engine.append_lock).tail == self.lsn.0;
        let snapshot = if unchanged {
            None
        } else {
            let mut progress = IndexProgress {
                applied: self.lsn.0,
                applied_epoch: self.applied_epoch,
                epoch: engine.epoch,
                copy: 0,
                store: engine.store,
            };
            let record = self.copy(&frozen, &progress)?;
            progress.copy = record.as_ref().map_or(0, Written::sequence);
            let written = engine.index.commit(frozen.iter(), &progress);
            engine.index_space.spend(commit_bytes(frozen.bytes()));
            let snapshot = written.and_then(|()| engine.index.snapshot());
            // Whether the commit reached the medium is unknown: only a new opening can tell.
            let snapshot = snapshot.inspect_err(|error| engine.index_failed(error))?;
            if let (Some(copy), Some(record)) = (self.turn.as_mut(), record) {
                copy.accept(record);
            }
            Some(Arc::new(snapshot))
        };
        self.frozen = None;
        let mut guard = lock(&engine.append_lock);
        let past = engine.change_views(|views| {
            let before = views.frozen.take();
            assert!(
                before
                    .as_ref()
                    .is_some_and(|before| Arc::ptr_eq(before, &frozen)),
                "a checkpoint ends with the overlay that it froze"
            );
            let old = snapshot.map(|new| std::mem::replace(&mut views.snapshot, new));
            (before, old)
        });
        engine.set_tail(&mut guard, self.lsn.0);
        engine.attempt_ended(&mut guard, false);
        drop(guard);
        // Freed outside of the locks: an overlay has many small allocations.
        drop(past);
        engine.checkpoints.fetch_add(1, Ordering::Relaxed);
        engine.count_reusable()
    }

    /// Writes the copy's record, where there is a copy. Skips it where the index would lack the
    /// space it may need.
    fn copy(
        &mut self,
        frozen: &Overlay,
        progress: &IndexProgress,
    ) -> Result<Option<Written>, DiskError> {
        let engine = self.engine;
        let mut record = None;
        if let Some(copy) = self.turn.as_mut() {
            if copy.has_waited_too_long() {
                copy.give_up();
            }
            let before = Arc::clone(&engine.views().snapshot);
            match copy.write(&before, frozen, progress) {
                Ok(written) => record = Some(written),
                Err(DiskError::NoSpace(_)) => copy.give_up(),
                Err(error) => {
                    engine.index_failed(&error);
                    return Err(error);
                }
            }
        }
        match (engine.check_space(frozen.bytes()), self.turn.as_mut()) {
            (Err(DiskError::NoSpace(_)), Some(copy)) if record.is_some() => {
                copy.give_up();
                engine.check_space(frozen.bytes())?;
                Ok(None)
            }
            (enough, _) => enough.map(|()| record),
        }
    }
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        let Some(frozen) = self.frozen.take() else {
            return;
        };
        let mut guard = lock(&self.engine.append_lock);
        self.engine.change_views(|views| {
            views.frozen = None;
            let mut merged = Arc::try_unwrap(frozen).unwrap_or_else(|shared| shared.duplicate());
            merged.cover_with(std::mem::take(&mut views.active));
            views.active = merged;
        });
        // Counts as an attempt for the checkpointer, also where a job ends before its checkpoint
        // begins.
        guard.frozen_bytes = 0;
    }
}

/// Requests work from a checkpointer.
#[derive(Default)]
pub(crate) struct Signal {
    state: Mutex<SignalState>,
    change: Condvar,
}

#[derive(Default)]
struct SignalState {
    requested: bool,
    stop: bool,
    attended: bool,
}

impl Signal {
    pub(crate) fn request(&self) {
        let mut state = lock(&self.state);
        if !state.requested {
            state.requested = true;
            self.change.notify_all();
        }
    }

    /// Whether a checkpointer runs.
    pub(crate) fn attended(&self) -> bool {
        let state = lock(&self.state);
        state.attended && !state.stop
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stop = true;
        self.change.notify_all();
    }

    /// Waits for a request; false when the thread should end.
    fn next(&self) -> bool {
        let mut state = lock(&self.state);
        while !state.requested && !state.stop {
            state = wait(&self.change, state);
        }
        state.requested = false;
        !state.stop
    }
}

/// The work of a checkpointer when a checkpoint is due.
pub type CheckpointJob = Box<dyn FnMut(&Engine) -> Result<(), DiskError> + Send>;

/// The thread that makes checkpoints when they are due. Dropping it ends it after the current one.
pub struct Checkpointer {
    signal: Arc<Signal>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the checkpointer of `engine`. It sleeps until an append makes a checkpoint due. Then it
/// runs `job`, which calls [`Engine::checkpoint`] or its two halves; failures go to `report`. It
/// does not keep the engine alive.
///
/// # Errors
/// When the thread cannot be started.
pub fn spawn_checkpointer(
    engine: &Arc<Engine>,
    mut job: CheckpointJob,
    mut report: Box<dyn FnMut(DiskError) + Send>,
) -> Result<Checkpointer, DiskError> {
    let signal = Arc::clone(&engine.signal);
    let weak: Weak<Engine> = Arc::downgrade(engine);
    {
        let mut state = lock(&signal.state);
        if state.attended {
            return Err(DiskError::Config("a checkpointer already runs".into()));
        }
        state.attended = true;
        state.stop = false;
    }
    let thread = std::thread::Builder::new()
        .name("checkpoint".into())
        .spawn({
            let signal = Arc::clone(&signal);
            move || {
                while signal.next() {
                    let Some(engine) = weak.upgrade() else {
                        break;
                    };
                    let call = AssertUnwindSafe(|| job(&engine));
                    let result = catch_unwind(call).unwrap_or_else(|_| {
                        // The job's state is unknown: without checkpoints there are no more changes
                        // either.
                        engine.fail("a checkpoint panicked".into());
                        Err(DiskError::Failed)
                    });
                    if let Err(error) = result {
                        let mut guard = lock(&engine.append_lock);
                        engine.attempt_ended(&mut guard, true);
                        drop(guard);
                        report(error);
                    }
                }
            }
        });
    match thread {
        Ok(thread) => Ok(Checkpointer {
            signal,
            thread: Some(thread),
        }),
        Err(error) => {
            lock(&signal.state).attended = false;
            Err(DiskError::io("start thread", error))
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.signal.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the job was reported where it happened.
            let _ = thread.join();
        }
        lock(&self.signal.state).attended = false;
    }
}
