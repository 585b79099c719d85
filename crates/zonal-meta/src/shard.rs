//! The shard as a value: it takes a request, the time and a reader of its store, and says what to do.
//!
//! Invariants: nothing in memory changes before a request counts; a request that waits or asks another shard runs again
//! from its start; what is in memory beside the store is volatile by design (opens, locks, leases, events, tickets) or
//! comes back from it (sessions, slots, orphans, number ranges).

use crate::append::{End, Tickets};
use crate::caching;
use crate::config::{Caller, Now, ShardConfig};
use crate::deletions::Deletions;
use crate::dentry::siphash;
use crate::dispatch;
use crate::events::EventQueues;
use crate::ids::Ids;
use crate::inode::Inode;
use crate::keys;
use crate::leases::{Change, Leases};
use crate::opens::Opens;
use crate::outcome::{
    Attempt, Detached, Facts, JunctionChange, Outcome, PendingCall, Question, Ticked, WaitOn,
};
use crate::recent::Recent;
use crate::session::{Sessions, SlotAnswer, SlotRecord};
use crate::tx::{Env, Finished, OrphanRecord, Tx, Volatile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zonal_types::limits::{APPEND_TICKETS_MAX, CACHE_GRACE_MS, CACHE_TERM_MS, SESSION_SLOTS_MAX};
use zonal_types::{
    Codec, ErrorCode, FileKind, Ino, Instant, KvChange, KvRead, PartitionId, SessionId, Timestamp,
    ZoneId,
};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, MetaRequest};
use zonal_zonemap::ZoneMap;

/// Version of the store's format record. In format 1 shards keep no bytes of files.
const STORE_FORMAT: u16 = 2;
/// The oldest format that becomes this one.
const STORE_FORMAT_MIN: u16 = 1;
/// How long a directory may stay detached before the root shard is asked, in seconds.
const DETACHED_SECONDS: i64 = 60;
/// Sessions ended in one step of housekeeping.
const ENDED_AT_ONCE: usize = 64;

/// A request that was told to wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub facts: Facts,
    /// Directories that grant nothing because of it.
    pub changes: Vec<Change>,
    /// When a wait for events is over.
    pub until: Option<Instant>,
}

impl ShardConfig {
    /// The store's format record.
    fn format(&self) -> KvChange {
        let record = (STORE_FORMAT, (self.shard, self.hash_bits));
        KvChange::put(keys::format(), record.to_bytes())
    }
}

/// One metadata shard.
#[derive(Debug)]
pub struct Shard {
    pub(crate) config: ShardConfig,
    pub(crate) map: Arc<ZoneMap>,
    pub(crate) partitions: Vec<PartitionId>,
    pub(crate) opens: Opens,
    pub(crate) recent: Recent,
    pub(crate) deletions: Deletions,
    pub(crate) ids: Ids,
    pub(crate) live_inodes: u64,
    pub(crate) sessions: Sessions,
    pub(crate) leases: Leases,
    pub(crate) events: EventQueues,
    pub(crate) locks: crate::locks::LockTable,
    pub(crate) tickets: Tickets,
    pub(crate) waiting: BTreeMap<Attempt, Waiting>,
    /// First-level directories of requests that wait for another shard's answer; how many each.
    asking: BTreeMap<Ino, u32>,
    next_attempt: u64,
    /// Until then locks of silent sessions may be reclaimed.
    pub(crate) lock_grace_until: Instant,
    /// Sessions to be ended because their events overflowed.
    pub(crate) doomed: BTreeSet<SessionId>,
    has_lost_orphans: bool,
    /// The store is of an older format: the next step of housekeeping makes it one of ours.
    is_old: bool,
    pub(crate) woken: BTreeSet<SessionId>,
    pub(crate) recheck: bool,
}

impl Shard {
    /// Changes that make an empty store a shard's.
    #[must_use]
    pub fn format(config: &ShardConfig, wall: Timestamp) -> Vec<KvChange> {
        let mut changes = vec![config.format()];
        if config.is_root() {
            let kind = FileKind::Directory;
            let mut root = Inode::new(Ino::ROOT, kind, Ino::ROOT, config.zone, wall);
            root.mode = 0o755;
            root.uid = config.root_uid;
            root.gid = config.root_gid;
            changes.push(KvChange::put(keys::inode(Ino::ROOT), root.to_bytes()));
        }
        changes
    }

    /// The shard in a store that was formatted before. `map` must already name the shard's partitions.
    ///
    /// # Errors
    /// `WrongVersion` or `WrongTarget` where the store is not this shard's; what the store says.
    pub fn load(
        config: ShardConfig,
        map: Arc<ZoneMap>,
        kv: &dyn KvRead,
        now: Instant,
    ) -> Result<Self, ErrorCode> {
        let bytes = kv.get(&keys::format())?.ok_or(ErrorCode::WrongVersion)?;
        let record = <(u16, (zonal_types::ShardId, u32))>::from_bytes(&bytes);
        let (format, (shard, hash_bits)) = record.map_err(|_error| ErrorCode::Corrupt)?;
        if !(STORE_FORMAT_MIN..=STORE_FORMAT).contains(&format) || hash_bits != config.hash_bits {
            return Err(ErrorCode::WrongVersion);
        }
        if shard != config.shard {
            return Err(ErrorCode::WrongTarget);
        }
        let partitions = map.partitions_of(config.shard);
        let sessions = Sessions::load(kv, now)?;
        let mut events = EventQueues::new();
        sessions.ids().for_each(|id| events.open(id));
        let mut opens = Opens::default();
        opens.orphans = load_orphans(kv, &partitions)?;
        Ok(Self {
            live_inodes: Ids::load_live_inodes(kv, &partitions)?,
            leases: Leases::new(now, sessions.silent.clone()),
            lock_grace_until: now.plus_ms(CACHE_TERM_MS + CACHE_GRACE_MS),
            config,
            map,
            partitions,
            opens,
            recent: Recent::default(),
            deletions: Deletions::default(),
            ids: Ids::default(),
            sessions,
            events,
            locks: crate::locks::LockTable::new(),
            tickets: Tickets::new(),
            waiting: BTreeMap::new(),
            asking: BTreeMap::new(),
            next_attempt: 1,
            doomed: BTreeSet::new(),
            has_lost_orphans: true,
            is_old: format < STORE_FORMAT,
            woken: BTreeSet::new(),
            recheck: false,
        })
    }

    /// A newer zone map.
    pub fn set_map(&mut self, map: Arc<ZoneMap>) {
        let partitions = map.partitions_of(self.config.shard);
        if self.partitions != partitions {
            self.partitions = partitions;
            self.deletions.read_again();
        }
        self.map = map;
    }

    /// One request. `attempt` is what the last [`Outcome::Wait`] for this same request said (`None` first).
    pub fn handle(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        attempt: Option<Attempt>,
    ) -> Outcome {
        self.recent.sweep(now.instant);
        let waited = attempt.and_then(|attempt| self.waiting.remove(&attempt));
        let waited = waited.unwrap_or_default();
        self.handle_waited(kv, now, caller, request, waited)
    }

    fn handle_waited(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        waited: Waiting,
    ) -> Outcome {
        match self.begin(kv, now, caller, request, &waited) {
            Ok(None) => self.execute(kv, now, caller, request, waited),
            Ok(Some(outcome)) => {
                self.leases.finish(&waited.changes);
                outcome
            }
            Err(code) => {
                self.leases.finish(&waited.changes);
                self.refuse(code)
            }
        }
    }

    /// What comes before an operation: session, slot, and requests that are not about the store. `None`: go on.
    fn begin(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        waited: &Waiting,
    ) -> Result<Option<Outcome>, ErrorCode> {
        if let MetaRequest::OpenSession { client, zone, name } = request {
            return self.open_session(now, *client, *zone, name).map(Some);
        }
        match self.sessions.get_mut(caller.session) {
            Some(session) => session.last_seen = now.instant,
            None if caller.session == SessionId(0) && is_internal(request) => {}
            None => return Err(ErrorCode::UnknownSession),
        }
        if is_slotted(caller, request) {
            let answer = self
                .sessions
                .slot(kv, caller.session, caller.slot, caller.sequence)?;
            if let SlotAnswer::Repeat(reply, is_from_before) = answer {
                zonal_types::mark!(SlotRepeated);
                if is_from_before {
                    zonal_types::mark!(SlotRepeatedAfterRestart);
                    self.reopen(&reply, caller.session);
                    if let MetaRequest::AppendEnd { ino, offset, .. } = request {
                        self.tickets.was_ended(*ino, caller.session, *offset);
                        self.recheck = true;
                    }
                }
                return Ok(Some(self.reply(reply)));
            }
        }
        if self.sessions.silent.contains(&caller.session) && !is_for_silent(request) {
            // It opens its session again, hears of our boot, tells what it holds, and comes back.
            zonal_types::mark!(SilentRefused);
            return Err(ErrorCode::UnknownSession);
        }
        let outcome = self.run_volatile(kv, now, caller, request, waited)?;
        if let Some(Outcome::Reply { reply, effect, .. }) = &outcome
            && is_slotted(caller, request)
            && effect.is_empty()
        {
            let reply = Some(reply.clone());
            self.sessions
                .replied(caller.session, caller.slot, caller.sequence, reply);
        }
        Ok(outcome)
    }

    /// A repeated create or open after our restart: its open is not counted yet.
    fn reopen(&mut self, reply: &MetaReply, session: SessionId) {
        if let MetaReply::Opened { entry, .. } = reply
            && self.opens.count(entry.ino, session) == 0
        {
            self.opens.open(entry.ino, session);
        }
    }

    pub(crate) fn tx<'a>(&'a self, kv: &'a dyn KvRead, now: Now, session: SessionId) -> Tx<'a> {
        let env = Env {
            config: &self.config,
            map: &self.map,
            partitions: &self.partitions,
            opens: &self.opens,
            ids: &self.ids,
            recent: &self.recent,
            silent: &self.sessions.silent,
            live_inodes: self.live_inodes,
            inline_bytes: if self.is_old {
                0
            } else {
                self.config.inline_bytes
            },
        };
        Tx::new(env, kv, now, session)
    }

    fn execute(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        waited: Waiting,
    ) -> Outcome {
        let mut published = None;
        loop {
            let mut tx = self.tx(kv, now, caller.session);
            tx.token = token(caller);
            tx.facts = waited.facts.clone();
            tx.published = published.unwrap_or(0);
            let result = dispatch::run(&mut tx, request);
            let lease = tx.lease;
            let finished = tx.finish();
            if let Some((zone, ask, asked)) = finished.call {
                self.leases.finish(&waited.changes);
                return self.ask(zone, ask, caller, request, asked, waited.facts);
            }
            let mut reply = match result {
                Ok(reply) => reply,
                Err(code) => return self.fail(caller, request, code, &waited),
            };
            if published.is_none() {
                if let Some(wait) = self.recall(now, caller, request, &finished, &waited) {
                    return wait;
                }
                if let MetaRequest::AppendEnd {
                    ino,
                    offset,
                    reserved,
                    length,
                    ..
                } = request
                {
                    let numbers = (u64::from(*reserved), u64::from(*length));
                    let session = caller.session;
                    match self
                        .tickets
                        .end(*ino, session, *offset, numbers, now.instant)
                    {
                        Ok(End::Published(end)) => {
                            if !self.sessions.silent.is_empty()
                                && let Ok(inode) = self.tx(kv, now, session).inode(*ino)
                            {
                                self.tickets.note_published(*ino, inode.size);
                            }
                            published = Some(end.unwrap_or(0));
                            // Appends behind this one may be published with it.
                            self.recheck = true;
                        }
                        Ok(End::Wait(until)) => {
                            return self.wait(Waiting::default(), until, WaitOn::Recalls);
                        }
                        Err(code) => return self.fail(caller, request, code, &Waiting::default()),
                    }
                    continue;
                }
            }
            let kept = is_slotted(caller, request).then(|| caching::without_times(&reply));
            if self.config.caching {
                caching::grant(
                    &mut reply,
                    lease,
                    &mut self.leases,
                    caller.session,
                    now.instant,
                );
            } else {
                reply = caching::without_times(&reply);
            }
            return self.commit(now.instant, caller, reply, kept, finished);
        }
    }

    /// Asks for what others have cached; a wait where somebody still has to answer.
    fn recall(
        &mut self,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        finished: &Finished,
        waited: &Waiting,
    ) -> Option<Outcome> {
        let is_recalled = self.config.caching && !matches!(request.tag(), 80..=85);
        let changes = if is_recalled {
            caching::changes(finished)
        } else {
            Vec::new()
        };
        let is_same = !changes.is_empty() && changes == waited.changes;
        if !is_same {
            self.leases.finish(&waited.changes);
        }
        if changes.is_empty() {
            return None;
        }
        let by = caller.session;
        let recall = self
            .leases
            .recall(&changes, by, is_same, now.instant, &mut self.events);
        self.doomed.extend(self.events.take_overflowed());
        let Some(recall) = recall else {
            if is_same {
                self.leases.finish(&changes);
            }
            return None;
        };
        zonal_types::mark!(RecallWaited);
        self.woken
            .extend(recall.wait_for.iter().map(|(session, _)| *session));
        let waiting = Waiting {
            facts: waited.facts.clone(),
            changes,
            until: None,
        };
        Some(self.wait(waiting, recall.until, WaitOn::Recalls))
    }

    /// The request counts: memory follows, the slot's reply joins the effect.
    fn commit(
        &mut self,
        now: Instant,
        caller: Caller,
        reply: MetaReply,
        kept: Option<MetaReply>,
        finished: Finished,
    ) -> Outcome {
        let mut effect = finished.effect;
        self.apply(caller.session, now, finished.volatile);
        if let Some(kept) = kept {
            let Caller {
                session,
                slot,
                sequence,
            } = caller;
            if effect.is_empty() {
                self.sessions.replied(session, slot, sequence, Some(kept));
            } else {
                let record = SlotRecord {
                    sequence,
                    reply: kept,
                };
                effect.push(KvChange::put(keys::slot(session, slot), record.to_bytes()));
                self.sessions.replied(session, slot, sequence, None);
            }
        }
        self.outcome(reply, effect, finished.junctions, finished.after)
    }

    /// Takes over what a request changes in memory.
    pub(crate) fn apply(&mut self, session: SessionId, now: Instant, volatile: Vec<Volatile>) {
        for change in volatile {
            match change {
                Volatile::Open(ino) => self.opens.open(ino, session),
                Volatile::Orphaned(ino, holders) => {
                    self.opens.orphans.insert(ino, holders);
                }
                Volatile::Unorphaned(ino) => {
                    self.opens.orphans.remove(&ino);
                }
                Volatile::Ids(partition, range) => self.ids.set(partition, range),
                Volatile::InodeMade => self.live_inodes = self.live_inodes.saturating_add(1),
                Volatile::InodeBack(ino) => {
                    self.live_inodes = self.live_inodes.saturating_add(1);
                    self.recent.forget(ino);
                    self.deletions.remove(ino);
                }
                Volatile::InodeGone(removed) => {
                    let ino = removed.inode.ino;
                    if !removed.inode.layout.components.is_empty() {
                        self.deletions.add(ino);
                    }
                    if !removed.inode.is_dir() {
                        self.recent.keep(*removed, now);
                    }
                    self.live_inodes = self.live_inodes.saturating_sub(1);
                    self.tickets.inode_gone(ino);
                    let granted = self.locks.release_inode(ino);
                    self.tell(granted);
                }
            }
        }
    }

    fn fail(
        &mut self,
        caller: Caller,
        request: &MetaRequest,
        code: ErrorCode,
        waited: &Waiting,
    ) -> Outcome {
        self.leases.finish(&waited.changes);
        let reply = MetaReply::Failed {
            code: ErrorNumber(code),
        };
        // The slot moves on; the store does not hear of it, as nothing happened. Not where another server did not answer: the client tries
        // the same request again.
        let is_over = !matches!(
            code,
            ErrorCode::Unreachable
                | ErrorCode::TimedOut
                | ErrorCode::NotReady
                | ErrorCode::Overloaded
        );
        if is_over && is_slotted(caller, request) {
            let kept = Some(reply.clone());
            self.sessions
                .replied(caller.session, caller.slot, caller.sequence, kept);
        }
        let mut after = Vec::new();
        if let Some((zone, ino)) = waited.facts.made {
            after.push((zone, MetaRequest::DropDir { ino }));
        }
        if let Some((zone, ino)) = waited.facts.detached {
            after.push((zone, MetaRequest::AttachDir { ino }));
        }
        self.outcome(reply, Vec::new(), Vec::new(), after)
    }

    fn ask(
        &mut self,
        zone: ZoneId,
        ask: MetaRequest,
        caller: Caller,
        request: &MetaRequest,
        asked: Question,
        facts: Facts,
    ) -> Outcome {
        let call = PendingCall {
            caller,
            request: request.clone(),
            asked,
            facts,
        };
        for ino in call.directories() {
            *self.asking.entry(ino).or_default() += 1;
        }
        let wake = std::mem::take(&mut self.woken).into_iter().collect();
        let request = ask;
        Outcome::Call {
            zone,
            request,
            call,
            wake,
        }
    }

    /// Another shard's answer to an [`Outcome::Call`] (a `Failed` where there was none).
    pub fn resume(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        call: PendingCall,
        reply: MetaReply,
    ) -> Outcome {
        for ino in call.directories() {
            let left = self.asking.get(&ino).map_or(0, |count| count - 1);
            if left == 0 {
                self.asking.remove(&ino);
            } else {
                self.asking.insert(ino, left);
            }
        }
        let PendingCall {
            caller,
            request,
            asked,
            facts,
        } = call;
        let mut waited = Waiting {
            facts,
            ..Waiting::default()
        };
        let gone = MetaReply::Failed {
            code: ErrorNumber(ErrorCode::Stale),
        };
        match (asked, reply) {
            (Question::Make(zone), MetaReply::Detached { ino }) => {
                waited.facts.made = Some((zone, ino));
            }
            (Question::Detach(zone, ino), MetaReply::Done) => {
                waited.facts.detached = Some((zone, ino));
            }
            (Question::Detach(zone, ino), reply) if reply == gone => {
                waited.facts.detached = Some((zone, ino));
            }
            (Question::Attr(ino), MetaReply::Attr { attr, .. }) => {
                waited.facts.attrs.push((ino, Some(attr)));
            }
            (Question::Attr(ino), reply) if reply == gone => waited.facts.attrs.push((ino, None)),
            (_, MetaReply::Failed { code }) => return self.fail(caller, &request, code.0, &waited),
            _ => return self.fail(caller, &request, ErrorCode::Protocol, &waited),
        }
        self.handle_waited(kv, now, caller, &request, waited)
    }

    /// Whether a request that is not over yet is about to make or remove the entry of this first-level directory.
    pub(crate) fn is_being_settled(&self, ino: Ino) -> bool {
        let mut waiting = self.waiting.values();
        waiting.any(|waiting| waiting.facts.directories().any(|of| of == ino))
            || self.asking.contains_key(&ino)
    }

    /// The client of a waiting request went away: forget the wait.
    pub fn abandon(&mut self, attempt: Attempt) {
        if let Some(waiting) = self.waiting.remove(&attempt) {
            self.leases.finish(&waiting.changes);
        }
    }

    /// Housekeeping, due at [`Self::poll_deadline`].
    ///
    /// # Errors
    /// What the store says.
    pub fn tick(&mut self, kv: &dyn KvRead, now: Now) -> Result<Ticked, ErrorCode> {
        self.leases.sweep(now.instant, 4096);
        let mut effect = Vec::new();
        if std::mem::take(&mut self.is_old) {
            effect.push(self.config.format());
        }
        let mut ending = self.sessions.expired(now.instant);
        ending.extend(std::mem::take(&mut self.doomed));
        if ending.len() > ENDED_AT_ONCE {
            self.doomed.extend(ending.split_off(ENDED_AT_ONCE));
        }
        for session in ending {
            zonal_types::mark!(SessionExpired);
            effect.extend(self.end_session(kv, now, session)?);
        }
        if std::mem::take(&mut self.has_lost_orphans) {
            let holders = self.opens.orphans.values().flatten();
            let lost: BTreeSet<SessionId> = holders
                .copied()
                .filter(|session| !self.sessions.contains(*session))
                .collect();
            for session in lost {
                effect.extend(self.end_session(kv, now, session)?);
            }
        }
        Ok(Ticked {
            effect,
            wake: std::mem::take(&mut self.woken).into_iter().collect(),
            recheck: std::mem::take(&mut self.recheck),
        })
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Instant> {
        if !self.doomed.is_empty() || self.has_lost_orphans || self.is_old {
            return Some(Instant(0));
        }
        self.sessions.next_expiry()
    }

    /// Directories that have been detached for more than a minute.
    ///
    /// # Errors
    /// What the store says; `Corrupt`.
    pub fn detached(
        &self,
        kv: &dyn KvRead,
        now: Now,
        limit: usize,
    ) -> Result<Vec<Detached>, ErrorCode> {
        let found = crate::op::root::unsettled(kv, &self.partitions, usize::MAX)?;
        let old = found.into_iter().filter(|(_, record)| {
            now.wall.seconds.saturating_sub(record.since.seconds) >= DETACHED_SECONDS
        });
        let told = old.map(|(ino, record)| Detached {
            ino,
            since: record.since,
        });
        Ok(told.take(limit).collect())
    }

    /// Sizes of what is in memory, for metrics.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("sessions", self.sessions.len() as u64),
            ("sessions_max", self.config.sessions_max as u64),
            ("slot_replies", self.sessions.replies_in_memory() as u64),
            (
                "slot_replies_max",
                self.config.sessions_max as u64 * u64::from(SESSION_SLOTS_MAX),
            ),
            ("opens", self.opens.len() as u64),
            ("opens_max", self.config.opens_max as u64),
            ("orphans", self.opens.orphans.len() as u64),
            ("removed_inodes", self.recent.len() as u64),
            ("removed_inodes_max", crate::recent::RECENT_MAX as u64),
            ("known_deletions", self.deletions.len() as u64),
            (
                "known_deletions_max",
                crate::deletions::DELETIONS_KNOWN_MAX as u64,
            ),
            ("leases", self.leases.len() as u64),
            ("leases_max", self.leases.limit() as u64),
            ("locks", self.locks.range_count() as u64),
            ("locks_max", self.locks.limits().0 as u64),
            ("lock_waiters", self.locks.waiter_count() as u64),
            ("lock_waiters_max", self.locks.limits().1 as u64),
            ("events_queued", self.events.len() as u64),
            ("longest_event_queue", self.events.longest() as u64),
            ("longest_event_queue_max", self.events.limit() as u64),
            ("append_tickets", self.tickets.len() as u64),
            ("append_tickets_max", APPEND_TICKETS_MAX as u64),
            ("waiting_requests", self.waiting.len() as u64),
            ("inodes", self.live_inodes),
        ]
    }

    // --- small parts ---

    pub(crate) fn wait(&mut self, waiting: Waiting, until: Instant, on: WaitOn) -> Outcome {
        let attempt = Attempt(self.next_attempt);
        self.next_attempt += 1;
        self.waiting.insert(attempt, waiting);
        Outcome::Wait {
            attempt,
            until,
            on,
            wake: std::mem::take(&mut self.woken).into_iter().collect(),
            recheck: std::mem::take(&mut self.recheck),
        }
    }

    pub(crate) fn reply(&mut self, reply: MetaReply) -> Outcome {
        self.outcome(reply, Vec::new(), Vec::new(), Vec::new())
    }

    pub(crate) fn refuse(&mut self, code: ErrorCode) -> Outcome {
        self.reply(MetaReply::Failed {
            code: ErrorNumber(code),
        })
    }

    pub(crate) fn outcome(
        &mut self,
        reply: MetaReply,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        after: Vec<(ZoneId, MetaRequest)>,
    ) -> Outcome {
        Outcome::Reply {
            reply,
            effect,
            junctions,
            wake: std::mem::take(&mut self.woken).into_iter().collect(),
            recheck: std::mem::take(&mut self.recheck),
            after,
        }
    }
}

/// What other shards send without a session.
fn is_internal(request: &MetaRequest) -> bool {
    matches!(
        request,
        MetaRequest::MakeDetachedDir { .. }
            | MetaRequest::AttachDir { .. }
            | MetaRequest::DetachDir { .. }
            | MetaRequest::DropDir { .. }
            | MetaRequest::HasEntry { .. }
            | MetaRequest::SettleDir { .. }
            | MetaRequest::GetAttr { .. }
            | MetaRequest::SetAttr { .. }
            | MetaRequest::SetPolicy { .. }
    )
}

/// What a session from before our start may ask before it has told what it holds.
fn is_for_silent(request: &MetaRequest) -> bool {
    matches!(
        request,
        MetaRequest::PollEvents { .. }
            | MetaRequest::CloseSession
            | MetaRequest::Reclaim { .. }
            | MetaRequest::ReclaimAppends { .. }
            | MetaRequest::DropLeases
            | MetaRequest::Sync
    )
}

fn is_slotted(caller: Caller, request: &MetaRequest) -> bool {
    caller.slot != NO_SLOT && request.is_mutation()
}

/// Names a slotted request: sessions are never numbered twice.
fn token(caller: Caller) -> u64 {
    if caller.slot == NO_SLOT {
        return 0;
    }
    let name = (caller.session.0, (caller.slot, caller.sequence));
    siphash(&name.to_bytes()) | 1
}

fn load_orphans(
    kv: &dyn KvRead,
    partitions: &[PartitionId],
) -> Result<BTreeMap<Ino, BTreeSet<SessionId>>, ErrorCode> {
    let mut orphans = BTreeMap::new();
    let mut broken = false;
    for partition in partitions {
        let (start, end) = keys::tag_range(partition.0, keys::TAG_ORPHAN);
        kv.scan(&start, &end, &mut |key, value| {
            match (keys::ino_of(key), OrphanRecord::from_bytes(value)) {
                (Some(ino), Ok(record)) => {
                    orphans.insert(ino, record.sessions.into_iter().collect());
                }
                _ => broken = true,
            }
            !broken
        })?;
    }
    if broken {
        Err(ErrorCode::Corrupt)
    } else {
        Ok(orphans)
    }
}
