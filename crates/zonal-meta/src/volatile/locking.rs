//! Requests about locks of programs: asked of the table, and told to who was let in.

use super::failed;
use crate::config::Now;
use crate::locks::{Answer, Granted};
use crate::outcome::{Outcome, WaitOn};
use crate::shard::{Shard, Waiting};
use zonal_types::{ErrorCode, KvRead, SessionId};
use zonal_wire::{MetaReply, MetaRequest};

impl Shard {
    pub(super) fn lock_request(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        request: &MetaRequest,
    ) -> Result<Outcome, ErrorCode> {
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
                let others_may_reclaim =
                    self.sessions.silent.iter().any(|silent| *silent != session);
                if now.instant < self.lock_grace_until && others_may_reclaim {
                    zonal_types::mark!(LockHeldBack);
                    let until = self.lock_grace_until;
                    return Ok(self.wait(Waiting::default(), until, WaitOn::Recovery));
                }
                let waiter = wait.then_some(*waiter);
                let (answer, granted) = self.locks.lock(session, *ino, *range, waiter, *settled)?;
                self.tell(granted);
                if others_may_reclaim && answer != Answer::Conflict {
                    self.locks.note_given(session, *ino, *range);
                }
                match answer {
                    Answer::Granted => MetaReply::Done,
                    Answer::Queued => failed(ErrorCode::LockQueued),
                    Answer::Conflict => failed(ErrorCode::WouldBlock),
                }
            }
            MetaRequest::Unlock { ino, range } => {
                let granted = self.locks.unlock(session, *ino, *range)?;
                self.tell(granted);
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
                self.tell(granted);
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
                self.tell(granted);
                MetaReply::Done
            }
            _ => return Err(ErrorCode::Protocol),
        };
        Ok(self.reply(reply))
    }

    /// Queues events for waiters that were granted.
    pub(crate) fn tell(&mut self, granted: Vec<Granted>) {
        for (session, event) in granted {
            self.events.push(session, event);
            self.woken.insert(WaitOn::Events(session));
        }
        self.doomed.extend(self.events.take_overflowed());
    }
}
