//! Distance between the copies of a column: on different nodes, so that no node has two.

use crate::map::{StripeSet, ZoneMap};
use zonal_types::{DataId, NodeId, ZoneId};

impl ZoneMap {
    /// Slots of a set from one copy of a column to the next. No node has two copies of a column
    /// then. Where no number fits, it is one with few copies that share a node.
    ///
    /// Files take turns: each fitting number serves as many data ids in sequence as the set has
    /// slots. So the other copies of what one target has are on all others, and all of them are
    /// read when it is lost. With one number for all files only its neighbours would be.
    ///
    /// Costs `width * copies` comparisons where targets are on different nodes.
    #[must_use]
    pub fn copy_step(&self, set: &StripeSet, copies: u16, data_id: DataId) -> u16 {
        let node_of = |slot: &super::Slot| self.target(slot.target).map(|target| target.node);
        let nodes: Vec<Option<NodeId>> = set.slots.iter().map(node_of).collect();
        step_over(&nodes, usize::from(copies), data_id)
    }

    /// Nodes of a zone, or of the cell, with targets that serve.
    #[must_use]
    pub fn storing_nodes(&self, zone: ZoneId) -> usize {
        let nodes = self.nodes.iter();
        let of_zone = nodes.filter(|node| zone == ZoneId::CELL || node.zone == zone);
        let stores = |id: NodeId| self.targets.iter().any(|target| target.node == id);
        of_zone.filter(|node| stores(node.id)).count()
    }
}

/// A step for a set with these nodes.
fn step_over(nodes: &[Option<NodeId>], copies: usize, data_id: DataId) -> u16 {
    let steps = nodes.len().saturating_sub(1);
    let turns = data_id.0 / nodes.len().max(1) as u64;
    let first = usize::try_from(turns.checked_rem(steps as u64).unwrap_or_default());
    let first = first.unwrap_or_default();
    let mut best = (usize::MAX, 1);
    for number in 0..steps {
        let step = 1 + (first + number) % steps;
        let shared = shared_nodes(nodes, step, copies);
        best = best.min((shared, step));
        if shared == 0 {
            break;
        }
    }
    u16::try_from(best.1).unwrap_or(1)
}

/// How many copies share a node with an earlier copy of their column.
fn shared_nodes(nodes: &[Option<NodeId>], step: usize, copies: usize) -> usize {
    let width = nodes.len();
    let node_of = |first: usize, copy: usize| nodes[(first + copy * step) % width];
    let is_shared = |first: usize, copy: usize| {
        (0..copy).any(|earlier| node_of(first, earlier) == node_of(first, copy))
    };
    let of_column = |first| (1..copies).filter(|copy| is_shared(first, *copy)).count();
    (0..width).map(of_column).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn nodes(of: &[u32]) -> Vec<Option<NodeId>> {
        of.iter().map(|node| Some(NodeId(*node))).collect()
    }

    #[test]
    fn the_copies_of_a_lost_target_are_spread_over_all_others() {
        let nodes = nodes(&[1, 2, 3, 4, 5, 6]);
        let mut with = BTreeMap::new();
        for id in 0..300_u64 {
            let step = u64::from(step_over(&nodes, 2, DataId(id)));
            // The first slot rotates with the data id; a file has a column on each slot.
            for column in 0..6 {
                let (one, other) = ((id + column) % 6, (id + column + step) % 6);
                for (lost, left) in [(one, other), (other, one)] {
                    if lost == 0 {
                        *with.entry(left).or_insert(0) += 1;
                    }
                }
            }
        }
        assert_eq!(with, (1..6).map(|other| (other, 120)).collect());
    }

    #[test]
    fn no_node_gets_two_copies_where_that_can_be() {
        for copies in [2, 3] {
            // Two targets on each node, beside one another; and six nodes where three do not fit
            // by each step.
            for nodes in [nodes(&[1, 1, 2, 2, 3, 3, 4, 4]), nodes(&[1, 2, 3, 4, 5, 6])] {
                let steps = (0..200).map(|id| usize::from(step_over(&nodes, copies, DataId(id))));
                let steps: Vec<_> = steps.collect();
                assert!(
                    steps
                        .iter()
                        .all(|step| shared_nodes(&nodes, *step, copies) == 0)
                );
                assert!(steps.iter().any(|step| *step != steps[0]), "{steps:?}");
            }
        }
        assert_eq!(step_over(&nodes(&[1]), 2, DataId(7)), 1);
        assert_eq!(step_over(&[], 2, DataId(7)), 1);
        assert!((1..4).contains(&step_over(&nodes(&[1, 1, 1, 1]), 3, DataId(7))));
    }
}
