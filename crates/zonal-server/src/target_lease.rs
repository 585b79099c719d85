//! Target lease: a thread beside a target. Every [`PERIOD`] it asks the leading manager for the
//! node's lease, while the target serves. Where the map has the target out, it asks to put it back.

use crate::manager_link::ManagerLink;
use crate::periodic_thread::{Pauses, PeriodicThread};
use crate::storage_role::StorageRole;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zonal_types::NodeId;
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::TargetState;

/// Period of the questions. One may stay without an answer before the lease ends.
const PERIOD: Duration = Duration::from_secs(1);
/// Pause behind a question without an answer.
const RETRY: Duration = Duration::from_millis(200);

/// Starts the thread, which asks at once.
///
/// # Errors
/// Where the system refuses it.
pub(crate) fn start(
    node: NodeId,
    storage: Arc<StorageRole>,
    manager: ManagerLink,
) -> io::Result<PeriodicThread> {
    PeriodicThread::start("target-lease", move |pauses| {
        keep(node, &storage, &manager, pauses);
    })
}

fn keep(node: NodeId, storage: &StorageRole, manager: &ManagerLink, pauses: &Pauses) {
    let target_id = storage.id().0;
    let (mut pause, mut was_leased) = (Duration::ZERO, false);
    while pauses.pause(pause) {
        // A target that has stopped to serve needs none, and may be taken out.
        let is_renewed = storage.is_healthy() && manager.map.renew_lease(node);
        pause = if is_renewed { PERIOD } else { RETRY };
        let is_leased = manager.map.has_lease();
        match (was_leased, is_leased) {
            (false, true) => tracing::info!(target_id, "the target has its lease"),
            (true, false) => {
                tracing::warn!(target_id, "no lease: files with copies are not served here");
            }
            _ => {}
        }
        was_leased = is_leased;
        let map = manager.map.current();
        let is_drained = map.target_state(storage.id()) == Some(TargetState::Drained);
        if is_renewed && map.is_out(storage.id()) && !is_drained {
            put_back(storage, manager);
        }
    }
}

/// Asks once; the next look at the map repeats it where that fails.
fn put_back(storage: &StorageRole, manager: &ManagerLink) {
    let target = storage.id();
    match manager.ask(ManagerRequest::PutBack { target }) {
        Some(ManagerReply::At { .. }) => {
            tracing::info!(target_id = target.0, "the target is back");
            manager.map.refresh();
        }
        answer => {
            tracing::warn!(
                target_id = target.0,
                ?answer,
                "the target is not put back yet"
            );
        }
    }
}
