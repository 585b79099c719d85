//! The neighbours of a node, with the results of its heartbeats to them.
//!
//! Invariants:
//! 1. One heartbeat to a neighbour is in flight at a time.
//! 2. A node that did not run for a while blames nobody: all ages begin anew.
//! 3. At most [`HEARTBEATS_IN_FLIGHT_MAX`] heartbeats are in flight.

use crate::watch::watched_from;
use std::collections::BTreeMap;
use zonal_types::limits::{
    HEARTBEAT_MS, HEARTBEAT_SILENT_MS, HEARTBEAT_SUSPECT_MS, HEARTBEATS_IN_FLIGHT_MAX,
    SIGHTINGS_MAX,
};
use zonal_types::{Instant, NodeId};
use zonal_wire::{Sighting, StateCause};

/// Longest pause between two calls of [`Neighbours::due`] that does not count as a stop.
const LONGEST_PAUSE_MS: u64 = 1_500;

/// The heartbeats to one neighbour.
#[derive(Debug, Clone, Copy, Default)]
struct Heartbeats {
    /// When the one in flight was sent.
    sent: Option<Instant>,
    /// When the last one was sent.
    last: Option<Instant>,
    /// When the first one without an answer was sent.
    silent_since: Option<Instant>,
    /// Result of the last that has one.
    result: Option<StateCause>,
}

impl Heartbeats {
    fn silent_ms(&self, now: Instant) -> u64 {
        // An unanswered one in flight counts from when it was sent.
        let since = self.silent_since.or(self.sent);
        since.map_or(0, |since| now.ms_since(since))
    }

    /// True where it has been without an answer for `limit_ms`, or refuses connections.
    fn is_silent(&self, now: Instant, limit_ms: u64) -> bool {
        let is_refused = self.silent_since.is_some() && self.result == Some(StateCause::NoProcess);
        self.silent_ms(now) >= limit_ms || (is_refused && limit_ms <= HEARTBEAT_SUSPECT_MS)
    }
}

/// The watch of one node over its neighbours.
#[derive(Debug)]
pub struct Neighbours {
    me: NodeId,
    watched: BTreeMap<NodeId, Heartbeats>,
    last_call: Option<Instant>,
    /// Heartbeats sent before do not count: this node did not run in between.
    resumed: Instant,
}

impl Neighbours {
    /// The watch of a node that has sent nothing yet.
    #[must_use]
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            watched: BTreeMap::new(),
            last_call: None,
            resumed: Instant(0),
        }
    }

    /// Neighbours to which a heartbeat is to be sent now. To be called several times a second.
    pub fn due(&mut self, ring: &[NodeId], now: Instant) -> Vec<NodeId> {
        let pause = self.last_call.map_or(0, |last| now.ms_since(last));
        self.last_call = Some(now);
        if pause > LONGEST_PAUSE_MS {
            self.resumed = now;
            for heartbeats in self.watched.values_mut() {
                // The age of each silence begins anew.
                heartbeats.silent_since = heartbeats.silent_since.map(|_| now);
                heartbeats.sent = heartbeats.sent.map(|_| now);
            }
        }
        let is_silent = |node: NodeId| {
            let known = self.watched.get(&node);
            known.is_some_and(|known| known.is_silent(now, HEARTBEAT_SUSPECT_MS))
        };
        let wanted = watched_from(ring, self.me, is_silent);
        self.watched
            .retain(|node, known| wanted.contains(node) || known.sent.is_some());
        let mut in_flight = self.watched.values().filter(|known| known.sent.is_some());
        let mut room = HEARTBEATS_IN_FLIGHT_MAX.saturating_sub(in_flight.by_ref().count());
        let mut due = Vec::new();
        for node in wanted {
            let known = self.watched.entry(node).or_default();
            let is_due = known
                .last
                .is_none_or(|last| now.ms_since(last) >= HEARTBEAT_MS);
            if is_due && known.sent.is_none() && room > 0 {
                (known.sent, known.last) = (Some(now), Some(now));
                room -= 1;
                due.push(node);
            }
        }
        due
    }

    /// A heartbeat that was due was not sent.
    pub fn unsent(&mut self, node: NodeId) {
        if let Some(known) = self.watched.get_mut(&node) {
            known.sent = None;
        }
    }

    /// Number of watched nodes, and of those among them that are silent.
    #[must_use]
    pub fn counts(&self, now: Instant) -> (usize, usize) {
        let silent = self.watched.values();
        let silent = silent.filter(|known| known.is_silent(now, HEARTBEAT_SILENT_MS));
        (self.watched.len(), silent.count())
    }

    /// Takes the result of the heartbeat that was sent to a node at `sent`.
    pub fn answered(&mut self, node: NodeId, sent: Instant, result: StateCause) {
        let Some(known) = self.watched.get_mut(&node) else {
            return;
        };
        let began = known.sent.take().unwrap_or(sent);
        match result {
            StateCause::Serves | StateCause::RoleStopped => known.silent_since = None,
            // Its deadline passed while this node did not run.
            _ if sent < self.resumed => return,
            _ => {
                known.silent_since.get_or_insert(began);
            }
        }
        known.result = Some(result);
    }

    /// Sightings of all watched nodes of which there is something to say.
    #[must_use]
    pub fn sightings(&self, now: Instant) -> Vec<Sighting> {
        let told = self.watched.iter().filter_map(|(node, known)| {
            let silent_ms = match known.is_silent(now, HEARTBEAT_SUSPECT_MS) {
                true => known.silent_ms(now).max(1),
                false if known.silent_since.is_some() => return None,
                false => 0,
            };
            let result = match known.result {
                Some(StateCause::Serves | StateCause::RoleStopped) if silent_ms > 0 => {
                    StateCause::Hung
                }
                None if silent_ms > 0 => StateCause::Hung,
                result => result?,
            };
            Some(Sighting {
                node: *node,
                result,
                silent_ms: u32::try_from(silent_ms).unwrap_or(u32::MAX),
            })
        });
        told.take(SIGHTINGS_MAX).collect()
    }

    /// True where a node is watched, and was silent for long.
    #[must_use]
    pub fn is_silent(&self, node: NodeId, now: Instant) -> bool {
        let known = self.watched.get(&node);
        known.is_some_and(|known| known.is_silent(now, HEARTBEAT_SILENT_MS))
    }

    /// True where this node reports for its zone: each node with a lower number is silent.
    #[must_use]
    pub fn is_reporter(&self, ring: &[NodeId], now: Instant) -> bool {
        let mut lower = ring.iter().take_while(|node| **node < self.me);
        lower.all(|node| self.is_silent(*node, now))
    }
}

/// The levels of sightings: a change of one is told at once.
#[must_use]
pub(super) fn level(sighting: &Sighting) -> u8 {
    match u64::from(sighting.silent_ms) {
        0 if sighting.result == StateCause::RoleStopped => 1,
        0 => 0,
        ms if ms < HEARTBEAT_SILENT_MS => 2,
        _ => 3,
    }
}

/// True where two lists of sightings differ in more than ages.
#[must_use]
pub fn differ(one: &[Sighting], other: &[Sighting]) -> bool {
    let levels = |list: &[Sighting]| -> Vec<(NodeId, u8)> {
        list.iter()
            .map(|sighting| (sighting.node, level(sighting)))
            .collect()
    };
    levels(one) != levels(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: [NodeId; 4] = [NodeId(1), NodeId(2), NodeId(3), NodeId(4)];

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(1_000_000 + ms)
    }

    /// Runs the watch of node 1 from `from` to `to`; heartbeats get the results of `answer` at
    /// once, or none.
    fn run(
        watch: &mut Neighbours,
        (from, to): (u64, u64),
        answer: impl Fn(NodeId) -> Option<StateCause>,
    ) {
        for ms in (from..=to).step_by(250) {
            for node in watch.due(&RING, at(ms)) {
                if let Some(result) = answer(node) {
                    watch.answered(node, at(ms), result);
                }
            }
        }
    }

    fn silent(watch: &Neighbours, ms: u64) -> Vec<u32> {
        let nodes = RING.iter().filter(|node| watch.is_silent(**node, at(ms)));
        nodes.map(|node| node.0).collect()
    }

    #[test]
    fn a_hung_neighbour_is_silent_3_s_after_the_first_unanswered_heartbeat() {
        let mut watch = Neighbours::new(NodeId(1));
        run(&mut watch, (0, 1_000), |_| Some(StateCause::Serves));
        run(&mut watch, (1_250, 4_750), |node| {
            (node != NodeId(2)).then_some(StateCause::Serves)
        });
        assert!(silent(&watch, 4_999).is_empty());
        assert_eq!(silent(&watch, 5_000), [2]);
        let sightings = watch.sightings(at(5_000));
        let of = |node| sightings.iter().find(|told| told.node == NodeId(node));
        assert_eq!(of(2).map(level), Some(3));
        assert_eq!(of(2).map(|told| told.result), Some(StateCause::Hung));
        assert_eq!(of(4).map(level), Some(0));
        // Behind the silent one the next ones are watched.
        assert_eq!(of(3).map(level), Some(0));
    }

    #[test]
    fn a_refused_connection_is_suspect_at_once_and_silent_after_3_s() {
        let mut watch = Neighbours::new(NodeId(1));
        run(&mut watch, (0, 250), |_| Some(StateCause::NoProcess));
        assert!(watch.sightings(at(250)).iter().all(|told| level(told) == 2));
        run(&mut watch, (500, 3_000), |_| Some(StateCause::NoProcess));
        assert_eq!(silent(&watch, 3_000), [2, 4]);
        run(&mut watch, (3_250, 4_500), |_| Some(StateCause::Serves));
        assert!(silent(&watch, 4_500).is_empty());
        assert!(
            watch
                .sightings(at(4_500))
                .iter()
                .all(|told| level(told) == 0)
        );
    }

    #[test]
    fn a_node_that_was_stopped_blames_nobody() {
        let mut watch = Neighbours::new(NodeId(1));
        run(&mut watch, (0, 1_000), |_| Some(StateCause::Serves));
        // Sent, then this node is stopped for a minute, and the deadlines have passed.
        assert_eq!(watch.due(&RING, at(1_999)).len(), 0);
        assert_eq!(watch.due(&RING, at(2_000)).len(), 2);
        run(&mut watch, (62_000, 62_000), |_| None);
        for node in [2, 4] {
            watch.answered(NodeId(node), at(2_000), StateCause::Hung);
        }
        run(&mut watch, (62_250, 66_000), |_| Some(StateCause::Serves));
        assert!(silent(&watch, 66_000).is_empty());
        assert!(
            watch
                .sightings(at(66_000))
                .iter()
                .all(|told| level(told) == 0)
        );
    }

    #[test]
    fn the_lowest_node_that_is_not_silent_reports() {
        let mut first = Neighbours::new(NodeId(1));
        assert!(first.is_reporter(&RING, at(0)));
        run(&mut first, (0, 4_000), |_| Some(StateCause::Hung));
        assert!(first.is_reporter(&RING, at(4_000)));
        let mut second = Neighbours::new(NodeId(2));
        assert!(!second.is_reporter(&RING, at(0)));
        run(&mut second, (0, 4_000), |node| {
            Some(match node {
                NodeId(1) => StateCause::NoProcess,
                _ => StateCause::Serves,
            })
        });
        assert!(second.is_reporter(&RING, at(4_000)));
        let third = Neighbours::new(NodeId(3));
        assert!(!third.is_reporter(&RING, at(4_000)));
    }
}
