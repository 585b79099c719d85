//! Waits: which request waits for which event in a shard, so that a change wakes only the requests
//! concerned.
//!
//! A wait is registered under the shard's mutex and woken under it or later, so no wake-up is lost.
//! *Lock order*: `Waits::table` is taken last; wakers run outside of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use zonal_meta::WaitOn;
use zonal_types::SessionId;

/// The event that a wait is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// The event that a request waits for.
    Request(WaitOn),
    /// An earlier deadline for housekeeping.
    Housekeeping,
    /// Objects or directories to delete.
    Deletions,
    /// Clients to fence.
    Fences,
    /// A partition that is to leave the shard, or has come.
    Moves,
    /// The end of the pause between load reports.
    LoadReports,
}

#[derive(Debug, Default)]
enum Entry {
    #[default]
    Unpolled,
    Waits(Waker),
    Woken,
}

/// All waits of a shard.
#[derive(Debug, Default)]
pub(super) struct Waits {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<(Key, u64), Entry>,
    next: u64,
}

impl Waits {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a wait. Called under the shard's mutex.
    pub(super) fn register(&self, key: Key) -> Wait<'_> {
        let mut table = self.table();
        table.next += 1;
        let place = (key, table.next);
        table.entries.insert(place, Entry::default());
        Wait { waits: self, place }
    }

    /// Ends all waits for `key`.
    pub(super) fn wake(&self, key: Key) {
        self.wake_range((key, 0), (key, u64::MAX));
    }

    /// Ends all waits of requests except those for events.
    pub(super) fn wake_but_events(&self) {
        let first = WaitOn::Acknowledgement(SessionId(0));
        self.wake_range(
            (Key::Request(first), 0),
            (Key::Request(WaitOn::Recovery), u64::MAX),
        );
    }

    /// Ends all waits.
    pub(super) fn wake_all(&self) {
        let first = WaitOn::Events(SessionId(0));
        self.wake_range((Key::Request(first), 0), (Key::LoadReports, u64::MAX));
    }

    fn wake_range(&self, first: (Key, u64), last: (Key, u64)) {
        let woken: Vec<Waker> = {
            let mut table = self.table();
            let range = table.entries.range_mut(first..=last);
            let woken =
                range.filter_map(
                    |(_place, entry)| match std::mem::replace(entry, Entry::Woken) {
                        Entry::Waits(waker) => Some(waker),
                        Entry::Unpolled | Entry::Woken => None,
                    },
                );
            woken.collect()
        };
        for waker in woken {
            waker.wake();
        }
    }

    /// Number of waits.
    pub(super) fn len(&self) -> usize {
        self.table().entries.len()
    }
}

/// One wait; ready once it is woken.
pub(super) struct Wait<'a> {
    waits: &'a Waits,
    place: (Key, u64),
}

impl Future for Wait<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.waits.table().entries.get_mut(&self.place) {
            Some(Entry::Woken) | None => Poll::Ready(()),
            Some(entry) => {
                *entry = Entry::Waits(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let gone = self.waits.table().entries.remove(&self.place);
        // Dropping a waker may run any code, so it happens outside of the lock.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    fn is_ready(wait: &mut Pin<&mut Wait<'_>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        wait.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn a_wake_ends_the_waits_for_its_key_alone() {
        let waits = Waits::default();
        let mut mine = pin!(waits.register(Key::Request(WaitOn::Events(SessionId(5)))));
        let mut others = pin!(waits.register(Key::Request(WaitOn::Events(SessionId(6)))));
        assert!(!is_ready(&mut mine) && !is_ready(&mut others));
        waits.wake(Key::Request(WaitOn::Events(SessionId(5))));
        assert!(is_ready(&mut mine) && !is_ready(&mut others));
        waits.wake_all();
        assert!(is_ready(&mut others));
    }

    #[test]
    fn a_wake_before_the_first_poll_is_not_lost_and_one_before_the_wait_does_not_count() {
        let waits = Waits::default();
        waits.wake(Key::Request(WaitOn::Recovery));
        let mut wait = pin!(waits.register(Key::Request(WaitOn::Recovery)));
        assert!(!is_ready(&mut wait));
        let mut early = pin!(waits.register(Key::Request(WaitOn::Recovery)));
        waits.wake(Key::Request(WaitOn::Recovery));
        assert!(is_ready(&mut early));
    }

    #[test]
    fn a_recheck_ends_the_waits_of_requests_but_not_those_for_events() {
        let waits = Waits::default();
        let (one, ino) = (SessionId(u64::MAX), zonal_types::Ino(u64::MAX));
        let mut events = pin!(waits.register(Key::Request(WaitOn::Events(one))));
        let mut recall = pin!(waits.register(Key::Request(WaitOn::Acknowledgement(one))));
        let mut end = pin!(waits.register(Key::Request(WaitOn::End(ino))));
        let mut own = pin!(waits.register(Key::Housekeeping));
        waits.wake_but_events();
        assert!(is_ready(&mut recall) && is_ready(&mut end));
        assert!(!is_ready(&mut events) && !is_ready(&mut own));
    }

    #[test]
    fn a_dropped_wait_leaves_nothing() {
        let waits = Waits::default();
        drop(waits.register(Key::Fences));
        assert_eq!(waits.len(), 0);
    }
}
