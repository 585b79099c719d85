//! Requests that wait for a change: they hold a connection each, and no thread.
//!
//! One thread looks at all of them when something changed. It looks each [`TICK`] too, as nothing
//! wakes it for a new zone map or the time. Due requests go to the threads that answer.

use super::request_heads::CompleteHead;
use std::io::ErrorKind;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Requests that wait at once; one more is refused with 503.
const WATCHERS_MAX: usize = 256;

/// Time after which a change is seen at the latest.
const TICK: Duration = Duration::from_millis(250);

/// A request that waits for a change behind a version.
pub(super) struct Watcher {
    pub(super) head: CompleteHead,
    pub(super) since: u64,
    pub(super) until: Instant,
}

impl Watcher {
    /// Whether the client closed its connection.
    fn is_gone(&self) -> bool {
        // The stream does not block. More bytes of a client are left where they are.
        match self.head.stream.peek(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// All waiting requests.
#[derive(Default)]
pub(super) struct Watchers {
    waiting: Mutex<Vec<Watcher>>,
    thread: OnceLock<Thread>,
}

impl Watchers {
    /// Adds a request; gives it back where too many wait.
    pub(super) fn add(&self, watcher: Watcher) -> Option<Watcher> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= WATCHERS_MAX {
            return Some(watcher);
        }
        waiting.push(watcher);
        drop(waiting);
        self.wake();
        None
    }

    /// Has the thread look at the requests now.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Hands over what is due until `is_ending`; the thread that calls it is the one that waits.
    pub(super) fn run(
        &self,
        give: &SyncSender<CompleteHead>,
        is_ending: impl Fn() -> bool,
        version: impl Fn() -> Option<u64>,
    ) {
        let _ = self.thread.set(std::thread::current());
        while !is_ending() {
            let is_empty = self.lock_is_empty();
            match is_empty {
                true => std::thread::park(),
                false => {
                    if let Some(version) = version() {
                        self.hand_over(version, give);
                    }
                    std::thread::park_timeout(TICK);
                }
            }
        }
    }

    fn lock_is_empty(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.is_empty()
    }

    fn hand_over(&self, version: u64, give: &SyncSender<CompleteHead>) {
        let now = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let all = std::mem::take(&mut *waiting);
        for mut watcher in all {
            if watcher.is_gone() {
                continue;
            }
            if watcher.since == version && now < watcher.until {
                waiting.push(watcher);
                continue;
            }
            let (since, until) = (watcher.since, watcher.until);
            watcher.head.waited_since = Some(since);
            // Where the queue is full, the request waits for the next look.
            if let Err(TrySendError::Full(mut head)) = give.try_send(watcher.head) {
                head.waited_since = None;
                waiting.push(Watcher { head, since, until });
            }
        }
    }
}
