//! Distance between the copies of a column: on different nodes, so that no node has two.

use crate::map::{StripeSet, ZoneMap};
use zonal_types::{DataId, NodeId, ZoneId};

impl ZoneMap {
    /// Slots of a set from one copy of a column to the next. It is a number by which no node has two
    /// copies of a column; where there is none, the one with the fewest copies that share a node.
    ///
    /// Files take turns: each of these numbers serves as many data ids in sequence as the set has
    /// slots. So the other copies of what one target has are on all others, and all of them are
    /// read when it is lost. With one number for all files only its neighbours would be.
    ///
    /// Costs `width * copies` comparisons where targets are on different nodes.
    #[must_use]
    pub fn copy_step(&self, set: &StripeSet, copies: u16, data_id: DataId) -> u16 {
        let steps = set.width().saturating_sub(1).max(1);
        let turn = data_id.0 / u64::from(set.width().max(1)) % u64::from(steps);
        let first = u16::try_from(turn).unwrap_or_default();
        let node_of = |slot: &super::Slot| self.target(slot.target).map(|target| target.node);
        let nodes: Vec<Option<NodeId>> = set.slots.iter().map(node_of).collect();
        let mut best = (usize::MAX, 1);
        for number in 0..set.width().saturating_sub(1) {
            let step = 1 + (first + number) % steps;
            let shared = shared_nodes(&nodes, usize::from(step), usize::from(copies));
            if shared == 0 {
                return step;
            }
            best = best.min((shared, step));
        }
        best.1
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
