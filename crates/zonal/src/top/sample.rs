//! A sample of a cell: what all nodes told at one time. Samples are values; [`super::rates`]
//! compares two of them.

use crate::cell::node_status::NodeStatus;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use zonal_types::{Ino, NodeId, ZoneId};
use zonal_zonemap::ZoneMap;

/// One look at a cell.
#[derive(Debug, Clone, Default)]
pub struct CellSample {
    pub cell: String,
    pub map_version: u64,
    /// Zones by the zone map, with their names.
    pub zones: Vec<(ZoneId, String)>,
    pub nodes: Vec<NodeSample>,
    /// Paths of first-level directories.
    pub paths: BTreeMap<Ino, String>,
}

/// One node in a sample.
#[derive(Debug, Clone, Default)]
pub struct NodeSample {
    pub id: NodeId,
    pub zone: ZoneId,
    pub address: String,
    /// Its shards and targets, for people.
    pub serves: String,
    /// When it told its activity, in milliseconds since some fixed time.
    pub told_ms: u64,
    pub status: NodeStatus,
}

impl CellSample {
    /// The replies of all nodes of a map, in its order. Times count from `since`.
    pub fn new(
        map: &Arc<ZoneMap>,
        statuses: Vec<NodeStatus>,
        paths: BTreeMap<Ino, String>,
        since: Instant,
    ) -> Self {
        let zones = map.zones.iter().map(|zone| (zone.id, zone.name.clone()));
        let nodes = map.nodes.iter().zip(statuses).map(|(node, status)| {
            let told = status.told.unwrap_or(since);
            let told_ms = told.saturating_duration_since(since).as_millis();
            NodeSample {
                id: node.id,
                zone: node.zone,
                address: node.address.clone(),
                serves: served(map, node.id),
                told_ms: u64::try_from(told_ms).unwrap_or(u64::MAX),
                status,
            }
        });
        Self {
            cell: map.cell.to_string(),
            map_version: map.version.0,
            zones: zones.collect(),
            nodes: nodes.collect(),
            paths,
        }
    }
}

/// Shards and targets of a node by the zone map.
fn served(map: &ZoneMap, node: NodeId) -> String {
    let shards = map.shards.iter();
    let shards = shards.filter(|shard| shard.replicas.contains(&node));
    let shards = shards.map(|shard| match shard.id.0 {
        0 if shard.node == node => "manager".to_owned(),
        0 => "replica of root".to_owned(),
        id if shard.is_replicated() => format!("replica of {id}"),
        id => format!("shard {id}"),
    });
    let targets = map.targets.iter().filter(|target| target.node == node);
    let targets = targets.map(|target| format!("target {}", target.id));
    shards.chain(targets).collect::<Vec<_>>().join(", ")
}
