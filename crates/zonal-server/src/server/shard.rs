//! The shard of a node at start: opens its store and creates the meta role on it.

use super::identity;
use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::manager_link::ManagerService;
use crate::manager_role::{ManagerParts, ManagerRole};
use crate::map_cache::MapCache;
use crate::meta_role::{MetaRole, MetaRoleParts};
use crate::peers::Peers;
use crate::rate_limited_log::RateLimit;
use crate::replica_role::{FirstOpening, ReplicaParts, ReplicaRole};
use crate::shard_log::ShardLog;
use crate::shard_service::ShardService;
use crate::{clock, storage_io, stores};
use std::sync::Arc;
use std::thread::JoinHandle;
use zonal_disk::replica::APPLIED_KEY;
use zonal_disk::{
    Checkpointer, DiskError, Engine, ReplicaStore, StoreDir, StoreKind, spawn_checkpointer,
};
use zonal_meta::ShardConfig;
use zonal_types::{ErrorCode, KvRead, ShardId, ZoneId, boot_of};
use zonal_zonemap::map::Shard;

/// The store of a shard: the manager's for the root's, else the node's own.
pub(super) struct ShardStore {
    pub(super) engine: Arc<Engine>,
    pub(super) dir: StoreDir,
    pub(super) uuid: [u8; 16],
    pub(super) checkpointer: Checkpointer,
    /// It has nothing but a zone map.
    pub(super) is_new: bool,
}

/// The folder of a store, and its identity.
pub(super) type StoreFolder = (StoreDir, [u8; 16]);

/// The stores of a node that starts.
pub(super) struct NodeStores {
    pub(super) shard: Option<ShardStore>,
    /// The store of a replica is opened once the map has its shard.
    pub(super) replica: Option<StoreFolder>,
    pub(super) target: Option<storage_io::OpenedTarget>,
}

/// The shard of a node, with all that ends with it.
#[derive(Default)]
pub(super) struct StartedShard {
    pub(super) service: Option<ShardService>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) checkpointers: Vec<Checkpointer>,
    pub(super) engine: Option<Arc<Engine>>,
}

/// Starts the shard of a node, or its replica.
pub(super) fn start_shard(
    config: &NodeConfig,
    (store, replica): (Option<ShardStore>, Option<StoreFolder>),
    manager: Option<ManagerService>,
    (map, peers): (&Arc<MapCache>, &Arc<Peers>),
) -> Result<StartedShard, ServerError> {
    let manager = match manager {
        Some(ManagerService::Group(role)) => {
            return Ok(StartedShard {
                service: Some(ShardService::Group(role)),
                ..StartedShard::default()
            });
        }
        Some(ManagerService::Alone(manager)) => Some(manager),
        None => None,
    };
    if let Some(store) = store {
        let role = open_shard(config, &store, manager, map, peers)?;
        let threads = role.start().map_err(|source| ServerError::System {
            what: "a thread",
            source,
        })?;
        return Ok(StartedShard {
            service: Some(ShardService::Alone(role)),
            threads,
            checkpointers: vec![store.checkpointer],
            engine: Some(store.engine),
        });
    }
    let Some(folder) = replica else {
        return Ok(StartedShard::default());
    };
    let (role, thread) = start_replica(config, folder, map, peers)?;
    Ok(StartedShard {
        service: Some(ShardService::Group(role)),
        threads: vec![thread],
        ..StartedShard::default()
    })
}

pub(super) fn open_shard_store(config: &NodeConfig) -> Result<Option<ShardStore>, ServerError> {
    let (dir, kind, store) = match (&config.manager_role, &config.meta_role) {
        (Some(store), _) if !config.replicated => (config.manager_dir(), StoreKind::Manager, store),
        (None, Some(store)) if !config.replicated => (config.meta_dir(), StoreKind::Shard, store),
        _ => return Ok(None),
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
        let store_dir = config.store_dir(&dir);
        let engine = Engine::open_in(&store_dir, &me, bounds, &mut |_, _, _| true)?;
        let is_new = is_without_shard(&engine)
            .map_err(|code| DiskError::Corrupt(format!("the index: {code}")))?;
        if ReplicaStore::is_member(&engine)? {
            let what =
                "the store is a replica's; `replicated = true` is missing in [meta] or [manager]";
            return Err(DiskError::Config(what.into()));
        }
        let engine = Arc::new(engine);
        let job = Box::new(|engine: &Engine| engine.checkpoint(&mut || Ok(())));
        let failed = RateLimit::default();
        let report = Box::new(move |error| {
            if failed.is_due() {
                tracing::error!(%error, "a checkpoint of the shard failed");
            }
        });
        let checkpointer = spawn_checkpointer(&engine, job, report)?;
        Ok(ShardStore {
            engine,
            dir: store_dir,
            uuid,
            checkpointer,
            is_new,
        })
    };
    open().map(Some).map_err(failed)
}

/// True where a store has nothing of a shard.
///
/// # Errors
/// The store cannot be read.
pub(crate) fn is_without_shard(engine: &Engine) -> Result<bool, ErrorCode> {
    let mut is_new = true;
    engine.scan(&[], &[0xff; 8], &mut |key, _value| {
        is_new = is_of_manager(key) || key == APPLIED_KEY;
        is_new
    })?;
    Ok(is_new)
}

/// True for keys of the manager, which are behind those of all inodes and of the shard's own.
fn is_of_manager(key: &[u8]) -> bool {
    key.starts_with(&[0xff; 4]) && key.get(4) >= Some(&zonal_meta::keys::TAG_END)
}

/// The folder and the identity of the store of a node's replica.
pub(super) fn replica_folder(config: &NodeConfig) -> Result<Option<StoreFolder>, ServerError> {
    let (dir, kind) = match (&config.manager_role, &config.meta_role) {
        (Some(_), _) if config.replicated => (config.manager_dir(), StoreKind::Manager),
        (None, Some(_)) if config.replicated => (config.meta_dir(), StoreKind::Shard),
        _ => return Ok(None),
    };
    let uuid = stores::uuid(&dir, &identity(config, kind))?;
    Ok(Some((config.store_dir(&dir), uuid)))
}

/// Starts the replica of the root's shard of one of several managers. It needs no map: its group
/// elects the manager that others join at.
pub(super) fn start_root_replica(
    config: &NodeConfig,
    (dir, uuid): &StoreFolder,
    parts: Arc<ManagerParts>,
    (map, peers): (&Arc<MapCache>, &Arc<Peers>),
) -> Result<(Arc<ReplicaRole>, JoinHandle<()>), ServerError> {
    let Some(bounds) = &config.manager_role else {
        return Err(ServerError::Contents {
            dir: dir.path().to_owned(),
            code: ErrorCode::Invalid,
        });
    };
    // The shard's zone is in the map.
    let mut shard_config = ShardConfig::new(ShardId(0), ZoneId(0), 0);
    shard_config.inline_bytes = config.inline_bytes;
    (shard_config.root_uid, shard_config.root_gid) = config.root_owner;
    let role = ReplicaRole::new(ReplicaParts {
        node: config.node,
        config: shard_config,
        dir: dir.clone(),
        identity: identity(config, StoreKind::Manager),
        uuid: *uuid,
        bounds: stores::engine_config(bounds),
        map: Arc::clone(map),
        peers: Arc::clone(peers),
        manager: Some(parts),
    });
    let failed = |source| ServerError::Store {
        dir: dir.path().to_owned(),
        source,
    };
    let first = if config.founds_managers() && role.is_untouched().map_err(failed)? {
        let others = config.managers.iter().copied();
        FirstOpening::Founds {
            others: others.filter(|other| *other != config.advertise).collect(),
        }
    } else {
        FirstOpening::Open(Box::new(role.open_store(false).map_err(failed)?))
    };
    let thread = role.start(first).map_err(|source| ServerError::System {
        what: "a thread",
        source,
    })?;
    Ok((role, thread))
}

/// Starts the replica of a node, which the map has joined to its group.
fn start_replica(
    config: &NodeConfig,
    (dir, uuid): StoreFolder,
    map: &Arc<MapCache>,
    peers: &Arc<Peers>,
) -> Result<(Arc<ReplicaRole>, JoinHandle<()>), ServerError> {
    let known = map.current();
    let folder = dir.path().to_owned();
    let shard = known.replica_at(config.node);
    let shard = shard.ok_or_else(|| ServerError::Contents {
        dir: folder.clone(),
        code: ErrorCode::NotOwner,
    })?;
    let Some(bounds) = &config.meta_role else {
        return Err(ServerError::Contents {
            dir: folder,
            code: ErrorCode::Invalid,
        });
    };
    let mut shard_config = ShardConfig::new(shard.id, shard.zone, 0);
    shard_config.inline_bytes = config.inline_bytes;
    let role = ReplicaRole::new(ReplicaParts {
        node: config.node,
        config: shard_config,
        dir,
        identity: identity(config, StoreKind::Shard),
        uuid,
        bounds: stores::engine_config(bounds),
        map: Arc::clone(map),
        peers: Arc::clone(peers),
        manager: None,
    });
    let failed = |source| ServerError::Store {
        dir: folder.clone(),
        source,
    };
    let store = role.open_store(shard.node == config.node);
    let started = role.start(FirstOpening::Open(Box::new(store.map_err(failed)?)));
    let thread = started.map_err(|source| ServerError::System {
        what: "a thread",
        source,
    })?;
    Ok((role, thread))
}

fn open_shard(
    config: &NodeConfig,
    store: &ShardStore,
    manager: Option<Arc<ManagerRole>>,
    map: &Arc<MapCache>,
    peers: &Arc<Peers>,
) -> Result<Arc<MetaRole>, ServerError> {
    let contents = |code| ServerError::Contents {
        dir: store.dir.path().to_owned(),
        code,
    };
    let known = map.current();
    let shard = if manager.is_some() {
        known.shard(ShardId(0))
    } else {
        known.shard_at(config.node)
    };
    // The manager has compared it with the config's, or has found it.
    let zone = known.node(config.node).map(|node| node.zone);
    let is_own = |shard: &&Shard| shard.node == config.node && Some(shard.zone) == zone;
    let shard = shard.filter(is_own);
    let shard = shard.ok_or_else(|| contents(ErrorCode::NotOwner))?;
    let kept = store.engine.verifier();
    let boot = boot_of(low_half(kept ^ kept >> 32), low_half(clock::boot_number()));
    let mut shard = ShardConfig::new(shard.id, shard.zone, boot);
    shard.inline_bytes = config.inline_bytes;
    (shard.root_uid, shard.root_gid) = config.root_owner;
    let parts = MetaRoleParts {
        config: shard,
        log: ShardLog::own(Arc::clone(&store.engine)),
        manager,
        map: Arc::clone(map),
        peers: Arc::clone(peers),
    };
    MetaRole::open(parts, store.is_new)
        .map(Arc::new)
        .map_err(contents)
}

/// The lower 32 bits.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the other half is left out on purpose"
)]
pub(crate) fn low_half(bits: u64) -> u32 {
    bits as u32
}
