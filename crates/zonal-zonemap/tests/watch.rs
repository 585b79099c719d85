//! Watches of whole zones, simulated: states after random failures, and the traffic and memory of a
//! large cell.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use std::collections::BTreeSet;
use zonal_types::limits::DIGEST_BYTES_PER_SECOND;
use zonal_types::{Codec, Instant, NodeId, Timestamp, ZoneId};
use zonal_wire::{HEADER_BYTES, ManagerReply, ManagerRequest, NodeState, StateCause};
use zonal_zonemap::watch::{Neighbours, NodeStates, ZoneDigest, ZoneMembers, ZoneReport};

const STEP_MS: u64 = 250;
const WALL: Timestamp = Timestamp {
    seconds: 0,
    nanos: 0,
};

fn at(ms: u64) -> Instant {
    Instant(0).plus_ms(1_000_000 + ms)
}

/// A network as the heartbeats see it.
trait Network {
    /// Result of a call; `None`: there is no answer.
    fn call(&self, from: NodeId, to: NodeId) -> Option<StateCause>;

    /// Whether a node's digests reach the manager.
    fn reaches_manager(&self, from: NodeId) -> bool;
}

/// A zone: all its nodes with their watches.
struct Zone {
    id: ZoneId,
    ring: Vec<NodeId>,
    nodes: Vec<(Neighbours, ZoneReport, u64)>,
    in_flight: Vec<(usize, NodeId, u64)>,
}

impl Zone {
    fn new(id: u16, first: u32, count: u32) -> Self {
        let ring: Vec<NodeId> = (first..first + count).map(NodeId).collect();
        let nodes = ring.iter();
        let nodes = nodes.map(|me| (Neighbours::new(*me), ZoneReport::new(*me), 0));
        Self {
            id: ZoneId(id),
            nodes: nodes.collect(),
            ring,
            in_flight: Vec::new(),
        }
    }

    /// One step of each node that runs; returns the digests that reach the manager, with their
    /// reporters.
    fn step(
        &mut self,
        network: &dyn Network,
        dead: &BTreeSet<NodeId>,
        ms: u64,
    ) -> Vec<(NodeId, ZoneDigest)> {
        let now = at(ms);
        let (over, rest) = self
            .in_flight
            .iter()
            .partition(|(_, _, sent)| ms - sent >= 3_000);
        self.in_flight = rest;
        for (index, node, sent) in over {
            self.nodes[index]
                .0
                .answered(node, at(sent), StateCause::Hung);
        }
        for index in 0..self.ring.len() {
            let me = self.ring[index];
            if dead.contains(&me) {
                continue;
            }
            for node in self.nodes[index].0.due(&self.ring, now) {
                match network.call(me, node) {
                    Some(result) => self.nodes[index].0.answered(node, now, result),
                    None => self.in_flight.push((index, node, ms)),
                }
            }
            self.report(network, index, ms);
        }
        let mut digests = Vec::new();
        for (index, me) in self.ring.iter().enumerate() {
            let (watch, report, _) = &mut self.nodes[index];
            if dead.contains(me) || !watch.is_reporter(&self.ring, now) {
                report.reset();
            } else if let Some(digest) = report.due(&self.ring, now)
                && network.reaches_manager(*me)
            {
                digests.push((*me, digest));
            }
        }
        digests
    }

    /// Brings the sightings of a node to the first node that takes them.
    fn report(&mut self, network: &dyn Network, index: usize, ms: u64) {
        let (me, now) = (self.ring[index], at(ms));
        let sightings = self.nodes[index].0.sightings(now);
        let first = self.ring.iter().position(|node| {
            let is_reporter = |at: usize| self.nodes[at].0.is_reporter(&self.ring, now);
            let at = self.ring.binary_search(node).unwrap();
            *node == me && is_reporter(at)
                || network.call(me, *node) == Some(StateCause::Serves) && is_reporter(at)
        });
        // Each step, as if each was a change; the shell sends less often.
        if let Some(first) = first {
            self.nodes[first].1.take(me, sightings, now);
        }
    }
}

/// Nodes that ended or hang.
struct Failed {
    ended: BTreeSet<NodeId>,
    hung: BTreeSet<NodeId>,
    /// Nodes from here on and before it hear only themselves.
    cut: Option<NodeId>,
}

impl Failed {
    fn dead(&self) -> BTreeSet<NodeId> {
        self.ended.union(&self.hung).copied().collect()
    }

    fn none() -> Self {
        Self {
            ended: BTreeSet::new(),
            hung: BTreeSet::new(),
            cut: None,
        }
    }
}

impl Network for Failed {
    fn call(&self, from: NodeId, to: NodeId) -> Option<StateCause> {
        let is_cut = self.cut.is_some_and(|cut| (from < cut) != (to < cut));
        match () {
            () if is_cut || self.hung.contains(&to) => None,
            () if self.ended.contains(&to) => Some(StateCause::NoProcess),
            () => Some(StateCause::Serves),
        }
    }

    fn reaches_manager(&self, from: NodeId) -> bool {
        self.cut.is_none_or(|cut| from < cut)
    }
}

/// A zone with its manager.
struct Cell {
    zone: Zone,
    members: ZoneMembers,
    states: NodeStates,
    ms: u64,
}

impl Cell {
    fn new(count: u32) -> Self {
        let mut members = ZoneMembers::default();
        let zone = Zone::new(1, 1, count);
        members.insert(zone.id, zone.ring.clone());
        let mut states = NodeStates::new(at(0));
        states.follow(&members, WALL);
        Self {
            zone,
            members,
            states,
            ms: 0,
        }
    }

    fn run(&mut self, failed: &Failed, ms: u64) {
        let dead = failed.dead();
        for _step in 0..ms / STEP_MS {
            self.ms += STEP_MS;
            let times = (at(self.ms), WALL);
            for (reporter, digest) in self.zone.step(failed, &dead, self.ms) {
                let from = (self.zone.id, reporter);
                self.states.take(from, digest, &self.members, times);
            }
            for node in self.states.tick(&self.members, times).heartbeats {
                if let Some(result) = failed.call(NodeId(0), node) {
                    self.states.answered(node, result, times.0);
                }
            }
        }
    }

    fn in_state(&self, state: NodeState) -> BTreeSet<NodeId> {
        let nodes = self.zone.ring.iter();
        let nodes = nodes.filter(|node| self.states.state(**node) == Some(state));
        nodes.copied().collect()
    }
}

#[test]
fn any_one_node_that_ends_or_hangs_is_down_within_5_s_and_up_again() {
    for count in [1, 2, 3, 4, 40] {
        for node in [1, count / 2 + 1, count] {
            for hangs in [false, true] {
                let mut cell = Cell::new(count);
                cell.run(&Failed::none(), 10_000);
                assert_eq!(cell.in_state(NodeState::Up).len(), count as usize);
                let mut failed = Failed::none();
                match hangs {
                    true => failed.hung.insert(NodeId(node)),
                    false => failed.ended.insert(NodeId(node)),
                };
                cell.run(&failed, 5_000);
                let what = format!("node {node} of {count}, hangs: {hangs}");
                assert_eq!(cell.in_state(NodeState::Down), failed.dead(), "{what}");
                assert_eq!(
                    cell.in_state(NodeState::Up).len(),
                    count as usize - 1,
                    "{what}"
                );
                cell.run(&Failed::none(), 6_000);
                assert_eq!(cell.in_state(NodeState::Up).len(), count as usize, "{what}");
            }
        }
    }
}

#[test]
fn half_a_zone_that_is_cut_off_is_down_and_comes_back() {
    let mut cell = Cell::new(40);
    cell.run(&Failed::none(), 10_000);
    let cut = Failed {
        cut: Some(NodeId(21)),
        ..Failed::none()
    };
    cell.run(&cut, 15_000);
    let upper: BTreeSet<NodeId> = (21..=40).map(NodeId).collect();
    assert_eq!(cell.in_state(NodeState::Down), upper);
    assert_eq!(cell.in_state(NodeState::Up).len(), 20);
    cell.run(&Failed::none(), 12_000);
    assert_eq!(cell.in_state(NodeState::Up).len(), 40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn after_any_failures_the_states_are_right_and_no_other_node_was_down(
        count in 1_u32..24,
        ended in proptest::collection::btree_set(1_u32..24, 0..6),
        hung in proptest::collection::btree_set(1_u32..24, 0..6),
    ) {
        let mut cell = Cell::new(count);
        cell.run(&Failed::none(), 8_000);
        let of = |nodes: BTreeSet<u32>| -> BTreeSet<NodeId> {
            nodes.into_iter().filter(|node| *node <= count).map(NodeId).collect()
        };
        let failed = Failed { ended: of(ended), hung: of(hung), cut: None };
        for _second in 0..20 {
            cell.run(&failed, 1_000);
            let down = cell.in_state(NodeState::Down);
            prop_assert!(down.is_subset(&failed.dead()), "{down:?}");
        }
        prop_assert_eq!(cell.in_state(NodeState::Down), failed.dead());
        cell.run(&Failed::none(), 15_000);
        prop_assert_eq!(cell.in_state(NodeState::Up).len(), count as usize);
    }
}

/// Bytes of a digest's exchange, as frames.
fn exchange_bytes(zone: ZoneId, reporter: NodeId, digest: &ZoneDigest) -> u64 {
    let request = ManagerRequest::Digest {
        zone,
        reporter,
        suspicions: digest.suspicions.clone(),
        unknown: digest.unknown.clone(),
    };
    let reply = ManagerReply::DigestTaken { next_ms: 1_000 };
    (2 * HEADER_BYTES + request.to_bytes().len() + reply.to_bytes().len()) as u64
}

#[test]
fn the_digests_of_a_thousand_zones_stay_below_the_bytes_a_second() {
    let (zones, nodes) = (1_000_u16, 40_u32);
    let mut members = ZoneMembers::default();
    let mut cell = Vec::new();
    for id in 1..=zones {
        let zone = Zone::new(id, u32::from(id) * nodes, nodes);
        members.insert(zone.id, zone.ring.clone());
        cell.push(zone);
    }
    let mut states = NodeStates::new(at(0));
    states.follow(&members, WALL);
    let next_ms = NodeStates::period_ms(members.count());
    let mut failed = Failed::none();
    let (mut bytes, mut digests, mut own) = (0, 0, 0);
    let seconds = 30;
    let warm_ms = 10_000;
    for ms in (STEP_MS..=warm_ms + seconds * 1_000).step_by(usize::try_from(STEP_MS).unwrap()) {
        if ms == warm_ms {
            (bytes, digests) = (0, 0);
            // One node in a hundred ends, another one hangs.
            failed.ended = (40..40_040).step_by(100).map(NodeId).collect();
            failed.hung = (90..40_040).step_by(100).map(NodeId).collect();
        }
        let dead = failed.dead();
        for zone in &mut cell {
            for (reporter, digest) in zone.step(&failed, &dead, ms) {
                bytes += exchange_bytes(zone.id, reporter, &digest);
                digests += 1;
                let index = zone.ring.binary_search(&reporter).unwrap();
                zone.nodes[index].1.taken(u32::try_from(next_ms).ok());
                let from = (zone.id, reporter);
                states.take(from, digest, &members, (at(ms), WALL));
            }
        }
        for node in states.tick(&members, (at(ms), WALL)).heartbeats {
            own += 1;
            if let Some(result) = failed.call(NodeId(0), node) {
                states.answered(node, result, at(ms));
            }
        }
    }
    let a_second = bytes / seconds;
    let memory = states.memory_bytes();
    println!(
        "{digests} digests in {seconds} s, {a_second} bytes/s, period {next_ms} ms, {own} own heartbeats, {memory} bytes of states"
    );
    assert!(a_second < 50_000, "{a_second}");
    assert!(a_second < DIGEST_BYTES_PER_SECOND * 11 / 10, "{a_second}");
    assert!(memory < 16 << 20, "{memory}");
    let down = members.zones().flat_map(|(_, nodes)| nodes);
    let down = down.filter(|node| states.state(**node) == Some(NodeState::Down));
    assert_eq!(down.copied().collect::<BTreeSet<_>>(), failed.dead());
}
