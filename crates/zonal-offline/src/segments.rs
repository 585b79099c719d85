//! Reads a target's segment files without changing anything.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zonal_basics::to_usize;
use zonal_disk::Record;
use zonal_object::ids::BLOCK;
use zonal_object::{TargetConfig, replay_checks};

/// The segments of a target. A file is opened at its first use.
pub(crate) struct Segments {
    dir: PathBuf,
    files: BTreeMap<u32, Option<File>>,
}

impl Segments {
    pub fn new(target: &Path) -> Self {
        Self {
            dir: target.join("segments"),
            files: BTreeMap::new(),
        }
    }

    /// The path of a segment.
    pub fn path(&self, segment: u32) -> PathBuf {
        self.dir.join(format!("seg.{segment:08}"))
    }

    /// Reads the block at `offset`; returns it with its crc32c, or `None` where it cannot be read.
    pub fn block(&mut self, segment: u32, offset: u64) -> Option<(Vec<u8>, u32)> {
        let mut bytes = vec![0; to_usize(BLOCK)];
        self.read(segment, offset, &mut bytes)?;
        let crc = crc_fast::crc32_iscsi(&bytes);
        Some((bytes, crc))
    }

    /// Fills `bytes` from `offset`; `None` where they cannot be read.
    pub fn read(&mut self, segment: u32, offset: u64, bytes: &mut [u8]) -> Option<()> {
        if !self.files.contains_key(&segment) {
            let path = self.path(segment);
            // Opening a pipe would block for ever.
            let is_file = std::fs::metadata(&path).is_ok_and(|found| found.is_file());
            let file = if is_file { File::open(path).ok() } else { None };
            self.files.insert(segment, file);
        }
        let file = self.files.get(&segment)?.as_ref()?;
        file.read_exact_at(bytes, offset).ok()
    }

    /// Whether all bytes that a record of the log brought into segments are there.
    pub fn has_arrived(&mut self, config: &TargetConfig, record: &Record) -> bool {
        let record = zonal_object::EffectRecord {
            changes: record.changes.clone(),
            note: record.note.clone(),
        };
        let Ok(checks) = replay_checks(config, &record) else {
            return true;
        };
        checks.iter().all(|check| {
            self.block(check.place.segment, check.place.offset())
                .is_some_and(|(_, crc)| crc == check.crc)
        })
    }
}

/// Replays the log at the opening of a target's store: drops the first record whose bytes did not
/// arrive, and all behind it; keeps notes.
pub(crate) struct TargetReplay {
    config: TargetConfig,
    segments: Segments,
    dropped: bool,
    pub notes: Vec<Vec<u8>>,
}

impl TargetReplay {
    pub fn new(dir: &Path, config: TargetConfig) -> Self {
        Self {
            config,
            segments: Segments::new(dir),
            dropped: false,
            notes: Vec::new(),
        }
    }

    pub fn take(&mut self, record: &Record, synced: bool) -> bool {
        if self.dropped || (!synced && !self.segments.has_arrived(&self.config, record)) {
            self.dropped = true;
            return false;
        }
        self.notes.push(record.note.clone());
        true
    }
}
