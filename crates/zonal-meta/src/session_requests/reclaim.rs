//! State of a session: reclaimed after a restart of the shard, closed, and released when the
//! session ends.

use super::failed;
use crate::config::{Caller, Now};
use crate::inode_counts::is_count;
use crate::op;
use crate::outcome::{Outcome, WaitOn};
use crate::shard::{MetaShard, opened_by};
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{ErrorCode, Ino, KvChange, KvRead, SessionId};
use zonal_wire::meta::LockRange;
use zonal_wire::{AppendPlace, MetaReply, MoveStage};

impl MetaShard {
    /// Reclaims the opens and locks that a session held before our restart.
    pub(super) fn reclaim(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        opens: &[Ino],
        locks: &[(Ino, LockRange)],
    ) -> Outcome {
        let all = opens.iter().chain(locks.iter().map(|(ino, _)| ino));
        if let Some(code) = all.copied().find_map(|ino| self.is_elsewhere(ino)) {
            return self.refuse(code);
        }
        // The shard that gets the partition is told of these.
        let is_here = |ino: &Ino| !self.moves.frozen.contains(&ino.partition());
        let opens: Vec<Ino> = opens.iter().copied().filter(is_here).collect();
        let locks = locks.iter().filter(|(ino, _)| is_here(ino));
        let (opens, locks) = (&opens[..], &locks.copied().collect::<Vec<_>>()[..]);
        let mut told: BTreeMap<Ino, u32> = BTreeMap::new();
        for ino in opens {
            *told.entry(*ino).or_default() += 1;
        }
        let locked: BTreeSet<Ino> = locks.iter().map(|(ino, _)| *ino).collect();
        // An inode that does not exist takes no place.
        let mut absent = BTreeSet::new();
        // Only once: a repeat, sent because our reply was lost, may name opens that were closed
        // since.
        let known = self.sessions.get_mut(session);
        let is_first = known.is_some_and(|known| !std::mem::replace(&mut known.has_told, true));
        let (mut effect, mut held) = (Vec::new(), BTreeSet::new());
        for ino in told.keys().filter(|_ino| is_first) {
            let mut tx = self.tx(kv, now, session);
            if op::remove::reclaim_orphan(&mut tx, *ino).is_ok()
                && let Ok(finished) = tx.finish()
            {
                held.insert(*ino);
                effect.extend(finished.effect);
                self.apply(session, now.instant, finished.volatile);
            }
        }
        let unknown = told.keys().chain(&locked);
        for ino in unknown.filter(|ino| !held.contains(ino)) {
            match self.tx(kv, now, session).inode(*ino) {
                // An inode that cannot be read does exist.
                Ok(_) | Err(ErrorCode::Corrupt | ErrorCode::Io) => {}
                Err(_absent) => drop(absent.insert(*ino)),
            }
        }
        let new = told
            .iter()
            .filter(|(ino, _)| is_first && !absent.contains(ino));
        for (ino, count) in new {
            // Counts are raised to the reclaimed number, not added to: a repeated request may have
            // counted some already.
            while self.opens.count(*ino, session) < *count
                && (self.opens.count(*ino, session) > 0 || self.opens.len() < self.config.opens_max)
            {
                self.opens.open(*ino, session);
            }
            self.opens.tell(*ino, session);
            self.recall_shared(*ino, session, now);
        }
        let lost = self.reclaim_locks(session, locks, &absent);
        self.sessions.silent.remove(&session);
        self.late.remove(&session);
        if self.sessions.silent.is_empty() {
            self.tickets.forget_new_places();
        }
        self.recheck = true;
        let mut orphans = self.opens.orphans_of(session);
        if !orphans.is_empty() {
            // A request may have opened files without its client hearing the reply. The client
            // repeats the request, or its session ends.
            let unheard = self.sessions.unrepeated(kv, session).unwrap_or_default();
            let unheard: BTreeSet<Ino> = unheard.iter().filter_map(opened_by).collect();
            orphans.retain(|ino| !told.contains_key(ino) && !unheard.contains(ino));
        }
        let (released, _unread) = self.release_orphans(kv, now, session, &orphans);
        effect.extend(released);
        let reply = if lost.is_empty() {
            MetaReply::Done
        } else {
            let lost = lost.into_iter().collect();
            MetaReply::Reclaimed { lost }
        };
        self.outcome(reply, effect, Vec::new(), Vec::new())
    }

    /// Why state of this inode is told to another shard, or later.
    fn is_elsewhere(&self, ino: Ino) -> Option<ErrorCode> {
        let partition = ino.partition();
        if self.partitions.binary_search(&partition).is_err() {
            let is_known = self.map.shard_of(partition).is_some();
            return is_known.then_some(ErrorCode::NotOwner);
        }
        let is_leaving = self.moves.departures.get(&partition);
        let is_complete = is_leaving.is_some_and(|known| known.stage == MoveStage::Switching);
        // Whether it leaves is open as long as the copy is not complete.
        let is_open = self.moves.frozen.contains(&partition) && !is_complete;
        is_open.then_some(ErrorCode::NotReady)
    }

    /// Reclaims locks; returns the files whose locks are lost. `absent` files have none.
    ///
    /// Locks on a file are not reclaimed where another owner has got a conflicting lock: the data
    /// that they guarded may have changed. Nor where the owner's session has ended: others may have
    /// had the lock since, and released it.
    fn reclaim_locks(
        &mut self,
        session: SessionId,
        locks: &[(Ino, LockRange)],
        absent: &BTreeSet<Ino>,
    ) -> BTreeSet<Ino> {
        let may_take = self.sessions.silent.contains(&session);
        let conflicts = |(ino, range): &&(Ino, LockRange)| {
            let is_free = self.locks.get(session, *ino, *range).is_none();
            let is_kept = may_take || self.locks.holds(session, *ino, range);
            !(absent.contains(ino) || is_free && is_kept)
        };
        let mut lost: BTreeSet<Ino> = locks
            .iter()
            .filter(conflicts)
            .map(|(ino, _)| *ino)
            .collect();
        for (ino, range) in locks.iter().filter(|(ino, _)| !absent.contains(ino)) {
            if !lost.contains(ino) && self.locks.reclaim(session, *ino, *range).is_err() {
                lost.insert(*ino);
            }
        }
        lost
    }

    /// Removes a session from the holders of orphans. Returns the changes to log, and why one
    /// stays. An orphan that cannot be read keeps naming the session, even after its end; each
    /// start of the shard tries again.
    fn release_orphans(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        inos: &[Ino],
    ) -> (Vec<KvChange>, Option<ErrorCode>) {
        let (mut effect, mut unread) = (Vec::new(), None);
        // The store does not have the counts of those before.
        let mut counts: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        // The shard that gets the partition finds that the session is none.
        let inos = inos.iter();
        let inos = inos.filter(|ino| !self.moves.frozen.contains(&ino.partition()));
        for ino in inos.copied().collect::<Vec<_>>() {
            let mut tx = self.tx(kv, now, session);
            for (key, value) in &counts {
                tx.put(key.clone(), value.clone());
            }
            let released = op::open::release_orphan(&mut tx, ino);
            match released.and_then(|()| tx.finish()) {
                Ok(finished) => {
                    let put = finished
                        .effect
                        .iter()
                        .filter(|change| is_count(&change.key));
                    let put = put.filter_map(|change| Some((&change.key, change.value.as_ref()?)));
                    counts.extend(put.map(|(key, value)| (key.clone(), value.clone())));
                    effect.extend(finished.effect);
                    self.apply(session, now.instant, finished.volatile);
                }
                Err(code) => unread = Some(code),
            }
        }
        (effect, unread)
    }

    /// Reclaims places from before our restart to which appends are being written. An append that
    /// was executed has none any more.
    pub(super) fn reclaim_appends(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        appends: &[(Ino, AppendPlace)],
    ) -> Outcome {
        let mut is_gone = false;
        for (ino, place) in appends {
            if place.length == 0 {
                if !self.ends.is_lent_to(*ino, session) {
                    self.reclaim_end(kv, now, session, *ino, *place);
                    is_gone |= !self.ends.is_lent_to(*ino, session);
                }
                continue;
            }
            if !self.tickets.is_known(*ino, session, place.offset) {
                self.reclaim_append(kv, now, session, *ino, *place);
                is_gone |= !self.tickets.is_known(*ino, session, place.offset);
            } else {
                let at = place.offset;
                self.tickets.renew(*ino, session, at, now.instant);
            }
        }
        self.reply(if is_gone {
            failed(ErrorCode::UnknownLease)
        } else {
            MetaReply::Done
        })
    }

    /// Reclaims a place that a session had before our restart, unless it was given to another
    /// session since. A truncation ends earlier places, even those that we have forgotten. Only the
    /// first truncation to behind a place's beginning shortens it instead.
    fn reclaim_append(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
        ino: Ino,
        place: AppendPlace,
    ) {
        if !self.sessions.silent.contains(&session) {
            return;
        }
        if let Ok(inode) = self.tx(kv, now, session).inode(ino)
            && inode.is_file()
            && let Some(left) = place.left(inode.truncate_seq, inode.truncate_size)
        {
            let is_truncated = inode.truncate_seq != place.truncate_seq;
            let place = (place.offset, left, is_truncated);
            self.tickets.reclaim(ino, session, place, now.instant);
        }
    }

    pub(super) fn close(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        inos: &[Ino],
    ) -> Result<Outcome, ErrorCode> {
        let session = caller.session;
        // A session that has not reclaimed its opens since our start counts these as open. It
        // closes them after it has told.
        if self.sessions.silent.contains(&session) {
            return Err(ErrorCode::NotReady);
        }
        let mut closed = inos.to_vec();
        closed.retain(|ino| self.opens.close(*ino, session));
        for ino in &closed {
            self.ends.give_back(*ino, session);
            self.woken.insert(WaitOn::End(*ino));
        }
        let (effect, _unread) = self.release_orphans(kv, now, session, &closed);
        if !effect.is_empty() && caller.slot != zonal_wire::frame::NO_SLOT {
            let kept = Some(MetaReply::Done);
            self.sessions
                .replied(session, caller.slot, caller.sequence, kept);
        }
        Ok(self.outcome(MetaReply::Done, effect, Vec::new(), Vec::new()))
    }

    /// Ends a session: it was closed, has expired, or the shard ends it. Returns the changes to
    /// log, and why one of its orphans stays.
    pub(crate) fn end_session(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        session: SessionId,
    ) -> (Vec<KvChange>, Option<ErrorCode>) {
        self.tickets.session_gone(session);
        self.ends.session_gone(session);
        let orphans = self.opens.orphans_of(session);
        let (mut effect, unread) = self.release_orphans(kv, now, session, &orphans);
        self.opens.drop_session(session);
        self.events.close(session);
        self.doomed.remove(&session);
        self.late.remove(&session);
        self.fencing.ended(session);
        if self.sessions.silent.iter().all(|silent| *silent == session) {
            self.tickets.forget_new_places();
        }
        let granted = self.locks.release_session(session);
        self.queue_events(granted);
        self.woken.insert(WaitOn::Events(session));
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
