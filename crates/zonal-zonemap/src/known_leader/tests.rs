//! The replica that is asked next: named, silent, unknown, and with another map.

use super::*;
use zonal_types::{CellId, Epoch, ZoneId};

fn shard(replicas: &[u32]) -> Shard {
    Shard {
        id: ShardId(1),
        zone: ZoneId(1),
        node: NodeId(replicas[0]),
        epoch: Epoch(1),
        replicas: replicas.iter().copied().map(NodeId).collect(),
    }
}

/// A replica that answers its requests: the leader, one that names another (0: none), or none.
#[derive(Clone, Copy)]
enum Replica {
    Leads,
    Names(u32),
    Silent,
}
use Replica::{Leads, Names, Silent};

/// Asks until the leader answers; returns the replicas that were asked.
fn asked(known: &KnownLeader, shard: &Shard, replicas: &[Replica]) -> Vec<u32> {
    let mut asked = Vec::new();
    while asked.len() < 4 * replicas.len() {
        let node = known.node(shard);
        asked.push(node.0);
        let at = shard.replicas.iter().position(|known| *known == node);
        match replicas[at.expect("a replica")] {
            Leads => {
                known.answered(shard, node);
                assert_eq!(known.node(shard), node);
                return asked;
            }
            Names(leader) => known.refused(shard, node, NodeId(leader)),
            Silent => known.failed(shard, node),
        }
    }
    panic!("the leader is never asked: {asked:?}");
}

fn first_asked(replicas: &[Replica]) -> Vec<u32> {
    let nodes: Vec<u32> = (1..=replicas.len() as u32).collect();
    asked(&KnownLeader::default(), &shard(&nodes), replicas)
}

#[test]
fn a_named_leader_is_asked_next_and_remembered() {
    let (known, shard) = (KnownLeader::default(), shard(&[1, 2, 3]));
    let replicas = [Names(3), Names(3), Leads];
    assert_eq!(asked(&known, &shard, &replicas), [1, 3]);
    assert_eq!(asked(&known, &shard, &replicas), [3]);
    assert_eq!(asked(&known, &shard, &[Leads, Names(1), Names(1)]), [3, 1]);
}

#[test]
fn without_a_name_replicas_are_asked_in_turn() {
    assert_eq!(first_asked(&[Names(0), Names(0), Leads]), [1, 2, 3]);
    assert_eq!(first_asked(&[Silent, Names(0), Leads]), [1, 2, 3]);
    // One that names itself, and one that the map does not have.
    assert_eq!(first_asked(&[Names(1), Leads, Silent]), [1, 2]);
    assert_eq!(first_asked(&[Names(9), Leads, Silent]), [1, 2]);
}

#[test]
fn a_leader_that_died_is_followed_by_each_other_replica() {
    // All others still name it.
    assert_eq!(first_asked(&[Silent, Names(1), Leads]), [1, 2, 1, 3]);
    // A replica that is cut off names a dead one for ever.
    assert_eq!(first_asked(&[Names(3), Leads, Silent]), [1, 3, 2]);
    assert_eq!(first_asked(&[Names(2), Silent, Leads]), [1, 2, 3]);
}

#[test]
fn replicas_that_name_one_another_keep_nobody_from_the_leader() {
    assert_eq!(first_asked(&[Names(2), Names(1), Leads]), [1, 2, 3]);
    let five = [Names(2), Names(1), Names(1), Names(2), Leads];
    assert_eq!(first_asked(&five), [1, 2, 3, 1, 4, 2, 5]);
}

#[test]
fn every_group_with_a_leader_is_led_to_it() {
    // Each replica leads, each other one is silent or names any.
    for leads in 0..3 {
        for code in 0..5 * 5 {
            let other = |digit: u32| match digit {
                4 => Silent,
                named => Names(named),
            };
            let mut replicas = vec![other(code % 5), other(code / 5)];
            replicas.insert(leads, Leads);
            for begin in 1..=3 {
                let (known, shard) = (KnownLeader::default(), shard(&[1, 2, 3]));
                known.answered(&shard, NodeId(begin));
                let asked = asked(&known, &shard, &replicas);
                assert!(asked.len() <= 5, "{begin} {code}: {asked:?}");
            }
        }
    }
}

#[test]
fn a_replica_that_the_map_has_no_more_is_forgotten() {
    let known = KnownLeader::default();
    known.answered(&shard(&[1, 2, 3]), NodeId(3));
    assert_eq!(known.node(&shard(&[1, 2, 4])), NodeId(1));
    assert_eq!(known.node(&shard(&[2])), NodeId(2));
    let moved = shard(&[1, 2, 4]);
    known.failed(&moved, NodeId(1));
    assert_eq!(known.node(&moved), NodeId(2));
}

#[test]
fn only_the_first_of_several_threads_goes_on() {
    let (known, shard) = (KnownLeader::default(), shard(&[1, 2, 3]));
    known.failed(&shard, NodeId(1));
    known.failed(&shard, NodeId(1));
    assert_eq!(known.node(&shard), NodeId(2));
    known.refused(&shard, NodeId(1), NodeId(3));
    assert_eq!(known.node(&shard), NodeId(2));
}

#[test]
fn a_shard_with_one_replica_remembers_nothing() {
    let (known, alone) = (KnownLeader::default(), shard(&[7]));
    known.failed(&alone, NodeId(7));
    known.refused(&alone, NodeId(7), NodeId(3));
    known.answered(&alone, NodeId(7));
    assert_eq!(known.node(&alone), NodeId(7));
    assert_eq!(known.0.load(Ordering::Relaxed), 0);
}

#[test]
fn leaders_of_shards_that_are_gone_are_forgotten() {
    let (leaders, mut map) = (KnownLeaders::default(), ZoneMap::new(CellId([1; 16])));
    map.shards = vec![shard(&[1, 2, 3])];
    let known = leaders.of(&map, ShardId(1));
    known.answered(&map.shards[0], NodeId(2));
    assert_eq!(leaders.of(&map, ShardId(1)).node(&map.shards[0]), NodeId(2));
    map.shards[0].id = ShardId(2);
    let _other = leaders.of(&map, ShardId(2));
    assert_eq!(leaders.0.lock().unwrap().len(), 1);
}

/// Makes a call; returns its outcome and the replicas that it asked.
fn call(leaders: &KnownLeaders, map: &ZoneMap, replicas: &[Replica]) -> (bool, Vec<u32>) {
    let mut attempts = leaders.attempts(map, ShardId(1)).expect("a shard");
    let mut asked = Vec::new();
    loop {
        let node = attempts.node();
        asked.push(node.0);
        let outcome = match replicas[node.0 as usize - 1] {
            Leads => Ok(MetaReply::Done),
            Names(leader) => Ok(MetaReply::NotLeader {
                leader: NodeId(leader),
            }),
            Silent => Err(()),
        };
        if attempts.is_over(node, &outcome) {
            return (outcome == Ok(MetaReply::Done), asked);
        }
    }
}

#[test]
fn a_call_ends_with_the_leaders_answer_or_after_two_attempts_at_each_replica() {
    let (leaders, mut map) = (KnownLeaders::default(), ZoneMap::new(CellId([1; 16])));
    map.shards = vec![shard(&[1, 2, 3])];
    let led = [Names(3), Names(3), Leads];
    assert_eq!(call(&leaders, &map, &led), (true, vec![1, 3]));
    assert_eq!(call(&leaders, &map, &led), (true, vec![3]));
    let unled = [Names(0), Names(0), Silent];
    assert_eq!(
        call(&leaders, &map, &unled),
        (false, vec![3, 1, 2, 3, 1, 2])
    );
    map.shards = vec![shard(&[1])];
    assert_eq!(call(&leaders, &map, &[Leads]), (true, vec![1]));
    assert_eq!(call(&leaders, &map, &[Silent]), (false, vec![1]));
    assert_eq!(call(&leaders, &map, &[Names(2)]), (false, vec![1]));
    assert!(leaders.attempts(&map, ShardId(2)).is_none());
}
