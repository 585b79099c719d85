//! Lock requests that wait: the reply to whoever asked is parked until the shard grants or a signal
//! takes the request back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Ino;
use zonal_wire::LockRange;

/// One waiting request.
#[derive(Debug)]
pub struct LockWaiter<R> {
    /// The inode.
    pub ino: Ino,
    /// The range asked for.
    pub range: LockRange,
    /// How to answer; whoever takes the waiter does.
    pub reply: R,
    /// The shard has queued it. Before that the worker which sends it takes care of a signal.
    pub is_sent: bool,
    /// The grant was quicker than the reply that it is queued: the worker that sent it answers.
    pub is_granted: bool,
    /// A signal came while it was being sent: the worker that sends it answers.
    pub is_interrupted: bool,
}

/// What the worker that sent a request finds when the shard has queued it.
#[derive(Debug)]
pub enum QueueOutcome<R> {
    /// It waits.
    Waits,
    /// It was granted already.
    Granted(LockWaiter<R>),
    /// A signal came before it waited: it must be taken back at the shard.
    Interrupted(LockWaiter<R>),
    /// It was answered.
    Gone,
}

/// What a signal found.
#[derive(Debug)]
pub enum SignalOutcome<R> {
    /// A request that the shard has queued: it must be taken back there.
    Sent(LockWaiter<R>),
    /// A request that is being sent: its worker will see the signal.
    NotSent,
    /// No request that waits for a lock.
    Unknown,
}

/// Waiting requests by the number of the request, which is also the waiter's number at the shard.
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

    /// Requests that wait now.
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

    /// Takes a request to answer it; `None` where somebody else did.
    #[must_use]
    pub fn take(&self, unique: u64) -> Option<LockWaiter<R>> {
        self.map().remove(&unique)
    }

    /// The shard has queued it.
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

    /// The shard has granted it. `None` where its worker will see that, or a signal took it.
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

    /// Takes a request because of a signal.
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

    /// True where a request's caller was hit by a signal while it is being sent.
    #[must_use]
    pub fn is_interrupted(&self, unique: u64) -> bool {
        let map = self.map();
        map.get(&unique).is_some_and(|waiter| waiter.is_interrupted)
    }
}
