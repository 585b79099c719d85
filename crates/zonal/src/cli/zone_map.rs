//! `zonal zone-map`: shows the manager's zone map.

use crate::cell::connection::CellArgs;
use crate::console;
use serde_json::{Value, json};
use zonal_basics::byte_size;
use zonal_basics::to_hex;
use zonal_zonemap::ZoneMap;

/// Show the zone map
#[derive(Debug, clap::Subcommand)]
pub enum ZoneMapCommand {
    /// Print zones, nodes, targets, shards, stripe sets and junctions
    Show {
        #[command(flatten)]
        cell: CellArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

impl ZoneMapCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let Self::Show { cell, json } = self;
        let cell = cell.open()?;
        let map = cell.map()?;
        if json {
            let mut junctions = Vec::new();
            cell.junctions(&mut |junction| {
                let (ino, path, zone) = (junction.ino.0, &junction.path, junction.zone.0);
                junctions.push(json!({"ino": ino, "path": path, "zone": zone}));
            })?;
            console::json(format_args!("{:#}", to_json(&map, &junctions)));
            return Ok(());
        }
        print(&map);
        cell.junctions(&mut |junction| {
            let (path, zone) = (&junction.path, junction.zone);
            console::line(format_args!("{path} is homed in zone {zone}"));
        })
    }
}

/// Prints the map as a table.
pub fn print(map: &ZoneMap) {
    console::line(format_args!(
        "cell {}, map version {}",
        map.cell, map.version
    ));
    console::table(&node_rows(map));
    for zone in &map.zones {
        for set in map.default_sets(zone.id) {
            let slots: Vec<String> = set
                .slots
                .iter()
                .map(|slot| slot.target.to_string())
                .collect();
            console::line(format_args!(
                "new files of zone {} use stripe set {} (targets {})",
                zone.id,
                set.id,
                slots.join(", ")
            ));
        }
    }
}

/// A row for each node, with its shards and targets.
fn node_rows(map: &ZoneMap) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["ZONE", "NODE", "ADDRESS", "SHARD", "TARGETS"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for zone in &map.zones {
        for node in map.nodes.iter().filter(|node| node.zone == zone.id) {
            let shards = map.shards.iter();
            let shards = shards.filter(|shard| shard.replicas.contains(&node.id));
            let shards = shards.map(|shard| {
                let name = match shard.id.0 {
                    0 => "root".to_owned(),
                    id => id.to_string(),
                };
                match shard.node == node.id {
                    true => name,
                    false => format!("{name} (replica)"),
                }
            });
            let targets = map.targets.iter().filter(|target| target.node == node.id);
            let targets = targets
                .map(|target| format!("{} ({})", target.id, byte_size::rounded(target.capacity)));
            rows.push(vec![
                format!("{} {}", zone.id, zone.name),
                node.id.to_string(),
                node.address.clone(),
                or_dash(shards.collect::<Vec<_>>().join(", ")),
                or_dash(targets.collect::<Vec<_>>().join(", ")),
            ]);
        }
    }
    rows
}

pub fn or_dash(text: String) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

/// The map as JSON, for scripts.
fn to_json(map: &ZoneMap, junctions: &[Value]) -> Value {
    let zones = map.zones.iter().map(|zone| {
        json!({"id": zone.id.0, "name": zone.name, "default_sets": zone.default_sets.iter().map(|set| set.0).collect::<Vec<_>>()})
    });
    let nodes = map
        .nodes
        .iter()
        .map(|node| json!({"id": node.id.0, "zone": node.zone.0, "address": node.address, "state": node.state.name()}));
    let targets = map.targets.iter().map(|target| {
        json!({
            "id": target.id.0,
            "node": target.node.0,
            "uuid": to_hex(&target.uuid),
            "capacity": target.capacity,
            "state": target.state.name(),
        })
    });
    let shards = map.shards.iter().map(|shard| {
        json!({"id": shard.id.0, "zone": shard.zone.0, "node": shard.node.0, "epoch": shard.epoch.0,
            "replicas": shard.replicas.iter().map(|node| node.0).collect::<Vec<_>>()})
    });
    let partitions = map
        .partitions
        .iter()
        .map(|range| json!({"first": range.first.0, "count": range.count, "shard": range.shard.0}));
    let sets = map.sets.iter().map(|set| {
        let slots: Vec<Value> = set
            .slots
            .iter()
            .map(|slot| {
                json!({
                    "target": slot.target.0,
                    "previous": slot.previous.map(|target| target.0),
                    "state": slot.state.name(),
                    "slot_epoch": slot.slot_epoch.0,
                })
            })
            .collect();
        json!({"id": set.id.0, "zone": set.zone.0, "is_open": set.is_open, "slots": slots})
    });
    json!({
        "cell": map.cell.to_string(),
        "version": map.version.0,
        "managers": map.managers.iter().map(|node| node.0).collect::<Vec<_>>(),
        "set_width": map.set_width,
        "zones": zones.collect::<Vec<_>>(),
        "nodes": nodes.collect::<Vec<_>>(),
        "targets": targets.collect::<Vec<_>>(),
        "shards": shards.collect::<Vec<_>>(),
        "partitions": partitions.collect::<Vec<_>>(),
        "sets": sets.collect::<Vec<_>>(),
        "junctions": junctions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{CellId, NodeId, ShardId, ZoneId};
    use zonal_zonemap::MapEdit;

    #[test]
    fn each_replica_of_a_shard_is_shown() {
        let join = |node: u32, shard| MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: format!("127.0.0.1:{}", 7000 + node),
            shard,
            targets: Vec::new(),
        };
        let edits = [
            join(1, Some(ShardId(0))),
            join(2, Some(ShardId(1))),
            join(3, None),
            MapEdit::SetReplicas {
                shard: ShardId(1),
                replicas: vec![NodeId(2), NodeId(3)],
            },
        ];
        let map = ZoneMap::new(CellId([1; 16])).edited(&edits);
        let rows = node_rows(&map.unwrap().unwrap());
        let shown: Vec<&str> = rows.iter().map(|row| row[3].as_str()).collect();
        assert_eq!(shown, ["SHARD", "root", "1", "1 (replica)"]);
    }
}
