//! The reporter of a zone: sightings of its nodes in, digests for the manager out.
//!
//! | of a node | it is |
//! | --- | --- |
//! | somebody gets answers, nobody gets none | up |
//! | two watchers get no answer for 3 s (or the only one), nobody gets any | down |
//! | some other mix | suspect; a node that was down stays so until somebody gets an answer |
//! | nobody tells of it | up where it tells of others, else as it was; at first unknown |

use super::neighbours::level;
use std::collections::BTreeMap;
use zonal_types::limits::{DIGEST_MS, HEARTBEAT_SILENT_MS, SIGHTINGS_MAX};
use zonal_types::{Instant, NodeId};
use zonal_wire::{NodeState, Sighting, StateCause, Suspicion};

/// Sightings older than this are dropped: more than two periods of them.
const KEPT_MS: u64 = 5_000;
/// Least time between two digests, where states change.
const CHANGE_MS: u64 = 200;
/// Longest period of digests that a manager may ask for.
const LONGEST_PERIOD_MS: u64 = 30_000;

/// A digest: nodes that are not up, and those that are not known yet.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ZoneDigest {
    /// Nodes that are not up.
    pub suspicions: Vec<Suspicion>,
    /// Nodes of which nothing is known.
    pub unknown: Vec<NodeId>,
}

/// The reporter of a zone.
#[derive(Debug)]
pub struct ZoneReport {
    me: NodeId,
    told: BTreeMap<NodeId, (Instant, Vec<Sighting>)>,
    states: BTreeMap<NodeId, NodeState>,
    sent: Option<(Instant, ZoneDigest)>,
    period_ms: u64,
}

/// Sightings of one node.
#[derive(Default)]
struct Told {
    answers: Vec<(NodeId, StateCause)>,
    /// With their level.
    silent: Vec<(NodeId, StateCause, u8)>,
}

impl ZoneReport {
    /// A reporter that was told nothing.
    #[must_use]
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            told: BTreeMap::new(),
            states: BTreeMap::new(),
            sent: None,
            period_ms: DIGEST_MS,
        }
    }

    /// Takes the sightings of a node of the zone.
    pub fn take(&mut self, by: NodeId, mut sightings: Vec<Sighting>, now: Instant) {
        sightings.truncate(SIGHTINGS_MAX);
        self.told.insert(by, (now, sightings));
    }

    /// Forgets everything: another node reports.
    pub fn reset(&mut self) {
        *self = Self::new(self.me);
    }

    fn is_heard(&self, node: NodeId, now: Instant) -> bool {
        let heard = self.told.get(&node);
        node == self.me || heard.is_some_and(|(at, _)| now.ms_since(*at) <= HEARTBEAT_SILENT_MS)
    }

    fn told_of(&self, ring: &[NodeId], now: Instant) -> BTreeMap<NodeId, Told> {
        let mut of: BTreeMap<NodeId, Told> = BTreeMap::new();
        for (by, (_, sightings)) in &self.told {
            let is_fresh = self.is_heard(*by, now);
            let others = sightings.iter().filter(|told| told.node != *by);
            for told in others.filter(|told| ring.binary_search(&told.node).is_ok()) {
                let of = of.entry(told.node).or_default();
                match level(told) {
                    // A watcher that is gone itself may have got its last answer before.
                    0 | 1 if is_fresh => of.answers.push((*by, told.result)),
                    0 | 1 => {}
                    level => of.silent.push((*by, told.result, level)),
                }
            }
        }
        of
    }

    /// The digest as of now.
    pub fn digest(&mut self, ring: &[NodeId], now: Instant) -> ZoneDigest {
        let is_member = |node: &NodeId| ring.binary_search(node).is_ok();
        self.told
            .retain(|by, (at, _)| is_member(by) && now.ms_since(*at) <= KEPT_MS);
        self.states.retain(|node, _| is_member(node));
        let told_of = self.told_of(ring, now);
        let heard = ring.iter().filter(|node| self.is_heard(**node, now));
        let heard: Vec<NodeId> = heard.copied().collect();
        let mut digest = ZoneDigest::default();
        let nothing = Told::default();
        for node in ring {
            let told = told_of.get(node).unwrap_or(&nothing);
            let others = heard.iter().filter(|other| *other != node).count();
            let was = self.states.get(node).copied();
            let is_heard = heard.binary_search(node).is_ok();
            let judged = match *node == self.me {
                true => Some((NodeState::Up, StateCause::Serves)),
                false => judge(told, (others, is_heard), was),
            };
            let Some((state, cause)) = judged else {
                digest.unknown.push(*node);
                continue;
            };
            self.states.insert(*node, state);
            if state != NodeState::Up {
                let mut by: Vec<NodeId> = told.silent.iter().map(|(by, _, _)| *by).collect();
                by.truncate(2);
                digest.suspicions.push(Suspicion {
                    node: *node,
                    state,
                    cause,
                    by,
                });
            }
        }
        digest
    }

    /// The digest where it is to be sent now: it has changed, or its period is over.
    pub fn due(&mut self, ring: &[NodeId], now: Instant) -> Option<ZoneDigest> {
        let digest = self.digest(ring, now);
        let is_due = match &self.sent {
            None => true,
            Some((at, last)) => {
                let age = now.ms_since(*at);
                age >= self.period_ms || (age >= CHANGE_MS && states(last) != states(&digest))
            }
        };
        is_due.then(|| {
            self.sent = Some((now, digest.clone()));
            digest
        })
    }

    /// The manager took a digest, and says when the next one is due; `None`: it did not answer.
    pub fn taken(&mut self, next_ms: Option<u32>) {
        match next_ms {
            Some(ms) => self.period_ms = u64::from(ms).clamp(DIGEST_MS, LONGEST_PERIOD_MS),
            None => self.period_ms = DIGEST_MS,
        }
    }

    /// Bytes in memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let told = self.told.values().map(|(_, list)| list.len());
        let sightings: usize = told.sum();
        sightings * size_of::<Sighting>() + self.told.len() * 64 + self.states.len() * 16
    }
}

fn states(digest: &ZoneDigest) -> (Vec<(NodeId, NodeState)>, &[NodeId]) {
    let listed = digest.suspicions.iter();
    let listed = listed.map(|told| (told.node, told.state)).collect();
    (listed, &digest.unknown)
}

/// The state of a node by what is told of it, where `others` other nodes are heard; `None`: it is
/// not known.
fn judge(
    told: &Told,
    (others, is_heard): (usize, bool),
    was: Option<NodeState>,
) -> Option<(NodeState, StateCause)> {
    let needed = others.clamp(1, 2);
    let agreeing = told.silent.iter().filter(|(_, _, level)| *level == 3);
    let cause = told.silent.iter().map(|(_, cause, _)| *cause).min();
    Some(match (cause, told.answers.is_empty()) {
        (Some(cause), true) => {
            let is_down = agreeing.count() >= needed || was == Some(NodeState::Down);
            let state = match is_down {
                true => NodeState::Down,
                false => NodeState::Suspect,
            };
            (state, cause)
        }
        (Some(_), false) => (NodeState::Suspect, StateCause::Disagreement),
        (None, false) => {
            let stopped = told.answers.iter();
            let stopped = stopped.map(|(_, result)| *result).max();
            match stopped {
                Some(StateCause::RoleStopped) => (NodeState::Suspect, StateCause::RoleStopped),
                _ => (NodeState::Up, StateCause::Serves),
            }
        }
        (None, true) if is_heard => (NodeState::Up, StateCause::Serves),
        (None, true) => match was? {
            NodeState::Up => (NodeState::Up, StateCause::Serves),
            state => (state, StateCause::Unreachable),
        },
    })
}

#[cfg(test)]
mod tests;
