//! The ring of a zone: its nodes in rising order, each watched by the next answering one on either
//! side.

use crate::map::{NodeState, ZoneMap};
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{MapVersion, NodeId, ZoneId};

/// True for nodes that are watched. A node that was taken out is not.
fn is_watched(state: NodeState) -> bool {
    state != NodeState::Out
}

/// The watched nodes of a zone, in rising order.
#[must_use]
pub fn ring_of(map: &ZoneMap, zone: ZoneId) -> Vec<NodeId> {
    let nodes = map.nodes.iter();
    let nodes = nodes.filter(|node| node.zone == zone && is_watched(node.state));
    nodes.map(|node| node.id).collect()
}

/// The neighbours that `me` watches: on either side those up to the next one that answers. Behind
/// each silent one two more are watched, so that a long run of silent nodes is soon passed.
pub fn watched_from(
    ring: &[NodeId],
    me: NodeId,
    is_silent: impl Fn(NodeId) -> bool,
) -> BTreeSet<NodeId> {
    let mut watched = BTreeSet::new();
    let start = ring.partition_point(|node| *node < me);
    let is_in = ring.get(start) == Some(&me);
    let (left, right) = ring.split_at(start);
    let right = &right[usize::from(is_in)..];
    let rightwards = right.iter().chain(left);
    let leftwards = left.iter().rev().chain(right.iter().rev());
    let mut walk = |side: &mut dyn Iterator<Item = &NodeId>| {
        let mut left_over = 1_usize;
        for node in side {
            watched.insert(*node);
            left_over -= 1;
            if is_silent(*node) {
                left_over += 2;
            }
            if left_over == 0 {
                break;
            }
        }
    };
    walk(&mut rightwards.into_iter());
    walk(&mut leftwards.into_iter());
    watched
}

/// The watched nodes of all zones, for one version of the map.
#[derive(Debug, Default)]
pub struct ZoneMembers {
    version: MapVersion,
    zones: BTreeMap<ZoneId, Vec<NodeId>>,
}

impl ZoneMembers {
    /// The members by a map.
    #[must_use]
    pub fn of(map: &ZoneMap) -> Self {
        let mut members = Self::default();
        members.follow(map);
        members
    }

    /// Brings the members up to date; true where they may have changed.
    pub fn follow(&mut self, map: &ZoneMap) -> bool {
        if map.version == self.version {
            return false;
        }
        self.version = map.version;
        self.zones.clear();
        for node in map.nodes.iter().filter(|node| is_watched(node.state)) {
            self.zones.entry(node.zone).or_default().push(node.id);
        }
        true
    }

    /// Adds a zone; for simulations.
    pub fn insert(&mut self, zone: ZoneId, nodes: Vec<NodeId>) {
        self.zones.insert(zone, nodes);
    }

    /// The nodes of a zone, in rising order.
    #[must_use]
    pub fn of_zone(&self, zone: ZoneId) -> &[NodeId] {
        self.zones.get(&zone).map_or(&[], Vec::as_slice)
    }

    /// All zones with their nodes.
    pub fn zones(&self) -> impl Iterator<Item = (ZoneId, &[NodeId])> {
        self.zones
            .iter()
            .map(|(zone, nodes)| (*zone, nodes.as_slice()))
    }

    /// Number of zones with nodes.
    #[must_use]
    pub fn count(&self) -> usize {
        self.zones.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: impl IntoIterator<Item = u32>) -> Vec<NodeId> {
        ids.into_iter().map(NodeId).collect()
    }

    fn watched(count: u32, me: u32, silent: &[u32]) -> Vec<u32> {
        let ring = nodes(1..=count);
        let found = watched_from(&ring, NodeId(me), |node| silent.contains(&node.0));
        found.into_iter().map(|node| node.0).collect()
    }

    #[test]
    fn a_node_watches_both_neighbours_and_walks_past_silent_ones() {
        assert_eq!(watched(5, 3, &[]), [2, 4]);
        assert_eq!(watched(5, 1, &[]), [2, 5]);
        assert_eq!(watched(5, 5, &[]), [1, 4]);
        assert_eq!(watched(2, 1, &[]), [2]);
        assert!(watched(1, 1, &[]).is_empty());
        assert_eq!(watched(9, 5, &[6]), [4, 6, 7, 8]);
        // Of a ring of silent ones each is watched.
        assert_eq!(watched(5, 1, &[2, 3, 4, 5]), [2, 3, 4, 5]);
    }

    #[test]
    fn a_node_that_the_map_does_not_have_yet_has_neighbours() {
        let ring = nodes([1, 5, 9]);
        let found = watched_from(&ring, NodeId(6), |_| false);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), nodes([5, 9]));
        assert!(watched_from(&[], NodeId(6), |_| false).is_empty());
    }
}
