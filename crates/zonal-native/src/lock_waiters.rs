//! Lock waiters: each parks the reply to a waiting lock request, until the shard grants it or a
//! signal withdraws it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Ino;
use zonal_wire::LockRange;

/// One waiting request.
#[derive(Debug)]
pub struct LockWaiter<R> {
    /// The inode.
    pub ino: Ino,
    /// The requested range.
    pub range: LockRange,
    /// How to answer; the taker of the waiter answers.
    pub reply: R,
    /// The shard has queued it. Before that, the worker that sends it handles a signal.
    pub is_sent: bool,
    /// The grant came before the reply "queued": the worker that sent it answers.
    pub is_granted: bool,
    /// A signal came while it was being sent: the worker that sends it answers.
    pub is_interrupted: bool,
}

/// State of a request after the shard has queued it, for the worker that sent it.
#[derive(Debug)]
pub enum QueueOutcome<R> {
    /// It waits.
    Waits,
    /// It is already granted.
    Granted(LockWaiter<R>),
    /// A signal came before it waited: withdraw it at the shard.
    Interrupted(LockWaiter<R>),
    /// It is already answered.
    Gone,
}

/// State of a request at a signal.
#[derive(Debug)]
pub enum SignalOutcome<R> {
    /// The shard has queued it: withdraw it there.
    Sent(LockWaiter<R>),
    /// It is being sent: its worker will see the signal.
    NotSent,
    /// No request waits for a lock.
    Unknown,
}

/// Waiting requests by their number, which is also the waiter's number at the shard.
#[derive(Debug)]
pub struct LockWaiters<R>(Mutex<BTreeMap<u64, LockWaiter<R>>>);

impl<R> Default for LockWaiters<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R> LockWaiters<R> {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, LockWaiter<R>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of waiting requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// True where none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map().is_empty()
    }

    /// Parks a request.
    pub fn park(&self, unique: u64, waiter: LockWaiter<R>) {
        self.map().insert(unique, waiter);
    }

    /// Takes a request to answer it; `None` where another thread did.
    #[must_use]
    pub fn take(&self, unique: u64) -> Option<LockWaiter<R>> {
        self.map().remove(&unique)
    }

    /// Notes that the shard has queued a request.
    #[must_use]
    pub fn mark_sent(&self, unique: u64) -> QueueOutcome<R> {
        let mut map = self.map();
        if let Some(waiter) = map.get_mut(&unique)
            && !waiter.is_granted
            && !waiter.is_interrupted
        {
            waiter.is_sent = true;
            return QueueOutcome::Waits;
        }
        match map.remove(&unique) {
            Some(waiter) if waiter.is_granted => QueueOutcome::Granted(waiter),
            Some(waiter) => QueueOutcome::Interrupted(waiter),
            None => QueueOutcome::Gone,
        }
    }

    /// Takes a granted request. `None` where its worker will see the grant, or a signal took it.
    #[must_use]
    pub fn take_granted(&self, unique: u64) -> Option<LockWaiter<R>> {
        let mut map = self.map();
        let waiter = map.get_mut(&unique)?;
        if waiter.is_sent {
            return map.remove(&unique);
        }
        waiter.is_granted = true;
        None
    }

    /// Takes a request after a signal.
    #[must_use]
    pub fn take_interrupted(&self, unique: u64) -> SignalOutcome<R> {
        let mut map = self.map();
        match map.get_mut(&unique) {
            Some(waiter) if waiter.is_sent => map
                .remove(&unique)
                .map_or(SignalOutcome::Unknown, SignalOutcome::Sent),
            Some(waiter) => {
                waiter.is_interrupted = true;
                SignalOutcome::NotSent
            }
            None => SignalOutcome::Unknown,
        }
    }

    /// True where a signal hit the caller of a request that is being sent.
    #[must_use]
    pub fn is_interrupted(&self, unique: u64) -> bool {
        let map = self.map();
        map.get(&unique).is_some_and(|waiter| waiter.is_interrupted)
    }
}
