//! Requests about state in memory: sessions and events. [`appends`], [`reclaim`], [`locks`] and
//! [`traffic`] have the other requests of this kind.

mod appends;
mod locks;
mod reclaim;
mod traffic;

use crate::config::{Caller, Now};

use crate::outcome::{Outcome, WaitOn};
use crate::session::SessionRecord;
use crate::shard::{MetaShard, Waiting};

use std::sync::Arc;
use zonal_basics::const_u32;
use zonal_types::limits::{CACHE_TERM_MS, SESSION_TERM_MS};
use zonal_types::{
    ClientId, ClientIdentity, Codec, Epoch, ErrorCode, Holder, HolderNumber, KvChange, KvRead,
    SessionId, ZoneId, is_title,
};
use zonal_wire::{MetaReply, MetaRequest};

/// Share of a shard's sessions that a client may have: a quarter.
const SHARE: usize = 4;
/// Events in one reply.
const EVENTS_AT_ONCE: usize = 1024;
/// Longest wait for events, ms.
const POLL_WAIT_MS: u32 = 30_000;

impl MetaShard {
    /// Number that differs at each start of the shard.
    #[must_use]
    pub fn boot(&self) -> u64 {
        self.config.boot
    }

    /// Adds random bits for the number of the session that is opened next.
    pub fn add_chance(&mut self, bits: u64) {
        self.sessions.add_chance(bits);
    }

    /// Opens a session, or returns the session that the client has.
    pub(crate) fn open_session(
        &mut self,
        now: Now,
        from: Option<&Arc<Holder>>,
        (identity, zone, name): (ClientIdentity, ZoneId, &str),
    ) -> Result<Outcome, ErrorCode> {
        let client = identity.client;
        if !is_title(name) || client == ClientId(0) || !identity.is_valid() {
            return Err(ErrorCode::Invalid);
        }
        let mut record = SessionRecord {
            identity,
            zone,
            name: name.to_owned(),
            has_locked: false,
        };
        let holder = from.map(|holder| holder.subject.as_str());
        if holder.is_some_and(|holder| self.sessions.is_others(client, holder)) {
            return Err(ErrorCode::Access);
        }
        let number = HolderNumber::of(holder);
        if identity.incarnation < self.fencing.lowest(client, number) {
            return Err(ErrorCode::Fenced);
        }
        let known = self.sessions.of_client(client, from);
        let known = known.filter(|id| !self.fencing.is_ending(*id));
        let mut effect = Vec::new();
        let id = match known {
            Some(id) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    if identity < session.record.identity {
                        return Err(ErrorCode::Fenced);
                    }
                    session.last_seen = now.instant;
                    record.has_locked = session.record.has_locked;
                    if session.record != record {
                        session.record = record.clone();
                        effect.push(KvChange::put(crate::keys::session(id), record.to_bytes()));
                    }
                }
                id
            }
            None => {
                // A client with a proven subject leaves room for others.
                let own = holder.map_or(0, |holder| self.sessions.count_of_holder(holder));
                if self.sessions.len() >= self.config.sessions_max
                    || own >= self.config.sessions_max / SHARE
                {
                    return Err(ErrorCode::Overloaded);
                }
                let (id, changes) = self.add_session(now, record, holder.map(str::to_owned));
                effect.extend(changes);
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

    /// Adds a new session; also returns the changes to log.
    pub(crate) fn add_session(
        &mut self,
        now: Now,
        record: SessionRecord,
        holder: Option<String>,
    ) -> (SessionId, Vec<KvChange>) {
        let id = self.sessions.take_id();
        let mut effect = vec![
            KvChange::put(crate::keys::session_ids(), self.sessions.ids_record()),
            KvChange::put(crate::keys::session(id), record.to_bytes()),
        ];
        if let Some(holder) = &holder {
            let key = crate::keys::holder(id);
            effect.push(KvChange::put(key, holder.to_bytes()));
        }
        self.sessions.insert(id, record, holder, now.instant);
        self.events.open(id);
        (id, effect)
    }

    /// Answers requests about state in memory; `None` where the request needs the store.
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
            MetaRequest::EvictSession if let Some(effect) = self.begin_ending(now, session) => {
                // The caller retries until the session is unknown.
                let reply = failed(ErrorCode::NotReady);
                self.outcome(reply, effect, Vec::new(), Vec::new())
            }
            MetaRequest::CloseSession | MetaRequest::EvictSession => {
                // An evicted client has not said that it uses nothing any more.
                if matches!(request, MetaRequest::CloseSession) {
                    self.leases.session_closed(session);
                }
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
            MetaRequest::AppendBegin { .. }
            | MetaRequest::AppendAt { .. }
            | MetaRequest::LendEnd { .. }
            | MetaRequest::ReturnEnds { .. }
            | MetaRequest::GiveUpAppends { .. } => self.append_request(kv, now, session, request),
            MetaRequest::ReportTraffic { number, traffic } => {
                self.report_traffic(kv, now, session, *number, traffic)
            }
            MetaRequest::GetLock { .. }
            | MetaRequest::Lock { .. }
            | MetaRequest::Unlock { .. }
            | MetaRequest::CancelLock { .. }
            | MetaRequest::ReleaseLocks { .. } => self.lock_request(kv, now, caller, request)?,
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
            self.woken.insert(WaitOn::Acknowledgement(session));
        }
        // At its arrival only: the client counts from the sending.
        let is_renewed = match waited.until {
            None if self.config.caching => {
                let acked = self.events.acked(session);
                self.leases.renew(session, acked, now.instant)
            }
            _ => waited.is_renewed,
        };
        let events = self.events.poll(session, EVENTS_AT_ONCE);
        let until = waited
            .until
            .unwrap_or_else(|| now.instant.plus_ms(u64::from(wait_ms.min(POLL_WAIT_MS))));
        // A session from before our start must hear of the restart soon. Others wait until it has
        // reclaimed its state, and it must queue its locks again.
        let is_silent = self.sessions.silent.contains(&session);
        if events.is_empty() && now.instant < until && !is_silent && !is_first {
            let waiting = Waiting {
                until: Some(until),
                is_renewed,
                ..Waiting::default()
            };
            return self.wait(waiting, until, WaitOn::Events(session));
        }
        let lease_ms = if is_renewed {
            const { const_u32(CACHE_TERM_MS) }
        } else {
            0
        };
        self.reply(MetaReply::Events {
            boot,
            lease_ms,
            events,
        })
    }
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: zonal_wire::storage::ErrorNumber(code),
    }
}
