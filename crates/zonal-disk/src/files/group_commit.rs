//! Group commit: one leader flushes for all waiting calls, log and caller's data in parallel.
//!
//! As many calls as waited at the end of the last flush will probably come again. The leader waits
//! for them a little, as long as they keep coming. A single caller never waits.
//!
//! A failed flush may have lost the bytes it was to make durable, and a second flush would report
//! success without them. So after the first failure nothing is ever reported durable again.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::files::disk::{DataSync, LogFile};
use crate::files::error::DiskError;

/// Locks, also after a panic of a holder: every holder leaves consistent state behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits, and ignores poisoning as [`lock`] does.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Notes a failed flush for later openings of the store; false where that is not possible.
pub(crate) type NoteDoubt = Box<dyn Fn() -> bool + Send + Sync>;

/// How long a leader waits for the next expected call: twice the last flush, within these bounds.
const QUIET: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(1));
/// How long a leader waits for all expected calls.
const GATHER_MAX: Duration = Duration::from_millis(2);

/// The state of the flush: leader and waiting calls.
#[derive(Default)]
struct Turn {
    /// A leader gathers or flushes.
    is_led: bool,
    /// Waiting calls, including the leader's.
    waiting: usize,
    /// Calls that were waiting when the last flush ended.
    expected: usize,
    last_flush: Duration,
}

/// A group commit: its leader, and the position up to which the log is durable.
pub(crate) struct GroupCommit {
    turn: Mutex<Turn>,
    done: Condvar,
    /// Wakes the leader when a call arrives.
    came: Condvar,
    synced: AtomicU64,
    /// Why nothing is reported durable any more.
    failed: OnceLock<String>,
    doubt: OnceLock<NoteDoubt>,
    flushes: AtomicU64,
    data: OnceLock<Flusher>,
}

impl GroupCommit {
    pub(crate) fn new(synced: u64) -> Self {
        Self {
            turn: Mutex::default(),
            done: Condvar::new(),
            came: Condvar::new(),
            synced: AtomicU64::new(synced),
            failed: OnceLock::new(),
            doubt: OnceLock::new(),
            flushes: AtomicU64::new(0),
            data: OnceLock::new(),
        }
    }

    /// Everything below is durable.
    pub(crate) fn synced(&self) -> u64 {
        self.synced.load(Ordering::Acquire)
    }

    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.get().is_some()
    }

    /// The failure that ended durability.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// Sets the action for a failed flush.
    pub(crate) fn on_doubt(&self, note: NoteDoubt) {
        // Set once, by the opening.
        let _ = self.doubt.set(note);
    }

    /// Handles a failed flush: the bytes to become durable may be lost, also for later processes.
    pub(crate) fn fail_flush(&self, mut why: String) {
        if let Some(note) = self.doubt.get()
            && !self.failed()
            && !note()
        {
            why.push_str("; the store takes no note of it either: do not use it before the machine was restarted");
        }
        self.fail(why);
    }

    /// Refuses all later calls.
    pub(crate) fn fail(&self, why: String) {
        // The first failure is the one to report.
        let _ = self.failed.set(why);
        // Taken so that no thread is between its check of the flag and its wait.
        drop(lock(&self.turn));
        self.done.notify_all();
    }

    pub(crate) fn set_data(&self, hook: Arc<dyn DataSync>) -> Result<(), DiskError> {
        let flusher = Flusher::spawn(hook).map_err(|error| DiskError::io("start thread", error))?;
        self.data
            .set(flusher)
            .map_err(|_| DiskError::Config("the data sync is already set".into()))
    }

    /// Returns when everything below `position` is durable. `written` is the end of the log's
    /// contents.
    pub(crate) fn sync(
        &self,
        log: &dyn LogFile,
        written: &AtomicU64,
        position: u64,
    ) -> Result<(), DiskError> {
        let mut turn = lock(&self.turn);
        turn.waiting += 1;
        self.came.notify_one();
        let (mut turn, outcome) = self.sync_in_turn(turn, log, written, position);
        assert!(turn.waiting > 0, "each sync counts itself as waiting once");
        turn.waiting -= 1;
        outcome
    }

    fn sync_in_turn<'a>(
        &'a self,
        mut turn: MutexGuard<'a, Turn>,
        log: &dyn LogFile,
        written: &AtomicU64,
        position: u64,
    ) -> (MutexGuard<'a, Turn>, Result<(), DiskError>) {
        loop {
            if self.failed() {
                return (turn, Err(DiskError::Failed));
            }
            if self.synced() >= position {
                return (turn, Ok(()));
            }
            if turn.is_led {
                turn = wait(&self.done, turn);
                continue;
            }
            turn.is_led = true;
            turn = self.gather(turn);
            drop(turn);
            // Read before the flush begins: everything below it, with its data, was written by now.
            let target = written.load(Ordering::Acquire);
            let begin = Instant::now();
            let flushed = self.flush(log);
            let took = begin.elapsed();
            if let Err(error) = &flushed {
                self.fail_flush(format!("a flush failed: {error}"));
            }
            turn = lock(&self.turn);
            assert!(turn.is_led, "one leader flushes at a time");
            turn.is_led = false;
            turn.expected = turn.waiting;
            turn.last_flush = took;
            if flushed.is_ok() {
                self.synced.fetch_max(target, Ordering::AcqRel);
            }
            self.done.notify_all();
            if let Err(source) = flushed {
                let what = "flush".into();
                return (turn, Err(DiskError::Io { what, source }));
            }
            if target < position {
                // The requested position was never written; everything that was written is durable.
                return (turn, Ok(()));
            }
        }
    }

    /// Waits for the expected calls, as long as they keep coming.
    fn gather<'a>(&self, mut turn: MutexGuard<'a, Turn>) -> MutexGuard<'a, Turn> {
        let quiet = (turn.last_flush * 2).clamp(QUIET.0, QUIET.1);
        let begin = Instant::now();
        while turn.waiting < turn.expected && begin.elapsed() < GATHER_MAX {
            let came = self.came.wait_timeout(turn, quiet);
            let (next, timed_out) = came.unwrap_or_else(PoisonError::into_inner);
            turn = next;
            if timed_out.timed_out() {
                break;
            }
        }
        turn
    }

    fn flush(&self, log: &dyn LogFile) -> io::Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        let data = self.data.get().filter(|data| data.hook.dirty());
        if let Some(data) = data {
            data.start();
        }
        let log_result = log.sync();
        // Waited for in any case: the helper must be free for the next leader.
        let data_result = data.map_or(Ok(()), Flusher::finish);
        log_result.and(data_result)
    }
}

/// The thread that flushes the caller's data while a leader flushes the log.
struct Flusher {
    hook: Arc<dyn DataSync>,
    shared: Arc<FlusherShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct FlusherShared {
    state: Mutex<FlusherState>,
    change: Condvar,
}

#[derive(Default)]
struct FlusherState {
    asked: bool,
    result: Option<io::Result<()>>,
    stop: bool,
}

impl Flusher {
    fn spawn(hook: Arc<dyn DataSync>) -> io::Result<Self> {
        let shared = Arc::new(FlusherShared::default());
        let thread = std::thread::Builder::new()
            .name("data-flush".into())
            .spawn({
                let shared = Arc::clone(&shared);
                let hook = Arc::clone(&hook);
                move || shared.run(hook.as_ref())
            })?;
        Ok(Self {
            hook,
            shared,
            thread: Some(thread),
        })
    }

    fn start(&self) {
        lock(&self.shared.state).asked = true;
        self.shared.change.notify_all();
    }

    fn finish(&self) -> io::Result<()> {
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state = wait(&self.shared.change, state);
        }
    }
}

impl FlusherShared {
    fn run(&self, hook: &dyn DataSync) {
        let mut state = lock(&self.state);
        while !state.stop {
            if !state.asked {
                state = wait(&self.change, state);
                continue;
            }
            state.asked = false;
            drop(state);
            let call = std::panic::AssertUnwindSafe(|| hook.sync());
            let result = std::panic::catch_unwind(call)
                .unwrap_or_else(|_| Err(io::Error::other("the data sync panicked")));
            state = lock(&self.state);
            state.result = Some(result);
            self.change.notify_all();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.change.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ended without a panic, or its panic was reported where it happened.
            let _ = thread.join();
        }
    }
}
