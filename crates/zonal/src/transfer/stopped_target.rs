//! The store of a stopped target, opened read-only; its server may be gone for good.

use super::source::{ObjectSource, ReadPiece};
use crate::exit::{FAILED, Failure, NOT_FOUND, REFUSED};
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use zonal_disk::{DiskError, ReadStore, StoreKind, identity, trusted_paths};
use zonal_object::ids::BLOCK;
use zonal_object::{ObjectId, ReadPlan, StorageTarget, TargetConfig, Truncation, index_walk};
use zonal_types::limits::OBJECTS_LISTED_MAX;
use zonal_types::{ErrorCode, TargetId};
use zonal_wire::ObjectEntry;

/// Ranges in one search.
const RANGES: usize = 1024;

/// A stopped target.
pub struct StoppedTarget {
    dir: PathBuf,
    store: ReadStore,
    target: StorageTarget,
    cell: [u8; 16],
    id: TargetId,
    files: BTreeMap<u32, File>,
}

fn damaged(dir: &Path, code: ErrorCode) -> anyhow::Error {
    let text = format!(
        "the index in {} cannot be read whole: {code}",
        dir.display()
    );
    Failure::new(FAILED, text)
        .hint("`zonal dump` shows the readable part, `zonal fsck --repair` rebuilds as much as possible")
        .into()
}

/// Units of a segment, from the target's record or else from the length of its first segment file.
fn segment_units(dir: &Path, store: &ReadStore) -> anyhow::Result<u32> {
    let known = index_walk::segment_units(store).map_err(|code| damaged(dir, code))?;
    if let Some(units) = known {
        return Ok(units);
    }
    let length = std::fs::read_dir(dir.join("segments"))
        .ok()
        .and_then(|mut files| files.next()?.ok()?.metadata().ok())
        .map_or(BLOCK, |metadata| metadata.len());
    Ok(u32::try_from(length / BLOCK).unwrap_or(u32::MAX).max(1))
}

impl StoppedTarget {
    /// Opens the store in `dir`, a target's folder (with `identity`, `log` and so on).
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        trusted_paths::open(dir)?;
        let stored = identity::load(dir).with_context(|| dir.display().to_string())?;
        let stored = stored.ok_or_else(|| {
            Failure::new(NOT_FOUND, format!("{} holds no store", dir.display()))
                .hint("name the folder with `identity`, `log`, `index.redb` and `segments`")
        })?;
        if stored.identity.kind != StoreKind::Target {
            let text = format!("{} is that of a {}", dir.display(), stored.identity.kind);
            return Err(Failure::new(REFUSED, text).into());
        }
        let mut notes = Vec::new();
        let store = ReadStore::open(dir, &stored.identity, &mut |record, _lsn, _synced| {
            notes.push(record.note.clone());
            true
        });
        let store = store.with_context(|| dir.display().to_string())?;
        if let Some(damage) = store.damage().first() {
            crate::console::note(format_args!("{}: {damage}", dir.display()));
        }
        let config = TargetConfig {
            segment_units: segment_units(dir, &store)?,
            segments: u32::MAX,
            pending_blocks_max: usize::MAX,
        };
        let target = StorageTarget::open(config, &store, notes.iter().map(Vec::as_slice))
            .map_err(|code| damaged(dir, code))?;
        Ok(Self {
            dir: dir.to_owned(),
            store,
            target,
            cell: stored.identity.cell,
            id: TargetId(stored.identity.id),
            files: BTreeMap::new(),
        })
    }

    /// The cell that the target belongs to.
    pub fn cell(&self) -> [u8; 16] {
        self.cell
    }

    fn file(&mut self, segment: u32) -> Result<&File, DiskError> {
        if !self.files.contains_key(&segment) {
            let path = self.dir.join("segments").join(format!("seg.{segment:08}"));
            let file = File::open(path)
                .map_err(|error| DiskError::io(format!("segment {segment}"), error))?;
            self.files.insert(segment, file);
        }
        let found = self.files.get(&segment);
        found.ok_or_else(|| DiskError::Range(format!("segment {segment}")))
    }

    fn fill(&mut self, plan: &ReadPlan, buffer: &mut [u8]) -> Result<(), DiskError> {
        for read in plan.reads() {
            let file = self.file(read.segment)?;
            let Some(part) = buffer.get_mut(read.buffer) else {
                return Err(DiskError::Range("a read past its buffer".into()));
            };
            file.read_exact_at(part, read.offset)
                .map_err(|error| DiskError::io(format!("segment {}", read.segment), error))?;
        }
        Ok(())
    }
}

impl ObjectSource for StoppedTarget {
    fn target(&self) -> TargetId {
        self.id
    }

    fn list(&mut self, after: Option<ObjectId>) -> anyhow::Result<(Vec<ObjectEntry>, bool)> {
        let (found, end) = index_walk::objects(&self.store, after, OBJECTS_LISTED_MAX)
            .map_err(|code| damaged(&self.dir, code))?;
        let entries = found.into_iter().map(|listed| ObjectEntry {
            data_id: listed.object.data_id,
            column: listed.object.column,
            object_bytes: listed.stat.object_bytes,
            allocated: listed.stat.allocated,
            truncate_seq: listed.stat.truncate_seq,
            order: listed.order,
            digest: None,
        });
        Ok((entries.collect(), end))
    }

    fn ranges(&mut self, object: ObjectId, offset: u64) -> anyhow::Result<(Vec<(u64, u64)>, bool)> {
        let truncation = Truncation::default();
        let map = self
            .target
            .map(&self.store, object, truncation, offset, u64::MAX, RANGES)
            .map_err(|code| damaged(&self.dir, code))?;
        let end = map.ranges.len() < RANGES;
        Ok((map.ranges, end))
    }

    fn read(&mut self, object: ObjectId, offset: u64, length: u32) -> anyhow::Result<ReadPiece> {
        let truncation = Truncation::default();
        let plan = self
            .target
            .plan_read(&self.store, object, truncation, offset, length as usize);
        let plan = match plan {
            Ok(plan) => plan,
            Err(code) => {
                return Ok(ReadPiece::Damaged(format!(
                    "its record in the index: {code}"
                )));
            }
        };
        let mut buffer = vec![0; plan.buffer_len()];
        if let Err(error) = self.fill(&plan, &mut buffer) {
            return Ok(ReadPiece::Damaged(error.to_string()));
        }
        Ok(match plan.finish(&mut buffer) {
            Ok(range) => ReadPiece::Bytes(buffer.get(range).unwrap_or_default().to_vec()),
            Err(damage) => ReadPiece::Damaged(damage.to_string()),
        })
    }
}
