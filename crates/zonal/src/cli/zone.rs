//! `zonal zone`: lists, adds, renames and drains zones, and serves without a lost one.

use super::drain::DrainArgs;
use super::edit_args::EditArgs;
use super::key;
use super::target_remove::edit_map;
use super::zone_fail_over::{FailBack, FailOver};
use crate::cell::connection::{CellArgs, CellHandle};
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, USAGE};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use zonal_types::ZoneId;
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::{MapEdit, Target, Zone, ZoneMap};

/// List, add and rename zones
#[derive(Debug, clap::Subcommand)]
pub enum ZoneCommand {
    /// List zones: names, nodes, metadata shards, targets and their capacity
    Ls {
        #[command(flatten)]
        cell: CellArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Add a zone without nodes
    ///
    /// Nodes add their zone themselves when they join; this reserves its name and number before.
    Add {
        #[command(flatten)]
        edit: EditArgs,
        /// Its name, or its number
        #[arg(value_name = "NAME|NUMBER")]
        zone: String,
        /// Its number [default: the lowest free one]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..i64::from(u16::MAX)))]
        id: Option<u16>,
    },
    /// Move all objects of a zone's targets to other targets
    ///
    /// As `zonal target drain`, for each of them. Objects stay in their zone: the last target of a
    /// zone cannot be drained.
    Drain {
        #[command(flatten)]
        drain: DrainArgs,
        /// The zone: its number or its name
        zone: String,
    },
    /// Take the targets of a lost zone out, and show what serves without them
    ///
    /// Files with a copy in another zone (`zonal layout set --also-zone`) are served there. The
    /// manager does the same by itself for each node that is down for some seconds. Refused where
    /// a node with a target of the zone answers.
    FailOver(FailOver),
    /// Show whether a zone that is back has all that it missed
    ///
    /// Its targets come back, and fill what they missed, by themselves.
    FailBack(FailBack),
    /// Give a zone another name
    ///
    /// No directory, file or node moves. Nodes whose node.toml has the old name keep their zone;
    /// new nodes need the new name.
    Rename {
        #[command(flatten)]
        edit: EditArgs,
        /// The zone: its number or its name
        zone: String,
        /// Its new name
        name: String,
    },
}

impl ZoneCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Ls { cell, json } => list(&cell.open()?.map()?, json),
            Self::Add { edit, zone, id } => add(&edit, &zone, id.map(ZoneId)),
            Self::Drain { drain, zone } => drain.run(|map| {
                let zone = zone_of(map, &zone)?.id;
                let of_zone = map.targets_by_zone();
                Ok(of_zone.get(&zone).cloned().unwrap_or_default())
            }),
            Self::FailOver(fail_over) => fail_over.run(),
            Self::FailBack(fail_back) => fail_back.run(),
            Self::Rename { edit, zone, name } => rename(&edit, &zone, &name),
        }
    }
}

/// The zone with this number or name.
pub fn zone_of<'m>(map: &'m ZoneMap, text: &str) -> anyhow::Result<&'m Zone> {
    let number = text.parse().ok().map(ZoneId);
    let mut zones = map.zones.iter();
    let found = match number {
        Some(number) => map.zone(number),
        None => zones.find(|zone| zone.name == text),
    };
    found.ok_or_else(|| {
        let failure = Failure::new(NOT_FOUND, format!("the cell has no zone {text}"));
        failure.hint("`zonal zone ls` shows the zones").into()
    })
}

fn add(args: &EditArgs, text: &str, id: Option<ZoneId>) -> anyhow::Result<()> {
    let number = text.parse().ok().map(ZoneId);
    if text.is_empty() {
        let failure = Failure::new(USAGE, "a zone's name is not empty");
        return Err(failure
            .hint("`zonal zone add NUMBER` names it zoneNUMBER")
            .into());
    }
    if let (Some(number), Some(id)) = (number, id)
        && number != id
    {
        let failure = Failure::new(USAGE, format!("the zone's number is {number} or {id}"));
        return Err(failure.hint("give a name with --id").into());
    }
    let (cell, map) = args.open()?;
    let name = match number {
        Some(_) => String::new(),
        None => text.to_owned(),
    };
    let zone = match id.or(number) {
        Some(zone) => zone,
        None => free_zone(&cell, &map)?,
    };
    let shown = match name.is_empty() {
        true => format!("zone{zone}"),
        false => name.clone(),
    };
    if args.previews(
        &map,
        &[format!("zone {zone} is added with the name {shown}")],
    ) {
        return Ok(());
    }
    edit_map(&cell, &map, MapEdit::AddZone { zone, name })?;
    console::line(format_args!(
        "zone {zone} {shown} is added; it has no node yet"
    ));
    Ok(())
}

/// The lowest number that neither the map nor the manager's table of subnets has.
fn free_zone(cell: &CellHandle, map: &ZoneMap) -> anyhow::Result<ZoneId> {
    let subnets = match key::ask(cell, &ManagerRequest::GetSubnets)? {
        ManagerReply::Subnets { subnets } => subnets,
        other => {
            let text = format!("the manager answers {}", other.name());
            return Err(Failure::new(FAILED, text).into());
        }
    };
    let named: BTreeSet<ZoneId> = subnets.iter().map(|subnet| subnet.zone).collect();
    let mut all = (1..u16::MAX).map(ZoneId);
    let free = all.find(|zone| map.zone(*zone).is_none() && !named.contains(zone));
    free.ok_or_else(|| Failure::new(FAILED, "no number is free for a new zone").into())
}

fn rename(args: &EditArgs, zone: &str, name: &str) -> anyhow::Result<()> {
    let (cell, map) = args.open()?;
    let known = zone_of(&map, zone)?;
    let (id, old) = (known.id, known.name.clone());
    let lines = [
        format!("zone {id} has the name {name} instead of {old}"),
        "nothing moves".to_owned(),
    ];
    if args.previews(&map, &lines) {
        return Ok(());
    }
    let name = name.to_owned();
    let edit = MapEdit::RenameZone { zone: id, name };
    let renamed = edit_map(&cell, &map, edit)?;
    let name = renamed.zone(id).map_or("", |zone| &zone.name);
    console::line(format_args!("zone {id} was {old} and is {name} now"));
    Ok(())
}

fn list(map: &ZoneMap, as_json: bool) -> anyhow::Result<()> {
    let nodes = |zone: ZoneId| map.nodes.iter().filter(move |node| node.zone == zone);
    let targets = |zone: ZoneId| -> Vec<&Target> {
        let is_in = |target: &&Target| map.node(target.node).map(|node| node.zone) == Some(zone);
        map.targets.iter().filter(is_in).collect()
    };
    let capacity = |zone| {
        targets(zone)
            .iter()
            .map(|target| target.capacity)
            .sum::<u64>()
    };
    if as_json {
        let zones: Vec<Value> = map
            .zones
            .iter()
            .map(|zone| {
                json!({
                    "id": zone.id.0,
                    "name": zone.name,
                    "nodes": nodes(zone.id).map(|node| node.id.0).collect::<Vec<_>>(),
                    "shards": map.shards_of_zone(zone.id).map(|shard| shard.id.0).collect::<Vec<_>>(),
                    "targets": targets(zone.id).iter().map(|target| target.id.0).collect::<Vec<_>>(),
                    "capacity_bytes": capacity(zone.id),
                })
            })
            .collect();
        let shown = json!({ "map_version": map.version.0, "zones": zones });
        console::json(format_args!("{shown:#}"));
        return Ok(());
    }
    let header = ["ZONE", "NAME", "NODES", "SHARDS", "TARGETS", "CAPACITY"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(map.zones.iter().map(|zone| {
        vec![
            zone.id.to_string(),
            zone.name.clone(),
            nodes(zone.id).count().to_string(),
            map.shards_of_zone(zone.id).count().to_string(),
            targets(zone.id).len().to_string(),
            zonal_basics::byte_size::rounded(capacity(zone.id)),
        ]
    }));
    console::table(&rows);
    Ok(())
}
