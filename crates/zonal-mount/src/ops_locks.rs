//! Locks. A waiting request is parked before it is sent, so that neither a grant nor a signal can
//! miss it.
//!
//! *Owners*. The kernel names an owner by the address of an open file (flock, OFD) or of a
//! process's file table (fcntl), and reuses addresses. For flock and OFD locks the reuse may come
//! before the RELEASE of the earlier open file, which the kernel sends without waiting. A handle's
//! number is never reused. So a flock belongs to the handle, and the end of a handle releases only
//! locks taken through it. The kernel waits for the end of a process's locks (FLUSH).
//!
//! *Signals*. A program that gets EINTR may repeat the request at once. So EINTR is answered only
//! after the withdrawal is noted; the owner's next request goes behind it. It is never answered
//! while the request is in flight: the worker that sent it learns the outcome, and a grant stays a
//! grant. If that takes long, the request is cancelled first (`lingers`).

use crate::background::{LastByte, LockCancel};
use crate::conversions::errno;
use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use zonal_client::LockOutcome;
use zonal_client::inode_cache::PendingPageVersion;
use zonal_fuse::request::Lock;
use zonal_fuse::{Context, Errno, FileLock, FuseLockKind as KernelKind, ReplyEmpty};
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

    /// Handles the grant of a waiting request.
    pub(crate) fn finish_waiter(&self, call: &KernelCall<'_>, ino: Ino, unique: u64) {
        if let Some(waiter) = self.waiters.take_granted(unique) {
            self.finish_granted(call, ino, waiter);
        }
    }

    /// Handles a restarted shard's refusal to queue a request again.
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

    /// Answers an error. Housekeeping tells a shard that did not answer that the lock is not
    /// wanted.
    fn answer_failed(&self, code: ErrorCode, reply: ReplyEmpty) {
        self.signal.wake();
        reply.err(errno(code));
    }

    /// Answers a grant after pages older than the lock are dropped. The notifier's thread does
    /// that: a drop waits for pages being read, and this worker may have to read them. Until then,
    /// other grants on the file drop the pages as well.
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

    /// The last byte of a file, where the kernel may know a shorter length.
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

    /// Handles a signal to the caller of a request: true where it waits for a lock.
    pub(crate) fn interrupt_waiter(&self, unique: u64) -> bool {
        match self.waiters.take_interrupted(unique) {
            SignalOutcome::Sent(waiter) => {
                self.take_back(unique, waiter);
                true
            }
            SignalOutcome::NotSent => {
                // A dying caller does not wait for the worker.
                self.signal.interrupted(unique);
                true
            }
            SignalOutcome::Unknown => {
                self.signal.interrupted(unique);
                false
            }
        }
    }

    /// Releases the flocks and OFD locks that remain when the last descriptor of a handle is
    /// closed.
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

/// Whether a cancelled request remains uncertain, and the client withdraws it at its shard.
fn leaves_unsure(code: ErrorCode) -> bool {
    use ErrorCode::{Interrupted, NotReady, Overloaded, TimedOut, Unreachable};
    matches!(
        code,
        Interrupted | NotReady | Overloaded | TimedOut | Unreachable
    )
}
