//! `zonal shard add`: has a zone take one shard more.

use crate::cell::connection::CellHandle;
use crate::console;
use crate::exit::{Failure, NOT_FOUND, REFUSED};
use serde_json::json;
use zonal_types::ZoneId;
use zonal_types::limits::SHARDS_PER_ZONE_MAX;
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::ZoneMap;

/// Shards that a zone is to have, and shards that it has.
fn want(cell: &CellHandle, zone: ZoneId, shards: u16) -> anyhow::Result<(u16, u16)> {
    match cell.ask_manager(&ManagerRequest::WantShards { zone, shards })? {
        ManagerReply::ShardCount { wanted, present } => Ok((wanted, present)),
        other => anyhow::bail!("the manager answers {}", other.name()),
    }
}

/// Number and name of a zone.
fn name_of(map: &ZoneMap, zone: ZoneId) -> String {
    map.zone(zone).map_or_else(
        || zone.to_string(),
        |zone| format!("{} ({})", zone.id, zone.name),
    )
}

/// Has a zone take one shard more than it has.
pub fn add(cell: &CellHandle, zone: ZoneId, as_json: bool) -> anyhow::Result<()> {
    let map = cell.map()?;
    if map.zone(zone).is_none() {
        let failure = Failure::new(NOT_FOUND, format!("the cell has no zone {zone}"));
        return Err(failure.hint("`zonal zone-map show` lists zones").into());
    }
    let hint =
        "start a server with `[meta]` and a new node number in this zone; it takes the shard";
    let (wanted, present) = want(cell, zone, 0)?;
    if wanted > present {
        let text = format!(
            "zone {} waits for a server already: it has {present} of {wanted} shards",
            name_of(&map, zone)
        );
        return Err(Failure::new(REFUSED, text).hint(hint).into());
    }
    if usize::from(wanted) >= SHARDS_PER_ZONE_MAX {
        let text = format!(
            "zone {} has {wanted} shards, and can have no more",
            name_of(&map, zone)
        );
        return Err(Failure::new(REFUSED, text).into());
    }
    let (wanted, present) = want(cell, zone, wanted + 1)?;
    if as_json {
        let shown = json!({ "zone": zone.0, "wanted": wanted, "present": present });
        console::json(format_args!("{shown}"));
        return Ok(());
    }
    console::line(format_args!(
        "zone {} is to have {wanted} shards, and has {present}; {hint}",
        name_of(&map, zone)
    ));
    Ok(())
}
