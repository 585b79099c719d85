//! Locks. A waiting request is parked before it is sent, so that neither a grant nor a signal can
//! miss it.
//!
//! *Owners*. The kernel names an owner by the address of an open file (flock, OFD) or of a
//! process's table of them (fcntl), and uses it again: for flock and OFD locks perhaps before the
//! end of the former open file, which is told without waiting for us, has arrived. A handle's
//! number is never used again. So a flock belongs to the handle itself, and the end of a handle
//! releases only what was locked through it. The end of a process's locks (FLUSH) is awaited by the
//! kernel.
//!
//! *Signals*. A program that hears EINTR may ask again at once. So EINTR is answered when the
//! request has been remembered as taken back (the same owner's next request is sent behind that),
//! and never while it is on its way: the worker that sent it then knows what came of it. A grant is
//! then a grant. Where that takes long the request is given up first (`lingers`).

use crate::background::{LastByte, LockCancel};
use crate::conversions::errno;
use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use zonal_client::LockOutcome;
use zonal_client::page_validity::PendingPageVersion;
use zonal_fuse::request::Lock;
use zonal_fuse::{Context, Errno, FileLock, LockKind as KernelKind, ReplyEmpty};
use zonal_native::block_on;
use zonal_native::lock_waiters::{LockWaiter, QueueOutcome, SignalOutcome};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{LockKind, LockRange};

fn range_of(lock: &Lock, number: u64) -> LockRange {
    LockRange {
        whole_file: lock.flock,
        owner: if lock.flock { lock.fh } else { lock.owner },
        handle: lock.fh,
        number,
        pid: lock.pid,
        kind: if lock.kind == KernelKind::Read {
            LockKind::Shared
        } else {
            LockKind::Exclusive
        },
        start: if lock.flock { 0 } else { lock.start },
        end: if lock.flock { u64::MAX } else { lock.end },
    }
}

impl ZonalFs {
    pub(crate) fn do_getlk(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        lock: &Lock,
    ) -> Result<FileLock, ErrorCode> {
        let call = self.begin(ctx);
        let range = range_of(lock, 0);
        Ok(match block_on(call.get_lock(ino, range))? {
            Some(held) => FileLock {
                start: held.start,
                end: held.end,
                kind: if held.kind == LockKind::Shared {
                    KernelKind::Read
                } else {
                    KernelKind::Write
                },
                pid: held.pid,
            },
            None => FileLock {
                start: range.start,
                end: range.end,
                kind: KernelKind::Unlock,
                pid: 0,
            },
        })
    }

    pub(crate) fn do_setlk(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        lock: &Lock,
        wait: bool,
        reply: ReplyEmpty,
    ) {
        let call = self.begin(ctx);
        self.is_opened(ino, lock.fh);
        let range = range_of(lock, self.client.lock_number());
        if lock.kind == KernelKind::Unlock {
            return match block_on(call.unlock(ino, range)) {
                Ok(()) => reply.ok(),
                Err(code) => reply.err(errno(code)),
            };
        }
        if !lock.flock {
            self.handle_locks.note(lock.fh, lock.owner);
        }
        if !wait {
            return match block_on(call.lock(ino, range, None)) {
                Ok(LockOutcome::Granted { changed }) => {
                    self.answer_granted(&call, ino, changed, reply);
                }
                Ok(LockOutcome::Queued) => reply.err(Errno::IO),
                Err(code) => self.answer_failed(code, reply),
            };
        }
        self.wait_for_lock(&call, ctx, ino, range, reply);
    }

    fn wait_for_lock(
        &self,
        call: &KernelCall<'_>,
        ctx: &Context<'_>,
        ino: Ino,
        range: LockRange,
        reply: ReplyEmpty,
    ) {
        let unique = reply.unique();
        self.waiters.park(
            unique,
            LockWaiter {
                ino,
                range,
                reply,
                is_sent: false,
                is_granted: false,
                is_interrupted: false,
            },
        );
        if ctx.interrupted()
            && let Some(waiter) = self.waiters.take(unique)
        {
            // Nothing was sent.
            return waiter.reply.err(Errno::INTR);
        }
        match block_on(call.lock(ino, range, Some(unique))) {
            Ok(LockOutcome::Granted { changed }) => {
                if let Some(waiter) = self.waiters.take(unique) {
                    self.answer_granted(call, ino, changed, waiter.reply);
                }
            }
            Ok(LockOutcome::Queued) => match self.waiters.mark_sent(unique) {
                QueueOutcome::Waits | QueueOutcome::Gone => {}
                QueueOutcome::Granted(waiter) => self.finish_granted(call, ino, waiter),
                QueueOutcome::Interrupted(waiter) => self.take_back(unique, waiter),
            },
            Err(code) => match self.waiters.take(unique) {
                Some(waiter) if waiter.is_granted => self.finish_granted(call, ino, waiter),
                Some(waiter) if waiter.is_interrupted && leaves_unsure(code) => {
                    self.answer_failed(ErrorCode::Interrupted, waiter.reply);
                }
                Some(waiter) => self.answer_failed(code, waiter.reply),
                None => {}
            },
        }
    }

    /// The shard granted a request that waited.
    pub(crate) fn finish_waiter(&self, call: &KernelCall<'_>, ino: Ino, unique: u64) {
        if let Some(waiter) = self.waiters.take_granted(unique) {
            self.finish_granted(call, ino, waiter);
        }
    }

    /// A restarted shard did not queue it again.
    pub(crate) fn refuse_waiter(&self, unique: u64, code: ErrorCode) {
        if let Some(waiter) = self.waiters.take(unique) {
            waiter.reply.err(errno(code));
        }
    }

    fn finish_granted(&self, call: &KernelCall<'_>, ino: Ino, waiter: LockWaiter<ReplyEmpty>) {
        match block_on(call.lock_granted(ino, waiter.range)) {
            Ok(LockOutcome::Granted { changed }) => {
                self.answer_granted(call, ino, changed, waiter.reply);
            }
            Ok(LockOutcome::Queued) => waiter.reply.err(Errno::IO),
            Err(code) => self.answer_failed(code, waiter.reply),
        }
    }

    /// Answers EINTR to a request that is queued at the shard.
    fn take_back(&self, unique: u64, waiter: LockWaiter<ReplyEmpty>) {
        let LockWaiter { ino, range, .. } = waiter;
        self.client.take_back_later(ino, range, Some(unique));
        waiter.reply.err(Errno::INTR);
        if !self.signal.cancel(LockCancel { ino, range }) {
            self.signal.wake();
        }
    }

    /// A shard that did not answer is to be told that the lock is not wanted: housekeeping does.
    fn answer_failed(&self, code: ErrorCode, reply: ReplyEmpty) {
        self.signal.wake();
        reply.err(errno(code));
    }

    /// Pages that are older than the lock are dropped before its holder can read them. Done by the
    /// notifier's thread, as that waits for pages which are being read, and this worker may be the
    /// one to read them. Until it is done others that get a lock of the file have them dropped as
    /// well.
    fn answer_granted(
        &self,
        call: &KernelCall<'_>,
        ino: Ino,
        changed: Option<PendingPageVersion>,
        reply: ReplyEmpty,
    ) {
        match (self.notifier.get(), changed) {
            (Some(notifier), Some(changed)) => {
                let last = self.last_byte(call, ino);
                self.signal
                    .answer_after_drop(notifier, ino.0, (changed, last), reply);
            }
            _ => reply.ok(),
        }
    }

    /// The last byte of a file that the kernel may take to be shorter, and the size.
    fn last_byte(&self, call: &KernelCall<'_>, ino: Ino) -> Option<LastByte> {
        let file = self.client.file(ino)?;
        let size = file.size();
        let at = size.checked_sub(1)?;
        if !self.page_tails.may_be_longer(ino, size) {
            return None;
        }
        let mut byte = [0];
        let read = block_on(call.read(&file, at, &mut byte));
        (read == Ok(1)).then_some(LastByte { at, byte })
    }

    /// A signal hit the caller of a request: true where it waits for a lock.
    pub(crate) fn interrupt_waiter(&self, unique: u64) -> bool {
        match self.waiters.take_interrupted(unique) {
            SignalOutcome::Sent(waiter) => {
                self.take_back(unique, waiter);
                true
            }
            SignalOutcome::NotSent => {
                // A caller that is to die does not wait for the worker.
                self.signal.interrupted(unique);
                true
            }
            SignalOutcome::Unknown => {
                self.signal.interrupted(unique);
                false
            }
        }
    }

    /// What is still locked through a handle when its last descriptor is closed are flocks and OFD
    /// locks.
    pub(crate) fn release_handle_locks(
        &self,
        call: &KernelCall<'_>,
        ino: Ino,
        fh: u64,
    ) -> Result<(), ErrorCode> {
        let flock = block_on(call.release_locks(ino, fh, true, Some(fh)));
        for owner in self.handle_locks.take(fh) {
            let released = block_on(call.release_locks(ino, owner, false, Some(fh)));
            if let Err(error) = released {
                tracing::warn!(%ino, %error, "locks of a closed handle not released");
            }
        }
        flock
    }
}

/// A request that was given up, and that the client takes back at its shard.
fn leaves_unsure(code: ErrorCode) -> bool {
    use ErrorCode::{Interrupted, NotReady, Overloaded, TimedOut, Unreachable};
    matches!(
        code,
        Interrupted | NotReady | Overloaded | TimedOut | Unreachable
    )
}
