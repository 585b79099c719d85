//! A server process: opens the stores of its nodes, joins the cell, serves until it is told to
//! stop.
//!
//! * Start: port check, stores (so that a foreign folder is noticed before anything else happens),
//!   listener, manager, shard, requests.
//! * Stop: requests, background threads, a last sync, stores.

mod admin_pages;
mod cell_join;
mod credential;
mod port_check;
mod shard;

use crate::admin::Admin;
use crate::agent_role::AgentRole;
use crate::config::NodeConfig;
use crate::control::Control;
use crate::error::ServerError;
use crate::grants::Grants;
use crate::map_cache::MapCache;
use crate::meta_role::MetaRole;
use crate::node::ServerNode;
use crate::node_probe::NetNodeProbe;
use crate::peers::Peers;
use crate::revocations::{Revocations, RevokedSource};
use crate::scrub::{ScrubTask, Subject};
use crate::scrub_record::ScrubPace;
use crate::storage_role::StorageRole;
use crate::subjects::Subjects;
use crate::{logging, storage_io, stores};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use zonal_disk::{Checkpointer, Engine, StoreIdentity, StoreKind};
use zonal_net::{
    ListenConfig, Listeners, Pool, PoolConfig, Role, ServerConfig, ServerHandle, serve,
};
use zonal_types::limits::{SCRUB_PERIOD_MS_DEFAULT, SCRUB_RATE_DEFAULT};

use admin_pages::{AdminServers, listen_admin, read_token, start_admin};
use cell_join::{JoinOutcome, join_cell};
use credential::read_credential;
use port_check::check_ports;
use shard::{open_shard, open_shard_store};

/// Formats the stores of a node that do not exist yet.
///
/// # Errors
/// Where a folder is not empty or has another store; nothing is touched then.
pub fn format(config: &NodeConfig) -> Result<(), ServerError> {
    if let Some(store) = &config.manager_role {
        stores::format(
            &config.manager_dir(),
            identity(config, StoreKind::Manager),
            store,
        )?;
    }
    if let Some(store) = &config.meta_role {
        stores::format(
            &config.meta_dir(),
            identity(config, StoreKind::Shard),
            store,
        )?;
    }
    storage_io::format(config)
}

/// How a server treats missing stores at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingStores {
    /// The server does not start.
    Refuse,
    /// The server formats them.
    Format,
}

/// Runs nodes until SIGTERM or SIGINT; formatting, once begun, is completed.
///
/// # Errors
/// Any failure that keeps a node from starting.
pub fn run(configs: &[NodeConfig], missing: MissingStores) -> Result<(), ServerError> {
    logging::start(configs.first().map_or("info", |config| &config.log_level));
    let system = |source| ServerError::System {
        what: "signal handlers",
        source,
    };
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(system)?;
    if missing == MissingStores::Format {
        configs.iter().try_for_each(format)?;
    }
    let stop = AtomicBool::new(false);
    let mut running = Vec::new();
    for config in configs {
        let mut stopped = || {
            let signalled = signals.pending().next().is_some();
            stop.fetch_or(signalled, Ordering::Relaxed) || signalled
        };
        if let Some(node) = Running::start(config, &mut stopped)? {
            running.push(node);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if !stop.load(Ordering::Relaxed) {
        let signal = signals.forever().next();
        tracing::info!(signal, "stopping");
    }
    // The manager's node is first in the list and stops last.
    while let Some(node) = running.pop() {
        node.stop();
    }
    tracing::info!("stopped");
    Ok(())
}

fn identity(config: &NodeConfig, kind: StoreKind) -> StoreIdentity {
    StoreIdentity {
        cell: config.cell.0,
        kind,
        id: config.node.0,
    }
}

/// The other servers of the cell, and the zone map as this node knows it.
fn connect_to_cell(config: &NodeConfig, me: &zonal_net::Identity) -> (Arc<Peers>, Arc<MapCache>) {
    let pool = PoolConfig {
        deadline: config.limits.request_deadline.duration(),
        ..PoolConfig::default()
    };
    let pool = Arc::new(Pool::new(me.clone(), pool));
    let peers = Arc::new(Peers::new(pool, config.cell));
    let map = match config.manager_role {
        Some(_) => MapCache::here(config.cell),
        None => MapCache::of_manager(config.cell, config.manager, Arc::clone(&peers)),
    };
    (peers, Arc::new(map))
}

/// The addresses that a node listens at and advertises.
fn listen_config(config: &NodeConfig) -> ListenConfig {
    ListenConfig {
        advertised: vec![config.advertise],
        ..ListenConfig::one(config.listen)
    }
}

fn log_serving(config: &NodeConfig, admin: Option<&Admin>) {
    tracing::info!(
        node = config.node.0,
        roles = config.roles().join(","),
        listen = %config.listen,
        admin = admin.map(|admin| admin.address().to_string()),
        "serving"
    );
}

/// Starts the shard's own threads.
fn start_shard(role: &Arc<MetaRole>) -> Result<Vec<JoinHandle<()>>, ServerError> {
    role.start().map_err(|source| ServerError::System {
        what: "a thread",
        source,
    })
}

/// A running node. Fields are stopped in this order.
struct Running {
    revocations: Option<Revocations>,
    server: ServerHandle,
    admin: Option<AdminServers>,
    node: Arc<ServerNode>,
    background: Vec<JoinHandle<()>>,
    checkpointers: Vec<Checkpointer>,
    /// Engine of the shard. A target's engine is not listed: its checkpoint goes through the
    /// target, which first moves pending blocks out of the log.
    shard_engine: Option<Arc<Engine>>,
}

impl Running {
    /// Starts a node; `None` where `stop` came first.
    fn start(
        config: &NodeConfig,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, ServerError> {
        let credential = read_credential(config)?;
        let token = read_token(config)?;
        let me = zonal_net::Identity::new(config.cell, Role::Server, config.node, credential)
            .with_transport(config.transport);
        let (peers, map) = connect_to_cell(config, &me);

        let listen = listen_config(config);
        let probe = NetNodeProbe::new(me.clone(), config.cell);
        check_ports(config, &listen, &me, &probe)?;
        let store = open_shard_store(config)?;
        let target = storage_io::open(config, &map, &peers)?;
        let listeners = Listeners::bind(&listen, &me)?;

        let manager = match join_cell(config, (&store, &target), (&map, probe), &peers, stop)? {
            JoinOutcome::Manager(manager) => Some(manager),
            JoinOutcome::Node => None,
            JoinOutcome::Stopped => return Ok(None),
        };
        let mut background = Vec::new();
        let mut checkpointers = Vec::new();
        let mut shard_engine = None;
        let mut shard = None;
        if let Some(store) = store {
            let role = open_shard(config, &store, manager.clone(), &map, &peers)?;
            background.extend(start_shard(&role)?);
            shard_engine = Some(store.engine);
            checkpointers.push(store.checkpointer);
            shard = Some(role);
        }
        let storage = target.map(|target| {
            checkpointers.push(target.checkpointer);
            target.storage
        });
        if let (Some(storage), Some(own)) = (&storage, map.current().node(config.node)) {
            storage.traffic.set_zone(own.zone);
        }
        let control = start_control(config, storage.clone(), shard.clone(), &mut background)?;
        let agent = start_agent(config, &map, &mut background)?;
        let node = Arc::new(ServerNode {
            metrics: Arc::default(),
            manager,
            shard,
            storage,
            agent,
            control,
            map: Arc::clone(&map),
            grants: Grants::new(Arc::clone(&map), Arc::clone(&peers)),
            subjects: Subjects::default(),
            slow: config.limits.slow_operation.duration(),
        });
        let serving = ServerConfig {
            connections_max: config.limits.connections,
            ..ServerConfig::new(me)
        };
        // The pages listen only now: while the server waited for a manager, they would not have
        // answered.
        let pages = listen_admin(config)?;
        let server = serve(
            listeners,
            serving,
            Arc::clone(&node) as Arc<dyn zonal_net::Handler>,
        )?;
        let revocations = start_revocations(config, &node, &peers, &server)?;
        let admin = start_admin(config, pages, &node, &server, token)?;
        log_serving(config, admin.as_ref().map(|admin| &admin.pages));
        Ok(Some(Self {
            revocations,
            server,
            admin,
            node,
            background,
            checkpointers,
            shard_engine,
        }))
    }

    fn stop(self) {
        self.node.stopping_roles();
        drop(self.revocations);
        self.server.shutdown();
        drop(self.admin);
        for thread in self.background {
            // The hook has logged a panic already.
            let _ = thread.join();
        }
        drop(self.checkpointers);
        if let Some(storage) = &self.node.storage {
            storage_io::close(storage);
        }
        if let Some(engine) = &self.shard_engine {
            // A last checkpoint, so that the next start replays nothing.
            let last = engine.checkpoint(&mut || Ok(()));
            if let Err(error) = last.and_then(|()| engine.sync_all()) {
                tracing::error!(%error, "the last checkpoint failed");
            }
        }
    }
}

/// Starts the thread that keeps the list of revoked credentials, where credentials are used.
fn start_revocations(
    config: &NodeConfig,
    node: &ServerNode,
    peers: &Arc<Peers>,
    server: &ServerHandle,
) -> Result<Option<Revocations>, ServerError> {
    if config.key_file.is_none() {
        return Ok(None);
    }
    let source = match &node.manager {
        Some(manager) => RevokedSource::Here(Arc::clone(manager)),
        None => RevokedSource::Manager(config.manager, Arc::clone(peers)),
    };
    Revocations::start(source, server.revoker(), Arc::clone(&node.map))
        .map(Some)
        .map_err(|source| ServerError::System {
            what: "a thread",
            source,
        })
}

/// Starts the agent, where the node has this role.
fn start_agent(
    config: &NodeConfig,
    map: &Arc<MapCache>,
    background: &mut Vec<JoinHandle<()>>,
) -> Result<Option<Arc<AgentRole>>, ServerError> {
    let Some(role) = &config.agent_role else {
        return Ok(None);
    };
    let started = AgentRole::start(role.clone(), config.node, Arc::clone(map));
    let (agent, thread) = started.map_err(|source| ServerError::System {
        what: "a thread",
        source,
    })?;
    background.push(thread);
    Ok(Some(agent))
}

/// Starts the handler of commands, with the scrubs of the node's stores.
fn start_control(
    config: &NodeConfig,
    storage: Option<Arc<StorageRole>>,
    shard: Option<Arc<MetaRole>>,
    background: &mut Vec<JoinHandle<()>>,
) -> Result<Arc<Control>, ServerError> {
    let mut start = |subject, pace| {
        let started = ScrubTask::start(subject, pace);
        let (scrub, thread) = started.map_err(|source| ServerError::System {
            what: "a thread",
            source,
        })?;
        background.push(thread);
        Ok::<_, ServerError>(scrub)
    };
    let mut pace = ScrubPace {
        rate: SCRUB_RATE_DEFAULT,
        period_seconds: SCRUB_PERIOD_MS_DEFAULT / 1000,
    };
    let shard = match shard {
        Some(shard) => Some((Arc::clone(&shard), start(Subject::Shard(shard), pace)?)),
        None => None,
    };
    if let Some(config) = &config.storage_role {
        pace.rate = config.scrub_rate;
        pace.period_seconds = config.scrub_period.0 / 1000;
    }
    let storage = match storage {
        Some(storage) => Some((Arc::clone(&storage), start(Subject::Target(storage), pace)?)),
        None => None,
    };
    Ok(Control::new(
        (config.node, config.advertise),
        storage,
        shard,
    ))
}
