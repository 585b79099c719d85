//! Execution of an operation: runs it on the store, recalls what others cache, adds the slot's
//! reply to the effect, and updates memory.

use super::{MetaShard, Waiting, is_slotted};
use crate::append::End;
use crate::config::{Caller, Now};
use crate::dentry::siphash;
use crate::dispatch;
use crate::keys;
use crate::lease_grants;
use crate::outcome::{Outcome, PendingCall, WaitOn};
use crate::scope_cache::VisibleTree;
use crate::session::SlotRecord;
use crate::tx::{Env, Finished, MemoryChange, Tx};
use std::sync::Arc;
use zonal_types::{Codec, ErrorCode, Holder, Instant, KvChange, KvRead, SessionId};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::meta::Event;
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{DirAfter, MetaReply, MetaRequest};

impl MetaShard {
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
            inline_bytes: self.config.inline_bytes,
            sets: &self.sets,
            has_remote_data: self.has_remote_data,
            loads: &self.loads,
            spare: &self.spare,
            frozen: &self.moves.frozen,
            leaving: &self.moves.departures,
        };
        Tx::new(env, kv, now, session)
    }

    pub(super) fn execute(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        (from, sight): (Option<&Arc<Holder>>, VisibleTree),
        request: &MetaRequest,
        mut waited: Waiting,
    ) -> Outcome {
        let mut published = None;
        loop {
            let mut tx = self.tx(kv, now, caller.session);
            tx.token = token(caller);
            tx.facts = waited.facts.clone();
            tx.published = published.unwrap_or(0);
            let result = dispatch::run(&mut tx, request);
            let directory = lease_grants::directory_after(&mut tx, request);
            let lease = tx.lease;
            let finished = match tx.finish() {
                Ok(finished) => finished,
                Err(code) => return self.fail(caller, request, code, &waited),
            };
            if let Some((shard, ask, asked)) = finished.call {
                self.leases.finish(&waited.changes);
                let call = PendingCall {
                    caller,
                    from: from.cloned(),
                    request: request.clone(),
                    asked,
                    facts: waited.facts,
                };
                return self.ask(shard, ask, call);
            }
            let mut reply = match result {
                Ok(reply) => reply,
                Err(code) => return self.fail(caller, request, code, &waited),
            };
            if published.is_none() {
                let session = caller.session;
                let ends = self.recall_end(now, session, request, &finished, &mut waited);
                if let Some(wait) = ends {
                    return wait;
                }
                if let Some(wait) = self.recall(now, caller, request, &finished, &waited) {
                    return wait;
                }
                match self.end_ticket(now, caller, request) {
                    Ok(None) => {}
                    Ok(end) => {
                        published = end;
                        continue;
                    }
                    Err(outcome) => return *outcome,
                }
            }
            self.tell_accessed(now, caller, &finished);
            let kept = is_slotted(caller, request).then(|| lease_grants::without_times(&reply));
            if self.config.caching && self.may_cache(kv, now, sight, lease) {
                lease_grants::grant(
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
                reply = lease_grants::without_times(&reply);
            }
            return self.commit(now.instant, caller, reply, kept, finished);
        }
    }

    /// Ends the ticket of an `AppendEnd`, and returns the end of the file that it publishes; `None`
    /// for other requests.
    fn end_ticket(
        &mut self,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
    ) -> Result<Option<u64>, Box<Outcome>> {
        let MetaRequest::AppendEnd {
            ino,
            offset,
            reserved,
            length,
            ..
        } = request
        else {
            return Ok(None);
        };
        let (session, numbers) = (caller.session, (u64::from(*reserved), u64::from(*length)));
        let ended = self
            .tickets
            .end(*ino, session, *offset, numbers, now.instant);
        match ended {
            Ok(End::Published(end)) => {
                let end = end.unwrap_or(0);
                self.ends.published(*ino, session, end);
                // Later appends may be published together with this one.
                self.woken.insert(WaitOn::End(*ino));
                Ok(Some(end))
            }
            Ok(End::Wait(until)) => {
                let wait = self.wait(Waiting::default(), until, WaitOn::End(*ino));
                Err(Box::new(wait))
            }
            Err(code) => {
                let failed = self.fail(caller, request, code, &Waiting::default());
                Err(Box::new(failed))
            }
        }
    }

    /// Recalls leases that the change touches; returns a wait where a session has yet to
    /// acknowledge.
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
            lease_grants::changes(finished)
        } else {
            Vec::new()
        };
        if matches!(request, MetaRequest::AppendEnd { length: 1.., .. }) {
            // The published size is not known before the recall.
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
        // Waits for one session after the other: once the last has acknowledged, all have.
        let mut answers = recall.wait_for.iter();
        let first = answers.find(|(_, event)| *event != u64::MAX);
        let on = first.map_or(WaitOn::Recovery, |(session, _)| {
            WaitOn::Acknowledgement(*session)
        });
        let told = recall.wait_for.iter();
        self.woken
            .extend(told.map(|(session, _)| WaitOn::Events(*session)));
        let waiting = Waiting {
            facts: waited.facts.clone(),
            changes,
            ..Waiting::default()
        };
        Some(self.wait(waiting, recall.until, on))
    }

    /// Tells sessions with leases of changed access times.
    fn tell_accessed(&mut self, now: Now, caller: Caller, finished: &Finished) {
        for (directory, inodes) in lease_grants::accessed(finished) {
            let (of, by) = ((directory, &*inodes), caller.session);
            let told = self.leases.tell(of, by, now.instant, &mut self.events);
            self.woken.extend(told.into_iter().map(WaitOn::Events));
        }
        self.doomed.extend(self.events.take_overflowed());
    }

    /// Commits the request: updates memory and adds the slot's reply to the effect.
    fn commit(
        &mut self,
        now: Instant,
        caller: Caller,
        reply: MetaReply,
        kept: Option<MetaReply>,
        finished: Finished,
    ) -> Outcome {
        assert!(
            finished.call.is_none(),
            "a request counts that still asks another shard"
        );
        let mut effect = finished.effect;
        self.scopes
            .note_changes(&finished.inodes, !finished.directories.is_empty());
        self.apply(caller.session, now, finished.volatile);
        self.loads.note(&self.map, &finished.junctions);
        if let Some(kept) = kept {
            let Caller {
                session,
                slot,
                sequence,
                ..
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

    /// Applies a request's changes of state in memory.
    pub(crate) fn apply(&mut self, session: SessionId, now: Instant, volatile: Vec<MemoryChange>) {
        for change in volatile {
            match change {
                MemoryChange::Open(ino) => self.opens.open(ino, session),
                MemoryChange::Owned(ino) => self.opens.own(ino, session),
                MemoryChange::Unowned(ino) => self.opens.disown(ino),
                MemoryChange::Orphaned(ino, holders) => {
                    self.opens.orphans.insert(ino, holders);
                }
                MemoryChange::Unorphaned(ino) => {
                    self.opens.orphans.remove(&ino);
                }
                MemoryChange::PartitionTaken(partition) => self.spare.taken(partition),
                MemoryChange::PartitionLeft(partition) => self.spare.left(partition),
                MemoryChange::Ids(partition, range) => self.ids.set(partition, range),
                MemoryChange::Inodes(change) => {
                    self.live_inodes = self.live_inodes.saturating_add_signed(change);
                }
                MemoryChange::InodeBack(ino) => {
                    assert!(
                        self.recent.get(ino).is_some(),
                        "inode {ino} comes back, whose objects may be deleted"
                    );
                    self.recent.forget(ino);
                    self.deletions.remove(ino);
                }
                MemoryChange::InodeGone(removed) => {
                    let ino = removed.inode.ino;
                    if !removed.inode.layout.components.is_empty() {
                        self.deletions.add(ino);
                    }
                    if !removed.inode.is_dir() {
                        self.recent.keep(*removed, now);
                    }
                    self.tickets.inode_gone(ino);
                    self.ends.ended(ino);
                    self.woken.insert(WaitOn::End(ino));
                    let granted = self.locks.release_inode(ino);
                    self.queue_events(granted);
                }
                MemoryChange::RemoteData => self.has_remote_data = true,
                MemoryChange::Truncated(ino, size) => {
                    self.tickets.truncate(ino, size);
                    self.ends.ended(ino);
                    // The truncating client may be gone before targets see the truncation. Then
                    // writes of others until that time would be truncated, too.
                    let others = self.opens.holders(ino).into_iter();
                    let others = others.filter(|holder| *holder != session);
                    let told = others.map(|holder| (holder, Event::FileTruncated { ino }));
                    self.queue_events(told.collect());
                    // Wakes ends of appends that wait for others.
                    self.woken.insert(WaitOn::End(ino));
                }
            }
        }
    }

    pub(super) fn fail(
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
        // The slot moves on in memory only, because nothing happened. It does not where another
        // server did not answer: the client retries the same request.
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
        if let Some((shard, ino)) = waited.facts.made {
            after.push((shard, MetaRequest::DropDir { ino }));
        }
        if let Some((shard, ino)) = waited.facts.detached {
            after.push((shard, MetaRequest::AttachDir { ino }));
        }
        self.outcome(reply, Vec::new(), Vec::new(), after)
    }
}

/// Identifies a slotted request: session numbers are never reused.
fn token(caller: Caller) -> u64 {
    if caller.slot == NO_SLOT {
        return 0;
    }
    let name = (caller.session.0, (caller.slot, caller.sequence));
    siphash(&name.to_bytes()) | 1
}
