//! Drains of the manager, which is in the root's process.

use super::MetaNode;
use super::host::SimulatedHost;
use crate::coverage::FaultKind;
use std::rc::Rc;
use std::sync::Arc;
use zonal_driver::drain::{DrainHost, Drains, KnownSpace};
use zonal_types::limits::TARGET_LEASE_WAIT_MS;
use zonal_types::{ErrorCode, Instant, MapVersion, ShardId, TargetId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::{MapEdit, TargetState, ZoneMap};

/// Time between two rounds, ns.
const PERIOD: u64 = 500_000_000;
/// Time after which a target that is out is rebuilt, ms.
const REBUILD_AFTER_MS: u64 = 8_000;

impl DrainHost for SimulatedHost {
    fn map(&self) -> Arc<ZoneMap> {
        self.peers.map.borrow().clone()
    }

    fn now(&self) -> Instant {
        self.peers.now().instant
    }

    async fn edit(&self, edit: MapEdit) -> Result<MapVersion, ErrorCode> {
        let edited = SimulatedHost::edit(self, &[edit]);
        edited.map_err(|_refused| ErrorCode::Invalid)?;
        Ok(self.peers.map.borrow().version)
    }

    async fn ask_shard(&self, shard: ShardId, request: &MetaRequest) -> Option<MetaReply> {
        self.peers.ask(shard, request).await.ok()
    }

    fn take_out_silent(&self, target: TargetId) {
        // The next round asks again.
        self.take_out(target).ok();
    }

    async fn spaces(&self, targets: &[TargetId]) -> Vec<Option<KnownSpace>> {
        let mut spaces = Vec::with_capacity(targets.len());
        for target in targets {
            let target = *target;
            let asked = StorageRequest::StatFs { target };
            spaces.push(match self.peers.ask_target(target, &asked).await {
                Some(StorageReply::StatFs { total, free, .. }) => Some(KnownSpace { total, free }),
                _no_answer => None,
            });
        }
        spaces
    }

    fn lease_ms(&self) -> u64 {
        TARGET_LEASE_WAIT_MS
    }
}

impl MetaNode {
    /// Moves the objects of targets that leave, where this process is the manager.
    pub fn keep_drains(self: &Rc<Self>) {
        let node = self.clone();
        let clock = self.host().peers.network.clock.clone();
        let sleeper = clock.clone();
        clock.spawn(self.host().group, async move {
            let mut drains = Drains::begin(DrainHost::now(node.host()));
            loop {
                sleeper.sleep(PERIOD).await;
                drains.begin_rebuilds(node.host(), REBUILD_AFTER_MS).await;
                let map = DrainHost::map(node.host());
                let mut targets = map.targets.iter();
                if targets.any(|of| of.state == TargetState::Returning) {
                    // Also one that was rebuilt and came back.
                    node.host().peers.network.count(FaultKind::DrainEnded);
                }
                let network = &node.host().peers.network;
                for status in drains.round(node.host()).await {
                    let now = network.clock.now();
                    network.trace.say(now, &|| format!("{status:?}"));
                }
            }
        });
    }
}
