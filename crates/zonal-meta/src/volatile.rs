//! Requests about what the shard keeps in memory: sessions, events, locks, closes, append tickets.

use crate::config::{Caller, Now};
use crate::locks::{Answer, Granted};
use crate::op;
use crate::outcome::{Outcome, WaitOn};
use crate::session::SessionRecord;
use crate::shard::{Shard, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::limits::{NAME_BYTES_MAX, SESSION_TERM_MS};
use zonal_types::{Codec, Epoch, ErrorCode, Ino, KvChange, KvRead, SessionId, ZoneId};
use zonal_wire::meta::LockRange;
use zonal_wire::{MetaReply, MetaRequest};

/// Events in one reply.
const EVENTS_AT_ONCE: usize = 1024;
/// Longest wait for events.
const POLL_WAIT_MS: u32 = 30_000;

impl Shard {
    /// Differs at each start.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.config.boot
    }

    /// Opens a session, or gives a client back the one that it has.
    pub(crate) fn open_session(
        &mut self,
        now: Now,
        client: u64,
        zone: ZoneId,
        name: &str,
    ) -> Result<Outcome, ErrorCode> {
        if name.len() > NAME_BYTES_MAX {
            return Err(ErrorCode::Invalid);
        }
        let record = SessionRecord {
            client,
            zone,
            name: name.to_owned(),
        };
        let known = self.sessions.of_client(client);
        let mut effect = Vec::new();
        let id = match known {
            Some(id) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.last_seen = now.instant;
                    if session.record != record {
                        session.record = record.clone();
                        effect.push(KvChange::put(crate::keys::session(id), record.to_bytes()));
                    }
                }
                id
            }
            None => {
                if self.sessions.len() >= self.config.sessions_max {
                    return Err(ErrorCode::Overloaded);
                }
                let id = self.sessions.take_id();
                effect.push(KvChange::put(
                    crate::keys::session_ids(),
                    self.sessions.ids_record(),
                ));
                effect.push(KvChange::put(crate::keys::session(id), record.to_bytes()));
                self.sessions.insert(id, record, now.instant);
                self.events.open(id);
                id
            }
        };
        let epoch = self
            .map
            .shard(self.config.shard)
            .map_or(Epoch(0), |shard| shard.epoch);
        let reply = MetaReply::Session {
            session: id,
            boot: self.config.boot,
            epoch,
            term_ms: SESSION_TERM_MS,
            now: now.wall,
            resumed: known.is_some(),
        };
        Ok(self.outcome(reply, effect, Vec::new(), Vec::new()))
    }

    /// Answers requests that work on memory; `None` where the request is about the store.
    pub(crate) fn run_volatile(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        waited: &Waiting,
    ) -> Result<Option<Outcome>, ErrorCode> {
        let session = caller.session;
        let outcome = match request {
            MetaRequest::PollEvents {
                boot,
                acked,
                wait_ms,
            } => self.poll(now, session, (*boot, *acked), *wait_ms, waited),
            MetaRequest::HasEntry { ino } if self.is_being_settled(*ino) => {
                zonal_types::mark!(SettledMeanwhile);
                return Err(ErrorCode::NotReady);
            }
            MetaRequest::CloseSession => {
                self.leases.session_closed(session);
                self.recheck = true;
                let (effect, _unread) = self.end_session(kv, now, session);
                self.outcome(MetaReply::Done, effect, Vec::new(), Vec::new())
            }
            MetaRequest::DropLeases => {
                self.leases.session_dropped(session);
                self.recheck = true;
                self.reply(MetaReply::Done)
            }
            MetaRequest::Reclaim { opens, locks } => self.reclaim(kv, now, session, opens, locks),
            MetaRequest::ReclaimAppends { appends } => {
                self.reclaim_appends(kv, now, session, appends)
            }
            MetaRequest::Close { inos } => self.close(kv, now, caller, inos)?,
            MetaRequest::AppendBegin { ino, length, limit } => {
                // Places that were reserved before our start may still be written to.
                let until = self.lock_grace_until;
                if now.instant < until && !self.sessions.silent.is_empty() {
                    zonal_types::mark!(AppendHeldBack);
                    return Ok(Some(self.wait(Waiting::default(), until, WaitOn::Recalls)));
                }
                let mut tickets = std::mem::take(&mut self.tickets);
                let mut tx = self.tx(kv, now, session);
                let result = op::append::begin(&mut tx, &mut tickets, *ino, *length, *limit);
                self.tickets = tickets;
                if let Ok(MetaReply::Appending { offset, .. }) = &result
                    && !self.sessions.silent.is_empty()
                {
                    self.tickets.note_given(*ino, *offset);
                }
                let reply = result.unwrap_or_else(failed);
                self.reply(reply)
            }
            MetaRequest::GetLock { .. }
            | MetaRequest::Lock { .. }
            | MetaRequest::Unlock { .. }
            | MetaRequest::CancelLock { .. }
            | MetaRequest::ReleaseLocks { .. } => self.lock_request(kv, now, session, request)?,
            _ => return Ok(None),
        };
        Ok(Some(outcome))
    }

    fn poll(
        &mut self,
        now: Now,
        session: SessionId,
        (heard, acked): (u64, u64),
        wait_ms: u32,
        waited: &Waiting,
    ) -> Outcome {
        let boot = self.config.boot;
        let is_first = heard != boot;
        if !is_first && self.events.ack(session, acked) {
            self.recheck = true;
        }
        let events = self.events.poll(session, EVENTS_AT_ONCE);
        let until = waited
            .until
            .unwrap_or_else(|| now.instant.plus_ms(u64::from(wait_ms.min(POLL_WAIT_MS))));
        // One from before our start must hear of it soon: others wait until it has told what it holds, and it queues its locks again.
        let is_silent = self.sessions.silent.contains(&session);
        if events.is_empty() && now.instant < until && !is_silent && !is_first {
            let waiting = Waiting {
                until: Some(until),
                ..Waiting::default()
            };
            return self.wait(waiting, until, WaitOn::Events(session));
        }
        self.reply(MetaReply::Events { boot, events })
    }

    /// What a session held before our restart.
    fn reclaim(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        opens: &[Ino],
        locks: &[(Ino, LockRange)],
    ) -> Outcome {
        let mut told: BTreeMap<Ino, u32> = BTreeMap::new();
        for ino in opens {
            *told.entry(*ino).or_default() += 1;
        }
        let locked: BTreeSet<Ino> = locks.iter().map(|(ino, _)| *ino).collect();
        // What does not exist takes no place.
        let mut absent = BTreeSet::new();
        for ino in told.keys().chain(&locked) {
            match self.tx(kv, now, session).inode(*ino) {
                // One that cannot be read is there.
                Ok(_) | Err(ErrorCode::Corrupt | ErrorCode::Io) => {}
                Err(_absent) => drop(absent.insert(*ino)),
            }
        }
        for (ino, count) in told.iter().filter(|(ino, _)| !absent.contains(ino)) {
            // Counts are made as high as told, not added to: the request may be repeated.
            while self.opens.count(*ino, session) < *count
                && (self.opens.count(*ino, session) > 0 || self.opens.len() < self.config.opens_max)
            {
                self.opens.open(*ino, session);
            }
        }
        let mut lost = false;
        for (ino, range) in locks.iter().filter(|(ino, _)| !absent.contains(ino)) {
            lost |= self.locks.reclaim(session, *ino, *range).is_err();
        }
        self.sessions.silent.remove(&session);
        if self.sessions.silent.is_empty() {
            self.tickets.forget_given();
        }
        self.recheck = true;
        let mut orphans = self.opens.orphans_of(session);
        orphans.retain(|ino| !told.contains_key(ino));
        let (effect, _unread) = self.release_orphans(kv, now, session, &orphans);
        let reply = if lost {
            failed(ErrorCode::UnknownLease)
        } else {
            MetaReply::Done
        };
        self.outcome(reply, effect, Vec::new(), Vec::new())
    }

    /// The session has these no longer open: changes to log, and why one stays. One that cannot be read goes on naming the session, also
    /// when that is over; each start of the shard tries again.
    fn release_orphans(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        inos: &[Ino],
    ) -> (Vec<KvChange>, Option<ErrorCode>) {
        let (mut effect, mut unread) = (Vec::new(), None);
        for ino in inos {
            let mut tx = self.tx(kv, now, session);
            match op::open::release_orphan(&mut tx, *ino) {
                Ok(()) => {
                    let finished = tx.finish();
                    effect.extend(finished.effect);
                    self.apply(session, now.instant, finished.volatile);
                }
                Err(code) => unread = Some(code),
            }
        }
        (effect, unread)
    }

    /// Places from before our restart that appends are being written to. What was published is none any more.
    fn reclaim_appends(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        appends: &[(Ino, (u64, u32))],
    ) -> Outcome {
        let mut is_gone = false;
        for (ino, place) in appends {
            if !self.tickets.is_known(*ino, session, place.0) {
                self.reclaim_append(kv, now, session, *ino, *place);
                is_gone |= !self.tickets.is_known(*ino, session, place.0);
            }
        }
        self.reply(if is_gone {
            failed(ErrorCode::UnknownLease)
        } else {
            MetaReply::Done
        })
    }

    /// A place that a session had before our restart and has not told of, where it was not given to another one since.
    pub(crate) fn reclaim_append(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        ino: Ino,
        place: (u64, u32),
    ) {
        if !self.sessions.silent.contains(&session) {
            return;
        }
        if let Ok(inode) = self.tx(kv, now, session).inode(ino)
            && inode.is_file()
        {
            self.tickets
                .reclaim(ino, session, place, inode.size, now.instant);
        }
    }

    fn close(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        inos: &[Ino],
    ) -> Result<Outcome, ErrorCode> {
        let session = caller.session;
        // One that has not told since our start what it has open: it counts these as open, and closes them when it has.
        if self.sessions.silent.contains(&session) {
            return Err(ErrorCode::NotReady);
        }
        let mut closed = inos.to_vec();
        closed.retain(|ino| self.opens.close(*ino, session));
        let (effect, _unread) = self.release_orphans(kv, now, session, &closed);
        if !effect.is_empty() && caller.slot != zonal_wire::frame::NO_SLOT {
            let kept = Some(MetaReply::Done);
            self.sessions
                .replied(session, caller.slot, caller.sequence, kept);
        }
        Ok(self.outcome(MetaReply::Done, effect, Vec::new(), Vec::new()))
    }

    fn lock_request(
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
            } => {
                self.tx(kv, now, session).inode(*ino)?;
                let others_may_reclaim =
                    self.sessions.silent.iter().any(|silent| *silent != session);
                if now.instant < self.lock_grace_until && others_may_reclaim {
                    zonal_types::mark!(LockHeldBack);
                    let until = self.lock_grace_until;
                    return Ok(self.wait(Waiting::default(), until, WaitOn::Recalls));
                }
                let (answer, granted) =
                    self.locks
                        .lock(session, *ino, *range, wait.then_some(*waiter))?;
                self.tell(granted);
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
            MetaRequest::CancelLock { ino, waiter } => {
                let granted = self.locks.cancel(session, *ino, *waiter)?;
                self.tell(granted);
                MetaReply::Done
            }
            MetaRequest::ReleaseLocks {
                ino,
                owner,
                whole_file,
            } => {
                let granted = self.locks.release_owner(session, *ino, *owner, *whole_file);
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
            self.woken.insert(session);
        }
        self.doomed.extend(self.events.take_overflowed());
    }

    /// A session is over: closed, expired or ended by us. Returns the changes to log, and why one of its orphans stays.
    pub(crate) fn end_session(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
    ) -> (Vec<KvChange>, Option<ErrorCode>) {
        self.tickets.session_gone(session);
        let orphans = self.opens.orphans_of(session);
        let (mut effect, unread) = self.release_orphans(kv, now, session, &orphans);
        self.opens.drop_session(session);
        self.events.close(session);
        self.doomed.remove(&session);
        if self.sessions.silent.iter().all(|silent| *silent == session) {
            self.tickets.forget_given();
        }
        let granted = self.locks.release_session(session);
        self.tell(granted);
        self.woken.insert(session);
        self.recheck = true;
        effect.extend(
            self.sessions
                .remove(session)
                .into_iter()
                .map(KvChange::remove),
        );
        (effect, unread)
    }
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: zonal_wire::storage::ErrorNumber(code),
    }
}
