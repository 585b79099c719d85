//! Messages, writes and flushes of an effect in a group of three, and in a group of one
//! (docs/data-path.md has the numbers).
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod memory_replica;

use memory_replica::{Applied, Disk, MemoryHost, start};
use std::cell::RefCell;
use std::rc::Rc;
use zonal_consensus::{LogIndex, Membership, PeerMessage, ReplicaId, Term};
use zonal_driver::{ReplicaDriver, at_once};
use zonal_types::KvChange;

type Member = ReplicaDriver<MemoryHost>;

/// Members of a group that has elected a leader and is quiet.
fn quiet_group(members: u64) -> (Vec<Member>, usize) {
    let numbers: Vec<ReplicaId> = (1..=members).map(ReplicaId).collect();
    let applied = Applied {
        index: LogIndex(5),
        term: Term(2),
        members: Membership::of_voters(numbers.clone()),
        since: LogIndex(1),
        ..Applied::default()
    };
    let member = |own: &ReplicaId| {
        let disk = Disk::default().filled(applied.clone());
        start(*own, &Rc::new(RefCell::new(disk)), 9, false)
    };
    let group: Vec<Member> = numbers.iter().map(member).collect();
    for _ in 0..400 {
        group.iter().for_each(Member::tick);
        exchange(&group);
        if let Some(leader) = group.iter().position(|one| one.reign().is_some()) {
            return (group, leader);
        }
    }
    panic!("nobody is elected");
}

/// Delivers messages until there are none; returns them.
fn exchange(group: &[Member]) -> Vec<PeerMessage> {
    let mut delivered = Vec::new();
    loop {
        let sent: Vec<PeerMessage> = group
            .iter()
            .flat_map(|one| one.host().sent.take())
            .collect();
        if sent.is_empty() {
            return delivered;
        }
        for message in sent {
            let to = usize::try_from(message.to.0 - 1).unwrap();
            group[to].receive(std::slice::from_ref(&message)).unwrap();
            delivered.push(message);
        }
    }
}

fn append(leader: &Member, effect: u64) -> LogIndex {
    let changes = [KvChange::put(effect.to_be_bytes().to_vec(), vec![1])];
    leader.append(leader.reign().unwrap(), &changes).unwrap()
}

fn writes(group: &[Member]) -> Vec<u64> {
    group.iter().map(|one| one.host().writes.get()).collect()
}

#[test]
fn an_effect_of_three_replicas_costs_four_messages_three_writes_and_no_flush() {
    let (group, at) = quiet_group(3);
    let leader = &group[at];
    for effect in 0..20 {
        let before = writes(&group);
        let index = append(leader, effect);
        let delivered = exchange(&group);
        let from_leader = |message: &&PeerMessage| message.from.0 == at as u64 + 1;
        assert_eq!(delivered.iter().filter(from_leader).count(), 2);
        assert_eq!(delivered.len(), 4, "and an acknowledgement of each");
        let settled = leader.settled(leader.reign().unwrap(), index);
        assert_eq!(at_once(settled), Ok(Ok(())));
        let one_more: Vec<u64> = before.iter().map(|count| count + 1).collect();
        assert_eq!(writes(&group), one_more);
        assert!(group.iter().all(|one| !one.host().wants_flush.get()));
    }
}

/// Followers learn of the last commit by a heartbeat, without an entry behind it.
#[test]
fn followers_learn_of_a_commit_by_the_next_heartbeat() {
    let (group, at) = quiet_group(3);
    let index = append(&group[at], 1);
    exchange(&group);
    for _ in 0..4 {
        group.iter().for_each(Member::tick);
        exchange(&group);
    }
    let committed = group.iter().map(|one| one.status().committed);
    assert_eq!(committed.collect::<Vec<_>>(), [index; 3]);
}

#[test]
fn an_effect_of_a_group_of_one_costs_a_write_and_is_committed_at_its_append() {
    let (group, at) = quiet_group(1);
    for effect in 0..20 {
        let before = writes(&group);
        let index = append(&group[at], effect);
        assert_eq!(writes(&group), [before[0] + 1]);
        assert!(exchange(&group).is_empty());
        assert!(!group[at].host().wants_flush.get());
        let settled = group[at].settled(group[at].reign().unwrap(), index);
        assert_eq!(at_once(settled), Ok(Ok(())));
    }
}
