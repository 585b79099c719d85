//! Rates as JSON, for scripts. docs/json.md describes the document.

use super::rates::{ByteRates, CellRates, NodeHealth, NodeRow};
use super::whole;
use serde_json::{Value, json};

/// The document of `zonal top --json`: rates over `seconds`.
pub fn document(rates: &CellRates, seconds: f64) -> Value {
    let zones = rates.zones.iter().map(|zone| {
        json!({
            "id": zone.id.0,
            "name": zone.name,
            "nodes": zone.nodes,
            "nodes_well": zone.nodes_well,
            "total_bytes": zone.total_bytes,
            "free_bytes": zone.free_bytes,
        })
    });
    let traffic = rates.matrix.iter().map(|((client, target), bytes)| {
        json!({
            "client_zone": client.0,
            "target_zone": target.0,
            "read_bytes_per_second": whole(bytes.read),
            "written_bytes_per_second": whole(bytes.written),
        })
    });
    let directories = rates.directories.iter().map(|row| {
        json!({
            "inode": row.inode.0,
            "path": row.path,
            "read_in_zone_bytes_per_second": whole(row.in_zone.read),
            "read_cross_zone_bytes_per_second": whole(row.cross_zone.read),
            "written_in_zone_bytes_per_second": whole(row.in_zone.written),
            "written_cross_zone_bytes_per_second": whole(row.cross_zone.written),
        })
    });
    let operations = rates.operations.iter().map(|row| {
        let slowest = row.slowest_us.is_finite();
        json!({
            "node": row.node.0,
            "service": row.service,
            "operation": row.operation,
            "per_second": row.per_second,
            "mean_us": whole(row.mean_us),
            "slowest_us": slowest.then(|| whole(row.slowest_us)),
        })
    });
    let full_targets = rates.full_targets.iter().map(|target| {
        json!({
            "id": target.id.0,
            "node": target.node.0,
            "zone": target.zone.0,
            "total_bytes": target.total_bytes,
            "free_bytes": target.free_bytes,
        })
    });
    json!({
        "cell": rates.cell,
        "map_version": rates.map_version,
        "seconds": seconds,
        "zones": zones.collect::<Vec<_>>(),
        "nodes": rates.nodes.iter().map(node).collect::<Vec<_>>(),
        "traffic": traffic.collect::<Vec<_>>(),
        "directories": directories.collect::<Vec<_>>(),
        "operations": operations.collect::<Vec<_>>(),
        "full_targets": full_targets.collect::<Vec<_>>(),
    })
}

fn node(row: &NodeRow) -> Value {
    let (state, problem) = match &row.state {
        NodeHealth::Well => ("well", None),
        NodeHealth::Silent => ("silent", None),
        NodeHealth::Unwell(problem) => ("unwell", Some(problem)),
    };
    let bytes = |of: fn(ByteRates) -> f64| row.bytes.map(|rates| whole(of(rates)));
    json!({
        "id": row.id.0,
        "zone": row.zone.0,
        "address": row.address,
        "state": state,
        "problem": problem,
        "total_bytes": row.total_bytes,
        "free_bytes": row.free_bytes,
        "read_bytes_per_second": bytes(|rates| rates.read),
        "written_bytes_per_second": bytes(|rates| rates.written),
        "requests_per_second": row.requests,
        "cpu_per_mille": row.cpu_per_mille,
    })
}
