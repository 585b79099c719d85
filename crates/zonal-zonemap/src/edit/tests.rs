//! Edits of the map: joining, coming back, refusals, slots, removal.

use super::*;
use crate::map::StripeSet;
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
    assert_eq!(default_targets(&map, 1), [1, 2]);
    assert_eq!(ZoneMap::from_bytes(&map.to_bytes()), Ok(map));
}

#[test]
fn an_unchanged_rejoin_makes_no_version() {
    let map = two_zones();
    assert_eq!(map.edited(&[join(5, 1, None, Some(2))]), Ok(None));
}

#[test]
fn a_rejoin_with_another_store_or_zone_is_refused() {
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
fn a_slot_keeps_its_previous_target_and_its_epoch_is_the_changing_version() {
    let map = two_zones();
    let set = map.default_sets(ZoneId(1)).next().expect("a set").id;
    let edit = MapEdit::SetSlot {
        set,
        slot: 0,
        target: TargetId(1),
    };
    let next = map.edited(&[edit]).expect("an edit").expect("a change");
    let epoch = |map: &ZoneMap, slot: usize| map.set(set).expect("it").slots[slot].slot_epoch;
    assert_eq!(epoch(&next, 0), Epoch(next.version.0));
    assert_eq!(epoch(&next, 1), epoch(&map, 1));
    let mut wrong = next.clone();
    for bad in [0, next.version.0 + 1] {
        let slots = wrong.sets.last_mut().map(|set| &mut set.slots[0]);
        slots.expect("a slot").slot_epoch = Epoch(bad);
        assert_eq!(wrong.check().len(), 1);
    }
    let twice = MapEdit::SetSlot {
        set,
        slot: 0,
        target: TargetId(2),
    };
    assert!(matches!(next.edited(&[twice]), Err(EditError::Broken(_))));
}

fn retire(target: u32) -> MapEdit {
    MapEdit::UseTarget {
        target: TargetId(target),
        state: TargetState::Offline,
    }
}

fn default_targets(map: &ZoneMap, zone: u16) -> Vec<u32> {
    let slots = map.default_sets(ZoneId(zone)).flat_map(|set| &set.slots);
    slots.map(|slot| slot.target.0).collect()
}

#[test]
fn a_target_goes_with_its_sets_and_no_number_of_a_set_comes_again() {
    let map = two_zones();
    // A target added by mistake on a node of its own, then a correct one.
    let map = map.edited(&[join(7, 1, None, Some(9))]).unwrap().unwrap();
    let map = map.edited(&[join(8, 1, None, Some(10))]).unwrap().unwrap();
    assert_eq!(default_targets(&map, 1), [1, 2, 9, 10]);
    let remove = MapEdit::RemoveTarget {
        target: TargetId(9),
    };
    let in_use = Err(EditError::InUse {
        target: TargetId(9),
    });
    assert_eq!(map.edited(std::slice::from_ref(&remove)), in_use);
    let retired = map.edited(&[retire(9)]).unwrap().unwrap();
    assert_eq!(default_targets(&retired, 1), [1, 2, 10]);
    assert_eq!(retired.edited(&[retire(9)]), Ok(None));
    // The retired target comes up again: the map does not change.
    assert_eq!(retired.edited(&[join(7, 1, None, Some(9))]), Ok(None));
    let gone = retired.edited(&[remove]).unwrap().unwrap();
    assert_eq!(gone.check(), Vec::<String>::new());
    assert!(gone.target(TargetId(9)).is_none() && gone.node(NodeId(7)).is_none());
    let left = |set: &StripeSet| set.slots.iter().all(|slot| slot.target != TargetId(9));
    assert!(gone.sets.iter().all(left));
    assert_eq!(default_targets(&gone, 1), [1, 2, 10]);
    assert_eq!(gone.next_set, retired.next_set);
    let next = gone.edited(&[join(9, 1, None, Some(11))]).unwrap().unwrap();
    let known = |set: &StripeSet| retired.set(set.id).is_none() || gone.set(set.id).is_some();
    assert!(next.sets.iter().all(known), "a number was given again");
    assert_eq!(default_targets(&next, 1), [1, 2, 10, 11]);
}

#[test]
fn a_retired_target_may_be_used_again() {
    let map = two_zones();
    let map = map.edited(&[retire(1)]).unwrap().unwrap();
    assert_eq!(default_targets(&map, 1), [2]);
    let back = MapEdit::UseTarget {
        target: TargetId(1),
        state: TargetState::Serving,
    };
    let map = map.edited(&[back]).unwrap().unwrap();
    assert_eq!(default_targets(&map, 1), [1, 2]);
}

#[test]
fn a_zone_keeps_its_only_target_and_a_node_its_other_roles() {
    let map = two_zones();
    let only = EditError::OnlyTarget {
        target: TargetId(3),
        zone: ZoneId(2),
    };
    assert_eq!(map.edited(&[retire(3)]), Err(only));
    assert!(matches!(
        map.edited(&[retire(77)]),
        Err(EditError::Unknown { .. })
    ));
    // A target on the node of the zone's shard.
    let map = map.edited(&[join(2, 1, None, Some(9))]).unwrap().unwrap();
    let remove = MapEdit::RemoveTarget {
        target: TargetId(9),
    };
    let gone = map.edited(&[retire(9), remove]).unwrap().unwrap();
    assert!(gone.node(NodeId(2)).is_some() && gone.target(TargetId(9)).is_none());
    assert_eq!(gone.check(), Vec::<String>::new());
}

fn replicas(shard: u32, nodes: &[u32]) -> MapEdit {
    MapEdit::SetReplicas {
        shard: ShardId(shard),
        replicas: nodes.iter().copied().map(NodeId).collect(),
    }
}

fn with_replicas(map: &ZoneMap, shard: u32, nodes: &[u32]) -> ZoneMap {
    let next = map.edited(&[replicas(shard, nodes)]);
    next.expect("an edit").expect("a change")
}

#[test]
fn replicas_are_set_in_any_order_and_once() {
    let map = two_zones();
    assert_eq!(map.edited(&[replicas(1, &[2])]), Ok(None));
    let next = with_replicas(&map, 1, &[5, 2, 4]);
    assert_eq!(next.check(), Vec::<String>::new());
    let shard = next.shard(ShardId(1)).expect("a shard");
    assert_eq!(shard.replicas, [NodeId(2), NodeId(4), NodeId(5)]);
    assert_eq!((shard.node, shard.epoch), (NodeId(2), Epoch(1)));
    assert_eq!(next.edited(&[replicas(1, &[2, 4, 5])]), Ok(None));
    assert_eq!(ZoneMap::decode(&next.to_bytes()), Ok(next.clone()));
    let fewer = with_replicas(&next, 1, &[2]);
    assert_eq!(fewer.shards, map.shards);
}

#[test]
fn unsound_replicas_are_refused() {
    let map = two_zones();
    let refused = EditError::Replicas {
        shard: ShardId(1),
        owner: NodeId(2),
    };
    let sets: [&[u32]; 4] = [&[], &[4, 5], &[2, 4, 4], &[1, 2, 3, 4, 5, 6]];
    for nodes in sets {
        assert_eq!(map.edited(&[replicas(1, nodes)]), Err(refused.clone()));
        let mut broken = map.clone();
        broken.shards[1].replicas = nodes.iter().copied().map(NodeId).collect();
        assert_eq!(broken.check().len(), 1, "{nodes:?}");
    }
    let unknown = |what| Err(EditError::Unknown { what });
    assert_eq!(map.edited(&[replicas(9, &[2])]), unknown("shard"));
    assert_eq!(map.edited(&[replicas(1, &[2, 99])]), unknown("node"));
}

#[test]
fn a_replica_that_comes_back_does_not_take_the_shard_over() {
    let map = with_replicas(&two_zones(), 1, &[2, 4, 5]);
    assert_eq!(map.edited(&[join(4, 1, Some(1), None)]), Ok(None));
    // Another node does, and keeps the log alone.
    let taken = map.edited(&[join(6, 2, Some(1), None)]);
    let taken = taken.expect("an edit").expect("a change");
    let shard = taken.shard(ShardId(1)).expect("a shard");
    assert_eq!((shard.node, shard.epoch), (NodeId(6), Epoch(2)));
    assert_eq!(shard.replicas, [NodeId(6)]);
}

#[test]
fn a_replica_of_the_root_shard_that_comes_back_does_not_become_the_manager() {
    let map = with_replicas(&two_zones(), 0, &[1, 2, 3]);
    assert_eq!(map.edited(&[join(2, 1, Some(0), None)]), Ok(None));
}

#[test]
fn a_node_that_keeps_a_log_stays_when_its_target_goes() {
    let map = with_replicas(&two_zones(), 1, &[2, 4, 5]);
    let remove = MapEdit::RemoveTarget {
        target: TargetId(2),
    };
    let map = map.edited(&[retire(2), remove]).unwrap().unwrap();
    assert!(map.node(NodeId(5)).is_some() && map.target(TargetId(2)).is_none());
    assert_eq!(map.check(), Vec::<String>::new());
}
