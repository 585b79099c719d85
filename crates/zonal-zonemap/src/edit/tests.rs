//! Edits of the map: joining, coming back, refusals, slots and junctions.

use super::*;
use zonal_types::{CellId, Codec};

fn join(node: u32, zone: u16, shard: Option<u32>, target: Option<u32>) -> MapEdit {
    let targets = target.map(|id| JoinTarget {
        target: TargetId(id),
        uuid: [id as u8; 16],
        capacity: 1 << 30,
    });
    MapEdit::Join {
        node: NodeId(node),
        zone: ZoneId(zone),
        zone_name: String::new(),
        address: format!("127.0.0.1:{}", 7000 + node),
        shard: shard.map(ShardId),
        targets: targets.into_iter().collect(),
    }
}

fn two_zones() -> ZoneMap {
    let mut map = ZoneMap::new(CellId([1; 16]));
    let joins = [
        join(1, 1, Some(0), None),
        join(2, 1, Some(1), None),
        join(3, 2, Some(2), None),
        join(4, 1, None, Some(1)),
        join(5, 1, None, Some(2)),
        join(6, 2, None, Some(3)),
    ];
    for (index, edit) in joins.into_iter().enumerate() {
        map = map.edited(&[edit]).expect("a join").expect("a change");
        assert_eq!(map.version, MapVersion(index as u64 + 2));
    }
    map
}

#[test]
fn joining_builds_zones_shards_partitions_and_sets() {
    let map = two_zones();
    assert_eq!(map.check(), Vec::<String>::new());
    assert_eq!(
        map.shard_of(PartitionId(0)).map(|shard| shard.id),
        Some(ShardId(0))
    );
    assert_eq!(
        map.shard_of(PartitionId(1)).map(|shard| shard.id),
        Some(ShardId(1))
    );
    assert_eq!(
        map.shard_of(PartitionId(17)).map(|shard| shard.id),
        Some(ShardId(2))
    );
    assert_eq!(map.shard_of(PartitionId(40)), None);
    let set = map
        .zone(ZoneId(1))
        .and_then(|zone| zone.default_set)
        .and_then(|id| map.set(id));
    let targets: Vec<u32> = set
        .expect("a set")
        .slots
        .iter()
        .map(|slot| slot.target.0)
        .collect();
    assert_eq!(targets, [1, 2]);
    assert_eq!(ZoneMap::from_bytes(&map.to_bytes()), Ok(map));
}

#[test]
fn coming_back_unchanged_makes_no_version() {
    let map = two_zones();
    assert_eq!(map.edited(&[join(5, 1, None, Some(2))]), Ok(None));
}

#[test]
fn foreign_stores_and_moved_nodes_are_refused() {
    let map = two_zones();
    assert!(matches!(
        map.edited(&[join(5, 2, None, None)]),
        Err(EditError::ZoneDiffers { .. })
    ));
    assert!(matches!(
        map.edited(&[join(6, 2, None, Some(1))]),
        Err(EditError::TargetDiffers { .. })
    ));
}

#[test]
fn a_slot_keeps_its_past_and_raises_its_epoch() {
    let map = two_zones();
    let set = map
        .zone(ZoneId(1))
        .and_then(|zone| zone.default_set)
        .expect("a set");
    let edit = MapEdit::SetSlot {
        set,
        slot: 0,
        target: TargetId(1),
    };
    let next = map.edited(&[edit]).expect("an edit").expect("a change");
    assert_eq!(next.set(set).expect("it").slots[0].slot_epoch, Epoch(2));
    let twice = MapEdit::SetSlot {
        set,
        slot: 0,
        target: TargetId(2),
    };
    assert!(matches!(next.edited(&[twice]), Err(EditError::Broken(_))));
}

#[test]
fn junctions_come_move_and_go() {
    let map = two_zones();
    let ino = Ino::new(PartitionId(1), 9);
    let map = map
        .edited(&[MapEdit::AddJunction {
            ino,
            path: "/a".into(),
            zone: ZoneId(1),
        }])
        .unwrap()
        .unwrap();
    let map = map
        .edited(&[MapEdit::MoveJunction {
            ino,
            path: "/b".into(),
        }])
        .unwrap()
        .unwrap();
    assert_eq!(map.junctions[0].path, "/b");
    assert!(
        map.edited(&[MapEdit::RemoveJunction { ino }])
            .unwrap()
            .unwrap()
            .junctions
            .is_empty()
    );
}
