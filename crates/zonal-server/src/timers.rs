//! Timers of waiting requests and tasks, on one thread for a process's shard; it sleeps until the
//! earliest.
//!
//! *Lock order*: `Timers::table` is taken last; wakers run outside of it.

use crate::clock;
use crate::replica_role::leave_to_others;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use zonal_types::Instant;

/// All timers.
#[derive(Default)]
pub(crate) struct Timers {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    wakers: BTreeMap<(Instant, u64), Waker>,
    next: u64,
    is_stopping: bool,
}

impl Timers {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system refuses one.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let timers = Arc::clone(self);
        let thread = std::thread::Builder::new().name("timers".into());
        thread.spawn(move || timers.run())
    }

    fn run(&self) {
        let mut table = self.table();
        while !table.is_stopping {
            let now = clock::instant();
            let later = table.wakers.split_off(&(now, u64::MAX));
            let due = std::mem::replace(&mut table.wakers, later);
            if !due.is_empty() {
                drop(table);
                due.into_values().for_each(Waker::wake);
                table = self.table();
                continue;
            }
            table = match table.wakers.first_key_value() {
                None => {
                    let woken = self.changed.wait(table);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(((at, _), _)) => {
                    let left = clock::until(*at);
                    let woken = self.changed.wait_timeout(table, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Ends the thread. All timers are over from now on: who sleeps goes on at once, and finds that
    /// its task is to end.
    pub(crate) fn stop(&self) {
        let left = {
            let mut table = self.table();
            table.is_stopping = true;
            std::mem::take(&mut table.wakers)
        };
        self.changed.notify_all();
        left.into_values().for_each(Waker::wake);
    }

    /// A future that is ready at `until`.
    pub(crate) fn sleep_until(&self, until: Instant) -> Sleep<'_> {
        Sleep {
            timers: self,
            until,
            number: None,
        }
    }

    /// Number of timers.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.table().wakers.len()
    }
}

/// One timer.
pub(crate) struct Sleep<'a> {
    timers: &'a Timers,
    until: Instant,
    number: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if clock::instant() >= self.until {
            return Poll::Ready(());
        }
        let timers = self.timers;
        let mut table = timers.table();
        if table.is_stopping {
            return Poll::Ready(());
        }
        let number = self.number.unwrap_or_else(|| {
            table.next += 1;
            table.next
        });
        self.number = Some(number);
        let place = (self.until, number);
        let before = table.wakers.insert(place, context.waker().clone());
        let is_first = before.is_none() && table.wakers.keys().next() == Some(&place);
        drop(table);
        // Dropping a waker may run any code.
        drop(before);
        if is_first {
            timers.changed.notify_all();
        }
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let gone = self.timers.table().wakers.remove(&(self.until, number));
            drop(gone);
        }
    }
}

/// Wakes a thread that is parked.
pub(crate) struct Unpark(pub(crate) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => {
                leave_to_others();
                std::thread::park();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_futures_wake_in_time_and_leave_no_timers() {
        let timers = Arc::new(Timers::default());
        let thread = timers.start().unwrap();
        let begun = clock::instant();
        std::thread::scope(|scope| {
            for ms in [30, 10, 20] {
                let timers = &timers;
                scope.spawn(move || {
                    let until = begun.plus_ms(ms);
                    block_on(timers.sleep_until(until));
                    assert!(clock::instant() >= until);
                });
            }
        });
        assert_eq!(timers.len(), 0);
        let mut dropped = Box::pin(timers.sleep_until(begun.plus_ms(600_000)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(dropped.as_mut().poll(&mut context).is_pending());
        assert_eq!(timers.len(), 1);
        drop(dropped);
        assert_eq!(timers.len(), 0);
        timers.stop();
        thread.join().unwrap();
    }

    /// A leader that is deposed while it waits between two messages of a move must end that wait:
    /// its replica begins no other reign before.
    #[test]
    fn the_end_of_the_timers_ends_all_sleeps() {
        let timers = Arc::new(Timers::default());
        let thread = timers.start().unwrap();
        let until = clock::instant().plus_ms(600_000);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| block_on(timers.sleep_until(until)));
            while timers.len() == 0 {
                std::thread::yield_now();
            }
            timers.stop();
            sleeper.join().unwrap();
        });
        block_on(timers.sleep_until(until));
        thread.join().unwrap();
    }
}
