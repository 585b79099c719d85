//! The stores of a cell, as node configs name them.

use std::path::PathBuf;
use zonal_disk::{EngineConfig, StoreIdentity};
use zonal_object::TargetConfig;
use zonal_types::{NodeId, TargetId};

/// A target's geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The target's id.
    pub target: TargetId,
    /// Units and segments.
    pub config: TargetConfig,
    /// Bytes of a segment.
    pub segment_bytes: u64,
}

/// One store.
#[derive(Debug, Clone)]
pub struct StoreSpec {
    /// The node that the store belongs to.
    pub node: NodeId,
    /// The store's folder.
    pub dir: PathBuf,
    /// Identity that the store must have.
    pub identity: StoreIdentity,
    /// Bounds of its engine.
    pub config: EngineConfig,
    /// Geometry, where the store is a target's.
    pub geometry: Option<Geometry>,
}

/// All stores of a cell.
#[derive(Debug, Clone, Default)]
pub struct CellStores {
    /// Manager, shards, targets, in any order.
    pub stores: Vec<StoreSpec>,
}
