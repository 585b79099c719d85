//! The manager's states of nodes: from digests of zones, and from its own heartbeats to zones that
//! are silent.
//!
//! Invariants:
//! 1. States live in memory; changes are returned, to be logged.
//! 2. Memory is bounded by the nodes of the map, and by [`ZONE_REPORTERS_MAX`] digests a zone.
//! 3. All digests and their replies together stay below [`DIGEST_BYTES_PER_SECOND`].
//! 4. A manager that did not run for a while takes no zone for silent before the next digests are
//!    due.

use crate::watch::{ZoneDigest, ZoneMembers};
use std::collections::BTreeMap;
use zonal_types::limits::{
    DIGEST_BYTES_PER_SECOND, DIGEST_MS, HEARTBEAT_MS, HEARTBEAT_SILENT_MS,
    SILENT_ZONE_HEARTBEATS_MAX, ZONE_REPORTERS_MAX,
};
use zonal_types::{Instant, NodeId, Timestamp, ZoneId};
use zonal_wire::{CellChange, KnownState, NodeState, StateCause, Suspicion};

/// Bytes of a digest without suspicions and of its reply, with their headers.
const EXCHANGE_BYTES: u64 = 300;
/// A digest that is later than this makes the manager look itself.
const LATE_MS: u64 = 500;
/// A digest that is later than this counts no more.
const STALE_MS: u64 = 1_500;
/// A zone whose digest is later than this is silent, unless one of its nodes answers.
const SILENT_MS: u64 = 3_500;
/// Longest pause between two calls of [`NodeStates::tick`] that does not count as a stop.
const LONGEST_PAUSE_MS: u64 = 1_500;

#[derive(Debug)]
struct Known {
    zone: ZoneId,
    state: NodeState,
    since: Timestamp,
    cause: StateCause,
    by: Vec<NodeId>,
}

#[derive(Debug)]
struct Digest {
    reporter: NodeId,
    at: Instant,
    digest: ZoneDigest,
}

/// The manager's own heartbeats to a node of a silent zone.
#[derive(Debug, Clone, Copy)]
struct OwnHeartbeats {
    in_flight: Option<Instant>,
    last: Instant,
    silent_since: Option<Instant>,
    answered: Option<Instant>,
    result: StateCause,
}

#[derive(Debug, Default)]
struct ZoneWatch {
    digests: Vec<Digest>,
    is_silent: bool,
    own: BTreeMap<NodeId, OwnHeartbeats>,
}

/// A change of states, to be logged.
pub type StateChange = CellChange;

/// Results of a tick.
#[derive(Debug, Default)]
pub struct WatchOrders {
    /// Changes to log.
    pub changes: Vec<StateChange>,
    /// Nodes to which the manager itself sends a heartbeat.
    pub heartbeats: Vec<NodeId>,
}

/// The states of all nodes of a cell.
#[derive(Debug, Default)]
pub struct NodeStates {
    nodes: BTreeMap<NodeId, Known>,
    zones: BTreeMap<ZoneId, ZoneWatch>,
    /// Digests count as if they had come then at the earliest: the start, or the end of a stop.
    resumed: Instant,
    last_tick: Option<Instant>,
}

impl NodeStates {
    /// States of a manager that starts now; `before` has the last known state of nodes.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            resumed: now,
            ..Self::default()
        }
    }

    /// Sets the state of a node before the manager's start, from the log of events.
    pub fn restore(&mut self, zone: ZoneId, known: KnownState) {
        self.nodes.insert(
            known.node,
            Known {
                zone,
                state: known.state,
                since: known.since,
                cause: known.cause,
                by: known.by,
            },
        );
    }

    /// Period of digests, in ms: so long that all of them stay within the bytes a second.
    #[must_use]
    pub fn period_ms(zones: usize) -> u64 {
        let bytes = EXCHANGE_BYTES.saturating_mul(zones as u64);
        (bytes * 1_000)
            .div_ceil(DIGEST_BYTES_PER_SECOND)
            .max(DIGEST_MS)
    }

    /// Adds nodes that are new in the map, and forgets those that are gone.
    pub fn follow(&mut self, members: &ZoneMembers, wall: Timestamp) {
        self.nodes
            .retain(|node, known| members.of_zone(known.zone).binary_search(node).is_ok());
        self.zones
            .retain(|zone, _| !members.of_zone(*zone).is_empty());
        for (zone, nodes) in members.zones() {
            for node in nodes {
                self.nodes.entry(*node).or_insert_with(|| Known {
                    zone,
                    state: NodeState::Up,
                    since: wall,
                    cause: StateCause::Serves,
                    by: Vec::new(),
                });
            }
        }
    }

    /// Takes a digest; returns the changes.
    pub fn take(
        &mut self,
        (zone, reporter): (ZoneId, NodeId),
        mut digest: ZoneDigest,
        members: &ZoneMembers,
        (now, wall): (Instant, Timestamp),
    ) -> Vec<StateChange> {
        let nodes = members.of_zone(zone);
        if nodes.binary_search(&reporter).is_err() {
            return Vec::new();
        }
        let is_member = |node: &NodeId| nodes.binary_search(node).is_ok();
        digest.suspicions.retain(|told| is_member(&told.node));
        for told in &mut digest.suspicions {
            told.by.truncate(2);
        }
        digest.suspicions.sort_by_key(|told| told.node);
        digest.suspicions.dedup_by_key(|told| told.node);
        digest.unknown.retain(is_member);
        digest.unknown.sort_unstable();
        digest.unknown.dedup();
        let watch = self.zones.entry(zone).or_default();
        watch.digests.retain(|known| known.reporter != reporter);
        if watch.digests.len() >= ZONE_REPORTERS_MAX {
            watch.digests.remove(0);
        }
        watch.digests.push(Digest {
            reporter,
            at: now,
            digest,
        });
        self.decide(zone, members, (now, wall))
    }

    /// Looks for zones whose digests are late. To be called several times a second.
    pub fn tick(
        &mut self,
        members: &ZoneMembers,
        (now, wall): (Instant, Timestamp),
    ) -> WatchOrders {
        let pause = self.last_tick.map_or(0, |last| now.ms_since(last));
        self.last_tick = Some(now);
        if pause > LONGEST_PAUSE_MS {
            self.resumed = now;
            for own in self
                .zones
                .values_mut()
                .flat_map(|zone| zone.own.values_mut())
            {
                own.silent_since = own.silent_since.map(|_| now);
                own.in_flight = own.in_flight.map(|_| now);
            }
        }
        let mut orders = WatchOrders::default();
        let period = Self::period_ms(members.count());
        for (zone, nodes) in members.zones() {
            let age = self.age(zone, now);
            let watch = self.zones.entry(zone).or_default();
            if age <= period + LATE_MS {
                watch.own.retain(|_, own| own.in_flight.is_some());
                continue;
            }
            orders.heartbeats.extend(watch.heartbeats(nodes, now));
            let mut changes = self.decide(zone, members, (now, wall));
            orders.changes.append(&mut changes);
        }
        orders
    }

    /// Takes the result of a heartbeat that a tick ordered.
    pub fn answered(&mut self, node: NodeId, result: StateCause, now: Instant) {
        let zone = self.nodes.get(&node).map(|known| known.zone);
        let watch = zone.and_then(|zone| self.zones.get_mut(&zone));
        let Some(own) = watch.and_then(|watch| watch.own.get_mut(&node)) else {
            return;
        };
        let began = own.in_flight.take().unwrap_or(now);
        match result {
            StateCause::Serves | StateCause::RoleStopped => {
                (own.silent_since, own.answered) = (None, Some(now));
            }
            _ => {
                own.silent_since.get_or_insert(began);
            }
        }
        own.result = result;
    }

    /// A heartbeat that a tick ordered was not sent.
    pub fn unsent(&mut self, node: NodeId) {
        let own = self.zones.values_mut();
        for own in own.filter_map(|zone| zone.own.get_mut(&node)) {
            own.in_flight = None;
        }
    }

    /// Age of the newest digest of a zone.
    fn age(&self, zone: ZoneId, now: Instant) -> u64 {
        let digests = self.zones.get(&zone).into_iter();
        let newest = digests.flat_map(|watch| &watch.digests);
        let newest = newest.map(|digest| digest.at).max();
        now.ms_since(newest.unwrap_or_default().max(self.resumed))
    }

    fn decide(
        &mut self,
        zone: ZoneId,
        members: &ZoneMembers,
        (now, wall): (Instant, Timestamp),
    ) -> Vec<StateChange> {
        let period = Self::period_ms(members.count());
        let age = self.age(zone, now);
        let Some(watch) = self.zones.get_mut(&zone) else {
            return Vec::new();
        };
        watch
            .digests
            .retain(|digest| now.ms_since(digest.at) <= period + STALE_MS);
        let is_silent = watch.digests.is_empty()
            && age > period + SILENT_MS
            && !watch.own.values().any(|own| own.is_answering(now));
        let mut changes = Vec::new();
        if is_silent != watch.is_silent {
            watch.is_silent = is_silent;
            changes.push(CellChange::ZoneReports {
                zone,
                reports: !is_silent,
            });
        }
        for node in members.of_zone(zone) {
            let judged = match watch.digests.is_empty() {
                true => watch.own_judgement(*node, now),
                false => merged(&watch.digests, *node),
            };
            let Some((state, cause, by)) = judged else {
                continue;
            };
            let known = self.nodes.entry(*node).or_insert_with(|| Known {
                zone,
                state: NodeState::Up,
                since: wall,
                cause: StateCause::Serves,
                by: Vec::new(),
            });
            if known.state == state {
                (known.cause, known.by) = (cause, by);
                continue;
            }
            if known.state == NodeState::Down && cause == StateCause::ZoneSilent {
                continue;
            }
            let was = std::mem::replace(&mut known.state, state);
            // The zone's own event tells of all its nodes.
            let is_of_zone =
                cause == StateCause::ZoneSilent || known.cause == StateCause::ZoneSilent;
            (known.since, known.cause, known.by) = (wall, cause, by.clone());
            if !(is_of_zone && state != NodeState::Down) {
                changes.push(CellChange::NodeState {
                    node: *node,
                    zone,
                    was,
                    state,
                    cause,
                    by,
                });
            }
        }
        changes
    }

    /// The state of a node.
    #[must_use]
    pub fn state(&self, node: NodeId) -> Option<NodeState> {
        self.nodes.get(&node).map(|known| known.state)
    }

    /// The state of a node, with its time and cause.
    #[must_use]
    pub fn known(&self, node: NodeId) -> Option<KnownState> {
        self.nodes.get(&node).map(|known| KnownState {
            node,
            state: known.state,
            since: known.since,
            cause: known.cause,
            by: known.by.clone(),
        })
    }

    /// Nodes that are not up, with their zones, in order.
    pub fn not_up(&self) -> impl Iterator<Item = (ZoneId, KnownState)> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|(_, known)| known.state != NodeState::Up);
        nodes.filter_map(|(node, known)| Some((known.zone, self.known(*node)?)))
    }

    /// Number of nodes in a state.
    #[must_use]
    pub fn count(&self, state: NodeState) -> usize {
        let nodes = self.nodes.values();
        nodes.filter(|known| known.state == state).count()
    }

    /// Zones from which no digest comes.
    #[must_use]
    pub fn silent_zones(&self) -> usize {
        let zones = self.zones.values();
        zones.filter(|watch| watch.is_silent).count()
    }

    /// Bytes in memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let digests = self.zones.values().flat_map(|watch| &watch.digests);
        let told: usize = digests
            .map(|known| {
                size_of::<Digest>()
                    + known.digest.suspicions.len() * (size_of::<Suspicion>() + 8)
                    + known.digest.unknown.len() * size_of::<NodeId>()
            })
            .sum();
        let own = self.zones.values().map(|watch| watch.own.len());
        // A tree's nodes are half full at the worst.
        2 * self.nodes.len() * size_of::<(NodeId, Known)>()
            + 2 * self.zones.len() * size_of::<(ZoneId, ZoneWatch)>()
            + 2 * own.sum::<usize>() * size_of::<(NodeId, OwnHeartbeats)>()
            + told
    }
}

impl OwnHeartbeats {
    fn is_answering(&self, now: Instant) -> bool {
        let answered = self.answered;
        answered.is_some_and(|at| now.ms_since(at) <= HEARTBEAT_SILENT_MS)
    }

    fn silent_ms(&self, now: Instant) -> u64 {
        let since = self.silent_since.or(self.in_flight);
        since.map_or(0, |since| now.ms_since(since))
    }
}

impl ZoneWatch {
    /// Nodes of a zone with a late digest to which a heartbeat goes now: the first ones, and the
    /// next ones once these are silent.
    fn heartbeats(&mut self, nodes: &[NodeId], now: Instant) -> Vec<NodeId> {
        self.own.retain(|node, _| nodes.binary_search(node).is_ok());
        let mut due = Vec::new();
        let mut in_flight = self
            .own
            .values()
            .filter(|own| own.in_flight.is_some())
            .count();
        let mut asked = 0;
        for node in nodes {
            let known = self.own.get(node);
            let is_due = known.is_none_or(|own| {
                own.in_flight.is_none() && now.ms_since(own.last) >= HEARTBEAT_MS
            });
            let is_long_silent = known.is_some_and(|own| own.silent_ms(now) >= HEARTBEAT_SILENT_MS);
            asked += usize::from(!is_long_silent);
            if is_due && in_flight < SILENT_ZONE_HEARTBEATS_MAX {
                in_flight += 1;
                due.push(*node);
                let own = self.own.entry(*node).or_insert(OwnHeartbeats {
                    in_flight: None,
                    last: now,
                    silent_since: None,
                    answered: None,
                    result: StateCause::Hung,
                });
                (own.in_flight, own.last) = (Some(now), now);
            }
            if asked >= SILENT_ZONE_HEARTBEATS_MAX {
                break;
            }
        }
        due
    }

    /// The state of a node of a zone without digests; `None`: as it was.
    fn own_judgement(
        &self,
        node: NodeId,
        now: Instant,
    ) -> Option<(NodeState, StateCause, Vec<NodeId>)> {
        let own = self.own.get(&node);
        if let Some(own) = own {
            if own.is_answering(now) {
                return Some((NodeState::Up, StateCause::Serves, Vec::new()));
            }
            if own.silent_ms(now) >= HEARTBEAT_SILENT_MS {
                return Some((NodeState::Down, own.result, Vec::new()));
            }
        }
        self.is_silent
            .then_some((NodeState::Suspect, StateCause::ZoneSilent, Vec::new()))
    }
}

/// The state of a node by all digests of its zone; `None`: none of them knows it.
fn merged(digests: &[Digest], node: NodeId) -> Option<(NodeState, StateCause, Vec<NodeId>)> {
    let mut merged: Option<(NodeState, StateCause, Vec<NodeId>)> = None;
    for digest in digests {
        if digest.digest.unknown.binary_search(&node).is_ok() {
            continue;
        }
        let found = digest
            .digest
            .suspicions
            .binary_search_by_key(&node, |told| told.node);
        let said = match found {
            Ok(index) => {
                let told = &digest.digest.suspicions[index];
                (told.state, told.cause, told.by.clone())
            }
            Err(_) => (NodeState::Up, StateCause::Serves, Vec::new()),
        };
        merged = Some(match merged {
            None => said,
            Some(other) if other.0 == said.0 => other,
            Some(_) => (
                NodeState::Suspect,
                StateCause::Disagreement,
                vec![digest.reporter],
            ),
        });
    }
    merged
}

#[cfg(test)]
mod tests;
