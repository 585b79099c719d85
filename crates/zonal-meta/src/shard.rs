//! The shard as a value: it takes a request, the time and a reader of its store, and says what to do.
//!
//! Invariants: nothing in memory changes before a request counts; a request that waits or asks another shard runs again
//! from its start; what is in memory beside the store is volatile by design (opens, locks, leases, events, tickets) or
//! comes back from it (sessions, slots, orphans, number ranges).

mod calls;
mod housekeeping;
mod load;

use crate::append::{End, Tickets};
use crate::caching;
use crate::config::{Caller, Now, ShardConfig};
use crate::deletions::Deletions;
use crate::dentry::siphash;
use crate::dispatch;
use crate::events::EventQueues;
use crate::ids::Ids;
use crate::keys;
use crate::leases::{Change, Leases};
use crate::opens::Opens;
use crate::outcome::{Attempt, Facts, JunctionChange, Outcome, WaitOn};
use crate::recent::Recent;
use crate::session::{Sessions, SlotAnswer, SlotRecord};
use crate::tx::{Env, Finished, Tx, Volatile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zonal_types::{
    Codec, ErrorCode, Ino, Instant, KvChange, KvRead, PartitionId, SessionId, ZoneId,
};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{DirAfter, MetaReply, MetaRequest};
use zonal_zonemap::ZoneMap;

/// A request that was told to wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub facts: Facts,
    /// Directories that grant nothing because of it.
    pub changes: Vec<Change>,
    /// When a wait for events is over.
    pub until: Option<Instant>,
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

    /// As [`Self::handle`], where the disk has no room for what the request may write: one that was executed before gets its reply again, any
    /// other is refused with `NoSpace`.
    pub fn handle_full(
        &mut self,
        kv: &dyn KvRead,
        caller: Caller,
        request: &MetaRequest,
    ) -> Outcome {
        match self.repeated(kv, caller, request) {
            Ok(None) => self.fail(caller, request, ErrorCode::NoSpace, &Waiting::default()),
            Ok(Some(reply)) => self.reply(reply),
            Err(code) => self.refuse(code),
        }
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
        if let Some(reply) = self.repeated(kv, caller, request)? {
            return Ok(Some(self.reply(reply)));
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

    /// The reply of a request that was executed before.
    fn repeated(
        &mut self,
        kv: &dyn KvRead,
        caller: Caller,
        request: &MetaRequest,
    ) -> Result<Option<MetaReply>, ErrorCode> {
        if !is_slotted(caller, request) {
            return Ok(None);
        }
        let answer = self
            .sessions
            .slot(kv, caller.session, caller.slot, caller.sequence)?;
        let SlotAnswer::Repeat(reply, is_from_before) = answer else {
            return Ok(None);
        };
        zonal_types::mark!(SlotRepeated);
        if is_from_before {
            zonal_types::mark!(SlotRepeatedAfterRestart);
            self.reopen(&reply, caller.session);
            if let MetaRequest::AppendEnd { ino, offset, .. } = request {
                self.tickets.was_ended(*ino, caller.session, *offset);
                self.recheck = true;
            }
        }
        Ok(Some(reply))
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
            let directory = caching::directory_after(&mut tx, request);
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
                if let Some(attr) = directory {
                    let now = now.instant;
                    let attr_ms = self.leases.grant(attr.ino, caller.session, now);
                    if attr_ms > 0 {
                        reply = reply.with_directory(DirAfter { attr, attr_ms });
                    }
                }
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
        let mut changes = if is_recalled {
            caching::changes(finished)
        } else {
            Vec::new()
        };
        if matches!(request, MetaRequest::AppendEnd { length: 1.., .. }) {
            // What it publishes is not known before the recall.
            let of_files = changes
                .iter_mut()
                .filter(|change| !change.children.is_empty());
            of_files.for_each(|change| change.data = true);
        }
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
                Volatile::Owned(ino) => self.opens.own(ino, session),
                Volatile::Unowned(ino) => self.opens.disown(ino),
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
                Volatile::Cut(ino, size) => {
                    self.tickets.cut(ino, size);
                    // Ends of appends that wait for others hear of it.
                    self.recheck = true;
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

    /// The client of a waiting request went away: forget the wait.
    pub fn abandon(&mut self, attempt: Attempt) {
        if let Some(waiting) = self.waiting.remove(&attempt) {
            self.leases.finish(&waiting.changes);
        }
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
            | MetaRequest::EvictSession
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
