//! Lock requests: run on the lock table; granted waiters are told by events.

use super::failed;
use crate::config::{Caller, Now};
use crate::locks::{Granted, LockAnswer};
use crate::outcome::{Outcome, WaitOn};
use crate::shard::{MetaShard, Waiting, is_slotted};
use zonal_types::limits::{CACHE_GRACE_MS, CACHE_TERM_MS, FENCE_WAIT_MS, LOCKS_TOLD_MS};
use zonal_types::{Codec, ErrorCode, KvChange, KvRead, SessionId};
use zonal_wire::{MetaReply, MetaRequest};

impl MetaShard {
    pub(super) fn lock_request(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
    ) -> Result<Outcome, ErrorCode> {
        let session = caller.session;
        let reply = match request {
            MetaRequest::GetLock { ino, range } => {
                self.tx(kv, now, session).inode(*ino)?;
                let holder = self.locks.get(session, *ino, *range);
                MetaReply::Locked { holder }
            }
            MetaRequest::Lock {
                ino,
                range,
                wait,
                waiter,
                settled,
            } => {
                self.tx(kv, now, session).inode(*ino)?;
                if let Some(wait) = self.wait_for_reclaims(now, session) {
                    return Ok(wait);
                }
                let waiter = wait.then_some(*waiter);
                let (answer, granted) = self.locks.lock(session, *ino, *range, waiter, *settled)?;
                self.queue_events(granted);
                let reply = match answer {
                    LockAnswer::Granted => MetaReply::Done,
                    LockAnswer::Queued => failed(ErrorCode::LockQueued),
                    LockAnswer::Conflict => failed(ErrorCode::WouldBlock),
                };
                return Ok(self.locked(caller, request, reply));
            }
            MetaRequest::Unlock { ino, range } => {
                let granted = self.locks.unlock(session, *ino, *range)?;
                self.queue_events(granted);
                MetaReply::Done
            }
            MetaRequest::CancelLock {
                ino,
                range,
                waiter,
                before,
            } => {
                let waiter = Some(*waiter).filter(|waiter| *waiter != 0);
                let granted = self.locks.cancel(session, *ino, *range, waiter, before)?;
                self.queue_events(granted);
                MetaReply::Done
            }
            MetaRequest::ReleaseLocks {
                ino,
                owner,
                whole_file,
                handle,
                number,
            } => {
                let owner = (*owner, *whole_file);
                let granted = self
                    .locks
                    .release_owner(session, *ino, owner, *handle, *number);
                self.queue_events(granted);
                MetaReply::Done
            }
            _ => return Err(ErrorCode::Protocol),
        };
        Ok(self.reply(reply))
    }

    /// Waits after a restart while other sessions may still reclaim locks; `None` where none may.
    fn wait_for_reclaims(&mut self, now: Now, session: SessionId) -> Option<Outcome> {
        let mut silent = self.sessions.silent.iter();
        let is_grace = now.instant < self.lock_grace_until;
        let others = self.sessions.others_with_locks(session);
        if others.is_empty() && !(is_grace && silent.any(|silent| *silent != session)) {
            return None;
        }
        zonal_types::mark!(LockHeldBack);
        let mut until = self.lock_grace_until;
        if !is_grace {
            until = until.plus_ms(LOCKS_TOLD_MS - CACHE_TERM_MS - CACHE_GRACE_MS);
        }
        if now.instant >= until {
            // The holders may go on writing under their locks. So each session ends, fenced, before
            // another session gets the lock.
            let fencing = &self.fencing;
            let others = others
                .into_iter()
                .filter(|other| !fencing.is_ending(*other));
            self.late.extend(others);
            until = now.instant.plus_ms(FENCE_WAIT_MS);
        }
        Some(self.wait(Waiting::default(), until, WaitOn::Recovery))
    }

    /// Notes durably that a session has asked for a lock, so that the shard still knows after a
    /// restart.
    fn locked(&mut self, caller: Caller, request: &MetaRequest, reply: MetaReply) -> Outcome {
        let known = self.sessions.get_mut(caller.session);
        let Some(known) = known.filter(|known| !known.record.has_locked) else {
            return self.reply(reply);
        };
        known.record.has_locked = true;
        let key = crate::keys::session(caller.session);
        let effect = vec![KvChange::put(key, known.record.to_bytes())];
        if is_slotted(caller, request) {
            let kept = Some(reply.clone());
            self.sessions
                .replied(caller.session, caller.slot, caller.sequence, kept);
        }
        self.outcome(reply, effect, Vec::new(), Vec::new())
    }

    /// Queues events for waiters that were granted.
    pub(crate) fn queue_events(&mut self, granted: Vec<Granted>) {
        for (session, event) in granted {
            self.events.push(session, event);
            self.woken.insert(WaitOn::Events(session));
        }
        self.doomed.extend(self.events.take_overflowed());
    }
}
