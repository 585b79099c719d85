//! The used part of each segment file, from the index's records, compared with the files present.

use super::printer::Printer;
use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;
use zonal_object::TargetConfig;
use zonal_object::chunk::Chunk;
use zonal_object::ids::{BLOCK, CHUNK_BLOCKS};
use zonal_object::key::{self, IndexKey};
use zonal_types::describe::Described;

const PART: &str = "segments";
const ANY: TargetConfig = TargetConfig {
    segment_units: u32::MAX,
    segments: u32::MAX,
    pending_blocks_max: 0,
};

/// The number in the name of a segment's file.
pub fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("seg.")?;
    digits.parse().ok()
}

/// Shows the objects, blocks and units that an entry of the index keeps in a segment.
pub fn owners(segment: u32, key: &[u8], value: &[u8], printer: &mut Printer) {
    let (Ok(IndexKey::Chunk(object, chunk)), Ok(stored)) =
        (key::parse(key), Chunk::decode(&ANY, key, value))
    else {
        return;
    };
    let runs = stored.runs();
    for (first, count, place) in runs.into_iter().filter(|run| run.2.segment == segment) {
        let shown = Described::new("units of an object")
            .with("units", u64::from(count))
            .with("data_id", object.data_id.0)
            .with("column", object.column.0)
            .with("offset", (chunk * CHUNK_BLOCKS + u64::from(first)) * BLOCK);
        printer.entry(PART, Some(place.unit.to_string()), &shown);
    }
}

#[derive(Default)]
struct Used {
    units: u64,
    /// One past the last used unit.
    end: u64,
}

/// Counts the units in use during a walk of the index; memory grows with segments, not objects.
#[derive(Default)]
pub struct SegmentUsage {
    used: BTreeMap<u32, Used>,
}

impl SegmentUsage {
    /// Adds an entry of the index.
    pub fn take(&mut self, key: &[u8], value: &[u8]) {
        if !matches!(key::parse(key), Ok(IndexKey::Chunk(..))) {
            return;
        }
        let Ok(chunk) = Chunk::decode(&ANY, key, value) else {
            return;
        };
        for (_, place) in chunk.placed() {
            let used = self.used.entry(place.segment).or_default();
            used.units += 1;
            used.end = used.end.max(u64::from(place.unit) + 1);
        }
    }

    /// Shows each segment that is in use or has a file.
    pub fn show(mut self, dir: &Path, printer: &mut Printer) -> anyhow::Result<()> {
        let mut files = BTreeMap::new();
        let entries = match std::fs::read_dir(dir.join("segments")) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).context("segments"),
        };
        for file in entries.into_iter().flatten() {
            let file = file.context("segments")?;
            let name = file.file_name().to_string_lossy().into_owned();
            let Some(number) = number_of(&name) else {
                printer.damage(PART, Some(name), "not a segment's file");
                continue;
            };
            files.insert(number, file.metadata().context("segments")?.len());
            self.used.entry(number).or_default();
        }
        for (number, used) in &self.used {
            let at = Some(number.to_string());
            let Some(bytes) = files.get(number) else {
                printer.damage(
                    PART,
                    at,
                    &format!("the file is missing; {} units are used", used.units),
                );
                continue;
            };
            if used.end * BLOCK > *bytes {
                let text = format!("{bytes} bytes long, used to byte {}", used.end * BLOCK);
                printer.damage(PART, at, &text);
                continue;
            }
            let shown = Described::new("segment")
                .with("bytes", *bytes)
                .with("used_bytes", used.units * BLOCK)
                .with("used_to", used.end * BLOCK);
            printer.entry(PART, at, &shown);
        }
        Ok(())
    }
}
