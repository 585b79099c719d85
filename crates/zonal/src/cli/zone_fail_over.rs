//! `zonal zone fail-over`: takes the targets of a lost zone out, and says what serves without it.
//! `zonal zone fail-back`: says whether a zone that is back has all that it missed.

use super::recovery::{StaleCounts, header_for};
use super::shard;
use super::zone::zone_of;
use crate::cell::connection::{CellArgs, CellHandle};
use crate::cell::node_states::{down_nodes, node_states};
use crate::console;
use crate::exit::{FAILED, Failure, REFUSED};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use zonal_types::{Ino, NodeId, ShardId, TargetId, ZoneId};
use zonal_wire::{ManagerReply, ManagerRequest, MetaRequest};
use zonal_zonemap::{Shard, TargetState, ZoneMap};

/// Longest wait for targets whose leases are not over.
const LEASES_END: Duration = Duration::from_secs(15);
/// Time between two looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Arguments of a fail-over.
#[derive(Debug, clap::Args)]
pub struct FailOver {
    #[command(flatten)]
    cell: CellArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// The zone: its number or its name
    zone: String,
}

/// Arguments of a fail-back.
#[derive(Debug, clap::Args)]
pub struct FailBack {
    #[command(flatten)]
    cell: CellArgs,
    /// Look each second until the zone has all that it missed
    #[arg(long)]
    follow: bool,
    /// As JSON, one object for each look
    #[arg(long)]
    json: bool,
    /// The zone: its number or its name
    zone: String,
}

/// A zone without its storage servers.
struct ZoneOutage {
    zone: ZoneId,
    /// Targets that are out.
    out: Vec<TargetId>,
    /// Targets that could not be taken out, and why.
    left: Vec<(TargetId, String)>,
    /// The zone's shards, and the node that serves each.
    shards: Vec<(ShardId, Option<NodeId>)>,
}

impl FailOver {
    pub fn run(&self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let zone = zone_of(&map, &self.zone)?.id;
        let targets = targets_of(&map, zone);
        refuse_living(&cell, &map, &targets, zone)?;
        let outage = take_out(&cell, &map, &targets, zone)?;
        match self.json {
            true => console::json(format_args!("{:#}", outage.json())),
            false => outage.print(&map),
        }
        outage.judge()
    }
}

fn targets_of(map: &ZoneMap, zone: ZoneId) -> Vec<TargetId> {
    let of_zone = map.targets_by_zone();
    let all = of_zone.get(&zone).into_iter().flatten().copied();
    let is_used = |target: &TargetId| map.target_state(*target) != Some(TargetState::Drained);
    all.filter(is_used).collect()
}

/// Refuses a zone with a storage server that answers: its copies would miss changes for nothing.
fn refuse_living(
    cell: &CellHandle,
    map: &ZoneMap,
    targets: &[TargetId],
    zone: ZoneId,
) -> anyhow::Result<()> {
    let down = down_nodes(&node_states(cell));
    let nodes = targets
        .iter()
        .filter_map(|target| Some(map.target(*target)?.node));
    let mut living: Vec<String> = nodes
        .filter(|node| !down.contains(node))
        .map(|node| node.to_string())
        .collect();
    living.dedup();
    match living.as_slice() {
        [] => Ok(()),
        living => {
            let text = format!(
                "zone {zone} is not lost: the cell sees its nodes {}",
                living.join(", ")
            );
            let hint = "a node that ended is seen as down within seconds: `zonal status`; \
                        `zonal zone drain` moves the objects of a zone that serves";
            Err(Failure::new(REFUSED, text).hint(hint).into())
        }
    }
}

/// Takes the targets out, and asks the zone's shards.
fn take_out(
    cell: &CellHandle,
    map: &ZoneMap,
    targets: &[TargetId],
    zone: ZoneId,
) -> anyhow::Result<ZoneOutage> {
    let until = Instant::now() + LEASES_END;
    let mut left: Vec<(TargetId, String)> = Vec::new();
    let mut waiting = targets.to_vec();
    while !waiting.is_empty() {
        left.clear();
        for target in &waiting {
            if let Err(why) = take_one_out(cell, *target) {
                left.push((*target, why));
            }
        }
        waiting = left.iter().map(|(target, _)| *target).collect();
        if waiting.is_empty() || Instant::now() >= until {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    let now = cell.map()?;
    let out = targets.iter().copied().filter(|target| now.is_out(*target));
    let shards = map.shards_of_zone(zone);
    Ok(ZoneOutage {
        zone,
        out: out.collect(),
        left,
        shards: shards
            .map(|shard| (shard.id, server_of(cell, map, shard)))
            .collect(),
    })
}

fn take_one_out(cell: &CellHandle, target: TargetId) -> Result<(), String> {
    match cell.ask_manager(&ManagerRequest::TakeOut { target }) {
        Ok(ManagerReply::At { .. }) => Ok(()),
        Ok(ManagerReply::Failed { detail, .. }) => Err(detail),
        Ok(other) => Err(format!("the manager answers {}", other.name())),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// The node that serves a shard; `None` where none does.
fn server_of(cell: &CellHandle, map: &ZoneMap, shard: &Shard) -> Option<NodeId> {
    let request = MetaRequest::StaleFiles {
        target: TargetId(0),
        after: Ino(u64::MAX),
    };
    cell.call_shard(map, shard, header_for(cell, shard), &request)
        .ok()?;
    let led = shard::leader(&shard::states(cell, map, shard));
    Some(led.map_or(shard.node, |(node, ..)| node))
}

impl ZoneOutage {
    fn json(&self) -> Value {
        let shards = self
            .shards
            .iter()
            .map(|(shard, node)| json!({"shard": shard.0, "served_by": node.map(|node| node.0)}));
        let left = self.left.iter();
        let left = left.map(|(target, why)| json!({"target": target.0, "reason": why}));
        json!({
            "zone": self.zone.0,
            "targets_out": self.out.iter().map(|target| target.0).collect::<Vec<_>>(),
            "targets_left": left.collect::<Vec<_>>(),
            "shards": shards.collect::<Vec<_>>(),
        })
    }

    fn print(&self, map: &ZoneMap) {
        let zone = self.zone;
        console::line(format_args!(
            "zone {zone}: {} targets are out",
            self.out.len()
        ));
        for (shard, node) in &self.shards {
            match node {
                Some(node) => {
                    let of = map.node(*node).map_or(zone, |node| node.zone);
                    console::line(format_args!(
                        "shard {shard} is served by node {node} (zone {of})"
                    ));
                }
                None => console::line(format_args!("shard {shard} does not answer")),
            }
        }
        console::note(format_args!(
            "`zonal files --lost` lists files without a copy elsewhere; a zone that is back fills \
             what it missed: `zonal zone fail-back {zone}`"
        ));
    }

    fn judge(&self) -> anyhow::Result<()> {
        if let Some((target, why)) = self.left.first() {
            let text = format!(
                "{} targets are not out: target {target}: {why}",
                self.left.len()
            );
            return Err(Failure::new(FAILED, text).hint("repeat the command").into());
        }
        let silent = self.shards.iter().filter(|(_, node)| node.is_none());
        let silent: Vec<String> = silent.map(|(shard, _)| shard.to_string()).collect();
        match silent.as_slice() {
            [] => Ok(()),
            silent => {
                let text = format!("no majority of shards {}", silent.join(", "));
                let hint = "a replica in another zone can become the only one: `zonal shard \
                            recover` (changes that only the lost replicas had are lost)";
                Err(Failure::new(FAILED, text).hint(hint).into())
            }
        }
    }
}

impl FailBack {
    pub fn run(&self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        loop {
            let map = cell.map()?;
            let zone = zone_of(&map, &self.zone)?.id;
            let counts = StaleCounts::of(&cell, &map);
            let state = ZoneReturn::of(&map, zone, &counts);
            match self.json {
                true => console::json(state.json()),
                false => state.print(),
            }
            if state.is_back() {
                return Ok(());
            }
            if !self.follow {
                let text = format!("zone {zone} does not have all that it missed");
                return Err(Failure::new(FAILED, text)
                    .hint("start its nodes; --follow waits until it has")
                    .into());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// How far a zone is that comes back.
struct ZoneReturn {
    zone: ZoneId,
    targets: usize,
    out: Vec<TargetId>,
    stale_files: u64,
    silent: Vec<ShardId>,
}

impl ZoneReturn {
    fn of(map: &ZoneMap, zone: ZoneId, counts: &StaleCounts) -> Self {
        let targets = targets_of(map, zone);
        let stale = targets
            .iter()
            .filter_map(|target| counts.targets.get(target));
        Self {
            zone,
            targets: targets.len(),
            stale_files: stale.sum(),
            out: targets
                .into_iter()
                .filter(|target| map.is_out(*target))
                .collect(),
            silent: counts.silent.clone(),
        }
    }

    fn is_back(&self) -> bool {
        self.out.is_empty() && self.stale_files == 0 && self.silent.is_empty()
    }

    fn json(&self) -> Value {
        json!({
            "zone": self.zone.0,
            "targets": self.targets,
            "targets_out": self.out.iter().map(|target| target.0).collect::<Vec<_>>(),
            "stale_copies": self.stale_files,
            "silent_shards": self.silent.iter().map(|shard| shard.0).collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        let (zone, serving) = (self.zone, self.targets - self.out.len());
        console::line(format_args!(
            "zone {zone}: {serving} of {} targets serve, {} copies of files to be filled",
            self.targets, self.stale_files
        ));
    }
}
