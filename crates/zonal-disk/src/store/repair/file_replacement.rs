//! Replaces the files of a repaired store by the new ones, step by step. A kill may end it after
//! each step. Then there is an index: the old one, which can be repaired again, or the new one.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use super::{NEW_INDEX, NEW_LOG, NEW_SUMS, drop_copy};
use crate::files::StoreDir;
use crate::files::error::DiskError;
use crate::files::identity::{self, Stored, sync_dir};
use crate::files::{INDEX, LOG, SUMS};
use crate::store;

/// Folder of a store for files that are put aside.
const ATTIC: &str = "lost+found";

pub(super) type Step = fn(&Path, &Stored) -> Result<(), DiskError>;

/// The steps for an index restored from its copy: log, copy and identity stay.
pub(super) const FROM_COPY: &[Step] = &[
    sync_new_index,
    keep_bad_index,
    drop_sums,
    place_index,
    place_sums,
];

/// The steps for an index made of readable entries: it includes the log, and the copy belongs to
/// the old index.
pub(super) const MENDED: &[Step] = &[
    sync_new_index,
    write_new_log,
    |dir, _| drop_copy(dir),
    keep_bad_index,
    drop_sums,
    place_index,
    place_sums,
    place_log,
    |dir, stored| identity::save(dir, stored),
];

pub(super) fn place(dir: &Path, stored: &Stored, steps: &[Step]) -> Result<(), DiskError> {
    steps.iter().try_for_each(|step| step(dir, stored))
}

/// Finishes a replacement that was interrupted between the index and its checksums.
///
/// # Errors
/// When the medium fails.
pub(crate) fn finish(store: &StoreDir) -> io::Result<()> {
    let is_there = |name| fs::exists(store.path().join(name));
    if is_there(NEW_SUMS)? && !is_there(NEW_INDEX)? && !is_there(SUMS)? {
        store.rename(NEW_SUMS, SUMS)?;
        store.sync_names("")?;
    }
    Ok(())
}

fn failed(error: io::Error) -> DiskError {
    DiskError::io("put the repaired files in place", error)
}

fn sync_new_index(dir: &Path, _: &Stored) -> Result<(), DiskError> {
    let file = File::open(dir.join(NEW_INDEX)).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn write_new_log(dir: &Path, stored: &Stored) -> Result<(), DiskError> {
    store::write_log(&dir.join(NEW_LOG), stored.log_bytes).map_err(failed)
}

/// Keeps a damaged index under a second name, where there is one. The first index kept is the most
/// complete.
fn keep_bad_index(dir: &Path, _: &Stored) -> Result<(), DiskError> {
    let attic = dir.join(ATTIC);
    fs::create_dir_all(&attic).map_err(failed)?;
    match fs::hard_link(dir.join(INDEX), attic.join("index.redb.bad")) {
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => {
            Err(failed(error))
        }
        _ => sync_dir(dir).map_err(failed),
    }
}

/// Removes the checksums of the old index: an index works without checksums, but not with those of
/// another.
fn drop_sums(dir: &Path, _: &Stored) -> Result<(), DiskError> {
    match fs::remove_file(dir.join(SUMS)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(error)),
        _ => sync_dir(dir).map_err(failed),
    }
}

fn place_index(dir: &Path, _: &Stored) -> Result<(), DiskError> {
    move_in(dir, NEW_INDEX, INDEX)
}

fn place_sums(dir: &Path, _: &Stored) -> Result<(), DiskError> {
    move_in(dir, NEW_SUMS, SUMS)
}

fn place_log(dir: &Path, _: &Stored) -> Result<(), DiskError> {
    move_in(dir, NEW_LOG, LOG)
}

fn move_in(dir: &Path, from: &str, to: &str) -> Result<(), DiskError> {
    fs::rename(dir.join(from), dir.join(to)).map_err(failed)?;
    sync_dir(dir).map_err(failed)
}
