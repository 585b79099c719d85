//! Revocations: a thread that fetches the list of revoked certificates from the manager every
//! [`PERIOD`], where connections have credentials. It also refreshes the zone map, as the path of a
//! client's scope begins with a name in the map.
//!
//! Where the manager does not answer, both stay as they are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::manager_role::ManagerRole;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use zonal_net::{Revoker, Serial};
use zonal_wire::{ManagerReply, ManagerRequest};

/// Period of the fetches.
const PERIOD: Duration = Duration::from_secs(2);

/// Source of the list.
pub(crate) enum RevokedSource {
    /// The manager in this node.
    Here(Arc<ManagerRole>),
    /// The manager at this address.
    Manager(SocketAddr, Arc<Peers>),
}

impl RevokedSource {
    /// The manager's answer; `None`: it did not answer.
    fn ask(&self, request: ManagerRequest) -> Option<ManagerReply> {
        match self {
            Self::Here(manager) => Some(manager.handle(request)),
            Self::Manager(address, peers) => peers.manager(*address, &request).ok(),
        }
    }
}

/// The thread that keeps the list; it ends when this is dropped.
pub(crate) struct Revocations {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Revocations {
    /// Fetches the list once, then starts the thread.
    pub(crate) fn start(
        source: RevokedSource,
        revoker: Revoker,
        map: Arc<MapCache>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new()
            .name("revocations".into())
            .spawn(move || keep(&source, (&revoker, &map), &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Revocations {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The hook has logged a panic already.
            let _ = thread.join();
        }
    }
}

fn keep(source: &RevokedSource, (revoker, map): (&Revoker, &MapCache), stopped: &Receiver<()>) {
    let mut have = 0;
    loop {
        if let Some(ManagerReply::Revoked { version, serials }) =
            source.ask(ManagerRequest::GetRevoked { have })
            && version > have
        {
            tracing::info!(version, count = serials.len(), "revoked credentials");
            let serials: BTreeSet<Serial> = serials.into_iter().map(Serial).collect();
            revoker.revoke(&serials);
            have = version;
        }
        match stopped.recv_timeout(PERIOD) {
            Err(RecvTimeoutError::Timeout) => map.refresh(),
            _ => return,
        }
    }
}
