//! Recalls of the ends of files: one thread publishes what was appended, and gives the ends back,
//! while others wait to open the files. Not the thread of the events: a target may not answer.
//! Where something stays to be done housekeeping goes on with it.

use super::{Listener, lock};
use crate::block_on::block_on;
use std::sync::{Condvar, Mutex, PoisonError};

#[derive(Default)]
struct Due {
    is_due: bool,
    is_ended: bool,
}

/// What wakes the thread.
#[derive(Default)]
pub(super) struct Recalls {
    due: Mutex<Due>,
    wakes: Condvar,
}

impl Recalls {
    /// The thread ends.
    pub(super) fn end(&self) {
        lock(&self.due).is_ended = true;
        self.wakes.notify_all();
    }

    /// False: the thread is to end.
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
    /// Others want an end.
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
