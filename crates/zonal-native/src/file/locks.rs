//! Locks of files: those of fcntl(2), by ranges with owners, and of flock(2), of a whole file.
//!
//! A range is owned by the handle, where no owner is named, and goes with it, as with open file
//! descriptions; a named owner may use several handles, and what it locked through one goes with
//! that. A program that waits is freed by the grant, by its deadline, or where the shard refuses.

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

/// Owners that programs name are apart from handles.
const NAMED: u64 = 1 << 63;

/// A lock.
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
    /// Of the bytes `start..=end`; `u64::MAX`: for ever behind. Meets the locks of fcntl(2) on
    /// mounts.
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

    /// Of the file. Meets the locks of flock(2) on mounts.
    #[must_use]
    pub fn whole(kind: LockKind) -> Self {
        Self {
            whole_file: true,
            ..Self::range(kind, 0, u64::MAX)
        }
    }

    /// For an owner of the program's choice: one owner's locks do not exclude one another. A lock
    /// of a whole file is always its handle's.
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
    /// Not at all: EAGAIN where it is another's.
    No,
    /// So long: then EAGAIN.
    For(Duration),
    /// Until it is granted.
    ForEver,
}

/// Whose locks were taken through a handle. *Bound*: owners that hold locks, or that did.
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
                // Nobody gives it up before it is sent.
                QueueOutcome::Interrupted(_) => Err(ErrorCode::Interrupted),
            },
            // Somebody else may have answered it.
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
            // It is being granted.
            SignalOutcome::NotSent | SignalOutcome::Unknown => {
                told.recv().unwrap_or(Err(ErrorCode::WouldBlock))
            }
        }
    }

    /// Releases a lock, or a part of one. What was written under it is sent first.
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

    /// The first lock that is in the way of this one: kind, first and last byte, and the process,
    /// where it is of this machine.
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

    /// All that was locked through this handle.
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
