//! Placement: from a zone to its shards. Requests find a shard by its id, by an inode number or by
//! a data id. Only a caller that makes something new in a zone asks for the zone's shards.

use super::{Shard, ZoneMap};
use zonal_types::{NodeId, ShardId, ZoneId};

impl ZoneMap {
    /// The shards of a zone, without the root shard.
    pub fn shards_of_zone(&self, zone: ZoneId) -> impl Iterator<Item = &Shard> {
        let shards = self.shards.iter();
        shards.filter(move |shard| shard.zone == zone && shard.id != ShardId(0))
    }

    /// The shard that a node owns, without the root shard.
    #[must_use]
    pub fn shard_at(&self, node: NodeId) -> Option<&Shard> {
        let mut shards = self.shards.iter();
        shards.find(|shard| shard.node == node && shard.id != ShardId(0))
    }

    /// The shard of which a node has a replica, without the root shard.
    #[must_use]
    pub fn replica_at(&self, node: NodeId) -> Option<&Shard> {
        let mut shards = self.shards.iter();
        shards.find(|shard| shard.replicas.contains(&node) && shard.id != ShardId(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapEdit;
    use zonal_types::CellId;

    #[test]
    fn a_zones_shards_and_a_nodes_shard_are_found() {
        let join = |node: u32, zone: u16, shard: u32| MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(zone),
            zone_name: String::new(),
            address: format!("127.0.0.1:{node}"),
            shard: Some(ShardId(shard)),
            targets: Vec::new(),
        };
        let edits = [join(1, 1, 0), join(2, 1, 1), join(3, 2, 2), join(4, 1, 7)];
        let map = ZoneMap::new(CellId::default()).edited(&edits).unwrap();
        let map = map.unwrap();
        let of = |zone| -> Vec<u32> {
            let shards = map.shards_of_zone(ZoneId(zone));
            shards.map(|shard| shard.id.0).collect()
        };
        assert_eq!([of(1), of(2), of(3)], [vec![1, 7], vec![2], vec![]]);
        let own = |node| map.shard_at(NodeId(node)).map(|shard| shard.id.0);
        assert_eq!([1, 2, 3, 4].map(own), [None, Some(1), Some(2), Some(7)]);
    }
}
