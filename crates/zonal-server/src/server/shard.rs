//! The shard of a node at start: opens its store and creates the meta role on it.

use super::identity;
use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::manager_role::ManagerRole;
use crate::map_cache::MapCache;
use crate::meta_role::{MetaRole, MetaRoleParts};
use crate::peers::Peers;
use crate::rate_limited_log::RateLimit;
use crate::{clock, store_starts, stores};
use std::sync::Arc;
use zonal_disk::{Checkpointer, DiskError, Engine, StoreDir, StoreKind, spawn_checkpointer};
use zonal_meta::ShardConfig;
use zonal_types::{ErrorCode, KvRead, ShardId, boot_of};
use zonal_zonemap::map::Shard;
use zonal_zonemap::map_records;

/// The store of a shard: the manager's for the root's, else the node's own.
pub(super) struct ShardStore {
    pub(super) engine: Arc<Engine>,
    pub(super) dir: StoreDir,
    pub(super) uuid: [u8; 16],
    pub(super) checkpointer: Checkpointer,
    /// It has nothing but a zone map.
    pub(super) is_new: bool,
}

pub(super) fn open_shard_store(config: &NodeConfig) -> Result<Option<ShardStore>, ServerError> {
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
        let store_dir = config.store_dir(&dir);
        let engine = Engine::open_in(&store_dir, &me, bounds, &mut |_, _, _| true)?;
        let mut is_new = true;
        engine
            .scan(&[], &[0xff; 8], &mut |key, _value| {
                is_new = map_records::is_of_map(key) || store_starts::is_record(key);
                is_new
            })
            .map_err(|code| DiskError::Corrupt(format!("the index: {code}")))?;
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

pub(super) fn open_shard(
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
        engine: Arc::clone(&store.engine),
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
fn low_half(bits: u64) -> u32 {
    bits as u32
}
