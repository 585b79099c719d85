//! A server's list of revoked certificates, fetched from the manager every [`PERIOD`]. Only where
//! connections have credentials. And its zone map: the path of a client's scope begins with a name
//! that the map has.
//!
//! A manager that does not answer leaves both as they are.

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

/// How often the manager is asked.
const PERIOD: Duration = Duration::from_secs(2);

/// Where the list comes from.
pub(crate) enum RevokedSource {
    /// The manager is in this node.
    Here(Arc<ManagerRole>),
    /// The manager is elsewhere.
    Manager(SocketAddr, Arc<Peers>),
}

impl RevokedSource {
    /// The manager's answer; `None`: there is none.
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
    /// Fetches the list once, then keeps it.
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
            // A panic was logged where it happened.
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
