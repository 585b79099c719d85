//! `zonal status`: asks every server of the cell at once.

mod copies;
mod directories;
mod rebalances;

use crate::cell::connection::{CellArgs, CellHandle};
use crate::cell::mount_records;
use crate::cell::node_states::{cause_text, node_states};
use crate::cell::node_status::{NodeStatus, TargetCapacity, look_at_all};
use crate::cli::fs::cat_stat::date;
use crate::cli::traffic_sum::TrafficSum;
use crate::console;
use crate::exit::{FAILED, Failure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use zonal_basics::byte_size;
use zonal_types::{NodeId, ShardId, ZoneId};
use zonal_wire::{KnownState, NodeState};
use zonal_zonemap::{Node, ZoneMap};

use copies::CopySummary;
use directories::{directories_json, print_directories};
use rebalances::RebalanceSummary;

/// Show zones, nodes, targets, capacity and health
///
/// Asks every server of the cell at once, and waits 0.8 s for each. Exits with 1 if one does not
/// answer or does not serve, or reports errors of its medium or damaged data.
#[derive(Debug, clap::Args)]
pub struct Status {
    #[command(flatten)]
    cell: CellArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// How long a server is waited for, ms: an answer comes within a second.
const STATUS_DEADLINE: Duration = Duration::from_millis(800);

impl Status {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let cell = cell.with_deadline(STATUS_DEADLINE);
        let states = node_states(&cell);
        let (seen, copies, rebalances) = std::thread::scope(|scope| {
            let seen = scope.spawn(|| look_at_all(&cell, &map));
            let copies = CopySummary::look(&cell, &map, &states);
            let rebalances = RebalanceSummary::look(&cell, &map);
            (seen.join(), copies, rebalances)
        });
        let seen = seen.map_err(|_panic| anyhow::anyhow!("a thread panicked"))?;
        if self.json {
            let mut all = to_json(&cell, &map, (&seen, &states));
            all["copies"] = copies.json();
            all["rebalances"] = rebalances.json();
            console::json(format_args!("{all:#}"));
        } else {
            print(&cell, &map, (&seen, &states));
            let lines = copies.lines().into_iter().chain(rebalances.lines());
            lines.for_each(console::line);
        }
        let bad = seen.iter().filter(|seen| seen.error.is_some()).count();
        if bad > 0 {
            let text = format!("{bad} of {} nodes are not well", map.nodes.len());
            return Err(Failure::new(FAILED, text)
                .hint(match cell.folder {
                    Some(_) => "`zonal up` starts stopped servers; the log of a node has details",
                    None => "start the stopped server on its machine (its unit is zonal@NAME); the log of a node has details",
                })
                .into());
        }
        Ok(())
    }
}

/// Protection of a node's TCP connections.
fn transport(cell: &CellHandle, seen: &NodeStatus) -> &'static str {
    match (&cell.credential, seen.offers_plain) {
        (None, _) => "none",
        (Some(_), true) => "plain",
        (Some(_), false) => "tls",
    }
}

/// States of nodes, as the manager knows them.
type States = BTreeMap<NodeId, KnownState>;

fn print(cell: &CellHandle, map: &ZoneMap, (seen, states): (&[NodeStatus], &States)) {
    console::line(format_args!(
        "cell {}, map version {}",
        map.cell, map.version
    ));
    let header = [
        "ZONE", "NODE", "ADDRESS", "SERVES", "CAPACITY", "FREE", "STATE", "HEALTH",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for zone in &map.zones {
        let (mut total, mut free) = (0, 0);
        for (node, seen) in map
            .nodes
            .iter()
            .zip(seen)
            .filter(|(node, _)| node.zone == zone.id)
        {
            let spaces: Vec<TargetCapacity> = seen
                .targets
                .iter()
                .filter_map(|(_, space)| *space)
                .collect();
            let sum = |of: fn(&TargetCapacity) -> u64| spaces.iter().map(of).sum::<u64>();
            let capacity = sum(|space| space.total_bytes);
            let left = sum(|space| space.free_bytes);
            let shown = |value: u64| {
                if spaces.is_empty() {
                    "-".to_owned()
                } else {
                    byte_size::rounded(value)
                }
            };
            total += capacity;
            free += left;
            rows.push(vec![
                format!("{} {}", zone.id, zone.name),
                node.id.to_string(),
                node.address.clone(),
                served(map, node.id, seen).join(", "),
                shown(capacity),
                shown(left),
                state_text(states.get(&node.id)),
                seen.error.clone().unwrap_or_else(|| "ok".into()),
            ]);
        }
        rows.push(vec![
            format!("{} {}", zone.id, zone.name),
            String::new(),
            String::new(),
            "all".into(),
            byte_size::rounded(total),
            byte_size::rounded(free),
        ]);
    }
    console::table(&rows);
    print_traffic(map, seen);
    print_directories(cell, seen);
    let plain = map.nodes.iter().zip(seen);
    let plain = plain.filter(|(_, seen)| transport(cell, seen) == "plain");
    let plain: Vec<String> = plain.map(|(node, _)| node.id.to_string()).collect();
    if !plain.is_empty() {
        console::line(format_args!(
            "in the clear by TCP with mounts that are configured so: nodes {}",
            plain.join(", ")
        ));
    }
    print_states(states);
    for line in without_answer(map, seen) {
        console::line(format_args!("{line}"));
    }
    print_mounts(cell);
}

/// A line for each node that is not up: since when, and why.
fn print_states(states: &States) {
    for known in states.values().filter(|known| known.state != NodeState::Up) {
        console::line(format_args!(
            "node {} is {} since {}: {}",
            known.node,
            known.state.word(),
            date(known.since.seconds),
            cause_text(known.cause, &known.by)
        ));
    }
}

/// A state with its age; a dash where the manager does not tell it.
fn state_text(known: Option<&KnownState>) -> String {
    known.map_or("-".to_owned(), |known| {
        let since = console::ago(known.since.seconds);
        format!("{} ({since})", known.state.word())
    })
}

/// The roles and targets of a node, in words.
fn served(map: &ZoneMap, node: NodeId, seen: &NodeStatus) -> Vec<String> {
    let kept = map.shards.iter();
    let kept = kept.filter(|shard| shard.replicas.contains(&node));
    let shards = kept.map(|shard| {
        let name = match shard.id.0 {
            0 => "root shard".to_owned(),
            id => format!("shard {id}"),
        };
        // Of several replicas only the leader tells its inodes.
        match (shard.is_replicated(), seen.inodes.is_some()) {
            (true, true) => format!("leader of {name}"),
            (true, false) => format!("replica of {name}"),
            (false, _) if shard.id == ShardId(0) => format!("manager, {name}"),
            (false, _) => name,
        }
    });
    let targets = seen.targets.iter();
    let targets = targets.map(|(id, _)| match map.is_out(*id) {
        true => format!("target {id} (out)"),
        false => format!("target {id}"),
    });
    shards.chain(targets).collect()
}

fn print_mounts(cell: &CellHandle) {
    for mount in mount_records::of(cell) {
        let state = if mount.lives() {
            ""
        } else {
            " (its process is gone)"
        };
        console::line(format_args!(
            "mounted on {} in zone {}{state}",
            mount.path.display(),
            mount.zone
        ));
    }
}

/// A line for each zone that has nodes without an answer.
fn without_answer(map: &ZoneMap, seen: &[NodeStatus]) -> Vec<String> {
    let mut lines = Vec::new();
    for zone in &map.zones {
        let nodes = map.nodes.iter().zip(seen);
        let nodes: Vec<_> = nodes.filter(|(node, _)| node.zone == zone.id).collect();
        let silent = nodes.iter().filter(|(_, seen)| !seen.answers);
        let silent: Vec<String> = silent.map(|(node, _)| node.id.to_string()).collect();
        if !silent.is_empty() {
            lines.push(format!(
                "no answer in zone {} {}: nodes {} ({} of {})",
                zone.id,
                zone.name,
                silent.join(", "),
                silent.len(),
                nodes.len()
            ));
        }
    }
    lines
}

/// Client bytes of a zone's targets; of the cell's without a zone.
fn traffic_of(map: &ZoneMap, seen: &[NodeStatus], zone: Option<ZoneId>) -> TrafficSum {
    let mut sum = TrafficSum::default();
    for (node, seen) in map.nodes.iter().zip(seen) {
        if zone.is_none_or(|zone| zone == node.zone) {
            sum.add(&seen.traffic(node));
        }
    }
    sum
}

fn traffic_header(title: &str) -> Vec<String> {
    let header = [
        title,
        "READ IN-ZONE",
        "READ CROSS-ZONE",
        "WRITTEN IN-ZONE",
        "WRITTEN CROSS-ZONE",
        "IN-ZONE",
    ];
    header.map(str::to_owned).to_vec()
}

fn print_traffic(map: &ZoneMap, seen: &[NodeStatus]) {
    let mut rows = vec![traffic_header("CLIENT BYTES")];
    for zone in &map.zones {
        let sum = traffic_of(map, seen, Some(zone.id));
        rows.push(sum.row(format!("zone {} {}", zone.id, zone.name)));
    }
    rows.push(traffic_of(map, seen, None).row("cell".into()));
    console::table(&rows);
}

fn state_json(known: Option<&KnownState>) -> Value {
    let by = known.map_or(&[][..], |known| &known.by);
    json!({
        "name": known.map(|known| known.state.word()),
        "since": known.map(|known| known.since.seconds),
        "why": known.map(|known| cause_text(known.cause, &known.by)),
        "by": by.iter().map(|by| by.0).collect::<Vec<_>>(),
    })
}

fn to_json(cell: &CellHandle, map: &ZoneMap, (seen, states): (&[NodeStatus], &States)) -> Value {
    let node = |node: &Node, seen: &NodeStatus| {
        let targets = seen.targets.iter().map(|(id, space)| {
            json!({
                "id": id.0,
                "is_out": map.is_out(*id),
                "total_bytes": space.map(|space| space.total_bytes),
                "free_bytes": space.map(|space| space.free_bytes),
                "objects": space.map(|space| space.objects),
            })
        });
        let shards = map.shards.iter().filter(|shard| shard.node == node.id);
        let replicas = map.shards.iter();
        let replicas = replicas.filter(|shard| shard.replicas.contains(&node.id));
        json!({
            "id": node.id.0,
            "address": node.address,
            "state": state_json(states.get(&node.id)),
            "healthy": seen.error.is_none(),
            "answers": seen.answers,
            "error": seen.error,
            "transport": transport(cell, seen),
            "shards": shards.map(|shard| shard.id.0).collect::<Vec<_>>(),
            "replicas": replicas.map(|shard| shard.id.0).collect::<Vec<_>>(),
            "inodes": seen.inodes,
            "targets": targets.collect::<Vec<_>>(),
        })
    };
    let zones = map.zones.iter().map(|zone| {
        let nodes = map
            .nodes
            .iter()
            .zip(seen)
            .filter(|(node, _)| node.zone == zone.id);
        let nodes: Vec<Value> = nodes.map(|(one, seen)| node(one, seen)).collect();
        let traffic = traffic_of(map, seen, Some(zone.id)).json();
        json!({"id": zone.id.0, "name": zone.name, "traffic": traffic, "nodes": nodes})
    });
    let mounts = mount_records::of(cell).into_iter().map(|mount| {
        json!({"path": mount.path, "zone": mount.zone, "pid": mount.pid, "alive": mount.lives()})
    });
    json!({
        "cell": map.cell.to_string(),
        "manager": cell.first_manager().to_string(),
        "map_version": map.version.0,
        "traffic": traffic_of(map, seen, None).json(),
        "directories": directories_json(cell, seen),
        "healthy": seen.iter().all(|seen| seen.error.is_none()),
        "zones": zones.collect::<Vec<_>>(),
        "mounts": mounts.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::CellId;
    use zonal_zonemap::MapEdit;

    fn join(node: u32, shard: Option<u32>) -> MapEdit {
        MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: format!("127.0.0.1:{}", 7000 + node),
            shard: shard.map(ShardId),
            targets: Vec::new(),
        }
    }

    #[test]
    fn the_replicas_of_a_shard_are_shown_with_their_leader() {
        let edits = [join(1, Some(0)), join(2, Some(1)), join(3, None)];
        let map = ZoneMap::new(CellId([1; 16])).edited(&edits);
        let map = map.unwrap().unwrap();
        let led = NodeStatus {
            inodes: Some(5),
            ..NodeStatus::default()
        };
        assert_eq!(served(&map, NodeId(1), &led), ["manager, root shard"]);
        assert_eq!(served(&map, NodeId(2), &led), ["shard 1"]);
        assert!(served(&map, NodeId(3), &led).is_empty());
        let replicas = vec![NodeId(2), NodeId(3)];
        let shard = ShardId(1);
        let edit = MapEdit::SetReplicas { shard, replicas };
        let map = map.edited(&[edit]).unwrap().unwrap();
        let follows = NodeStatus::default();
        assert_eq!(served(&map, NodeId(2), &follows), ["replica of shard 1"]);
        assert_eq!(served(&map, NodeId(3), &led), ["leader of shard 1"]);
    }
}
