//! How a node comes into its cell: the manager takes the starts of its stores, then the node joins.

use super::shard::ShardStore;
use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::join;
use crate::manager_role::{Manager, ManagerError};
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::{starts, storage_io};
use std::sync::Arc;
use zonal_disk::StoreDir;
use zonal_types::ErrorCode;
use zonal_wire::StoreStart;

/// How a node came into its cell.
pub(super) enum Entered {
    /// As its manager.
    Manager(Arc<Manager>),
    /// As any other.
    Node,
    /// It was told to stop before.
    Stopped,
}

/// Has the starts of the node's stores taken, then joins.
pub(super) fn enter(
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
) -> Result<Vec<(StoreDir, StoreStart)>, ServerError> {
    let mut out = Vec::new();
    if let Some(shard) = shard {
        out.push((shard.dir.clone(), starts::SHARD, config.node.0, shard.uuid));
    }
    if let (Some(target), Some(storage)) = (target, &config.storage_role) {
        out.push((
            target.dir.clone(),
            starts::TARGET,
            storage.target.0,
            target.uuid,
        ));
    }
    let begun = out.into_iter().map(|(dir, kind, id, uuid)| {
        let start = starts::begin(&dir, kind, id, uuid);
        let start = start.map_err(|source| ServerError::Store {
            dir: dir.path().to_owned(),
            source,
        })?;
        Ok((dir, start))
    });
    begun.collect()
}

fn taken(dir: &StoreDir, start: &StoreStart) -> Result<(), ServerError> {
    starts::taken(dir, start).map_err(|source| ServerError::Store {
        dir: dir.path().to_owned(),
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
