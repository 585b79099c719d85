//! `zonal rebalance`: evens out the fill of the targets of a zone. The leading manager does it;
//! this command begins it, follows it, and cancels it.

use crate::cell::connection::CellHandle;
use crate::cell::node_status::{TargetCapacity, look_at_all};
use crate::cli::drain::{drains_of, progress, seconds_left};
use crate::cli::edit_args::EditArgs;
use crate::cli::target_remove::{edit_map_as_planned, outdated};
use crate::cli::zone::zone_of;
use crate::console;
use crate::exit::{Failure, NOT_FOUND, UNREACHABLE};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use zonal_types::{TargetId, ZoneId};
use zonal_wire::DrainStatus;
use zonal_zonemap::{MapEdit, Target, TargetState, ZoneMap};

/// Time between two looks.
const FOLLOW: Duration = Duration::from_secs(1);
/// Most plans of one command, where the map changes meanwhile.
const PLANS_MAX: u32 = 8;
/// Ten-thousandths of a percent.
const OF_PERCENT: u64 = 100;
/// All of a capacity, in ten-thousandths.
const ALL: u64 = 10_000;

/// Even out the fill of a zone's targets
///
/// Targets that are fuller than the mean of their zone give objects to those that are less full.
/// It ends where the fullest and the emptiest differ by less than `--within`. Files stay in use.
/// The leading manager does it, also after this command has ended. Copies stay on different nodes.
#[derive(Debug, clap::Args)]
pub struct Rebalance {
    #[command(flatten)]
    edit: EditArgs,
    /// Only this zone: its number or its name
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// Do nothing where the fill of all targets differs by less
    #[arg(long, value_name = "PERCENT", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=50))]
    within: u64,
    /// Look each second until it has ended
    #[arg(long, conflicts_with = "preview")]
    follow: bool,
    /// End it: objects that have moved stay where they are, others stay where they were
    #[arg(long)]
    cancel: bool,
    /// As JSON, one object for each look
    #[arg(long, requires = "follow")]
    json: bool,
}

/// Space of targets by their number.
type Spaces = BTreeMap<TargetId, TargetCapacity>;

impl Rebalance {
    pub fn run(self) -> anyhow::Result<()> {
        let (cell, mut map) = self.edit.open()?;
        let zones: Vec<ZoneId> = match &self.zone {
            Some(zone) => vec![zone_of(&map, zone)?.id],
            None => map.zones.iter().map(|zone| zone.id).collect(),
        };
        let mut tries = 0;
        let lines = loop {
            let (edits, lines) = self.plan(&cell, &map, &zones)?;
            if self.edit.previews(&map, &lines) {
                return Ok(());
            }
            if edits.is_empty() {
                break lines;
            }
            tries += 1;
            match edit_map_as_planned(&cell, &map, &edits)? {
                Ok(_newer) => break lines,
                // `--expect` is about one version: no other plan was looked at.
                Err(refusal) if tries >= PLANS_MAX || self.edit.expect.is_some() => {
                    return Err(outdated(&refusal));
                }
                Err(_outdated) => map = cell.map()?,
            }
        };
        match self.follow {
            true => follow(&cell, &zones, self.json),
            false => {
                lines.iter().for_each(console::line);
                Ok(())
            }
        }
    }

    /// The edits of the map, and what is to be said of them.
    fn plan(
        &self,
        cell: &CellHandle,
        map: &ZoneMap,
        zones: &[ZoneId],
    ) -> anyhow::Result<(Vec<MapEdit>, Vec<String>)> {
        let mut plans = Vec::new();
        let mut lines = Vec::new();
        if self.cancel {
            for target in shedding(map, zones) {
                lines.push(format!("target {} keeps its objects", target.id));
                plans.push((target.id, TargetState::Serving));
            }
            if plans.is_empty() {
                return Err(Failure::new(NOT_FOUND, "nothing is rebalanced").into());
            }
        } else {
            let spaces = spaces(cell, map);
            for zone in zones {
                let (found, line) = plan(map, *zone, &spaces, self.within)?;
                plans.extend(found);
                lines.push(line);
            }
        }
        let edit = |(target, state)| MapEdit::UseTarget { target, state };
        Ok((plans.into_iter().map(edit).collect(), lines))
    }
}

fn spaces(cell: &CellHandle, map: &ZoneMap) -> Spaces {
    let all = look_at_all(cell, map).into_iter();
    let targets = all.flat_map(|node| node.targets);
    targets
        .filter_map(|(target, space)| Some((target, space?)))
        .collect()
}

fn zone_of_target(map: &ZoneMap, target: &Target) -> Option<ZoneId> {
    Some(map.node(target.node)?.zone)
}

fn shedding<'m>(map: &'m ZoneMap, zones: &[ZoneId]) -> impl Iterator<Item = &'m Target> {
    map.targets.iter().filter(|target| {
        let zone = zone_of_target(map, target);
        target.state.is_shedding() && zone.is_some_and(|zone| zones.contains(&zone))
    })
}

/// The states of targets that give objects away, and what is to be said of the zone.
fn plan(
    map: &ZoneMap,
    zone: ZoneId,
    spaces: &Spaces,
    within: u64,
) -> anyhow::Result<(Vec<(TargetId, TargetState)>, String)> {
    let own = map.targets.iter().filter(|target| {
        zone_of_target(map, target) == Some(zone)
            && target.state.takes_files()
            && !map.is_out(target.id)
    });
    let mut fills = Vec::new();
    let (mut used, mut total) = (0_u128, 0_u128);
    for target in own {
        let Some(space) = spaces.get(&target.id) else {
            let text = format!("target {} does not tell its space", target.id);
            return Err(Failure::new(UNREACHABLE, text).into());
        };
        let own = space.total_bytes.saturating_sub(space.free_bytes);
        used += u128::from(own);
        total += u128::from(space.total_bytes);
        fills.push((target.id, fill(own.into(), space.total_bytes.into())));
    }
    let least = fills.iter().map(|(_, fill)| *fill).min().unwrap_or(0);
    let most = fills.iter().map(|(_, fill)| *fill).max().unwrap_or(0);
    if most - least <= within * OF_PERCENT {
        let (least, most) = (percent(least), percent(most));
        let line = format!("zone {zone}: targets are {least} to {most} full, which is even");
        return Ok((Vec::new(), line));
    }
    let mean = fill(used, total);
    let state = TargetState::Shedding {
        salt: u32::try_from(map.version.0 & u64::from(u32::MAX)).unwrap_or(0),
        is_ending: false,
    };
    let full = fills.into_iter().filter(|(_, fill)| *fill > mean);
    let plans: Vec<_> = full.map(|(target, _)| (target, state)).collect();
    let line = format!(
        "zone {zone}: targets are {} to {} full; {} of them give objects away until they are {} full",
        percent(least),
        percent(most),
        plans.len(),
        percent(mean)
    );
    Ok((plans, line))
}

fn fill(used: u128, total: u128) -> u64 {
    let part = used * u128::from(ALL) / total.max(1);
    u64::try_from(part).unwrap_or(ALL).min(ALL)
}

fn percent(fill: u64) -> String {
    format!("{}.{} %", fill / OF_PERCENT, fill % OF_PERCENT / 10)
}

fn follow(cell: &CellHandle, zones: &[ZoneId], as_json: bool) -> anyhow::Result<()> {
    loop {
        let map = cell.map()?;
        let drains = drains_of(cell)?;
        match as_json {
            true => console::json(to_json(&map, &drains, zones)),
            false => print(&map, &drains, zones),
        }
        if shedding(&map, zones).next().is_none() {
            return Ok(());
        }
        std::thread::sleep(FOLLOW);
    }
}

fn print(map: &ZoneMap, drains: &[DrainStatus], zones: &[ZoneId]) {
    let mut is_over = true;
    for target in shedding(map, zones) {
        is_over = false;
        let drain = drains.iter().find(|drain| drain.target == target.id);
        let text = drain.map_or_else(|| "begins".to_owned(), progress);
        console::line(format_args!("target {}: {text}", target.id));
    }
    if is_over {
        console::line("nothing is left to move");
    }
}

fn to_json(map: &ZoneMap, drains: &[DrainStatus], zones: &[ZoneId]) -> Value {
    let targets = shedding(map, zones).map(|target| {
        let drain = drains.iter().find(|drain| drain.target == target.id);
        json!({
            "target": target.id.0,
            "objects_left": drain.map(|drain| drain.filling),
            "seconds_left": drain.and_then(seconds_left),
        })
    });
    json!({ "targets": targets.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_is_told_in_percent() {
        assert_eq!(fill(1, 8), 1_250);
        assert_eq!(percent(1_250), "12.5 %");
        assert_eq!(fill(0, 0), 0);
    }
}
