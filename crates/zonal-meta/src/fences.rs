//! Fences: clients that targets must refuse, and sessions that end once they do.
//!
//! A session that expires or is evicted, and may have writes in flight, is *ending* first: it
//! answers nothing and keeps its locks and opens. The shard logs its fence with the targets that
//! have to acknowledge it. Once all have, or [`FENCE_WAIT_MS`] is over, the session ends. A fence
//! that a target has not acknowledged stays in the store, over restarts.
//! docs/rfcs/2026-11-25-client-identity.md has the reasons.
//!
//! *Invariants*: (1) a fence in memory is in the store; (2) an ending session has a fence of its
//! client. *Bound*: one fence a client and holder, `FENCES_MAX` in all. Past it a session ends
//! without a fence, and the log says so.

use crate::config::Now;
use crate::keys;
use crate::outcome::WaitOn;
use crate::shard::MetaShard;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use zonal_types::limits::{FENCE_WAIT_MS, FENCES_AT_ONCE_MAX, FENCES_MAX};
use zonal_types::{
    ClientId, Codec, ErrorCode, Fence, HolderNumber, Incarnation, Instant, KvChange, KvRead,
    SessionId, TargetId, codec_struct,
};
use zonal_wire::MetaReply;

codec_struct! {
    /// The stored fence.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FenceRecord {
        /// The lowest incarnation that targets serve.
        lowest: Incarnation,
        /// Targets that have not acknowledged the fence.
        targets: Vec<TargetId>,
    }
}

type Name = (ClientId, HolderNumber);

/// Fences and ending sessions.
#[derive(Debug, Default)]
pub(crate) struct Fencing {
    /// Fences that some target has not acknowledged.
    waiting: BTreeMap<Name, FenceRecord>,
    /// The fence that an ending session waits for, and until when.
    ending: BTreeMap<SessionId, (Name, Instant)>,
}

impl Fencing {
    /// Loads all fences from the store.
    pub(crate) fn load(kv: &dyn KvRead) -> Result<Self, ErrorCode> {
        let mut fencing = Self::default();
        let mut broken = false;
        let (start, end) = keys::tag_range(keys::SHARD_PARTITION, keys::TAG_FENCE);
        kv.scan(&start, &end, &mut |key, value| {
            match (keys::fence_of(key), FenceRecord::from_bytes(value)) {
                (Some(name), Ok(record)) => drop(fencing.waiting.insert(name, record)),
                _ => broken = true,
            }
            !broken
        })?;
        match broken {
            true => Err(ErrorCode::Corrupt),
            false => Ok(fencing),
        }
    }

    /// The lowest incarnation of a client that may open a session.
    pub(crate) fn lowest(&self, client: ClientId, holder: HolderNumber) -> Incarnation {
        let of = self.waiting.get(&(client, holder));
        of.map_or(Incarnation(0), |record| record.lowest)
    }

    /// True where a session is ending.
    pub(crate) fn is_ending(&self, session: SessionId) -> bool {
        self.ending.contains_key(&session)
    }

    /// True where any session is ending.
    pub(crate) fn has_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Sessions whose fence is acknowledged, or that have waited long enough.
    pub(crate) fn over(&self, now: Instant) -> Vec<SessionId> {
        let over =
            |(name, until): &(Name, Instant)| *until <= now || !self.waiting.contains_key(name);
        let ending = self.ending.iter();
        ending
            .filter(|(_, of)| over(of))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Latest time at which the next ending session is over.
    pub(crate) fn next(&self) -> Option<Instant> {
        let ending = self.ending.values();
        ending
            .map(|(name, until)| match self.waiting.contains_key(name) {
                true => *until,
                false => Instant(0),
            })
            .min()
    }

    /// The session has ended.
    pub(crate) fn ended(&mut self, session: SessionId) {
        self.ending.remove(&session);
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl MetaShard {
    /// True where a session may have writes in flight. A session from before our start may, until
    /// it has reclaimed its state.
    fn may_write(&self, session: SessionId) -> bool {
        self.sessions.silent.contains(&session)
            || self.opens.files_of(session) > 0
            || self.locks.files_of(session) > 0
            || self.tickets.of_session(session) > 0
            || !self.opens.orphans_of(session).is_empty()
    }

    /// Every target that may hold bytes of this shard's files.
    fn own_targets(&self) -> BTreeSet<TargetId> {
        let is_anywhere = self.config.is_root() || self.has_remote_data;
        let sets = self.map.sets.iter();
        let own = sets.filter(|set| is_anywhere || set.zone == self.config.zone);
        own.flat_map(|set| set.slots.iter().map(|slot| slot.target))
            .collect()
    }

    /// Begins to end a session that its client has not closed. Returns the effect to log, or `None`
    /// where there is nothing to wait for.
    pub(crate) fn begin_ending(&mut self, now: Now, session: SessionId) -> Option<Vec<KvChange>> {
        if self.fencing.is_ending(session) {
            return Some(Vec::new());
        }
        let targets: Vec<TargetId> = self.own_targets().into_iter().collect();
        if targets.is_empty() || !self.may_write(session) {
            return None;
        }
        let known = self.sessions.get_mut(session)?;
        known.is_ending = true;
        let identity = known.record.identity;
        let holder = HolderNumber::of(known.holder.as_deref());
        let name = (identity.client, holder);
        let before = self.fencing.waiting.get(&name);
        if before.is_none() && self.fencing.waiting.len() >= FENCES_MAX {
            return None;
        }
        zonal_types::mark!(SessionEnding);
        let lowest = identity.incarnation.next();
        let lowest = before.map_or(lowest, |before| before.lowest.max(lowest));
        assert!(
            before.is_none_or(|before| before.lowest <= lowest),
            "the fence of {name:?} spares incarnations that it covered"
        );
        let record = FenceRecord { lowest, targets };
        let change = KvChange::put(keys::fence(name.0, name.1), record.to_bytes());
        self.fencing.waiting.insert(name, record);
        let until = now.instant.plus_ms(FENCE_WAIT_MS);
        self.fencing.ending.insert(session, (name, until));
        // Its poll is answered that the session is unknown.
        self.woken.insert(WaitOn::Events(session));
        Some(vec![change])
    }

    /// Resumes sessions that were ending before our start.
    pub(crate) fn resume_ending(&mut self, now: Instant) {
        let mut ending = Vec::new();
        for id in self.sessions.ids() {
            let Some(session) = self.sessions.get(id) else {
                continue;
            };
            let holder = HolderNumber::of(session.holder.as_deref());
            let identity = session.record.identity;
            if identity.incarnation < self.fencing.lowest(identity.client, holder) {
                ending.push((id, (identity.client, holder)));
            }
        }
        for (id, name) in ending {
            if let Some(session) = self.sessions.get_mut(id) {
                session.is_ending = true;
            }
            let until = now.plus_ms(FENCE_WAIT_MS);
            self.fencing.ending.insert(id, (name, until));
        }
    }

    /// Fences that each target has to acknowledge.
    #[must_use]
    pub fn fences(&self) -> BTreeMap<TargetId, Vec<Fence>> {
        let mut fences: BTreeMap<TargetId, Vec<Fence>> = BTreeMap::new();
        for ((client, holder), record) in &self.fencing.waiting {
            for target in &record.targets {
                let of = fences.entry(*target).or_default();
                if of.len() < FENCES_AT_ONCE_MAX {
                    of.push(Fence {
                        client: *client,
                        holder: *holder,
                        lowest: record.lowest,
                    });
                }
            }
        }
        fences
    }

    /// Fences that a starting target must store before it changes any of this shard's files. The
    /// list starts behind `after` and has as many as fit a message.
    #[must_use]
    pub fn fences_of(&self, target: TargetId, after: (ClientId, HolderNumber)) -> MetaReply {
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let waiting = self.fencing.waiting.range(behind);
        let mut own = waiting.filter(|(_name, record)| record.targets.contains(&target));
        let fences: Vec<Fence> = own
            .by_ref()
            .take(FENCES_AT_ONCE_MAX)
            .map(|((client, holder), record)| Fence {
                client: *client,
                holder: *holder,
                lowest: record.lowest,
            })
            .collect();
        let end = own.next().is_none();
        MetaReply::Fences { fences, end }
    }

    /// Notes that a target has acknowledged these fences, or is in no map any more; returns the
    /// effect to log. The caller runs housekeeping then.
    pub fn fenced(&mut self, target: TargetId, fences: &[Fence]) -> Vec<KvChange> {
        let mut changes = Vec::new();
        for fence in fences {
            let name = (fence.client, fence.holder);
            let key = keys::fence(fence.client, fence.holder);
            let Some(record) = self.fencing.waiting.get_mut(&name) else {
                continue;
            };
            if record.lowest > fence.lowest {
                continue;
            }
            record.targets.retain(|waiting| *waiting != target);
            if record.targets.is_empty() {
                self.fencing.waiting.remove(&name);
                changes.push(KvChange::remove(key));
            } else {
                changes.push(KvChange::put(key, record.to_bytes()));
            }
        }
        changes
    }
}
