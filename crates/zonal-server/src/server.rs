//! A server process: opens the stores of its nodes, joins the cell, serves until told to stop.
//!
//! Order at start: stores (so that a foreign folder is noticed before anything else happens), listener, manager, shard,
//! requests. Order at the end: requests, background threads, a last sync, stores.

use crate::admin::Admin;
use crate::config::NodeConfig;
use crate::control::Control;
use crate::error::ServerError;
use crate::join;
use crate::manager_role::{MAP_KEY, Manager, ManagerError};
use crate::map_cache::MapCache;
use crate::meta_background;
use crate::meta_role::{MetaRole, Parts};
use crate::node::Node;
use crate::peers::Peers;
use crate::scrub::{Scrub, Subject};
use crate::scrub_record::Pace;
use crate::seldom::Seldom;
use crate::storage_role::Storage;
use crate::{clock, logging, starts, storage_io, stores};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use zonal_disk::{Checkpointer, DiskError, Engine, Identity, StoreKind, spawn_checkpointer};
use zonal_meta::ShardConfig;
use zonal_net::{
    CellKey, ListenConfig, Listeners, Pool, PoolConfig, Role, ServerConfig, ServerHandle, serve,
};
use zonal_types::limits::{SCRUB_PERIOD_MS_DEFAULT, SCRUB_RATE_DEFAULT};
use zonal_types::{ErrorCode, KvRead, ShardId, boot_of};
use zonal_wire::StoreStart;

/// Formats the stores of a node that are not there yet.
///
/// # Errors
/// Where a folder is not empty or holds another store; nothing is touched then.
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

/// Runs nodes until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps a node from starting.
pub fn run(configs: &[NodeConfig]) -> Result<(), ServerError> {
    logging::start(configs.first().map_or("info", |config| &config.log_level));
    let system = |source| ServerError::System {
        what: "signal handlers",
        source,
    };
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(system)?;
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
    // The manager's node comes first in the list and goes last.
    while let Some(node) = running.pop() {
        node.stop();
    }
    tracing::info!("stopped");
    Ok(())
}

fn identity(config: &NodeConfig, kind: StoreKind) -> Identity {
    Identity {
        cell: config.cell.0,
        kind,
        id: config.node.0,
    }
}

fn read_key(path: Option<&Path>) -> Result<Option<CellKey>, ServerError> {
    let Some(path) = path else {
        return Ok(None);
    };
    let bytes = std::fs::read(path).map_err(|source| ServerError::Key {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(CellKey::new(&bytes)?))
}

/// The store of a shard: the manager's for the root's, else the node's own.
struct ShardStore {
    engine: Arc<Engine>,
    dir: PathBuf,
    uuid: [u8; 16],
    checkpointer: Checkpointer,
    /// There is nothing in it but a zone map.
    is_new: bool,
}

fn open_shard_store(config: &NodeConfig) -> Result<Option<ShardStore>, ServerError> {
    let (dir, kind, store) = match (&config.manager_role, &config.meta_role) {
        (Some(store), _) => (config.manager_dir(), StoreKind::Manager, store),
        (None, Some(store)) => (config.meta_dir(), StoreKind::Shard, store),
        (None, None) => return Ok(None),
    };
    let failed = |source| ServerError::Store {
        dir: dir.clone(),
        source,
    };
    let open = || -> Result<ShardStore, DiskError> {
        let bounds = stores::engine_config(store);
        let me = identity(config, kind);
        let stored = zonal_disk::store::load_identity(&dir)?;
        let uuid = stored.map_or([0; 16], |stored| stored.uuid);
        let engine = Engine::open(&dir, &me, bounds, &mut |_, _, _| true)?;
        let mut is_new = true;
        engine
            .scan(&[], &[0xff; 8], &mut |key, _value| {
                is_new = key == MAP_KEY || starts::is_record(key);
                is_new
            })
            .map_err(|code| DiskError::Corrupt(format!("the index: {code}")))?;
        let engine = Arc::new(engine);
        let job = Box::new(|engine: &Engine| engine.checkpoint(&mut || Ok(())));
        let failed = Seldom::default();
        let report = Box::new(move |error| {
            if failed.is_due() {
                tracing::error!(%error, "a checkpoint of the shard failed");
            }
        });
        let checkpointer = spawn_checkpointer(&engine, job, report)?;
        Ok(ShardStore {
            engine,
            dir: dir.clone(),
            uuid,
            checkpointer,
            is_new,
        })
    };
    open().map(Some).map_err(failed)
}

/// A node at work. Fields end in this order.
struct Running {
    server: ServerHandle,
    admin: Option<Admin>,
    node: Arc<Node>,
    background: Vec<JoinHandle<()>>,
    checkpointers: Vec<Checkpointer>,
    engines: Vec<Arc<Engine>>,
}

impl Running {
    /// Starts a node; `None` where `stop` came first.
    fn start(
        config: &NodeConfig,
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Self>, ServerError> {
        let key = read_key(config.key_file.as_deref())?;
        let me = zonal_net::Identity::new(config.cell, Role::Server, config.node, key);
        let pool = PoolConfig {
            deadline: config.limits.request_deadline.duration(),
            ..PoolConfig::default()
        };
        let peers = Arc::new(Peers::new(
            Arc::new(Pool::new(me.clone(), pool)),
            config.cell,
        ));
        let map = Arc::new(match config.manager_role {
            Some(_) => MapCache::here(config.cell),
            None => MapCache::of_manager(config.cell, config.manager, Arc::clone(&peers)),
        });

        let store = open_shard_store(config)?;
        let target = storage_io::open(config, &map)?;
        let listen = ListenConfig {
            advertised: vec![config.advertise],
            ..ListenConfig::one(config.listen)
        };
        let listeners = Listeners::bind(&listen, &me)?;

        let manager = match enter(config, (&store, &target), &map, &peers, stop)? {
            Entered::Manager(manager) => Some(manager),
            Entered::Node => None,
            Entered::Stopped => return Ok(None),
        };
        let mut background = Vec::new();
        let mut checkpointers = Vec::new();
        let mut engines = Vec::new();
        let mut shard = None;
        if let Some(store) = store {
            let role = open_shard(config, &store, manager.clone(), &map, &peers)?;
            let threads = meta_background::start(&role).map_err(|source| ServerError::System {
                what: "a thread",
                source,
            })?;
            background.extend(threads);
            engines.push(store.engine);
            checkpointers.push(store.checkpointer);
            shard = Some(role);
        }
        let storage = target.map(|target| {
            engines.push(Arc::clone(&target.storage.engine));
            checkpointers.push(target.checkpointer);
            target.storage
        });
        let control = start_control(config, storage.clone(), shard.clone(), &mut background)?;
        let node = Arc::new(Node {
            metrics: Arc::default(),
            map,
            manager,
            shard,
            storage,
            control,
            slow: config.limits.slow_operation.duration(),
        });
        let serving = ServerConfig {
            connections_max: config.limits.connections,
            ..ServerConfig::new(me)
        };
        let server = serve(
            listeners,
            serving,
            Arc::clone(&node) as Arc<dyn zonal_net::Handler>,
        )?;
        let admin = start_admin(config, &node, &server)?;
        tracing::info!(
            node = config.node.0,
            roles = config.roles().join(","),
            listen = %config.listen,
            admin = admin.as_ref().map(|admin| admin.address().to_string()),
            "serving"
        );
        Ok(Some(Self {
            server,
            admin,
            node,
            background,
            checkpointers,
            engines,
        }))
    }

    fn stop(self) {
        self.node.stopping_roles();
        self.server.shutdown();
        drop(self.admin);
        for thread in self.background {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
        drop(self.checkpointers);
        if let Some(storage) = &self.node.storage {
            storage_io::close(storage);
        }
        for engine in &self.engines {
            if let Err(error) = engine.sync_all() {
                tracing::error!(%error, "the last sync failed");
            }
        }
    }
}

/// What answers commands, with the scrubs of the node's stores.
fn start_control(
    config: &NodeConfig,
    storage: Option<Arc<Storage>>,
    shard: Option<Arc<MetaRole>>,
    background: &mut Vec<JoinHandle<()>>,
) -> Result<Arc<Control>, ServerError> {
    let mut start = |subject, pace| {
        let started = Scrub::start(subject, pace);
        let (scrub, thread) = started.map_err(|source| ServerError::System {
            what: "a thread",
            source,
        })?;
        background.push(thread);
        Ok::<_, ServerError>(scrub)
    };
    let mut pace = Pace {
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
    Ok(Control::new(storage, shard))
}

/// How a node came into its cell.
enum Entered {
    /// As its manager.
    Manager(Arc<Manager>),
    /// As any other.
    Node,
    /// It was told to stop before.
    Stopped,
}

/// Has the starts of the node's stores taken, then joins.
fn enter(
    config: &NodeConfig,
    (store, target): (&Option<ShardStore>, &Option<storage_io::Opened>),
    map: &Arc<MapCache>,
    peers: &Peers,
    stop: &mut dyn FnMut() -> bool,
) -> Result<Entered, ServerError> {
    let uuid = target.as_ref().map(|target| target.uuid);
    let join = join::request(config, config.advertise, uuid);
    let shard = store.as_ref().filter(|_| config.manager_role.is_none());
    let opened = opened_stores(config, shard, target.as_ref())?;
    if let (Some(_), Some(store)) = (&config.manager_role, store) {
        let manager = open_manager(config, store, map)?;
        let refused = |error: ManagerError| refused(config, &error);
        for (dir, start) in &opened {
            manager.start(config.node, start).map_err(refused)?;
            taken(dir, start)?;
        }
        manager.join(join, true).map_err(refused)?;
        return Ok(Entered::Manager(manager));
    }
    for (dir, start) in &opened {
        let request = starts::request(config.node, start);
        if join::ask(config, peers, &request, stop)?.is_none() {
            return Ok(Entered::Stopped);
        }
        taken(dir, start)?;
    }
    if join::join(config, peers, map, &join, stop)? {
        Ok(Entered::Node)
    } else {
        Ok(Entered::Stopped)
    }
}

/// The stores that this node has opened, each with the start that is to be taken.
fn opened_stores(
    config: &NodeConfig,
    shard: Option<&ShardStore>,
    target: Option<&storage_io::Opened>,
) -> Result<Vec<(PathBuf, StoreStart)>, ServerError> {
    let mut out = Vec::new();
    if let Some(shard) = shard {
        out.push((shard.dir.clone(), starts::SHARD, config.node.0, shard.uuid));
    }
    if let (Some(target), Some(storage)) = (target, &config.storage_role) {
        out.push((
            config.target_dir(),
            starts::TARGET,
            storage.target.0,
            target.uuid,
        ));
    }
    let begun = out.into_iter().map(|(dir, kind, id, uuid)| {
        let start = starts::begin(&dir, kind, id, uuid);
        let start = start.map_err(|source| ServerError::Store {
            dir: dir.clone(),
            source,
        })?;
        Ok((dir, start))
    });
    begun.collect()
}

fn taken(dir: &Path, start: &StoreStart) -> Result<(), ServerError> {
    starts::taken(dir, start).map_err(|source| ServerError::Store {
        dir: dir.to_owned(),
        source,
    })
}

fn refused(config: &NodeConfig, error: &ManagerError) -> ServerError {
    ServerError::JoinRefused {
        manager: config.manager,
        code: ErrorCode::Invalid,
        detail: error.to_string(),
    }
}

fn open_manager(
    config: &NodeConfig,
    store: &ShardStore,
    map: &Arc<MapCache>,
) -> Result<Arc<Manager>, ServerError> {
    Manager::open(Arc::clone(&store.engine), config.cell, Arc::clone(map))
        .map(Arc::new)
        .map_err(|error| match error {
            ManagerError::Disk(source) => ServerError::Store {
                dir: store.dir.clone(),
                source,
            },
            ManagerError::Stored(code) => ServerError::Contents {
                dir: store.dir.clone(),
                code,
            },
            error => refused(config, &error),
        })
}

fn open_shard(
    config: &NodeConfig,
    store: &ShardStore,
    manager: Option<Arc<Manager>>,
    map: &Arc<MapCache>,
    peers: &Arc<Peers>,
) -> Result<Arc<MetaRole>, ServerError> {
    let contents = |code| ServerError::Contents {
        dir: store.dir.clone(),
        code,
    };
    let known = map.current();
    let shard = if manager.is_some() {
        known.shard(ShardId(0))
    } else {
        known.shard_of_zone(config.zone)
    };
    let shard = shard.filter(|shard| shard.node == config.node);
    let shard = shard.ok_or_else(|| contents(ErrorCode::NotOwner))?;
    let kept = store.engine.verifier();
    let kept = (kept ^ kept >> 32) as u32;
    let boot = boot_of(kept, clock::boot_number() as u32);
    let parts = Parts {
        config: ShardConfig::new(shard.id, config.zone, boot),
        engine: Arc::clone(&store.engine),
        manager,
        map: Arc::clone(map),
        peers: Arc::clone(peers),
    };
    MetaRole::open(parts, store.is_new)
        .map(Arc::new)
        .map_err(contents)
}

fn start_admin(
    config: &NodeConfig,
    node: &Arc<Node>,
    server: &ServerHandle,
) -> Result<Option<Admin>, ServerError> {
    let connections = Arc::clone(server.metrics());
    let connections_max = config.limits.connections as u64;
    node.metrics.add_gauges(Box::new(move || {
        let counters = connections.snapshot().into_iter();
        let bound = ("net_connections_max".to_owned(), connections_max);
        counters
            .map(|(name, value)| (format!("net_{name}"), value))
            .chain([bound])
            .collect()
    }));
    if let Some(shard) = node.shard.clone() {
        node.metrics.add_gauges(Box::new(move || shard.gauges()));
    }
    if let Some(storage) = node.storage.clone() {
        node.metrics.add_gauges(Box::new(move || storage.gauges()));
    }
    let control = Arc::clone(&node.control);
    node.metrics.add_gauges(Box::new(move || control.gauges()));
    let map = Arc::clone(&node.map);
    node.metrics.add_gauges(Box::new(move || {
        vec![("map_version".to_owned(), map.current().version.0)]
    }));
    let Some(listen) = config.admin else {
        return Ok(None);
    };
    let shown = config.clone();
    let source = Arc::clone(node);
    let status = Box::new(move || status(&shown, &source));
    let admin = Admin::start(listen, Arc::clone(&node.metrics), status);
    admin.map(Some).map_err(|source| ServerError::Listen {
        address: listen,
        source,
    })
}

fn status(config: &NodeConfig, node: &Node) -> serde_json::Value {
    let gauges: serde_json::Map<String, serde_json::Value> = node
        .metrics
        .gauges()
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    serde_json::json!({
        "cell": config.cell.to_string(),
        "node": config.node.0,
        "zone": config.zone.0,
        "roles": config.roles(),
        "address": config.advertise.to_string(),
        "pid": std::process::id(),
        "healthy": node.is_healthy(),
        "map_version": node.map.current().version.0,
        "resident_bytes": crate::metrics::resident_bytes(),
        "gauges": gauges,
    })
}
