//! Export of objects to a stream. Damaged ranges are reported and left out; the rest is exported.

use super::format::{DATA, LOST, Lost, OBJECT, OBJECT_END, ObjectEnd, ObjectStart, data};
use super::source::{ObjectSource, ReadPiece, each, id};
use crate::atomic_file::write_whole;
use crate::backup::wall_seconds;
use crate::exit::{Failure, NOT_FOUND};
use crate::progress::ProgressMeter;
use anyhow::Context;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use zonal_disk::stream::{StreamHeader, StreamKind, StreamWriter};
use zonal_object::ObjectId;
use zonal_types::Codec;
use zonal_types::limits::BLOCK_BYTES;
use zonal_wire::ObjectEntry;

/// Bytes in one read.
const PIECE: u32 = 1 << 20;
const BLOCK: u32 = zonal_basics::const_u32(BLOCK_BYTES as u64);

/// Totals of an export.
#[derive(Default)]
pub struct ExportSummary {
    pub objects: u64,
    pub data_bytes: u64,
    /// Damaged bytes, and their ranges by object.
    pub lost_bytes: u64,
    pub damaged: Vec<(ObjectId, Lost)>,
    /// Length of the stream, in bytes.
    pub bytes: u64,
}

/// Most damaged ranges that are kept by name.
const NAMED_MAX: usize = 10_000;

/// Writes the objects in `only`, or all, to `path`, whole or not at all.
pub fn export(
    source: &mut dyn ObjectSource,
    cell: [u8; 16],
    only: &[ObjectId],
    path: &Path,
    progress: &mut ProgressMeter,
) -> anyhow::Result<ExportSummary> {
    write_whole(path, |file| write(source, cell, only, file, progress))
}

fn write(
    source: &mut dyn ObjectSource,
    cell: [u8; 16],
    only: &[ObjectId],
    file: File,
    progress: &mut ProgressMeter,
) -> anyhow::Result<ExportSummary> {
    let header = StreamHeader {
        kind: StreamKind::Objects,
        cell,
        target: Some(source.target().0),
        made: wall_seconds(),
    };
    let mut out = StreamWriter::new(BufWriter::with_capacity(1 << 20, file), &header)?;
    let mut exported = ExportSummary::default();
    let mut missing: BTreeSet<ObjectId> = only.iter().copied().collect();
    each(source, only, &mut |source, entry| {
        missing.remove(&id(&entry));
        object(source, &entry, &mut out, &mut exported)?;
        progress.at(exported.objects, out.bytes());
        Ok(())
    })?;
    if let Some(object) = missing.first() {
        let text = format!(
            "the target has no object {object}{}; nothing was written",
            match missing.len() {
                1 => String::new(),
                more => format!(", nor {} others of those named", more - 1),
            }
        );
        let hint = "`zonal target ls` lists its objects";
        return Err(Failure::new(NOT_FOUND, text).hint(hint).into());
    }
    let bytes = out.bytes();
    let file = out.finish()?.into_inner().context("write the stream")?;
    file.sync_all().context("flush the stream")?;
    exported.bytes = bytes;
    Ok(exported)
}

type Out = StreamWriter<BufWriter<File>>;

fn object(
    source: &mut dyn ObjectSource,
    entry: &ObjectEntry,
    out: &mut Out,
    exported: &mut ExportSummary,
) -> anyhow::Result<()> {
    let start = ObjectStart {
        data_id: entry.data_id,
        column: entry.column,
        object_bytes: entry.object_bytes,
        truncate_seq: entry.truncate_seq,
    };
    out.frame(OBJECT, &start.to_bytes())?;
    exported.objects += 1;
    let object = id(entry);
    let before = exported.data_bytes;
    let mut offset = 0;
    loop {
        let (ranges, end) = source.ranges(object, offset)?;
        for (start, length) in &ranges {
            let stop = start.saturating_add(*length).min(entry.object_bytes);
            range(source, object, *start, stop, out, exported)?;
            offset = start.saturating_add(*length);
        }
        if end || ranges.is_empty() {
            break;
        }
    }
    let end = ObjectEnd {
        data_bytes: exported.data_bytes - before,
    };
    out.frame(OBJECT_END, &end.to_bytes())?;
    Ok(())
}

/// Reads a range in pieces of 1 MiB, and a damaged piece block by block.
fn range(
    source: &mut dyn ObjectSource,
    object: ObjectId,
    start: u64,
    end: u64,
    out: &mut Out,
    exported: &mut ExportSummary,
) -> anyhow::Result<()> {
    let mut at = start;
    let mut small_to = 0;
    while at < end {
        let step = if at < small_to { BLOCK } else { PIECE };
        // Up to the next multiple, so that reads are aligned to blocks.
        let step = u64::from(step) - at % u64::from(step);
        let length = step.min(end - at);
        let wanted = u32::try_from(length).unwrap_or(PIECE);
        match source.read(object, at, wanted)? {
            ReadPiece::Bytes(bytes) if bytes.is_empty() => return Ok(()),
            ReadPiece::Bytes(bytes) => {
                out.frame(DATA, &data(at, &bytes))?;
                exported.data_bytes += bytes.len() as u64;
                at += bytes.len() as u64;
            }
            ReadPiece::Damaged(_) if wanted > BLOCK => small_to = at + length,
            ReadPiece::Damaged(detail) => {
                let lost = Lost {
                    offset: at,
                    length,
                    detail,
                };
                out.frame(LOST, &lost.to_bytes())?;
                exported.lost_bytes += length;
                if exported.damaged.len() < NAMED_MAX {
                    exported.damaged.push((object, lost));
                }
                at += length;
            }
        }
    }
    Ok(())
}
