//! Recalls of ends of files: one thread publishes appended records and returns the ends, while
//! other clients wait to open the files. It is not the thread of the events, because a target may
//! not answer. Housekeeping continues what remains.

use super::{Listener, lock};
use crate::block_on::block_on;
use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
struct Due {
    is_due: bool,
    is_ended: bool,
}

/// Wakes the recalls thread.
#[derive(Default)]
pub(super) struct Recalls {
    due: Mutex<Due>,
    wakes: Condvar,
}

impl Recalls {
    /// Ends the thread.
    pub(super) fn end(&self) {
        lock(&self.due).is_ended = true;
        self.wakes.notify_all();
    }

    /// Waits for a recall; false at the end.
    fn wait(&self) -> bool {
        let mut due = lock(&self.due);
        while !due.is_due && !due.is_ended {
            due = self.wakes.wait(due).unwrap_or_else(PoisonError::into_inner);
        }
        due.is_due = false;
        !due.is_ended
    }
}

impl super::Signal {
    /// Signals a recall.
    pub(super) fn return_ends(&self) {
        lock(&self.recalls.due).is_due = true;
        self.recalls.wakes.notify_one();
    }
}

pub(super) fn run(listener: &impl Listener) {
    while listener.signal().recalls.wait() {
        if block_on(listener.client().background().return_ends()) {
            listener.signal().wake();
        }
    }
}
