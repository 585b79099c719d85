//! Members of a group: a leader brings them to what the zone map says; a replica that is no member
//! yet makes itself known.

use super::ReplicaParts;
use super::disk::ReplicaDisk;
use super::outbox::{member_on, node_of};
use std::time::{Duration, Instant};
use zonal_consensus::{MemberRole, PeerMessage, ReplicaId};
use zonal_driver::ReplicaDriver;
use zonal_driver::replica::{MemberStep, next_step};
use zonal_types::{Codec, ErrorCode, NodeId};

/// How long a call of a replica that is no member yet may take, ms.
const KNOCK_MS: u32 = 1_000;
/// How long a leader that stops waits for its successor.
const HAND_OVER: Duration = Duration::from_millis(500);

/// Looks at the map once.
pub(super) fn look(parts: &ReplicaParts, driver: &ReplicaDriver<ReplicaDisk>) {
    let map = parts.map.current();
    let Some(shard) = map.shard(parts.config.shard) else {
        return;
    };
    let status = driver.status();
    if status.members.voters.is_empty() {
        knock(parts, &shard.replicas);
        return;
    }
    if status.role != MemberRole::Leads {
        return;
    }
    let wanted: Vec<ReplicaId> = shard.replicas.iter().map(|node| member_on(*node)).collect();
    match next_step(&wanted, member_on(parts.node), &status) {
        Some(MemberStep::Change(change)) => match driver.change_members(&change) {
            Ok(_) | Err(ErrorCode::Busy | ErrorCode::NotOwner) => {}
            Err(code) => tracing::warn!(%code, "the members of a group cannot be changed"),
        },
        Some(MemberStep::HandOver(to)) => driver.hand_over(to),
        None => {}
    }
}

/// Tells the other replicas in the map that this one is there: their leader then looks at the
/// newest map.
fn knock(parts: &ReplicaParts, replicas: &[NodeId]) {
    let nothing = Vec::<PeerMessage>::new().to_bytes();
    for node in replicas.iter().filter(|node| **node != parts.node) {
        let shard = parts.config.shard;
        // Its leader sends what this replica lacks.
        let _ = parts
            .peers
            .exchange(&parts.map, *node, shard, &nothing, KNOCK_MS);
    }
}

/// Hands the lead over, where this replica leads and another one can.
pub(super) fn hand_over(driver: &ReplicaDriver<ReplicaDisk>, own: NodeId) {
    let status = driver.status();
    let voters = status.others.iter().filter(|one| {
        one.is_heard && status.members.votes(one.member) && node_of(one.member) != own
    });
    let Some(next) = voters.max_by_key(|one| one.matched) else {
        return;
    };
    driver.hand_over(next.member);
    let until = Instant::now() + HAND_OVER;
    while driver.reign().is_some() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}
