//! The stores of a cell, from the configs of its nodes.

use zonal_disk::{EngineConfig, StoreIdentity, StoreKind};
use zonal_object::TargetConfig;
use zonal_object::ids::BLOCK;
use zonal_offline::{Geometry, StoreSpec};
use zonal_server::NodeConfig;
use zonal_server::config::StoreConfig;

fn engine_config(config: &StoreConfig) -> EngineConfig {
    EngineConfig {
        log_bytes: config.log,
        overlay_bytes: usize::try_from(config.overlay).unwrap_or(usize::MAX),
        cache_bytes: usize::try_from(config.cache).unwrap_or(usize::MAX),
        ..EngineConfig::default()
    }
}

/// The stores that a node's config names.
pub(super) fn stores_of(config: &NodeConfig) -> Vec<StoreSpec> {
    let spec = |kind, id, dir, store: &StoreConfig, geometry| StoreSpec {
        node: config.node,
        dir,
        identity: StoreIdentity {
            cell: config.cell.0,
            kind,
            id,
        },
        config: engine_config(store),
        geometry,
    };
    let mut stores = Vec::new();
    if let Some(store) = &config.manager_role {
        let dir = config.manager_dir();
        stores.push(spec(StoreKind::Manager, config.node.0, dir, store, None));
    }
    if let Some(store) = &config.meta_role {
        let dir = config.meta_dir();
        stores.push(spec(StoreKind::Shard, config.node.0, dir, store, None));
    }
    if let Some(storage) = &config.storage_role {
        let geometry = Geometry {
            target: storage.target,
            config: TargetConfig {
                segment_units: u32::try_from(storage.segment / BLOCK).unwrap_or(u32::MAX),
                segments: u32::try_from(storage.capacity / storage.segment).unwrap_or(u32::MAX),
                pending_blocks_max: usize::try_from(storage.pending / BLOCK).unwrap_or(usize::MAX),
            },
            segment_bytes: storage.segment,
        };
        let (id, dir) = (storage.target.0, config.target_dir());
        stores.push(spec(
            StoreKind::Target,
            id,
            dir,
            &storage.store,
            Some(geometry),
        ));
    }
    stores
}
