//! Resync of a target: a thread beside it that fills its stale copies
//! ([`zonal_driver::storage::ResyncPlan`]) while the target has its lease.

use crate::clock;
use crate::manager_link::ManagerLink;
use crate::periodic_thread::{Pauses, PeriodicThread};
use crate::storage_role::StorageRole;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zonal_driver::storage::ResyncPlan;
use zonal_wire::ManagerRequest;

/// Time between two looks at the map, and between rounds that leave something.
const PERIOD: Duration = Duration::from_secs(1);

/// Starts the thread.
///
/// # Errors
/// Where the system refuses it.
pub(crate) fn start(storage: Arc<StorageRole>, manager: ManagerLink) -> io::Result<PeriodicThread> {
    PeriodicThread::start("target-resync", move |pauses| {
        keep(&storage, &manager, pauses);
    })
}

/// Asks for the fence of objects that clients may not know yet.
fn ask_for_fence(storage: &StorageRole, manager: &ManagerLink) {
    let request = ManagerRequest::RenewEpochs {
        target: storage.id(),
        known: manager.map.current().version,
    };
    // The next round asks again.
    if manager.ask(request).is_some() {
        manager.map.refresh();
    }
}

fn keep(storage: &StorageRole, manager: &ManagerLink, pauses: &Pauses) {
    let map = &manager.map;
    let mut plan = ResyncPlan::default();
    while pauses.pause(PERIOD) {
        if !storage.is_healthy() || !map.has_lease() {
            continue;
        }
        let blocks = storage.repair_damage();
        if blocks > 0 {
            let target_id = storage.id().0;
            tracing::info!(
                target_id,
                blocks,
                "damaged blocks are repaired from other copies"
            );
        }
        let mut unfenced = 0;
        for shard in plan.shards(&map.current(), storage.id(), clock::instant()) {
            let Ok(round) = storage.resync(shard) else {
                continue;
            };
            if round.left == 0 {
                plan.done(shard);
            }
            unfenced += round.unfenced;
            if round.mended > 0 {
                tracing::info!(
                    target_id = storage.id().0,
                    shard = shard.0,
                    files = round.mended,
                    left = round.left,
                    bytes = round.bytes,
                    "stale copies are filled"
                );
            }
        }
        if unfenced > 0 {
            ask_for_fence(storage, manager);
        }
    }
}
