//! Streams: backups of metadata and exported objects.

use super::{entry, printer::Printer};
use crate::backup::format::{ENTRIES, Entries, MAP, SHARD, SHARD_END, ShardEnd, ShardStart};
use crate::transfer::format::{self, Lost, ObjectEnd, ObjectStart};
use anyhow::Context;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_disk::StoreKind;
use zonal_disk::stream::{Frame, StreamKind, StreamReader};
use zonal_types::describe::Described;
use zonal_types::{CellId, Codec};

const PART: &str = "stream";

/// Shows a stream.
pub fn show(path: &Path, printer: &mut Printer) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut reader = StreamReader::new(BufReader::with_capacity(1 << 20, file))
        .with_context(|| path.display().to_string())?;
    let header = *reader.header();
    let shown = Described::new(header.kind.name())
        .with("cell", CellId(header.cell).to_string())
        .with("made", header.made);
    printer.entry(PART, None, &shown);
    loop {
        let frame = match reader.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(()),
            Err(error) => {
                // Frames after a damaged one cannot be found.
                printer.damage(PART, None, &error.to_string());
                return Ok(());
            }
        };
        let at = format!("@{}", frame.offset);
        let done = match header.kind {
            StreamKind::Backup => backup(&frame, &at, printer),
            StreamKind::Objects => objects(&frame, &at, printer),
        };
        if done.is_none() {
            let text = format!("a frame of kind {} that cannot be decoded", frame.kind);
            printer.damage(PART, Some(at), &text);
        }
    }
}

fn objects(frame: &Frame, at: &str, printer: &mut Printer) -> Option<()> {
    let at = Some(at.to_owned());
    match frame.kind {
        format::OBJECT => {
            let start = ObjectStart::from_bytes(&frame.payload).ok()?;
            let shown = Described::new("object")
                .with("data_id", start.data_id.0)
                .with("column", start.column.0)
                .with("object_bytes", start.object_bytes)
                .with("truncate_seq", start.truncate_seq);
            printer.entry(PART, at, &shown);
        }
        format::DATA => {
            let (offset, bytes) = format::split_data(&frame.payload).ok()?;
            let shown = Described::new("data")
                .with("offset", offset)
                .with("bytes", bytes.len() as u64);
            printer.entry(PART, at, &shown);
        }
        format::LOST => {
            let lost = Lost::from_bytes(&frame.payload).ok()?;
            let shown = Described::new("lost")
                .with("offset", lost.offset)
                .with("bytes", lost.length)
                .with("detail", lost.detail);
            printer.entry(PART, at, &shown);
        }
        format::OBJECT_END => {
            let end = ObjectEnd::from_bytes(&frame.payload).ok()?;
            let shown = Described::new("end of the object").with("data_bytes", end.data_bytes);
            printer.entry(PART, at, &shown);
        }
        _ => return None,
    }
    Some(())
}

fn backup(frame: &Frame, at: &str, printer: &mut Printer) -> Option<()> {
    match frame.kind {
        MAP => {
            let map = zonal_zonemap::ZoneMap::decode(&frame.payload).ok()?;
            let shown = Described::new("zone map")
                .with("version", map.version.0)
                .with("cell", map.cell.to_string())
                .with("zones", map.zones.len() as u64)
                .with("nodes", map.nodes.len() as u64)
                .with("targets", map.targets.len() as u64)
                .with("shards", map.shards.len() as u64)
                .with("sets", map.sets.len() as u64);
            printer.entry(PART, Some(at.to_owned()), &shown);
        }
        SHARD => {
            let start = ShardStart::from_bytes(&frame.payload).ok()?;
            let shown = Described::new("shard")
                .with("shard", start.shard.0)
                .with("node", start.node.0)
                .with("epoch", start.epoch.0)
                .with("position", start.position)
                .with("map_version", start.map_version.0);
            printer.entry(PART, Some(at.to_owned()), &shown);
        }
        ENTRIES => {
            for (key, value) in Entries::from_bytes(&frame.payload).ok()? {
                let at = Some(format!("{at} {}", to_hex(&key.0)));
                match entry(Some(StoreKind::Manager), &key.0, &value.0) {
                    Some(shown) => printer.entry(PART, at, &shown),
                    None => printer.damage(PART, at, "cannot be decoded"),
                }
            }
        }
        SHARD_END => {
            let end = ShardEnd::from_bytes(&frame.payload).ok()?;
            let shown = Described::new("end of the shard").with("entries", end.entries);
            printer.entry(PART, Some(at.to_owned()), &shown);
        }
        _ => return None,
    }
    Some(())
}
