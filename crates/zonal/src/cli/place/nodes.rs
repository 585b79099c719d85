//! Names of nodes and zones for people and schedulers.

use std::net::SocketAddr;
use zonal_placement::JobNode;
use zonal_types::{NodeId, ZoneId};
use zonal_zonemap::ZoneMap;

/// Nodes with the host of their address and the name of their zone.
pub fn named(map: &ZoneMap, nodes: impl Iterator<Item = NodeId>) -> Vec<JobNode> {
    let known = nodes.filter_map(|id| map.node(id));
    known
        .map(|node| JobNode {
            host: host(&node.address),
            zone: zone_name(map, node.zone),
        })
        .collect()
}

fn host(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().to_string(),
        Err(_) => address.to_owned(),
    }
}

/// A zone's name, or `zone-N` where it has none.
pub fn zone_name(map: &ZoneMap, id: ZoneId) -> String {
    let zone = map.zones.iter().find(|zone| zone.id == id);
    match zone {
        Some(zone) if !zone.name.is_empty() => zone.name.clone(),
        _ => format!("zone-{id}"),
    }
}
