//! Revocations: a thread that fetches the list of revoked certificates from the manager every
//! [`PERIOD`]. It also refreshes the zone map, so that a server's new address is known soon. The
//! path of a client's scope begins with a name in the map, too.
//!
//! Where the manager does not answer, both stay as they are.

use crate::manager_link::ManagerLink;
use crate::map_cache::MapCache;
use crate::periodic_thread::{Pauses, PeriodicThread};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use zonal_net::{Revoker, Serial};
use zonal_wire::{ManagerReply, ManagerRequest};

/// Period of the fetches.
const PERIOD: Duration = Duration::from_secs(2);

/// Starts the thread, which fetches the list at once.
pub(crate) fn start(
    manager: ManagerLink,
    revoker: Revoker,
    map: Arc<MapCache>,
) -> io::Result<PeriodicThread> {
    PeriodicThread::start("revocations", move |pauses| {
        keep(&manager, (&revoker, &map), pauses);
    })
}

fn keep(manager: &ManagerLink, (revoker, map): (&Revoker, &MapCache), pauses: &Pauses) {
    let mut have = 0;
    loop {
        if let Some(ManagerReply::Revoked { version, serials }) =
            manager.ask(ManagerRequest::GetRevoked { have })
            && version > have
        {
            tracing::info!(version, count = serials.len(), "revoked credentials");
            let serials: BTreeSet<Serial> = serials.into_iter().map(Serial).collect();
            revoker.revoke(&serials);
            have = version;
        }
        if !pauses.pause(PERIOD) {
            return;
        }
        map.refresh();
    }
}
