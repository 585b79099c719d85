//! Placement: from a zone to its shards. Requests find a shard by its id, by an inode number or by
//! a data id. Only a caller that makes something new in a zone asks for the zone's shards.

use super::{Shard, ZoneMap};
use zonal_types::{NodeId, ShardId, ZoneId};

impl ZoneMap {
    /// The shard that makes a new first-level directory with home in `zone`. Where the zone has
    /// several shards, `turn` selects one: the same turn gives the same shard as long as the zone's
    /// shards stay.
    #[must_use]
    pub fn shard_for_directory(&self, zone: ZoneId, turn: u64) -> Option<&Shard> {
        let of_zone = || self.shards_of_zone(zone);
        let count = of_zone().count() as u64;
        let place = turn.checked_rem(count)?;
        of_zone().nth(usize::try_from(place).ok()?)
    }

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapEdit;
    use zonal_types::CellId;

    #[test]
    fn new_directories_rotate_over_a_zones_shards() {
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
        let at = |zone, turn| {
            let shard = map.shard_for_directory(ZoneId(zone), turn);
            shard.map(|shard| shard.id.0)
        };
        let turns = [0, 1, 2, 3, u64::MAX];
        assert_eq!(turns.map(|turn| at(1, turn)), [1, 7, 1, 7, 7].map(Some));
        assert_eq!(turns.map(|turn| at(2, turn)), [Some(2); 5]);
        assert_eq!(at(3, 0), None);
        let own = |node| map.shard_at(NodeId(node)).map(|shard| shard.id.0);
        assert_eq!([1, 2, 3, 4].map(own), [None, Some(1), Some(2), Some(7)]);
    }
}
