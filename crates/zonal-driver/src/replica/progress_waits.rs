//! Waits for the progress of a log: each for one entry and all before it.
//!
//! *Lock order*: `ProgressWaits::table` is taken last; wakers run outside of it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use zonal_consensus::LogIndex;

/// All waits for one kind of progress.
#[derive(Debug, Default)]
pub(super) struct ProgressWaits {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    wakers: BTreeMap<(LogIndex, u64), Waker>,
    next: u64,
}

/// One wait.
pub(super) struct ProgressWait<'a> {
    waits: &'a ProgressWaits,
    upto: LogIndex,
    /// Its number, once it waits.
    number: Option<u64>,
}

impl ProgressWaits {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait for an entry. It costs nothing until [`ProgressWait::set`].
    pub(super) fn begin(&self, upto: LogIndex) -> ProgressWait<'_> {
        ProgressWait {
            waits: self,
            upto,
            number: None,
        }
    }

    /// Wakes the waits for entries up to here.
    pub(super) fn wake_up_to(&self, index: LogIndex) {
        let woken = {
            let mut table = self.table();
            let later = table.wakers.split_off(&(LogIndex(index.0 + 1), 0));
            std::mem::replace(&mut table.wakers, later)
        };
        woken.into_values().for_each(Waker::wake);
    }

    /// Wakes all waits.
    pub(super) fn wake_all(&self) {
        let woken = std::mem::take(&mut self.table().wakers);
        woken.into_values().for_each(Waker::wake);
    }
}

impl ProgressWait<'_> {
    /// Waits with this waker. Called under the mutex under which the progress is made.
    pub(super) fn set(&mut self, waker: &Waker) {
        let mut table = self.waits.table();
        let number = self.number.unwrap_or_else(|| {
            table.next += 1;
            table.next
        });
        self.number = Some(number);
        let before = table.wakers.insert((self.upto, number), waker.clone());
        drop(table);
        // Dropping a waker may run any code.
        drop(before);
    }
}

impl Drop for ProgressWait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let gone = self.waits.table().wakers.remove(&(self.upto, number));
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_wait_is_woken_by_its_entry_and_leaves_nothing() {
        let (waits, count) = (ProgressWaits::default(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut early = waits.begin(LogIndex(4));
        let mut late = waits.begin(LogIndex(5));
        early.set(&waker);
        late.set(&waker);
        waits.wake_up_to(LogIndex(3));
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        waits.wake_up_to(LogIndex(4));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        late.set(&waker);
        drop(late);
        assert!(waits.table().wakers.is_empty());
        waits.wake_all();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
