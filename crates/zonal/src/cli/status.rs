//! `zonal status`: asks every server of the cell at once.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::cell::mount_records;
use crate::cli::traffic_sum::TrafficSum;
use crate::console;
use crate::exit::{FAILED, Failure};
use serde_json::{Value, json};
use std::time::Duration;
use zonal_basics::byte_size;
use zonal_net::Address;
use zonal_types::{Codec, NodeId, TargetId, ZoneId};
use zonal_wire::{
    AdminReply, AdminRequest, MetaReply, MetaRequest, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::{Node, ZoneMap};

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

/// The replies of one node.
struct Seen {
    /// It answered each request.
    answers: bool,
    /// The node accepts clients that are configured to go in the clear.
    offers_plain: bool,
    /// The first problem found.
    error: Option<String>,
    inodes: Option<u64>,
    /// Target; total bytes, free bytes, number of objects.
    targets: Vec<(u32, Option<[u64; 3]>)>,
    /// Client bytes of its targets.
    traffic: TrafficSum,
}

impl Status {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let cell = cell.with_deadline(STATUS_DEADLINE);
        let seen: Vec<Seen> = std::thread::scope(|scope| {
            let asking: Vec<_> = map
                .nodes
                .iter()
                .map(|node| scope.spawn(|| look_at(&cell, &map, node)))
                .collect();
            asking
                .into_iter()
                .map(|thread| {
                    thread
                        .join()
                        .unwrap_or_else(|_panic| nothing("a probe panicked"))
                })
                .collect()
        });
        if self.json {
            console::json(format_args!("{:#}", to_json(&cell, &map, &seen)));
        } else {
            print(&cell, &map, &seen);
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

fn nothing(error: &str) -> Seen {
    Seen {
        answers: false,
        error: Some(error.to_owned()),
        offers_plain: false,
        inodes: None,
        targets: Vec::new(),
        traffic: TrafficSum::default(),
    }
}

/// Protection of a node's TCP connections.
fn transport(cell: &CellHandle, seen: &Seen) -> &'static str {
    match (&cell.credential, seen.offers_plain) {
        (None, _) => "none",
        (Some(_), true) => "plain",
        (Some(_), false) => "tls",
    }
}

fn look_at(cell: &CellHandle, map: &ZoneMap, node: &Node) -> Seen {
    let Ok(tcp) = node.address.parse() else {
        return nothing("its address cannot be read");
    };
    let to = Address::new(tcp, node.id);
    let probed = cell.probe(tcp, node.id);
    let mut seen = Seen {
        answers: probed.is_ok(),
        offers_plain: probed.as_ref().is_ok_and(|peer| peer.offers_plain),
        error: probed.err().map(|error| error.to_string()),
        inodes: None,
        targets: Vec::new(),
        traffic: TrafficSum::default(),
    };
    if seen.answers && map.shards.iter().any(|shard| shard.node == node.id) {
        let request = MetaRequest::StatFs;
        match cell.call(to, Service::Meta, request.name(), &request.to_bytes()) {
            Ok(MetaReply::StatFs { inodes, .. }) => seen.inodes = Some(inodes),
            Ok(MetaReply::Failed { code }) => seen.error = Some(format!("shard: {}", code.0)),
            Ok(_) => seen.error = Some("shard: an unexpected reply".into()),
            Err(error) => seen.is_lost(&error),
        }
    }
    for target in map.targets.iter().filter(|target| target.node == node.id) {
        let numbers = seen.look_at_target(cell, to, target.id);
        seen.targets.push((target.id.0, numbers));
        let request = AdminRequest::Traffic { target: target.id };
        if numbers.is_some()
            && let Ok(AdminReply::Traffic { traffic }) = cell.admin(to, &request)
        {
            seen.traffic.add(&traffic);
        }
    }
    if seen.answers {
        let trouble = trouble(cell, to);
        seen.error = trouble.or(seen.error);
    }
    seen
}

impl Seen {
    /// Notes a request without an answer: the node is not asked again.
    fn is_lost(&mut self, error: &anyhow::Error) {
        self.answers = false;
        self.error.get_or_insert(error.to_string());
    }

    /// Total bytes, free bytes and number of objects of a target.
    fn look_at_target(
        &mut self,
        cell: &CellHandle,
        to: Address,
        target: TargetId,
    ) -> Option<[u64; 3]> {
        if !self.answers {
            return None;
        }
        let request = StorageRequest::StatFs { target };
        match cell.call(to, Service::Storage, request.name(), &request.to_bytes()) {
            Ok(StorageReply::StatFs {
                total,
                free,
                objects,
            }) => Some([total, free, objects]),
            Ok(StorageReply::Failed { code, detail }) => {
                let text = format!("target {target}: {} {detail}", code.0);
                self.error.get_or_insert(text);
                None
            }
            Ok(_) => None,
            Err(error) => {
                self.is_lost(&error);
                None
            }
        }
    }
}

/// The problem that the node itself reports, which explains the failure seen from here.
fn trouble(cell: &CellHandle, to: Address) -> Option<String> {
    match cell.admin(to, &AdminRequest::Health) {
        Ok(AdminReply::Health { roles }) => {
            let mut roles = roles.into_iter();
            let bad = roles.find(|role| !role.serves || !role.trouble.is_empty())?;
            let rest = if bad.serves {
                ""
            } else {
                ", it does not serve"
            };
            Some(format!("{}: {}{rest}", bad.role, bad.trouble))
        }
        Ok(_) => Some("an unexpected reply about its health".into()),
        Err(error) => Some(format!("{error:#}")),
    }
}

fn print(cell: &CellHandle, map: &ZoneMap, seen: &[Seen]) {
    console::line(format_args!(
        "cell {}, map version {}",
        map.cell, map.version
    ));
    let header = [
        "ZONE", "NODE", "ADDRESS", "SERVES", "CAPACITY", "FREE", "HEALTH",
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
            let numbers: Vec<[u64; 3]> = seen
                .targets
                .iter()
                .filter_map(|(_, numbers)| *numbers)
                .collect();
            let sum = |index: usize| numbers.iter().map(|numbers| numbers[index]).sum::<u64>();
            let shown = |value: u64| {
                if numbers.is_empty() {
                    "-".to_owned()
                } else {
                    byte_size::rounded(value)
                }
            };
            total += sum(0);
            free += sum(1);
            rows.push(vec![
                format!("{} {}", zone.id, zone.name),
                node.id.to_string(),
                node.address.clone(),
                served(map, node.id, seen).join(", "),
                shown(sum(0)),
                shown(sum(1)),
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
    let plain = map.nodes.iter().zip(seen);
    let plain = plain.filter(|(_, seen)| transport(cell, seen) == "plain");
    let plain: Vec<String> = plain.map(|(node, _)| node.id.to_string()).collect();
    if !plain.is_empty() {
        console::line(format_args!(
            "in the clear by TCP with mounts that are configured so: nodes {}",
            plain.join(", ")
        ));
    }
    for line in without_answer(map, seen) {
        console::line(format_args!("{line}"));
    }
    print_mounts(cell);
}

/// The roles and targets of a node, in words.
fn served(map: &ZoneMap, node: NodeId, seen: &Seen) -> Vec<String> {
    let shards = map.shards.iter().filter(|shard| shard.node == node);
    let shards = shards.map(|shard| match shard.id.0 {
        0 => "manager, root shard".to_owned(),
        id => format!("shard {id}"),
    });
    let targets = seen.targets.iter().map(|(id, _)| format!("target {id}"));
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
fn without_answer(map: &ZoneMap, seen: &[Seen]) -> Vec<String> {
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
fn traffic_of(map: &ZoneMap, seen: &[Seen], zone: Option<ZoneId>) -> TrafficSum {
    let mut sum = TrafficSum::default();
    for (node, seen) in map.nodes.iter().zip(seen) {
        if zone.is_none_or(|zone| zone == node.zone) {
            sum.add(&seen.traffic.0);
        }
    }
    sum
}

fn print_traffic(map: &ZoneMap, seen: &[Seen]) {
    let header = [
        "CLIENT BYTES",
        "READ IN-ZONE",
        "READ CROSS-ZONE",
        "WRITTEN IN-ZONE",
        "WRITTEN CROSS-ZONE",
        "IN-ZONE",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for zone in &map.zones {
        let sum = traffic_of(map, seen, Some(zone.id));
        rows.push(sum.row(format!("zone {} {}", zone.id, zone.name)));
    }
    rows.push(traffic_of(map, seen, None).row("cell".into()));
    console::table(&rows);
}

fn to_json(cell: &CellHandle, map: &ZoneMap, seen: &[Seen]) -> Value {
    let node = |node: &Node, seen: &Seen| {
        let targets = seen.targets.iter().map(|(id, numbers)| {
            json!({
                "id": id,
                "total_bytes": numbers.map(|numbers| numbers[0]),
                "free_bytes": numbers.map(|numbers| numbers[1]),
                "objects": numbers.map(|numbers| numbers[2]),
            })
        });
        let shards = map.shards.iter().filter(|shard| shard.node == node.id);
        json!({
            "id": node.id.0,
            "address": node.address,
            "healthy": seen.error.is_none(),
            "answers": seen.answers,
            "error": seen.error,
            "transport": transport(cell, seen),
            "shards": shards.map(|shard| shard.id.0).collect::<Vec<_>>(),
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
        "manager": cell.manager.to_string(),
        "map_version": map.version.0,
        "traffic": traffic_of(map, seen, None).json(),
        "healthy": seen.iter().all(|seen| seen.error.is_none()),
        "zones": zones.collect::<Vec<_>>(),
        "mounts": mounts.collect::<Vec<_>>(),
    })
}
