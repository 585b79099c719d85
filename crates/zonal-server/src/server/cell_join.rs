//! A node's join at its start: the manager admits the node and takes the starts of its stores
//! together.

use super::shard::{NodeStores, ShardStore, StoreFolder};
use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::join;
use crate::manager_role::{ManagerError, ManagerParts, ManagerRole};
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::shard_log::{ShardLog, ShardLogError};
use crate::{storage_io, store_starts};
use std::sync::Arc;
use zonal_disk::StoreDir;
use zonal_types::ErrorCode;
use zonal_wire::StoreStart;

/// Outcome of a join.
pub(super) enum JoinOutcome {
    /// The node joined as the manager's.
    Manager(Arc<ManagerRole>),
    /// The node joined as any other.
    Node,
    /// The server was told to stop first.
    Stopped,
}

/// Joins with the starts of the node's stores, and notes in the stores that they are taken.
pub(super) fn join_cell(
    config: &NodeConfig,
    stores: &NodeStores,
    (map, manager): (&Arc<MapCache>, Arc<ManagerParts>),
    peers: &Peers,
    stop: &mut dyn FnMut() -> bool,
) -> Result<JoinOutcome, ServerError> {
    let (store, target) = (stores.shard.as_ref(), stores.target.as_ref());
    let uuid = target.map(|target| target.uuid);
    let shard = store.filter(|_| config.manager_role.is_none());
    let shard = shard.map(|shard| (shard.dir.clone(), shard.uuid));
    let shard = shard.or_else(|| stores.replica.clone());
    let opened = opened_stores(config, shard, target)?;
    let starts = opened.iter().map(|(_, start)| start.clone()).collect();
    let join = join::request(config, config.advertise, uuid, starts);
    let outcome = match (&config.manager_role, store) {
        (Some(_), Some(store)) => {
            let manager = open_manager(config, store, manager)?;
            let joined = manager.join(join, true);
            joined.map_err(|error| refused(config, &error))?;
            JoinOutcome::Manager(manager)
        }
        _ if join::join(config, peers, map, &join, stop)? => JoinOutcome::Node,
        _ => return Ok(JoinOutcome::Stopped),
    };
    for (dir, start) in &opened {
        taken(dir, start)?;
    }
    Ok(outcome)
}

/// The open stores of this node, each with the start to be taken.
fn opened_stores(
    config: &NodeConfig,
    shard: Option<StoreFolder>,
    target: Option<&storage_io::OpenedTarget>,
) -> Result<Vec<(StoreDir, StoreStart)>, ServerError> {
    let mut out = Vec::new();
    if let Some((dir, uuid)) = shard {
        let kind = match config.manager_role {
            Some(_) => store_starts::ROOT,
            None => store_starts::SHARD,
        };
        out.push((dir, kind, config.node.0, uuid));
    }
    if let (Some(target), Some(storage)) = (target, &config.storage_role) {
        out.push((
            target.dir.clone(),
            store_starts::TARGET,
            storage.target.0,
            target.uuid,
        ));
    }
    let begun = out.into_iter().map(|(dir, kind, id, uuid)| {
        let start = store_starts::begin(&dir, kind, id, uuid);
        let start = start.map_err(|source| ServerError::Store {
            dir: dir.path().to_owned(),
            source,
        })?;
        Ok((dir, start))
    });
    begun.collect()
}

fn taken(dir: &StoreDir, start: &StoreStart) -> Result<(), ServerError> {
    store_starts::taken(dir, start).map_err(|source| ServerError::Store {
        dir: dir.path().to_owned(),
        source,
    })
}

fn refused(config: &NodeConfig, error: &ManagerError) -> ServerError {
    ServerError::JoinRefused {
        manager: config.managers_text(),
        code: ErrorCode::Invalid,
        detail: error.to_string(),
    }
}

fn open_manager(
    config: &NodeConfig,
    store: &ShardStore,
    parts: Arc<ManagerParts>,
) -> Result<Arc<ManagerRole>, ServerError> {
    let log = ShardLog::own(Arc::clone(&store.engine));
    ManagerRole::open(log, parts)
        .and_then(|manager| manager.set_width(config.set_width).map(|()| manager))
        .map(Arc::new)
        .map_err(|error| match error {
            ManagerError::Log(ShardLogError::Disk(source)) => ServerError::Store {
                dir: store.dir.path().to_owned(),
                source,
            },
            ManagerError::Stored(code) => ServerError::Contents {
                dir: store.dir.path().to_owned(),
                code,
            },
            error => refused(config, &error),
        })
}
