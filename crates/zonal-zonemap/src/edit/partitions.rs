//! Edits of partitions: a shard gets more of them.

use super::EditError;
use crate::map::{PartitionRange, ZoneMap};
use zonal_types::ids::PARTITIONS_MAX;
use zonal_types::limits::{PARTITIONS_DEFAULT, PARTITIONS_PER_SHARD_MAX};
use zonal_types::{PartitionId, ShardId};

/// Partitions of a new shard.
pub(super) const FIRST_PARTITIONS: u32 = PARTITIONS_DEFAULT / 4;

impl ZoneMap {
    /// Doubles the partitions of a shard, as far as it may have more and there are any.
    pub(super) fn add_partitions(&mut self, shard: ShardId) -> Result<(), EditError> {
        self.shard(shard)
            .ok_or(EditError::Unknown { what: "shard" })?;
        let own = self.partitions.iter().filter(|range| range.shard == shard);
        let have = own.fold(0_u32, |sum, range| sum.saturating_add(range.count));
        let last = self.partitions.last().copied();
        let first = last.map_or(1, |range| range.first.0.saturating_add(range.count));
        let room = PARTITIONS_PER_SHARD_MAX.saturating_sub(have);
        let count = have.max(FIRST_PARTITIONS).min(room);
        let count = count.min(PARTITIONS_MAX.saturating_sub(first));
        match (self.partitions.last_mut(), count) {
            (_, 0) => {}
            (Some(range), more) if range.shard == shard => range.count += more,
            _ => self.partitions.push(PartitionRange {
                first: PartitionId(first),
                count,
                shard,
            }),
        }
        Ok(())
    }
}

impl ZoneMap {
    /// Gives one partition to another shard of the same zone. Nothing changes where that shard has
    /// it already.
    pub(super) fn move_partition(
        &mut self,
        partition: PartitionId,
        from: ShardId,
        to: ShardId,
    ) -> Result<(), EditError> {
        let refused = |why| EditError::Partition {
            partition,
            from,
            to,
            why,
        };
        let has = |range: &PartitionRange| {
            let last = range.first.0.saturating_add(range.count);
            (range.first.0..last).contains(&partition.0)
        };
        let at = self.partitions.iter().position(has);
        let at = at.ok_or(EditError::Unknown { what: "partition" })?;
        let range = self.partitions[at];
        if range.shard == to {
            return Ok(());
        }
        if range.shard != from {
            return Err(refused("another shard has it"));
        }
        let unknown = || EditError::Unknown { what: "shard" };
        let (giver, taker) = (self.shard(from), self.shard(to));
        let (giver, taker) = (giver.ok_or_else(unknown)?, taker.ok_or_else(unknown)?);
        if from == ShardId(0) || to == ShardId(0) || giver.zone != taker.zone {
            return Err(refused("the shards are of different zones"));
        }
        let has = u32::try_from(self.partitions_of(to).len()).unwrap_or(u32::MAX);
        if has >= PARTITIONS_PER_SHARD_MAX {
            return Err(refused("the shard has as many partitions as it may have"));
        }
        let part = |first: u32, end: u32, shard| PartitionRange {
            first: PartitionId(first),
            count: end - first,
            shard,
        };
        let (first, end) = (range.first.0, range.first.0 + range.count);
        let parts = [
            part(first, partition.0, from),
            part(partition.0, partition.0 + 1, to),
            part(partition.0 + 1, end, from),
        ];
        let parts = parts.into_iter().filter(|part| part.count > 0);
        self.partitions.splice(at..=at, parts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{MapEdit, ZoneMap};
    use zonal_types::limits::PARTITIONS_PER_SHARD_MAX;
    use zonal_types::{CellId, NodeId, PartitionId, ShardId, ZoneId};

    #[test]
    fn a_shards_partitions_double_up_to_the_limit_and_stay_in_order() {
        let join = |node: u32, shard: u32| MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: format!("127.0.0.1:{node}"),
            shard: Some(ShardId(shard)),
            targets: Vec::new(),
        };
        let edits = [join(1, 0), join(2, 1), join(3, 7)];
        let map = ZoneMap::new(CellId::default()).edited(&edits).unwrap();
        let mut map = map.unwrap();
        let count = |map: &ZoneMap, shard| map.partitions_of(ShardId(shard)).len() as u32;
        assert_eq!((count(&map, 1), count(&map, 7)), (16, 16));
        let more = |map: &ZoneMap, shard| {
            let edit = MapEdit::AddPartitions {
                shard: ShardId(shard),
            };
            map.edited(&[edit])
        };
        for (shard, expected) in [(1, 32), (7, 32), (7, 64), (1, 64)] {
            let before = map.partitions_of(ShardId(shard));
            map = more(&map, shard).unwrap().unwrap();
            let after = map.partitions_of(ShardId(shard));
            assert_eq!(after.len(), expected);
            assert_eq!(&after[..before.len()], &before);
            assert!(after.is_sorted() && map.check().is_empty());
            let owner = map.shard_of(*after.last().unwrap()).unwrap();
            assert_eq!(owner.id.0, shard);
        }
        // Both have grown; those of shard 7 were beside one another.
        assert_eq!(map.partitions.len(), 6);
        while count(&map, 7) < PARTITIONS_PER_SHARD_MAX {
            map = more(&map, 7).unwrap().unwrap();
        }
        assert_eq!(more(&map, 7), Ok(None));
        assert!(more(&map, 9).is_err());
        assert_eq!(map.shard_of(PartitionId(0)).unwrap().id.0, 0);
    }
    #[test]
    fn a_partition_goes_to_another_shard_of_its_zone_and_back() {
        let join = |node: u32, zone: u16, shard: u32| MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(zone),
            zone_name: String::new(),
            address: format!("127.0.0.1:{node}"),
            shard: Some(ShardId(shard)),
            targets: Vec::new(),
        };
        let edits = [join(1, 1, 0), join(2, 1, 1), join(3, 1, 7), join(4, 2, 2)];
        let map = ZoneMap::new(CellId::default()).edited(&edits).unwrap();
        let map = map.unwrap();
        let go = |map: &ZoneMap, partition, from, to| {
            map.edited(&[MapEdit::MovePartition {
                partition: PartitionId(partition),
                from: ShardId(from),
                to: ShardId(to),
            }])
        };
        let own = map.partitions_of(ShardId(1));
        for at in [0, 5, own.len() - 1] {
            let moved = go(&map, own[at].0, 1, 7).unwrap().unwrap();
            assert_eq!(moved.shard_of(own[at]).unwrap().id, ShardId(7));
            assert!(moved.check().is_empty());
            assert_eq!(moved.partitions_of(ShardId(1)).len(), own.len() - 1);
            assert_eq!(go(&moved, own[at].0, 1, 7), Ok(None), "again");
            let back = go(&moved, own[at].0, 7, 1).unwrap().unwrap();
            assert_eq!(back.partitions_of(ShardId(1)), own);
            assert!(go(&moved, own[at].0, 2, 1).is_err(), "not its owner");
        }
        for (partition, from, to) in [(own[0].0, 1, 2), (own[0].0, 1, 0), (0, 0, 1), (9_999, 1, 7)]
        {
            assert!(
                go(&map, partition, from, to).is_err(),
                "{partition} to {to}"
            );
        }
        assert!(go(&map, own[0].0, 1, 9).is_err(), "no such shard");
    }
}
