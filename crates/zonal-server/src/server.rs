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
mod starting_manager;

use crate::admin::Admin;
use crate::agent_role::AgentRole;
use crate::config::NodeConfig;
use crate::control::Control;
use crate::cpu_use::{self, CpuUse};
use crate::error::ServerError;
use crate::grants::Grants;
use crate::manager_link::ManagerLink;
use crate::manager_role::ManagerParts;
use crate::map_cache::MapCache;
use crate::node::ServerNode;
use crate::node_probe::NetNodeProbe;
use crate::node_watch::NodeWatch;
use crate::peers::Peers;
use crate::periodic_thread::PeriodicThread;
use crate::scrub::{ScrubTask, Subject};
use crate::scrub_record::ScrubPace;
use crate::shard_service::ShardService;
use crate::storage_role::StorageRole;
use crate::subjects::Subjects;
use crate::{logging, storage_io, stores};
use crate::{manager_drain, revocations, root_names, target_lease, target_resync};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use zonal_disk::{Checkpointer, Engine, StoreIdentity, StoreKind};
use zonal_net::{ListenConfig, Listeners, Pool, PoolConfig, Role, ServerHandle};
use zonal_types::ShardId;
use zonal_types::limits::{SCRUB_PERIOD_MS_DEFAULT, SCRUB_RATE_DEFAULT};

use admin_pages::{AdminServers, listen_admin, read_token, start_admin};
use cell_join::join_cell;
use credential::read_credential;
use port_check::check_ports;
pub(crate) use shard::is_without_shard;
pub(crate) use shard::low_half;
use shard::{NodeStores, open_shard_store, replica_folder, start_shard};
use starting_manager::NodePorts;

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
        // A store of a role that is refused would be left.
        for config in configs {
            read_credential(config)?;
        }
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
    let peers = Peers::new(pool, config.cell).with_managers(&config.managers);
    let peers = Arc::new(peers);
    let map = match config.manager_role {
        Some(_) if !config.replicated => MapCache::here(config.cell),
        _ => MapCache::of_managers(config.cell, Arc::clone(&peers)),
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

/// A running node. Fields are stopped in this order.
struct Running {
    /// Of credentials, and of the CPU's use.
    periodic: Vec<PeriodicThread>,
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
        let stores = NodeStores {
            shard: open_shard_store(config)?,
            replica: replica_folder(config)?,
            target: storage_io::open(config, &map, &peers)?,
        };
        let listeners = Listeners::bind(&listen, &me)?;

        let manager_parts = ManagerParts::of_config(config, Arc::clone(&map), probe);
        let ports = (listeners, me);
        let ports = NodePorts::open(config, &stores, &manager_parts, (&map, &peers), ports)?;
        let joined = join_cell(config, &stores, (&map, manager_parts), &peers, stop);
        let (manager, ports) = match joined.map(|outcome| ports.manager_of(outcome)) {
            Ok(Some(manager)) => (manager, ports),
            ended => {
                ports.close();
                return ended.map(|_stopped| None);
            }
        };
        let of_shard = (stores.shard, stores.replica);
        let shard = start_shard(config, of_shard, manager.clone(), (&map, &peers))?;
        let (mut background, mut checkpointers) = (shard.threads, shard.checkpointers);
        let storage = stores.target.map(|target| {
            checkpointers.push(target.checkpointer);
            target.storage
        });
        if let (Some(storage), Some(own)) = (&storage, map.current().node(config.node)) {
            storage.traffic.set_zone(own.zone);
        }
        let of_shard = shard.service.clone();
        let control = start_control(config, storage.clone(), of_shard, &mut background)?;
        let cpu = Arc::default();
        let agent = start_agent(config, &map, &cpu, &mut background)?;
        let grants = Grants::new(Arc::clone(&map), Arc::clone(&peers));
        let node = Arc::new(ServerNode {
            metrics: Arc::default(),
            manager,
            shard: shard.service,
            storage,
            agent,
            control,
            watch: OnceLock::new(),
            cpu,
            map,
            grants,
            subjects: Subjects::default(),
            slow: config.limits.slow_operation.duration(),
            is_whole: true,
        });
        // The pages listen only now: while the server waited for a manager, they would not have
        // answered.
        let pages = listen_admin(config)?;
        let (server, of_replica) = ports.serve(&node)?;
        background.extend(of_replica);
        let admin = start_admin(config, pages, &node, &server, token)?;
        let periodic = start_periodic(config, &node, &peers, &server)?;
        log_serving(config, admin.as_ref().map(|admin| &admin.pages));
        Ok(Some(Self {
            periodic,
            server,
            admin,
            node,
            background,
            checkpointers,
            shard_engine: shard.engine,
        }))
    }

    fn stop(self) {
        self.node.stopping_roles();
        drop(self.periodic);
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

/// Starts the threads that watch other nodes, measure the CPU's use, and fetch newer zone maps with
/// lists of revoked credentials. Beside a zone's shard another one mirrors the root's names; beside
/// a target one keeps the lease.
fn start_periodic(
    config: &NodeConfig,
    node: &ServerNode,
    peers: &Arc<Peers>,
    server: &ServerHandle,
) -> Result<Vec<PeriodicThread>, ServerError> {
    let connections = NodeWatch::connections(peers);
    let manager = ManagerLink {
        here: node.manager.clone(),
        peers: Arc::clone(peers),
        map: Arc::clone(&node.map),
    };
    let of_node = (manager.clone(), node.shard.clone());
    let watch = NodeWatch::new(config.node, Arc::clone(&node.map), connections, of_node);
    let gauges = Arc::clone(&watch);
    node.metrics.add_gauges(Box::new(move || gauges.gauges()));
    // There is one call, at the start.
    let _ = node.watch.set(Arc::clone(&watch));
    let watching = watch.start();
    let reports = node.storage.is_some() && !config.shares_machine;
    let report = reports.then(|| (config.node, manager.clone()));
    let measuring = cpu_use::start(Arc::clone(&node.cpu), report);
    let of_zone = node.shard.as_ref().filter(|shard| shard.id() != ShardId(0));
    let mirroring = of_zone.map(|_shard| {
        let map = Arc::clone(&node.map);
        root_names::start(Arc::clone(&manager.peers), map)
    });
    let leasing = node.storage.as_ref().map(|storage| {
        let storage = Arc::clone(storage);
        target_lease::start(config.node, storage, manager.clone())
    });
    let filling = node.storage.as_ref().map(|storage| {
        let storage = Arc::clone(storage);
        target_resync::start(storage, manager.clone())
    });
    let draining = manager
        .here
        .is_some()
        .then(|| manager_drain::start(manager.clone(), config.rebuild_after.0));
    let keeping = revocations::start(manager, server.revoker(), Arc::clone(&node.map));
    let threads = [watching, measuring, keeping].into_iter();
    let threads = threads.chain(mirroring).chain(leasing).chain(filling);
    let threads = threads.chain(draining);
    let threads: std::io::Result<Vec<PeriodicThread>> = threads.collect();
    threads.map_err(|source| ServerError::System {
        what: "a thread",
        source,
    })
}

/// Starts the agent, where the node has this role.
fn start_agent(
    config: &NodeConfig,
    map: &Arc<MapCache>,
    cpu: &Arc<CpuUse>,
    background: &mut Vec<JoinHandle<()>>,
) -> Result<Option<Arc<AgentRole>>, ServerError> {
    let Some(role) = &config.agent_role else {
        return Ok(None);
    };
    let cpu = (!config.shares_machine).then(|| Arc::clone(cpu));
    let started = AgentRole::start(role.clone(), config.node, Arc::clone(map), cpu);
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
    shard: Option<ShardService>,
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
    // A group's entries have checksums of their own, and other copies.
    let shard = match shard {
        Some(ShardService::Alone(role)) => {
            let scrub = start(Subject::Shard(Arc::clone(&role)), pace)?;
            Some((ShardService::Alone(role), Some(scrub)))
        }
        Some(group) => Some((group, None)),
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
