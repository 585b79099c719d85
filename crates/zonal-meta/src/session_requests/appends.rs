//! Append requests: tickets behind the ends of files, and lent ends.

use super::failed;
use crate::append::lent_ends::EndRecall;
use crate::config::Now;
use crate::op;
use crate::outcome::{Outcome, WaitOn};
use crate::shard::{MetaShard, Waiting};
use crate::tx::{Finished, MemoryChange};
use zonal_types::{ErrorCode, Ino, KvRead, SessionId};
use zonal_wire::meta::Event;
use zonal_wire::{AppendPlace, MetaReply, MetaRequest};

impl MetaShard {
    pub(super) fn append_request(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        request: &MetaRequest,
    ) -> Outcome {
        let reply = match request {
            MetaRequest::AppendBegin { ino, length, limit } => {
                return self.begin_append(kv, now, session, (*ino, *length, *limit));
            }
            MetaRequest::AppendAt {
                ino,
                offset,
                length,
            } => self.append_at(kv, now, session, *ino, (*offset, *length)),
            MetaRequest::LendEnd { ino } => self.lend_end(kv, now, session, *ino),
            MetaRequest::ReturnEnds { inos } => {
                for ino in inos {
                    self.ends.give_back(*ino, session);
                    self.woken.insert(WaitOn::End(*ino));
                }
                Ok(MetaReply::Done)
            }
            MetaRequest::GiveUpAppends { appends } => {
                for (ino, offset) in appends {
                    self.tickets.give_up(*ino, session, *offset);
                    self.woken.insert(WaitOn::End(*ino));
                }
                Ok(MetaReply::Done)
            }
            _other => Err(ErrorCode::Protocol),
        };
        self.reply(reply.unwrap_or_else(failed))
    }

    fn begin_append(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        (ino, length, limit): (Ino, u32, u64),
    ) -> Outcome {
        if self.moves.closing == Some(ino.partition()) {
            // Before it asks, a client publishes what it gathered. It cannot give the end back
            // while it asks.
            self.ends.give_back(ino, session);
            return self.refuse(ErrorCode::NotReady);
        }
        // Places reserved before our start may still be written to.
        let until = self.lock_grace_until;
        if now.instant < until && !self.sessions.silent.is_empty() {
            zonal_types::mark!(AppendHeldBack);
            return self.wait(Waiting::default(), until, WaitOn::Recovery);
        }
        if let Some(since) = self.ends.wanted_since(ino) {
            let overdue = self.tickets.overdue(ino, since, now.instant);
            for holder in overdue {
                // Its writes there must not overwrite appends of others. So the holder is fenced,
                // and the place goes with its session.
                if holder != session && !self.fencing.is_ending(holder) {
                    self.doomed.insert(holder);
                }
            }
        }
        let is_written = self.tickets.has_any(ino);
        let recall = self
            .ends
            .recall(ino, session, now.instant, Some(is_written));
        if let EndRecall::Wait(until, told) = recall {
            self.want_end(ino, told);
            return self.wait(Waiting::default(), until, WaitOn::End(ino));
        }
        let mut tickets = std::mem::take(&mut self.tickets);
        let mut tx = self.tx(kv, now, session);
        let result = op::append::begin(&mut tx, &mut tickets, ino, length, limit);
        self.tickets = tickets;
        if let Ok(MetaReply::Appending { offset, .. }) = &result
            && !self.sessions.silent.is_empty()
        {
            self.tickets.note_new_place(ino, *offset);
        }
        self.reply(result.unwrap_or_else(failed))
    }

    fn append_at(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        ino: Ino,
        (offset, length): (u64, u32),
    ) -> Result<MetaReply, ErrorCode> {
        let inode = self.tx(kv, now, session).inode(ino)?;
        // A shard that lost its power may not know everything that was published. Nothing is put
        // behind a hole.
        if !self.ends.allows(ino, session, offset) || offset > inode.size {
            return Err(ErrorCode::UnknownLease);
        }
        let has_it = self.tickets.is_open(ino, session, offset);
        if !has_it && !self.ends.allows_more(ino, now.instant) {
            return Err(ErrorCode::UnknownLease);
        }
        let place = (offset, u64::from(length));
        self.tickets.begin_at(ino, session, place, now.instant)?;
        let data = inode.data(self.map.version);
        Ok(MetaReply::Appending { offset, data })
    }

    fn lend_end(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        ino: Ino,
    ) -> Result<MetaReply, ErrorCode> {
        let inode = self.tx(kv, now, session).inode(ino)?;
        if !inode.is_file() {
            return Err(ErrorCode::Invalid);
        }
        if self.moves.closing == Some(ino.partition()) {
            return Err(ErrorCode::Busy);
        }
        let is_alone = self.sessions.silent.is_empty()
            && self.opens.holders(ino).into_iter().eq([session])
            && !self.tickets.has_any(ino);
        if !is_alone {
            return Err(ErrorCode::Busy);
        }
        self.ends.lend(ino, session, inode.size)?;
        zonal_types::mark!(EndLent);
        let (offset, data) = (inode.size, inode.data(self.map.version));
        Ok(MetaReply::Appending { offset, data })
    }

    /// Sends a session a recall of an end that others want.
    fn want_end(&mut self, ino: Ino, told: Option<SessionId>) {
        if let Some(holder) = told {
            zonal_types::mark!(EndRecalled);
            self.queue_events(vec![(holder, Event::EndRecalled { ino })]);
        }
    }

    /// Recalls the end of a file from another session, where the request opens, truncates or
    /// extends the file. Returns a wait until the end has been given back.
    pub(crate) fn recall_end(
        &mut self,
        now: Now,
        session: SessionId,
        request: &MetaRequest,
        finished: &Finished,
        waited: &mut Waiting,
    ) -> Option<Outcome> {
        if self.ends.is_empty() {
            return None;
        }
        let by_request = match request {
            MetaRequest::Truncate { ino, .. }
            | MetaRequest::ReportWrite { ino, .. }
            | MetaRequest::DisownBehind { ino, .. } => Some(*ino),
            _other => None,
        };
        let by_change = finished.volatile.iter().find_map(|change| match change {
            MemoryChange::Open(ino) | MemoryChange::Truncated(ino, _) => Some(*ino),
            _other => None,
        });
        let ino = by_request.or(by_change)?;
        let EndRecall::Wait(until, told) = self.ends.recall(ino, session, now.instant, None) else {
            return None;
        };
        self.want_end(ino, told);
        Some(self.wait(std::mem::take(waited), until, WaitOn::End(ino)))
    }

    /// Restores an end that was lent to the session in a former life, where the session's view of
    /// it is current. Since then nobody may have got a place there or truncated the file.
    pub(super) fn reclaim_end(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        ino: Ino,
        place: AppendPlace,
    ) {
        let is_silent = self.sessions.silent.contains(&session);
        let inode = self.tx(kv, now, session).inode(ino);
        let is_same = inode.is_ok_and(|inode| {
            inode.is_file()
                && inode.size == place.offset
                && place
                    .left(inode.truncate_seq, inode.truncate_size)
                    .is_some()
        });
        let is_given = self.tickets.has_new_places(ino) || self.tickets.has_others(ino, session);
        if is_silent && is_same && !is_given && self.ends.lend(ino, session, place.offset).is_ok() {
            zonal_types::mark!(EndReclaimed);
            self.recall_shared(ino, session, now);
        }
    }

    /// `by` has reclaimed the open of a file. Recalls a lent end where another session holds it, or
    /// others have the file open.
    pub(super) fn recall_shared(&mut self, ino: Ino, by: SessionId, now: Now) {
        let holders = self.opens.holders(ino).into_iter().chain([by]);
        for holder in holders.collect::<Vec<_>>() {
            let told = self.ends.want(ino, holder, now.instant);
            self.want_end(ino, told);
        }
    }
}
