//! The start of one of several managers: its replica of the root's shard serves before the node
//! joins.

use super::cell_join::JoinOutcome;
use super::shard::{NodeStores, start_root_replica};
use crate::config::NodeConfig;
use crate::control::Control;
use crate::error::ServerError;
use crate::grants::Grants;
use crate::manager_link::ManagerService;
use crate::manager_role::ManagerParts;
use crate::map_cache::MapCache;
use crate::node::ServerNode;
use crate::peers::Peers;
use crate::replica_role::ReplicaRole;
use crate::shard_service::ShardService;
use crate::starting_node::StartingNode;
use crate::subjects::Subjects;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use zonal_net::{Identity, Listeners, ServerConfig, ServerHandle, serve};

/// A manager's node that has not joined yet.
pub(super) struct StartingManager {
    pub(super) replica: Arc<ReplicaRole>,
    pub(super) thread: JoinHandle<()>,
    pub(super) node: Arc<StartingNode>,
    pub(super) server: ServerHandle,
}

/// The ports of a node that starts.
pub(super) enum NodePorts {
    /// Nobody answers there yet.
    Bound(Listeners, ServerConfig),
    /// A replica of the root's shard answers.
    Serving(StartingManager),
}

impl NodePorts {
    /// Starts the replica of one of several managers. Other nodes answer once they have joined.
    pub(super) fn open(
        config: &NodeConfig,
        stores: &NodeStores,
        parts: &Arc<ManagerParts>,
        (map, peers): (&Arc<MapCache>, &Arc<Peers>),
        (listeners, me): (Listeners, Identity),
    ) -> Result<Self, ServerError> {
        let mut serving = ServerConfig::new(me);
        serving.connections_max = config.limits.connections;
        let is_one_of_several = config.manager_role.is_some() && config.replicated;
        let Some(folder) = stores.replica.as_ref().filter(|_| is_one_of_several) else {
            return Ok(Self::Bound(listeners, serving));
        };
        let started = start_root_replica(config, folder, Arc::clone(parts), (map, peers))?;
        let (replica, thread) = started;
        let shard = ShardService::Group(Arc::clone(&replica));
        let place = (config.node, config.advertise);
        let node = Arc::new(StartingNode::new(ServerNode {
            metrics: Arc::default(),
            manager: Some(ManagerService::Group(Arc::clone(&replica))),
            control: Control::new(place, None, Some((shard.clone(), None))),
            shard: Some(shard),
            storage: None,
            agent: None,
            cpu: Arc::default(),
            map: Arc::clone(map),
            watch: OnceLock::new(),
            grants: Grants::new(Arc::clone(map), Arc::clone(peers)),
            subjects: Subjects::default(),
            slow: config.limits.slow_operation.duration(),
            is_whole: false,
        }));
        let handler = Arc::clone(&node) as Arc<dyn zonal_net::Handler>;
        let server = serve(listeners, serving, handler)?;
        Ok(Self::Serving(StartingManager {
            replica,
            thread,
            node,
            server,
        }))
    }

    /// The manager of a node that has joined, if any; `None` where it was stopped first.
    #[expect(clippy::option_option, reason = "stopped; without a manager; with one")]
    pub(super) fn manager_of(&self, joined: JoinOutcome) -> Option<Option<ManagerService>> {
        Some(match (joined, self) {
            (JoinOutcome::Manager(manager), _) => Some(ManagerService::Alone(manager)),
            (JoinOutcome::Node, Self::Bound(..)) => None,
            (JoinOutcome::Node, Self::Serving(starting)) => {
                Some(ManagerService::Group(Arc::clone(&starting.replica)))
            }
            (JoinOutcome::Stopped, _) => return None,
        })
    }

    /// Hands all requests to the node, which has joined; with the thread of its replica, if any.
    pub(super) fn serve(
        self,
        node: &Arc<ServerNode>,
    ) -> Result<(ServerHandle, Option<JoinHandle<()>>), ServerError> {
        Ok(match self {
            Self::Bound(listeners, serving) => {
                let handler = Arc::clone(node) as Arc<dyn zonal_net::Handler>;
                (serve(listeners, serving, handler)?, None)
            }
            Self::Serving(starting) => {
                starting.node.complete(node);
                (starting.server, Some(starting.thread))
            }
        })
    }

    /// Ends a start that does not come to its end.
    pub(super) fn close(self) {
        if let Self::Serving(starting) = self {
            starting.replica.stop();
            starting.server.shutdown();
            // The hook has logged a panic already.
            let _ = starting.thread.join();
        }
    }
}
