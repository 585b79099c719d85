//! Bytes of a job's files by zone.

use crate::cli::fs::connection::{CellConnection, Failures, about};
use crate::cli::fs::listing;
use crate::exit::{Failure, USAGE};
use crate::progress::ProgressMeter;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zonal_native::FileKind;
use zonal_types::{Ino, ZoneId};

/// Permission to read, as access(2) has it.
const READ: u32 = 4;

/// Bytes of files, and homes of directories that were not walked.
#[derive(Default)]
pub struct JobBytes {
    files: BTreeMap<ZoneId, u64>,
    homes: BTreeMap<ZoneId, u64>,
}

impl JobBytes {
    /// The bytes that decide: those of files, or one for each directory where there are none.
    pub fn demand(self) -> BTreeMap<ZoneId, u64> {
        match self.files.values().any(|bytes| *bytes > 0) {
            true => self.files,
            false => self.homes,
        }
    }

    fn add_file(&mut self, cell: &CellConnection, path: &Path) -> anyhow::Result<()> {
        let found = cell.native.locate(&cell.user, path);
        let found = found.map_err(|error| about(error, "locate", path))?;
        for (zone, bytes) in found.zones {
            let sum = self.files.entry(zone).or_default();
            *sum = sum.saturating_add(bytes);
        }
        *self.homes.entry(found.home).or_default() += 1;
        Ok(())
    }
}

/// Adds up the bytes of paths. Each must exist, and the user must be allowed to read it.
pub fn by_zone(
    cell: &CellConnection,
    paths: &[PathBuf],
    recursive: bool,
    progress: &mut ProgressMeter,
) -> anyhow::Result<JobBytes> {
    let mut sum = JobBytes::default();
    for path in paths {
        if !path.is_absolute() {
            let text = format!("{} does not start with /", crate::console::path(path));
            let failure = Failure::new(USAGE, text);
            return Err(failure.hint("name the path from the cell's root").into());
        }
        let attr = cell.native.stat(&cell.user, path);
        let attr = attr.map_err(|error| about(error, "find", path))?;
        let readable = cell.native.access(&cell.user, path, READ);
        readable.map_err(|error| about(error, "read", path))?;
        // Below the root there is no common home.
        let is_walked = recursive || attr.ino == Ino::ROOT;
        if attr.kind != FileKind::Directory || !is_walked {
            sum.add_file(cell, path)?;
            continue;
        }
        let mut failures = Failures::default();
        let mut count = 0;
        listing::below(cell, path, true, &mut failures, &mut |path, attr| {
            count += 1;
            progress.at(count, 0);
            match attr.kind {
                FileKind::File => sum.add_file(cell, path),
                _ => Ok(()),
            }
        })?;
        failures.finish()?;
        if sum.files.is_empty() {
            sum.add_file(cell, path)?;
        }
    }
    Ok(sum)
}
