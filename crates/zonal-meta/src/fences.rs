//! Clients that are to be fenced at targets, and sessions that end when they are.
//!
//! A session that expires or is evicted, and may have bytes on their way to targets, is *ending*
//! first: it answers nothing and keeps what it has. Its fence is logged with the targets that have
//! to hear of it. Once all have, or [`FENCE_WAIT_MS`] is over, the session ends. What a target has
//! not acknowledged stays in the store, over restarts, until it has.
//! docs/rfcs/2026-11-25-client-identity.md has the reasons.
//!
//! *Invariants*: (1) a fence in memory is in the store; (2) an ending session has a fence of its
//! client. *Bound*: one fence a client and holder, `FENCES_MAX` in all; past it a session ends
//! without one, which is told in the log.

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
        /// The lowest incarnation that is to be served.
        lowest: Incarnation,
        /// Targets that have not acknowledged it.
        targets: Vec<TargetId>,
    }
}

type Name = (ClientId, HolderNumber);

/// What waits for targets.
#[derive(Debug, Default)]
pub(crate) struct Fencing {
    /// Fences that some target has not acknowledged.
    waiting: BTreeMap<Name, FenceRecord>,
    /// Until when a session waits for its client's fence.
    ending: BTreeMap<SessionId, (Name, Instant)>,
}

impl Fencing {
    /// All fences in the store.
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

    /// Whether a session is ending.
    pub(crate) fn is_ending(&self, session: SessionId) -> bool {
        self.ending.contains_key(&session)
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

    /// When the next ending session is over at the latest.
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
    /// Whether a session may have bytes on their way to targets. One from before our start has not
    /// told.
    fn may_write(&self, session: SessionId) -> bool {
        self.sessions.silent.contains(&session)
            || self.opens.files_of(session) > 0
            || self.locks.files_of(session) > 0
            || self.tickets.of_session(session) > 0
            || !self.opens.orphans_of(session).is_empty()
    }

    /// Every target that bytes of this shard's files may lie on.
    fn own_targets(&self) -> BTreeSet<TargetId> {
        let is_root = self.config.is_root();
        let sets = self.map.sets.iter();
        let own = sets.filter(|set| is_root || set.zone == self.config.zone);
        own.flat_map(|set| set.slots.iter().map(|slot| slot.target))
            .collect()
    }

    /// A session is to end that its client has not closed. `None`: nothing is to be waited for.
    /// Else what is logged: it is ending from now on.
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
        let record = FenceRecord { lowest, targets };
        let change = KvChange::put(keys::fence(name.0, name.1), record.to_bytes());
        self.fencing.waiting.insert(name, record);
        let until = now.instant.plus_ms(FENCE_WAIT_MS);
        self.fencing.ending.insert(session, (name, until));
        // Its poll hears that it has no session.
        self.woken.insert(WaitOn::Events(session));
        Some(vec![change])
    }

    /// Sessions of before our start that were ending go on with that.
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

    /// What each target has to be told.
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

    /// What a target that starts has to hear before it changes anything of this shard's files: the
    /// fences that it has not acknowledged, from behind `after` on, as many as one message may
    /// have.
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

    /// A target has acknowledged these, or is in no map any more: what is logged. Housekeeping is
    /// due then.
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
