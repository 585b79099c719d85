//! The simulated host of a shard's driver: disk, messages and clocks. Bugs of stores and networks
//! are planted here.

use super::peer_calls::PeerCalls;
use super::planted_bugs;
use crate::clock::Group;
use crate::disk::VirtualDisk;
use crate::planted_bugs::Plant;
use crate::replica_node::ReignLog;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use zonal_consensus::LogIndex;
use zonal_driver::shard::{Durability, ShardHost, ShardNote};
use zonal_meta::{JunctionChange, Now};
use zonal_types::{
    ErrorCode, Instant, KvChange, MapVersion, NodeId, PartitionId, ShardId, TargetId, ZoneId,
};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::{Manager, ZoneMap};

/// The host of a metadata process's driver.
pub(super) struct SimulatedHost {
    pub(super) peers: PeerCalls,
    pub(super) group: Group,
    pub(super) disk: Rc<VirtualDisk>,
    pub(super) plant: Plant,
    /// The log of the shard's group, if it has one.
    pub(super) log: Option<ReignLog>,
    /// Effects that could lose a change, counted for a planted bug.
    pub(super) effects: Cell<u64>,
    /// The manager, in the root's process.
    pub(super) manager: RefCell<Option<Manager>>,
    /// When the manager last answered each node with a target.
    pub(super) leases: RefCell<BTreeMap<NodeId, Instant>>,
    /// Begin of this life of the process.
    pub(super) began: Instant,
    /// Number of appended records.
    pub(super) appended: Rc<Cell<u64>>,
}

/// Delay of a fence under a planted bug, ns.
const LATE_FENCE: u64 = 25_000_000_000;

impl SimulatedHost {
    /// A planted bug: the fence counts as acknowledged before it is sent.
    fn tell_late(&self, target: TargetId, request: StorageRequest) {
        let (peers, clock) = (self.peers.clone(), self.peers.network.clock.clone());
        let later = clock.clone();
        clock.spawn(self.group, async move {
            later.sleep(LATE_FENCE).await;
            peers.ask_target(target, &request).await;
        });
    }
}

impl ShardHost for SimulatedHost {
    type Store = VirtualDisk;
    type Position = LogIndex;

    fn store(&self) -> &VirtualDisk {
        &self.disk
    }

    fn now(&self) -> Now {
        self.peers.now()
    }

    async fn sleep_until(&self, until: Instant) {
        let network = &self.peers.network;
        let until = network.clock_of(&self.peers.address).world(until);
        network.clock.sleep_until(until).await;
    }

    fn random(&self) -> Result<u64, ErrorCode> {
        // Sessions have consecutive numbers, so that a run depends on its seed alone.
        Ok(0)
    }

    fn map(&self) -> Arc<ZoneMap> {
        self.peers.map.borrow().clone()
    }

    /// Every process knows the newest map at once.
    async fn seek_map(&self, _known: MapVersion) {}

    fn open_sets(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode> {
        self.open_sets_of(zone)
    }

    fn more_partitions(&self, shard: ShardId) -> Result<MetaReply, ErrorCode> {
        self.partitions_for(shard)
    }

    fn give_partition(
        &self,
        partition: PartitionId,
        from: ShardId,
        to: ShardId,
    ) -> Result<MetaReply, ErrorCode> {
        self.give(partition, from, to)
    }

    fn check_health(&self) -> Result<(), ErrorCode> {
        Ok(())
    }

    fn check_room(&self, request: &MetaRequest) -> Result<(), ErrorCode> {
        if self.disk.is_full() && request.adds() {
            return Err(ErrorCode::NoSpace);
        }
        match &self.log {
            Some(log) if log.is_congested() => Err(ErrorCode::Overloaded),
            _ => Ok(()),
        }
    }

    fn has_reserve(&self) -> bool {
        self.log.as_ref().is_none_or(|log| !log.is_congested())
    }

    fn prefetch(&self, _request: &MetaRequest) {}

    fn append(
        &self,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        durability: Durability,
    ) -> Result<Option<Arc<ZoneMap>>, ErrorCode> {
        self.appended.set(self.appended.get() + 1);
        let is_of_map = !junctions.is_empty();
        let mut changes = planted_bugs::lose_change(self.plant, &self.effects, effect);
        changes.extend(self.plan_junctions(junctions));
        if let Some(log) = &self.log {
            log.append(&changes, durability)?;
            return Ok(None);
        }
        self.disk.append_changes(changes);
        if is_of_map || durability == Durability::AtOnce {
            self.disk.sync();
        }
        Ok(None)
    }

    fn position(&self) -> LogIndex {
        self.log.as_ref().map_or(LogIndex(0), ReignLog::position)
    }

    async fn settled(&self, upto: LogIndex) -> Result<(), ErrorCode> {
        match &self.log {
            Some(log) => log.settled(upto).await,
            None => Ok(()),
        }
    }

    async fn flush(&self) -> Result<(), ErrorCode> {
        if let Some(log) = &self.log {
            return log.durable().await;
        }
        if self.plant != Plant::ShardSyncDoesNothing {
            self.disk.sync();
        }
        Ok(())
    }

    /// The map became durable when it was made.
    async fn publish(&self, _map: Arc<ZoneMap>) -> Result<(), ErrorCode> {
        Ok(())
    }

    async fn call_shard(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        match request {
            MetaRequest::OpenSets { zone } if self.manager.borrow().is_some() => {
                self.open_sets_of(*zone)
            }
            _ => self.peers.ask(shard, request).await,
        }
    }

    async fn call_later(&self, calls: Vec<(ShardId, MetaRequest)>) {
        let peers = self.peers.clone();
        let make = async move {
            for (shard, request) in calls {
                // Housekeeping repeats the call where it fails.
                let _reply = peers.ask(shard, &request).await;
            }
        };
        if self.plant == Plant::CallsBeforeReply {
            make.await;
        } else {
            self.peers.network.clock.spawn(self.group, make);
        }
    }

    async fn call_targets(
        &self,
        requests: Vec<(TargetId, StorageRequest)>,
    ) -> Vec<Option<StorageReply>> {
        let mut replies = Vec::new();
        for (target, request) in requests {
            if self.plant == Plant::LocksBeforeFences
                && matches!(request, StorageRequest::Fence { .. })
            {
                self.tell_late(target, request);
                replies.push(Some(StorageReply::Done));
                continue;
            }
            replies.push(self.peers.ask_target(target, &request).await);
        }
        replies
    }

    fn note(&self, _note: ShardNote<'_>) {}
}
