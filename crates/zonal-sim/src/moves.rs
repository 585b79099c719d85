//! Orders moves of partitions between the shards of a zone, while programs and faults run.

use crate::coverage::FaultKind;
use crate::meta_node::MetaNode;
use crate::net::NETWORK;
use crate::rng::SimRng;
use crate::world::World;
use std::rc::Rc;
use zonal_types::{PartitionId, ShardId};
use zonal_wire::{Header, MetaReply, MetaRequest, Service};

/// Longest pause between two orders, ms.
const EVERY_MS_MAX: u64 = 6_000;
/// Of 1000 orders, those that are cancelled a moment later.
const CANCELLED: u64 = 150;

/// Orders moves until the programs have ended or the world heals.
pub async fn order(world: Rc<World>, mut rng: SimRng) {
    loop {
        let pause = rng.between(100, EVERY_MS_MAX);
        world.clock.sleep(pause * 1_000_000).await;
        if !world.faults_wanted() {
            return;
        }
        let Some((node, partition, to)) = choose(&world, &mut rng) else {
            continue;
        };
        let order = MetaRequest::MovePartition { partition, to };
        if let Some(MetaReply::Done) = ask(&world, &node, order).await {
            world.network.count(FaultKind::Move);
        }
        if rng.chance(CANCELLED) {
            let pause = rng.between(1, 200);
            world.clock.sleep(pause * 1_000_000).await;
            ask(&world, &node, MetaRequest::CancelMove { partition }).await;
        }
    }
}

/// A partition with inodes, the process of its shard, and another shard of the zone.
fn choose(world: &World, rng: &mut SimRng) -> Option<(Rc<MetaNode>, PartitionId, ShardId)> {
    let map = world.map.borrow().clone();
    let mut found = Vec::new();
    for node in world.meta_nodes() {
        let shard = map.shard(node.shard())?;
        let others = map.shards.iter().filter(|other| {
            other.zone == shard.zone && other.id != shard.id && other.id != ShardId(0)
        });
        let others: Vec<ShardId> = others.map(|other| other.id).collect();
        for partition in map.partitions_of(shard.id) {
            if zonal_meta::inodes_of(node.disk(), partition).is_ok_and(|count| count > 0) {
                let node = &node;
                found.extend(others.iter().map(|to| (node.clone(), partition, *to)));
            }
        }
    }
    let at = rng.below(found.len().max(1) as u64) as usize;
    found.into_iter().nth(at)
}

/// The answer of a process, where it has one; the process may be killed meanwhile.
pub(crate) async fn ask(
    world: &Rc<World>,
    node: &Rc<MetaNode>,
    request: MetaRequest,
) -> Option<MetaReply> {
    let (node, cell) = (node.clone(), world.map.borrow().cell);
    let answer = Rc::new(std::cell::RefCell::new(None));
    let told = answer.clone();
    world.clock.spawn(NETWORK, async move {
        let header = Header::request(Service::Meta, cell);
        *told.borrow_mut() = Some(node.order(&header, &request).await);
    });
    world.clock.sleep(50_000_000).await;
    answer.take()
}

/// Whether no partition is on its way.
#[must_use]
pub fn are_over(world: &World) -> bool {
    world.meta_nodes().iter().all(|node| node.moves() == 0)
}
