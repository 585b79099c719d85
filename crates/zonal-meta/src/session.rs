//! Sessions and their slots.
//!
//! A session belongs to the client that opened it. Where its connection proved a subject, the
//! subject is stored beside it. Its number has 64 random bits, so that nobody can guess one.
//!
//! Sessions, and the last reply with an effect of each slot, are durable. Replies without an effect
//! are in memory only: after a restart the request simply runs again. A slot's sequence must rise;
//! a repeat of the last sequence gets the last reply. The sequence may rise by more than one,
//! because a restart forgets requests without an effect.

use crate::keys;
use crate::outcome::LostClient;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use zonal_types::limits::{SESSION_SLOTS_MAX, SESSION_TERM_MS};
use zonal_types::{
    ClientId, ClientIdentity, Codec, ErrorCode, Holder, Instant, KvRead, SessionId, ZoneId,
    codec_struct,
};
use zonal_wire::MetaReply;

codec_struct! {
    /// The stored session.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionRecord {
        /// The client, as it opened the session last.
        identity: ClientIdentity,
        /// The client's zone.
        zone: ZoneId,
        /// The client's name, for people.
        name: String,
        /// It has asked for a lock: after a start of the shard it may reclaim some.
        has_locked: bool,
    }
}

codec_struct! {
    /// The stored slot.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SlotRecord {
        /// Sequence of the last request with an effect.
        sequence: u32,
        /// Its reply.
        reply: MetaReply,
    }
}

#[derive(Debug)]
struct Slot {
    sequence: u32,
    /// `None`: the reply is in the store.
    reply: Option<Box<MetaReply>>,
    /// Executed before our start, and not repeated since: files that it opened are not counted yet.
    is_from_before: bool,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub record: SessionRecord,
    /// The subject that opened it. `None`: its client did not have to prove one.
    pub holder: Option<String>,
    pub last_seen: Instant,
    /// It answers nothing any more, and ends once its client is fenced.
    pub is_ending: bool,
    /// It has reclaimed its state in this life of the shard: from then on its opens and closes are
    /// counted here.
    pub has_told: bool,
    /// Number of its last report of traffic in this life of the shard.
    traffic_report: u64,
    slots: BTreeMap<u32, Slot>,
}

impl Session {
    /// True where a client that proved to be `from` may use the session. A client without a proof
    /// is trusted, and may use the session over a connection that has one. Its proof is then the
    /// session's number, which nobody can guess.
    pub fn is_of(&self, from: Option<&Arc<Holder>>) -> bool {
        from.is_none_or(|from| match &self.holder {
            Some(holder) => *holder == from.subject,
            None => from.scope.is_none(),
        })
    }
}

#[expect(clippy::large_enum_variant, reason = "made and taken apart at once")]
/// A slot's answer to a request.
#[derive(Debug)]
pub(crate) enum SlotAnswer {
    /// New: run it.
    Run,
    /// A repeat, with the kept reply. True where it was executed before our start and this is the
    /// first repeat since.
    Repeat(MetaReply, bool),
}

/// All sessions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    by_client: BTreeMap<(ClientId, Option<String>), SessionId>,
    by_holder: BTreeMap<String, BTreeSet<SessionId>>,
    next_id: u64,
    /// Random bits for the next session's number.
    chance: u64,
    /// Sessions from before our start that have not reclaimed their state.
    pub silent: BTreeSet<SessionId>,
}

impl Sessions {
    /// Loads all sessions from the store; each gets a whole term from `now` on.
    pub fn load(kv: &dyn KvRead, now: Instant) -> Result<Self, ErrorCode> {
        let mut sessions = Self {
            next_id: 1,
            ..Self::default()
        };
        if let Some(bytes) = kv.get(&keys::session_ids())? {
            sessions.next_id = u64::from_bytes(&bytes).map_err(|_error| ErrorCode::Corrupt)?;
        }
        let mut broken = false;
        let mut holders = BTreeMap::new();
        let (start, end) = keys::tag_range(keys::SHARD_PARTITION, keys::TAG_HOLDER);
        kv.scan(&start, &end, &mut |key, value| {
            match (keys::ino_of(key), String::from_bytes(value)) {
                (Some(id), Ok(holder)) => drop(holders.insert(id.0, holder)),
                _ => broken = true,
            }
            !broken
        })?;
        let (start, end) = keys::tag_range(keys::SHARD_PARTITION, keys::TAG_SESSION);
        kv.scan(&start, &end, &mut |key, value| {
            match (keys::ino_of(key), SessionRecord::from_bytes(value)) {
                (Some(id), Ok(record)) => {
                    let holder = holders.remove(&id.0);
                    sessions.insert(SessionId(id.0), record, holder, now);
                }
                _ => broken = true,
            }
            !broken
        })?;
        let (start, end) = keys::tag_range(keys::SHARD_PARTITION, keys::TAG_SLOT);
        kv.scan(&start, &end, &mut |key, value| {
            let Some((id, slot)) = keys::slot_of(key) else {
                broken = true;
                return false;
            };
            let Ok(record) = SlotRecord::from_bytes(value) else {
                broken = true;
                return false;
            };
            if let Some(session) = sessions.by_id.get_mut(&id) {
                let sequence = record.sequence;
                let reply = None;
                let is_from_before = true;
                let old = Slot {
                    sequence,
                    reply,
                    is_from_before,
                };
                session.slots.insert(slot, old);
            }
            true
        })?;
        if broken {
            return Err(ErrorCode::Corrupt);
        }
        sessions.silent = sessions.by_id.keys().copied().collect();
        Ok(sessions)
    }

    pub fn insert(
        &mut self,
        id: SessionId,
        record: SessionRecord,
        holder: Option<String>,
        now: Instant,
    ) {
        let client = record.identity.client;
        self.by_client.insert((client, holder.clone()), id);
        if let Some(holder) = &holder {
            self.by_holder.entry(holder.clone()).or_default().insert(id);
        }
        let session = Session {
            record,
            holder,
            last_seen: now,
            is_ending: false,
            has_told: false,
            traffic_report: 0,
            slots: BTreeMap::new(),
        };
        self.by_id.insert(id, session);
    }

    /// Other sessions from before our start that have not reclaimed their state, and have asked for
    /// a lock.
    pub fn others_with_locks(&self, id: SessionId) -> Vec<SessionId> {
        let others = self.silent.iter().filter(|other| **other != id);
        let has_locked = |id: &SessionId| {
            let known = self.by_id.get(id);
            known.is_some_and(|session| session.record.has_locked)
        };
        others.copied().filter(has_locked).collect()
    }

    /// Adds random bits for the number of the next session.
    pub fn add_chance(&mut self, bits: u64) {
        self.chance = bits;
    }

    /// A number for a new session: random bits above a count. The count makes it unique even where
    /// the random bits never change. Session 0 is none.
    pub fn take_id(&mut self) -> SessionId {
        let chance = std::mem::take(&mut self.chance);
        loop {
            let count = self.next_id.max(1);
            self.next_id = count.wrapping_add(1);
            let id = SessionId(chance ^ count);
            if id != SessionId(0) && !self.by_id.contains_key(&id) {
                return id;
            }
        }
    }

    /// The value stored under [`keys::session_ids`].
    pub fn ids_record(&self) -> Vec<u8> {
        self.next_id.to_bytes()
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.by_id.keys().copied()
    }

    /// Sessions in the order of their numbers.
    pub fn range(
        &self,
        of: (Bound<SessionId>, Bound<SessionId>),
    ) -> impl Iterator<Item = (&SessionId, &Session)> {
        self.by_id.range(of)
    }

    pub fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    pub fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.by_id.get_mut(&id)
    }

    /// Notes a report of traffic; false where the session has sent it before.
    pub fn is_new_report(&mut self, id: SessionId, number: u64) -> bool {
        let Some(session) = self.get_mut(id) else {
            return false;
        };
        let is_new = number > session.traffic_report;
        session.traffic_report = session.traffic_report.max(number);
        is_new
    }

    pub fn contains(&self, id: SessionId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// The client's session that `from` may use ([`Session::is_of`]).
    pub fn of_client(&self, client: ClientId, from: Option<&Arc<Holder>>) -> Option<SessionId> {
        let all = self.by_client.range((client, None)..);
        let of_client = all.take_while(|((other, _), _)| *other == client);
        let mut ids = of_client.map(|(_, id)| *id);
        ids.find(|id| {
            let session = self.by_id.get(id);
            session.is_some_and(|session| session.is_of(from))
        })
    }

    /// The session of a client with this subject.
    pub fn of_subject(&self, client: ClientId, holder: Option<&String>) -> Option<SessionId> {
        self.by_client.get(&(client, holder.cloned())).copied()
    }

    /// True where another subject than `holder` has a session of this client.
    pub fn is_others(&self, client: ClientId, holder: &str) -> bool {
        let all = self.by_client.range((client, None)..);
        let mut of_client = all.take_while(|((other, _), _)| *other == client);
        of_client.any(|((_, of), _)| of.as_deref().is_some_and(|of| of != holder))
    }

    /// Sessions of a subject.
    pub fn of_holder(&self, subject: &str) -> impl Iterator<Item = SessionId> + use<'_> {
        self.by_holder.get(subject).into_iter().flatten().copied()
    }

    /// Number of sessions of a subject.
    pub fn count_of_holder(&self, subject: &str) -> usize {
        self.by_holder.get(subject).map_or(0, BTreeSet::len)
    }

    /// Forgets a session; returns its stored keys.
    pub fn remove(&mut self, id: SessionId) -> Vec<Vec<u8>> {
        self.silent.remove(&id);
        let Some(session) = self.by_id.remove(&id) else {
            return Vec::new();
        };
        let holder = session.holder.is_some().then(|| keys::holder(id));
        if let Some(name) = &session.holder
            && let Some(own) = self.by_holder.get_mut(name)
        {
            let was_there = own.remove(&id);
            assert!(was_there, "{id:?} is not among the sessions of its subject");
            if own.is_empty() {
                self.by_holder.remove(name);
            }
        }
        let name = (session.record.identity.client, session.holder);
        if self.by_client.get(&name) == Some(&id) {
            self.by_client.remove(&name);
        }
        let slots = session.slots.keys().map(|slot| keys::slot(id, *slot));
        std::iter::once(keys::session(id))
            .chain(slots)
            .chain(holder)
            .collect()
    }

    /// Compares a slotted request with the slot's last one.
    pub fn slot(
        &mut self,
        kv: &dyn KvRead,
        id: SessionId,
        slot: u32,
        sequence: u32,
    ) -> Result<SlotAnswer, ErrorCode> {
        if slot >= SESSION_SLOTS_MAX {
            return Err(ErrorCode::BadSequence);
        }
        let session = self.by_id.get_mut(&id).ok_or(ErrorCode::UnknownSession)?;
        let Some(last) = session.slots.get_mut(&slot) else {
            return Ok(SlotAnswer::Run);
        };
        let ahead = sequence.wrapping_sub(last.sequence);
        if ahead == 0 {
            let reply = match &last.reply {
                Some(reply) => (**reply).clone(),
                None => stored_reply(kv, id, slot)?,
            };
            let is_first = std::mem::take(&mut last.is_from_before);
            return Ok(SlotAnswer::Repeat(reply, is_first));
        }
        if ahead > u32::MAX / 2 {
            zonal_types::mark!(SlotLate);
            return Err(ErrorCode::BadSequence);
        }
        Ok(SlotAnswer::Run)
    }

    /// Replies from before our start whose requests were not repeated since.
    pub fn unrepeated(&self, kv: &dyn KvRead, id: SessionId) -> Result<Vec<MetaReply>, ErrorCode> {
        let slots = self.by_id.get(&id).map(|session| &session.slots);
        let slots = slots.into_iter().flatten();
        let old = slots.filter(|(_, last)| last.is_from_before && last.reply.is_none());
        old.map(|(slot, _)| stored_reply(kv, id, *slot)).collect()
    }

    /// Notes the reply of a slot; `None` where the effect stores it.
    pub fn replied(&mut self, id: SessionId, slot: u32, sequence: u32, reply: Option<MetaReply>) {
        if let Some(session) = self.by_id.get_mut(&id) {
            // Another shard's answer may come after the client has given the request up and moved
            // the slot on.
            let is_behind = |last: &Slot| sequence.wrapping_sub(last.sequence) > u32::MAX / 2;
            if session.slots.get(&slot).is_some_and(is_behind) {
                return;
            }
            let reply = reply.map(Box::new);
            let is_from_before = false;
            let new = Slot {
                sequence,
                reply,
                is_from_before,
            };
            session.slots.insert(slot, new);
        }
    }

    /// The client of a session, as an event of its loss names it.
    pub fn client(&self, id: SessionId) -> Option<LostClient> {
        let record = &self.by_id.get(&id)?.record;
        Some(LostClient {
            client: record.identity.client,
            zone: record.zone,
            name: record.name.clone(),
        })
    }

    /// Sessions whose client sent nothing for a term.
    pub fn expired(&self, now: Instant) -> Vec<SessionId> {
        let gone = self
            .by_id
            .iter()
            .filter(|(_, session)| !session.is_ending)
            .filter(|(_, session)| session.last_seen.plus_ms(SESSION_TERM_MS) <= now);
        gone.map(|(id, _)| *id).collect()
    }

    /// When the next session may expire.
    pub fn next_expiry(&self) -> Option<Instant> {
        let live = self.by_id.values().filter(|session| !session.is_ending);
        let seen = live.map(|session| session.last_seen).min()?;
        Some(seen.plus_ms(SESSION_TERM_MS))
    }

    /// Number of replies kept in memory.
    pub fn replies_in_memory(&self) -> usize {
        let slots = self
            .by_id
            .values()
            .flat_map(|session| session.slots.values());
        slots.filter(|slot| slot.reply.is_some()).count()
    }
}

fn stored_reply(kv: &dyn KvRead, id: SessionId, slot: u32) -> Result<MetaReply, ErrorCode> {
    let bytes = kv.get(&keys::slot(id, slot))?.ok_or(ErrorCode::Corrupt)?;
    let record = SlotRecord::from_bytes(&bytes).map_err(|_error| ErrorCode::Corrupt)?;
    Ok(record.reply)
}
