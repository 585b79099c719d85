//! `zonal recovery`: copies that miss changes, and the targets that fill them.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::cli::drain::{drains_of, progress, seconds_left};
use crate::console;
use crate::exit::{Failure, UNREACHABLE};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use zonal_types::{Ino, ShardId, TargetId};
use zonal_wire::{DrainStatus, Header, MetaReply, MetaRequest, Service};
use zonal_zonemap::{Shard, TargetState, ZoneMap};

/// Time between two looks.
const FOLLOW: Duration = Duration::from_secs(1);

/// Show files with copies to be filled, and the targets that fill them
///
/// A copy is stale where its file was changed while the target was out. Once it is back, the
/// target fills its stale copies from others by itself. It also fills objects that move to it, as
/// another target is drained or out for long, and copies that a file got later.
#[derive(Debug, clap::Args)]
pub struct Recovery {
    #[command(flatten)]
    cell: CellArgs,
    /// Look again each second until nothing is left to fill
    #[arg(long)]
    follow: bool,
    /// As JSON, one object for each look
    #[arg(long)]
    json: bool,
}

/// Files with stale copies, by target; and shards that did not answer.
#[derive(Default)]
pub(super) struct StaleCounts {
    files: u64,
    /// Files with copies to be filled, by target.
    pub(super) targets: BTreeMap<TargetId, u64>,
    /// Shards without an answer.
    pub(super) silent: Vec<ShardId>,
}

impl Recovery {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.cell.open()?;
        loop {
            let map = cell.map()?;
            let counts = StaleCounts::of(&cell, &map);
            let drains = match is_moving(&map) {
                true => drains_of(&cell)?,
                false => Vec::new(),
            };
            match self.json {
                true => console::json(to_json(&map, &counts, &drains)),
                false => print(&map, &counts, &drains),
            }
            let is_over = counts.files == 0 && counts.silent.is_empty() && !is_moving(&map);
            if !self.follow || is_over {
                return match counts.silent.as_slice() {
                    [] => Ok(()),
                    silent => {
                        let silent: Vec<String> = silent.iter().map(ToString::to_string).collect();
                        let text = format!("no answer of shards {}", silent.join(", "));
                        Err(Failure::new(UNREACHABLE, text)
                            .hint("their files may have stale copies that are not counted")
                            .into())
                    }
                };
            }
            std::thread::sleep(FOLLOW);
        }
    }
}

impl StaleCounts {
    /// Asks all shards.
    pub(super) fn of(cell: &CellHandle, map: &ZoneMap) -> Self {
        let mut counts = Self::default();
        for shard in &map.shards {
            if count_of(cell, map, shard, &mut counts).is_none() {
                counts.silent.push(shard.id);
            }
        }
        counts
    }
}

/// The header of a request to a shard.
pub(super) fn header_for(cell: &CellHandle, shard: &Shard) -> Header {
    let mut header = Header::request(Service::Meta, cell.id);
    header.epoch = shard.epoch;
    header
}

/// Adds a shard's files; `None` where it does not answer.
fn count_of(
    cell: &CellHandle,
    map: &ZoneMap,
    shard: &Shard,
    counts: &mut StaleCounts,
) -> Option<()> {
    let mut after = Ino(0);
    loop {
        let target = TargetId(0);
        let request = MetaRequest::StaleFiles { target, after };
        let header = header_for(cell, shard);
        let reply = cell.call_shard(map, shard, header, &request).ok()?;
        let MetaReply::Files { files, next } = reply else {
            return None;
        };
        for (_ino, data) in files {
            counts.files += 1;
            let mut targets: BTreeSet<TargetId> = data.layout.stale.iter().copied().collect();
            let filled = data
                .layout
                .relocations()
                .filter(|of| of.state.is_filled_now());
            targets.extend(filled.filter_map(|of| {
                let set = map.set(of.set)?;
                set.slots.get(usize::from(of.slot)).map(|slot| slot.target)
            }));
            for target in targets {
                *counts.targets.entry(target).or_default() += 1;
            }
        }
        match next {
            Some(next) if next > after => after = next,
            _ => return Some(()),
        }
    }
}

/// The state of a target as recovery sees it.
fn state(map: &ZoneMap, target: TargetId, stale: u64) -> &'static str {
    let known = map.target_state(target);
    match (map.is_out(target), stale) {
        _ if known.is_none_or(is_moved) => known.map_or("removed", TargetState::word),
        (true, _) => "out",
        (false, 0) => "serving",
        (false, _) => "filling",
    }
}

/// True where the objects of a target move, or return, or have moved.
fn is_moved(state: TargetState) -> bool {
    !matches!(state, TargetState::Serving | TargetState::Offline)
}

/// True where the objects of a target move, or return.
fn is_moving(map: &ZoneMap) -> bool {
    let mut targets = map.targets.iter();
    targets.any(|of| of.state.is_moving())
}

fn print(map: &ZoneMap, counts: &StaleCounts, drains: &[DrainStatus]) {
    let shown = map.targets.iter().filter_map(|target| {
        let stale = counts.targets.get(&target.id).copied().unwrap_or(0);
        let state = state(map, target.id, stale);
        (state != "serving").then(|| {
            vec![
                target.id.to_string(),
                target.node.to_string(),
                state.to_owned(),
                stale.to_string(),
            ]
        })
    });
    let header = ["TARGET", "NODE", "STATE", "STALE FILES"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(shown);
    if rows.len() > 1 {
        console::table(&rows);
    }
    for drain in drains {
        let (target, text) = (drain.target, progress(drain));
        console::line(format_args!("target {target}: {text}"));
    }
    console::line(format_args!(
        "{} files have copies to be filled",
        match counts.files {
            0 => "no".to_owned(),
            files => files.to_string(),
        }
    ));
}

fn to_json(map: &ZoneMap, counts: &StaleCounts, drains: &[DrainStatus]) -> Value {
    let targets = map.targets.iter().map(|target| {
        let stale = counts.targets.get(&target.id).copied().unwrap_or(0);
        let drain = drains.iter().find(|drain| drain.target == target.id);
        json!({
            "target": target.id.0,
            "node": target.node.0,
            "state": state(map, target.id, stale),
            "stale_files": stale,
            "objects_left": drain.map(|drain| drain.filling),
            "objects_stuck": drain.map(|drain| drain.stuck),
            "objects_without_room": drain.map(|drain| drain.no_room),
            "seconds_left": drain.and_then(seconds_left),
        })
    });
    let silent = counts.silent.iter().map(|shard| shard.0);
    json!({
        "files": counts.files,
        "targets": targets.collect::<Vec<_>>(),
        "silent_shards": silent.collect::<Vec<_>>(),
    })
}
