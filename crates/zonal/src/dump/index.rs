//! The ordered store: index and log together, as an opening sees it.

use super::segments::{self, SegmentUsage};
use super::{StorePart, entry, printer::Printer};
use crate::exit::{Failure, REFUSED};
use anyhow::Context;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_disk::identity::{self, Stored};
use zonal_disk::{IndexItem, ReadStore, StoreKind};
use zonal_types::describe::Described;

const PART: &str = "index";

/// Shows the entries whose keys begin with `prefix`.
pub fn show(
    dir: &Path,
    stored: Option<&Stored>,
    part: Option<StorePart>,
    prefix: &[u8],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let Some(stored) = stored else {
        if part.is_some() {
            let text = "without an identity the owner of the index is unknown";
            return Err(Failure::new(REFUSED, text).into());
        }
        return Ok(());
    };
    let kind = stored.identity.kind;
    let opened = ReadStore::open(dir, &stored.identity, &mut |_, _, _| true);
    let opened = opened.with_context(|| dir.display().to_string())?;
    for damage in opened.damage() {
        printer.damage(PART, None, &damage.to_string());
    }
    let wants = |wanted: StorePart| part.is_none_or(|part| part == wanted);
    if wants(StorePart::Map) && kind == StoreKind::Manager {
        map(&opened, printer);
    }
    let mut segments =
        (wants(StorePart::Segments) && kind == StoreKind::Target).then(SegmentUsage::default);
    let with_entries = wants(StorePart::Index);
    let end = behind(prefix);
    let start = if segments.is_some() { &[][..] } else { prefix };
    let stop = if segments.is_some() {
        None
    } else {
        end.as_deref()
    };
    opened.walk(start, stop, &mut |found| {
        let is_wanted = |key: &[u8]| with_entries && key.starts_with(prefix);
        match found {
            IndexItem::Entry(key, value) => {
                if let Some(segments) = &mut segments {
                    segments.take(key, value);
                }
                if is_wanted(key) {
                    one(kind, key, value, printer);
                }
            }
            IndexItem::BadEntry { key } if is_wanted(key) => {
                printer.damage(PART, Some(to_hex(key)), "key or value fails its checksum");
            }
            IndexItem::BadEntry { .. } => {}
            IndexItem::BadPage {
                offset,
                depth,
                above,
                upto,
            } => {
                let upto = upto.map_or("the end".to_owned(), to_hex);
                let text = format!(
                    "a page at depth {depth} cannot be used: keys above {} up to {upto} may be missing",
                    to_hex(above)
                );
                printer.damage(PART, Some(format!("@{offset}")), &text);
            }
            IndexItem::Mended { offset } => {
                let text = "a page with one flipped bit; its repaired contents are shown";
                printer.damage(PART, Some(format!("@{offset}")), text);
            }
        }
        segments.is_some() || !with_entries || printer.wants(PART)
    });
    if let Some(segments) = segments {
        segments.show(dir, printer)?;
    }
    Ok(())
}

/// Shows the owners of the units of a segment of the target in `dir`.
pub fn segment(dir: &Path, number: u32, printer: &mut Printer) -> anyhow::Result<()> {
    let stored = identity::load(dir).with_context(|| dir.display().to_string())?;
    let Some(stored) = stored.filter(|stored| stored.identity.kind == StoreKind::Target) else {
        let text = format!("{} is no target", dir.display());
        return Err(Failure::new(REFUSED, text).into());
    };
    let opened = ReadStore::open(dir, &stored.identity, &mut |_, _, _| true)
        .with_context(|| dir.display().to_string())?;
    for damage in opened.damage() {
        printer.damage(PART, None, &damage.to_string());
    }
    opened.walk(&[], None, &mut |found| {
        if let IndexItem::Entry(key, value) = found {
            segments::owners(number, key, value, printer);
        }
        true
    });
    Ok(())
}

/// The first key after all that begin with `prefix`.
fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

fn one(kind: StoreKind, key: &[u8], value: &[u8], printer: &mut Printer) {
    let at = Some(to_hex(key));
    match entry(Some(kind), key, value) {
        Some(described) => printer.entry(PART, at, &described),
        None => {
            let text = format!(
                "cannot be decoded, {} bytes: {}",
                value.len(),
                to_hex(value)
            );
            printer.damage(PART, at, &text);
        }
    }
}

/// The zone map in full.
fn map(store: &ReadStore, printer: &mut Printer) {
    match zonal_zonemap::ZoneMap::load(store) {
        Ok(None) => {}
        Ok(Some(map)) => {
            for zone in &map.zones {
                let shown = Described::new("zone")
                    .with("zone", zone.id.0)
                    .with("name", zone.name.as_str());
                printer.entry("map", None, &shown);
            }
            for node in &map.nodes {
                let shown = Described::new("node")
                    .with("node", node.id.0)
                    .with("zone", node.zone.0)
                    .with("address", node.address.as_str());
                printer.entry("map", None, &shown);
            }
            for shard in &map.shards {
                let shown = Described::new("shard")
                    .with("shard", shard.id.0)
                    .with("zone", shard.zone.0)
                    .with("node", shard.node.0)
                    .with("epoch", shard.epoch.0);
                printer.entry("map", None, &shown);
            }
            for target in &map.targets {
                let shown = Described::new("target")
                    .with("target", target.id.0)
                    .with("node", target.node.0)
                    .with("uuid", to_hex(&target.uuid))
                    .with("capacity", target.capacity)
                    .with("state", target.state.name());
                printer.entry("map", None, &shown);
            }
            for range in &map.partitions {
                let shown = Described::new("partitions")
                    .with("first", range.first.0)
                    .with("count", range.count)
                    .with("shard", range.shard.0);
                printer.entry("map", None, &shown);
            }
            for set in &map.sets {
                let slots = set
                    .slots
                    .iter()
                    .map(|slot| format!("target {} epoch {}", slot.target, slot.slot_epoch));
                let slots: zonal_types::describe::Field = slots.collect();
                let shown = Described::new("stripe set")
                    .with("set", set.id.0)
                    .with("zone", set.zone.0)
                    .with("open", u64::from(set.is_open))
                    .with("slots", slots);
                printer.entry("map", None, &shown);
            }
            for found in map.check() {
                printer.damage("map", None, &found);
            }
        }
        Err(code) => printer.damage("map", None, code.text()),
    }
}
