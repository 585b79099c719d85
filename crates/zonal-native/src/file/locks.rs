//! Locks of files: fcntl(2) locks on ranges with owners, and flock(2) locks on a whole file.
//!
//! A range without a named owner belongs to the handle and ends with it, like a lock of an open
//! file description. A named owner may use several handles; its locks through one handle end with
//! that handle. A waiting call returns with the grant, at its deadline, or when the shard refuses.

use super::OpenFile;
use crate::block_on::block_on;
use crate::error::Error;
use crate::lock_waiters::{LockWaiter, QueueOutcome, SignalOutcome};
use crate::native::{Call, GrantSender, granted};
use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use zonal_client::LockOutcome;
use zonal_types::ErrorCode;
pub use zonal_wire::LockKind;
use zonal_wire::LockRange;

/// Separates owners named by programs from handles.
const NAMED: u64 = 1 << 63;

/// A lock of a range or of a whole file.
///
/// ```
/// use zonal_native::{Lock, LockKind};
/// let head = Lock::range(LockKind::Exclusive, 0, 4095).owned_by(7);
/// let all = Lock::whole(LockKind::Shared);
/// # drop((head, all));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    kind: LockKind,
    whole_file: bool,
    start: u64,
    end: u64,
    owner: Option<u64>,
}

impl Lock {
    /// A lock of the bytes `start..=end`; `u64::MAX`: without end. It conflicts with fcntl(2) locks
    /// on mounts.
    #[must_use]
    pub fn range(kind: LockKind, start: u64, end: u64) -> Self {
        Self {
            kind,
            whole_file: false,
            start,
            end,
            owner: None,
        }
    }

    /// A lock of the whole file. It conflicts with flock(2) locks on mounts.
    #[must_use]
    pub fn whole(kind: LockKind) -> Self {
        Self {
            whole_file: true,
            ..Self::range(kind, 0, u64::MAX)
        }
    }

    /// For an owner of the program's choice: locks of one owner do not conflict. A lock of a whole
    /// file always belongs to its handle.
    #[must_use]
    pub fn owned_by(self, owner: u64) -> Self {
        Self {
            owner: Some(owner | NAMED),
            ..self
        }
    }
}

/// How long a call waits for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: EAGAIN where another owner holds it.
    No,
    /// At most this long, then EAGAIN.
    For(Duration),
    /// Until it is granted.
    ForEver,
}

/// Owners of locks taken through a handle. *Bound*: owners that hold locks, or held some.
#[derive(Default)]
pub(super) struct Owners(Mutex<BTreeSet<u64>>);

impl Owners {
    fn note(&self, owner: u64) {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        owners.insert(owner);
    }

    fn take(&self) -> BTreeSet<u64> {
        let mut owners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut owners)
    }
}

impl OpenFile {
    fn range_of(&self, lock: Lock) -> LockRange {
        LockRange {
            whole_file: lock.whole_file,
            owner: match lock.whole_file {
                true => self.handle,
                false => lock.owner.unwrap_or(self.handle),
            },
            handle: self.handle,
            number: self.inner.client.lock_number(),
            pid: std::process::id(),
            kind: lock.kind,
            start: lock.start,
            end: lock.end,
        }
    }

    /// Takes a lock; what its last holder wrote is seen then.
    ///
    /// ```no_run
    /// # use zonal_native::{Error, OpenFile, Lock, LockKind, Wait};
    /// # fn example(file: &OpenFile) -> Result<(), Error> {
    /// let all = Lock::whole(LockKind::Exclusive);
    /// file.lock(all, Wait::ForEver)?;
    /// file.pwrite(0, b"mine")?;
    /// file.unlock(all)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// EAGAIN where it is another's (and the time is over), EDEADLK, ENOLCK; a server that does not
    /// answer.
    pub fn lock(&self, lock: Lock, wait: Wait) -> Result<(), Error> {
        let call = self.inner.begin()?;
        if lock.start > lock.end {
            return Err(ErrorCode::Invalid.into());
        }
        let range = self.range_of(lock);
        if !lock.whole_file {
            self.owners.note(range.owner);
        }
        let limit = match wait {
            Wait::No => {
                let outcome = block_on(call.lock(self.file.ino, range, None));
                return Ok(granted(outcome)?);
            }
            Wait::For(limit) => Some(limit),
            Wait::ForEver => None,
        };
        Ok(self.wait_for_lock(&call, range, limit)?)
    }

    fn wait_for_lock(
        &self,
        call: &Call<'_>,
        range: LockRange,
        limit: Option<Duration>,
    ) -> Result<(), ErrorCode> {
        let (inner, ino) = (&*self.inner, self.file.ino);
        let number = inner.number();
        let (reply, told) = mpsc::sync_channel(1);
        let waiter = LockWaiter::<GrantSender> {
            ino,
            range,
            reply,
            is_sent: false,
            is_granted: false,
            is_interrupted: false,
        };
        inner.waiters.park(number, waiter);
        let outcome = block_on(call.lock(ino, range, Some(number)));
        match outcome {
            Ok(LockOutcome::Queued) => match inner.waiters.mark_sent(number) {
                QueueOutcome::Waits | QueueOutcome::Gone => {
                    self.wait_until_told(call, number, &told, limit)
                }
                QueueOutcome::Granted(waiter) => {
                    granted(block_on(call.lock_granted(ino, waiter.range)))
                }
                // No other call withdraws it before it is sent.
                QueueOutcome::Interrupted(_) => Err(ErrorCode::Interrupted),
            },
            // Another thread may have answered it.
            outcome => match inner.waiters.take(number) {
                Some(waiter) if waiter.is_granted && outcome.is_err() => {
                    granted(block_on(call.lock_granted(ino, waiter.range)))
                }
                _ => {
                    inner.signal.wake();
                    granted(outcome)
                }
            },
        }
    }

    fn wait_until_told(
        &self,
        call: &Call<'_>,
        number: u64,
        told: &Receiver<Result<(), ErrorCode>>,
        limit: Option<Duration>,
    ) -> Result<(), ErrorCode> {
        let inner = &*self.inner;
        let Some(limit) = limit else {
            return told.recv().unwrap_or(Err(ErrorCode::Interrupted));
        };
        match told.recv_timeout(limit) {
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(ErrorCode::Interrupted),
            Err(RecvTimeoutError::Timeout) => {}
        }
        match inner.waiters.take_interrupted(number) {
            SignalOutcome::Sent(waiter) => {
                let LockWaiter { ino, range, .. } = waiter;
                call.take_back_later(ino, range, Some(number));
                block_on(call.send_taken_back(ino, range));
                inner.signal.wake();
                Err(ErrorCode::WouldBlock)
            }
            // The grant is in flight.
            SignalOutcome::NotSent | SignalOutcome::Unknown => {
                told.recv().unwrap_or(Err(ErrorCode::WouldBlock))
            }
        }
    }

    /// Releases a lock or a part of one, after it has sent the writes under it.
    ///
    /// # Errors
    /// A server that does not answer: then the lock stays.
    pub fn unlock(&self, lock: Lock) -> Result<(), Error> {
        let call = self.inner.begin()?;
        let range = self.range_of(lock);
        let unlocked = block_on(call.unlock(self.file.ino, range));
        self.inner.signal.wake();
        Ok(unlocked?)
    }

    /// The first conflicting lock: kind, first and last byte, and the process, if it runs on this
    /// machine.
    ///
    /// # Errors
    /// A server that does not answer.
    pub fn test_lock(&self, lock: Lock) -> Result<Option<(LockKind, u64, u64, u32)>, Error> {
        let call = self.inner.begin()?;
        let range = LockRange {
            number: 0,
            ..self.range_of(lock)
        };
        let held = block_on(call.get_lock(self.file.ino, range))?;
        Ok(held.map(|held| (held.kind, held.start, held.end, held.pid)))
    }

    /// Releases all locks taken through this handle.
    pub(super) fn release_locks(&self, call: &Call<'_>) -> Result<(), ErrorCode> {
        let (ino, handle) = (self.file.ino, self.handle);
        let mut outcome = block_on(call.release_locks(ino, handle, true, Some(handle)));
        for owner in self.owners.take() {
            let released = call.release_locks(ino, owner, false, Some(handle));
            outcome = outcome.and(block_on(released));
        }
        outcome
    }
}
