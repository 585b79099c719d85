//! Known leader: which replica of a shard is asked next, where several keep its log.
//!
//! A client or server remembers the replica that answered last. It begins with the shard's owner in
//! the map. A replica that does not lead may name the leader, which is asked next. One that does
//! not answer is followed by the next in the list.
//!
//! *Invariants*:
//! 1. Only a replica of the map at hand is chosen: one that the map has no more is forgotten.
//! 2. From each replica in the list at most one named leader is followed. So replicas that name one
//!    another, or a dead one, keep nobody from the others, and each is asked in turn.
//! 3. Of several threads that asked the same replica in vain, the first decides.

use crate::map::{Shard, ZoneMap};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zonal_types::{ErrorCode, NodeId, ShardId};
use zonal_wire::MetaReply;

/// The replica of one shard that is asked next. Threads share it.
#[derive(Debug, Default)]
pub struct KnownLeader(AtomicU64);

/// Node 0: the shard's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Choice {
    asked: NodeId,
    /// The place in the list: `asked` itself, or the replica that named it.
    place: NodeId,
}

impl Choice {
    fn unpack(packed: u64, shard: &Shard) -> Self {
        let [asked, place] = [packed, packed >> 32].map(|half| {
            #[expect(clippy::cast_possible_truncation, reason = "half of it")]
            let node = NodeId(half as u32);
            let is_replica = shard.replicas.contains(&node);
            is_replica.then_some(node)
        });
        let asked = asked.unwrap_or(shard.node);
        let place = place.unwrap_or(asked);
        Self { asked, place }
    }

    fn pack(self) -> u64 {
        u64::from(self.asked.0) | u64::from(self.place.0) << 32
    }

    fn at(node: NodeId) -> Self {
        let (asked, place) = (node, node);
        Self { asked, place }
    }

    /// The replica behind the place in the list, without the one that was asked in vain.
    fn next(self, shard: &Shard) -> Self {
        let replicas = &shard.replicas;
        let after = replicas.iter().position(|node| *node == self.place);
        let round = replicas.iter().cycle().skip(after.map_or(0, |at| at + 1));
        let next = round.take(replicas.len()).find(|node| **node != self.asked);
        Self::at(next.copied().unwrap_or(shard.node))
    }
}

impl KnownLeader {
    /// The replica to ask.
    #[must_use]
    pub fn node(&self, shard: &Shard) -> NodeId {
        if shard.is_replicated() {
            Choice::unpack(self.0.load(Ordering::Relaxed), shard).asked
        } else {
            shard.node
        }
    }

    /// Notes that a replica answered as a leader does.
    pub fn answered(&self, shard: &Shard, node: NodeId) {
        let packed = Choice::at(node).pack();
        // Mostly it is known, and threads do not take the word from one another.
        if shard.is_replicated() && self.0.load(Ordering::Relaxed) != packed {
            self.0.store(packed, Ordering::Relaxed);
        }
    }

    /// Notes that a replica does not lead, and which one leads as far as it knows; 0: it knows
    /// none.
    pub fn refused(&self, shard: &Shard, node: NodeId, leader: NodeId) {
        self.go_on(shard, node, |now| {
            let is_named = leader != node && shard.replicas.contains(&leader);
            if is_named && now.place == node {
                let (asked, place) = (leader, node);
                return Choice { asked, place };
            }
            now.next(shard)
        });
    }

    /// Notes that a replica did not answer.
    pub fn failed(&self, shard: &Shard, node: NodeId) {
        self.go_on(shard, node, |now| now.next(shard));
    }

    fn go_on(&self, shard: &Shard, node: NodeId, next: impl Fn(Choice) -> Choice) {
        if !shard.is_replicated() {
            return;
        }
        let step = |packed| {
            let now = Choice::unpack(packed, shard);
            (now.asked == node).then(|| next(now).pack())
        };
        let order = Ordering::Relaxed;
        // Refused where another thread has gone on.
        let _gone_on = self.0.fetch_update(order, order, step);
    }
}

/// The known leaders of all replicated shards. *Bound*: the shards of the map.
#[derive(Debug, Default)]
pub struct KnownLeaders(Mutex<BTreeMap<ShardId, Arc<KnownLeader>>>);

impl KnownLeaders {
    /// The known leader of a shard of this map. Forgets shards that are in the map no more.
    fn of(&self, map: &ZoneMap, shard: ShardId) -> Arc<KnownLeader> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&shard) {
            known.retain(|shard, _leader| map.shard(*shard).is_some());
        }
        known.entry(shard).or_default().clone()
    }
}

/// The attempts of one server's call to a shard: at most two at each replica, without pauses. The
/// operation that needs the call is retried later.
#[derive(Debug)]
pub struct ReplicaAttempts {
    known: Arc<KnownLeader>,
    shard: Shard,
    attempts_left: usize,
}

impl KnownLeaders {
    /// Begins a call; `None` where the map does not have the shard.
    #[must_use]
    pub fn attempts(&self, map: &ZoneMap, shard: ShardId) -> Option<ReplicaAttempts> {
        let shard = map.shard(shard)?;
        let is_replicated = shard.is_replicated();
        let known = is_replicated.then(|| self.of(map, shard.id));
        Some(ReplicaAttempts {
            known: known.unwrap_or_default(),
            attempts_left: if is_replicated {
                2 * shard.replicas.len()
            } else {
                1
            },
            shard: shard.clone(),
        })
    }
}

impl ReplicaAttempts {
    /// The replica for the next attempt.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.known.node(&self.shard)
    }

    /// Whether several replicas may be asked, each briefly.
    #[must_use]
    pub fn is_among_several(&self) -> bool {
        self.shard.is_replicated()
    }

    /// Judges the outcome of an attempt at `node`: true where it is the call's. Otherwise the next
    /// replica is to be asked.
    pub fn is_over<E>(&mut self, node: NodeId, outcome: &Result<MetaReply, E>) -> bool {
        match outcome {
            Ok(MetaReply::NotLeader { leader }) => {
                self.known.refused(&self.shard, node, *leader);
                self.is_last()
            }
            Ok(MetaReply::Failed { code }) => self.is_over_after(node, Some(code.0)),
            Ok(_answer) => self.is_over_after(node, None),
            Err(_no_answer) => self.is_over_after(node, Some(ErrorCode::Unreachable)),
        }
    }

    /// As [`Self::is_over`], of a request of another service that failed or did not.
    pub fn is_over_after(&mut self, node: NodeId, failed: Option<ErrorCode>) -> bool {
        match failed {
            Some(ErrorCode::NotOwner | ErrorCode::Unreachable) => {
                self.known.failed(&self.shard, node);
                self.is_last()
            }
            _answer => {
                self.known.answered(&self.shard, node);
                true
            }
        }
    }

    fn is_last(&mut self) -> bool {
        self.attempts_left = self.attempts_left.saturating_sub(1);
        self.attempts_left == 0
    }
}

#[cfg(test)]
mod tests;
