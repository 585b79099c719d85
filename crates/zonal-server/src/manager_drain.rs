//! Drains and rebuilds of a manager: a thread beside it that moves the objects of targets that
//! leave ([`zonal_driver::drain`]), while this manager leads.

use crate::clock;
use crate::manager_link::ManagerLink;
use crate::manager_role::ManagerRole;
use crate::periodic_thread::{Pauses, PeriodicThread};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zonal_driver::at_once;
use zonal_driver::drain::{DrainHost, Drains, KnownSpace};
use zonal_types::limits::TARGET_LEASE_WAIT_MS;
use zonal_types::{ErrorCode, Instant, MapVersion, ShardId, TargetId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

/// Time between two rounds.
const PERIOD: Duration = Duration::from_secs(1);
/// Targets asked for their space in parallel.
const TARGETS_AT_ONCE: usize = 16;

/// Starts the thread. A target that is out for `rebuild_after_ms` is rebuilt (0: never).
///
/// # Errors
/// Where the system refuses it.
pub(crate) fn start(manager: ManagerLink, rebuild_after_ms: u64) -> io::Result<PeriodicThread> {
    PeriodicThread::start("manager-drain", move |pauses| {
        keep(&manager, rebuild_after_ms, pauses);
    })
}

/// The host of one reign.
struct Reign<'a> {
    role: Arc<ManagerRole>,
    link: &'a ManagerLink,
}

impl DrainHost for Reign<'_> {
    fn map(&self) -> Arc<ZoneMap> {
        self.role.newest_map()
    }

    fn now(&self) -> Instant {
        clock::instant()
    }

    async fn edit(&self, edit: MapEdit) -> Result<MapVersion, ErrorCode> {
        let edited = self.role.edit_for_drain(&edit);
        edited.map_err(|error| {
            tracing::warn!(?edit, %error, "an edit for a drain is refused");
            error.code()
        })
    }

    async fn ask_shard(&self, shard: ShardId, request: &MetaRequest) -> Option<MetaReply> {
        let asked = self.link.peers.shard(&self.link.map, shard, request);
        asked.inspect_err(|_error| self.link.map.refresh()).ok()
    }

    fn take_out_silent(&self, target: TargetId) {
        self.role.take_out_down(target);
    }

    async fn spaces(&self, targets: &[TargetId]) -> Vec<Option<KnownSpace>> {
        let ask = |target: TargetId| {
            let map = self.link.map.current();
            let node = map.target(target)?.node;
            let asked = StorageRequest::StatFs { target };
            match self.link.peers.storage(&self.link.map, node, &asked) {
                Ok(StorageReply::StatFs { total, free, .. }) => Some(KnownSpace { total, free }),
                _no_answer => None,
            }
        };
        let mut spaces = Vec::with_capacity(targets.len());
        for some in targets.chunks(TARGETS_AT_ONCE) {
            std::thread::scope(|scope| {
                let start = |target: &TargetId| {
                    let target = *target;
                    let thread = std::thread::Builder::new().name("space".into());
                    thread.spawn_scoped(scope, move || ask(target)).ok()
                };
                let started: Vec<_> = some.iter().map(start).collect();
                spaces.extend(started.into_iter().map(|thread| thread?.join().ok()?));
            });
        }
        spaces
    }

    fn lease_ms(&self) -> u64 {
        TARGET_LEASE_WAIT_MS
    }
}

fn keep(link: &ManagerLink, rebuild_after_ms: u64, pauses: &Pauses) {
    let mut reign: Option<(Arc<ManagerRole>, Drains)> = None;
    while pauses.pause(PERIOD) {
        let serving = link.here.as_ref().and_then(|here| here.serving());
        let Some(role) = serving else {
            reign = None;
            continue;
        };
        let (role, drains) = match &mut reign {
            Some((known, drains)) if Arc::ptr_eq(known, &role) => (role, drains),
            reign => {
                let drains = Drains::begin(clock::instant());
                let (_, drains) = reign.insert((Arc::clone(&role), drains));
                (role, drains)
            }
        };
        let host = Reign { role, link };
        let begun = at_once(drains.begin_rebuilds(&host, rebuild_after_ms)).unwrap_or_default();
        for target in begun {
            tracing::warn!(
                target_id = target.0,
                "a target that is out for long is rebuilt"
            );
        }
        let status = at_once(drains.round(&host)).unwrap_or_default();
        let mut known = host.role.drains();
        for now in status.iter().filter(|now| !known.contains(now)) {
            tracing::debug!(
                target_id = now.target.0,
                filling = now.filling,
                stuck = now.stuck,
                "objects move to other targets"
            );
        }
        *known = status;
    }
}
