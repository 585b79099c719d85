//! A node's way to the manager: in this process, or by the network.

use crate::manager_role::{LoadSink, ManagerRole};
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::replica_role::ReplicaRole;
use std::sync::Arc;
use zonal_net::{ClaimOutcome, Peer, TokenClaim};
use zonal_wire::{ManagerReply, ManagerRequest};

/// The manager of a node, as requests from the network find it.
#[derive(Clone)]
pub enum ManagerService {
    /// The only one.
    Alone(Arc<ManagerRole>),
    /// A replica of the root's shard, which is the manager while it leads.
    Group(Arc<ReplicaRole>),
}

impl ManagerService {
    /// The manager, where it serves here.
    #[must_use]
    pub fn serving(&self) -> Option<Arc<ManagerRole>> {
        match self {
            Self::Alone(manager) => Some(Arc::clone(manager)),
            Self::Group(replica) => replica.manager(),
        }
    }

    /// Answers the claim of a join token.
    pub(crate) fn claim(&self, claim: &TokenClaim) -> ClaimOutcome {
        let serving = self.serving();
        serving.map_or(ClaimOutcome::NotReady, |manager| manager.claim(claim))
    }

    /// Answers a request from the network.
    pub(crate) fn handle(&self, peer: &Peer, request: ManagerRequest) -> ManagerReply {
        match self {
            Self::Alone(manager) => manager.handle(request),
            Self::Group(replica) => match replica.manager() {
                Some(manager) => manager.handle(request),
                None => replica.answer_for_manager(peer, &request),
            },
        }
    }

    /// Sets the receiver of reports of nodes' loads.
    pub(crate) fn set_load_sink(&self, sink: LoadSink) {
        match self {
            Self::Alone(manager) => manager.parts().set_load_sink(sink),
            Self::Group(replica) => {
                if let Some(parts) = replica.manager_parts() {
                    parts.set_load_sink(sink);
                }
            }
        }
    }
}

/// A node's way to the manager.
#[derive(Clone)]
pub(crate) struct ManagerLink {
    /// The one in this node, if any.
    pub here: Option<ManagerService>,
    /// Calls to others.
    pub peers: Arc<Peers>,
    /// Their addresses.
    pub map: Arc<MapCache>,
}

impl ManagerLink {
    /// The manager's answer; `None`: none answered.
    pub(crate) fn ask(&self, request: ManagerRequest) -> Option<ManagerReply> {
        match self.here.as_ref().and_then(ManagerService::serving) {
            Some(manager) => Some(manager.handle(request)),
            None => self.peers.manager(&self.map.current(), &request).ok(),
        }
    }
}
