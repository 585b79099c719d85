//! Housekeeping: one thread sends closes and flushes old writes; it sleeps while there is no work.

use super::{Listener, Signal, lock};
use crate::block_on::block_on;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Time to gather closes, and interval of searches for old writes.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// Wakes the housekeeping thread.
#[derive(Default)]
pub(super) struct HousekeepingSignal {
    has_work: AtomicBool,
    is_due: Mutex<bool>,
    wakes: Condvar,
}

impl HousekeepingSignal {
    /// Wakes the thread for the last time.
    pub(super) fn end(&self) {
        *lock(&self.is_due) = true;
        self.wakes.notify_all();
    }
}

impl Signal {
    /// Signals work: a flush or a close. Cheap where it is known already.
    pub fn wake(&self) {
        if !self.house.has_work.swap(true, Ordering::SeqCst) {
            *lock(&self.house.is_due) = true;
            self.house.wakes.notify_one();
        }
    }

    /// Waits so that closes and writes come together; the end cuts it short.
    fn gather(&self) {
        let is_due = lock(&self.house.is_due);
        let wakes = &self.house.wakes;
        let slept = wakes.wait_timeout_while(is_due, HOUSEKEEPING, |_| !self.is_ended());
        drop(slept.unwrap_or_else(PoisonError::into_inner));
    }
}

pub(super) fn run(listener: &impl Listener) {
    let signal = listener.signal();
    while !signal.is_ended() {
        {
            let mut is_due = lock(&signal.house.is_due);
            while !*is_due {
                is_due = signal
                    .house
                    .wakes
                    .wait(is_due)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            *is_due = false;
        }
        signal.house.has_work.store(false, Ordering::SeqCst);
        signal.gather();
        listener.keep_house();
        if block_on(listener.client().background().keep_house()) {
            signal.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_end_interrupts_the_gathering_of_work() {
        let signal = Signal::default();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let gathers = scope.spawn(|| {
                signal.gather();
                begun.elapsed()
            });
            // More work does not stop the wait.
            signal.wake();
            assert!(gathers.join().unwrap() >= HOUSEKEEPING);
        });
        signal.end();
        let begun = Instant::now();
        signal.gather();
        assert!(begun.elapsed() < HOUSEKEEPING);
    }
}
