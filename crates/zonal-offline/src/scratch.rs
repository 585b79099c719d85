//! The scratch folder of a check, and folders of its own in it.
//!
//! Invariants:
//! 1. A scratch folder that was there stays; one that a check made goes when nothing is left in it,
//!    also where that check was interrupted and another one ends ([`MADE`]).
//! 2. A folder of its own is used only where it belongs to the user of the check and is open to
//!    nobody else, and by one check at a time.
//! 3. The scratch folder is root's or the user's, and whoever else may write in it can move nothing
//!    of theirs.
//! 4. No link in a folder of its own is followed: it is removed as a link.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use zonal_disk::trusted_paths::{self, Distrust};

/// Says that a check made the scratch folder it lies in.
pub const MADE: &str = "zonal-fsck.made";
/// What names of folders of a check, and [`MADE`], begin with.
const OURS: &str = "zonal-fsck.";
/// What names of files begin with that must not be forgotten between two checks; the target
/// follows.
pub(crate) const LOST_KEYS: &str = "lost-keys.";
/// Locked by the check that uses the folder it lies in.
pub(crate) const LOCK: &str = "lock";

/// Makes the scratch folder if need be.
pub(crate) fn make(scratch: &Path) -> io::Result<()> {
    if let Some(above) = scratch.parent()
        && !above.exists()
    {
        trusted_paths::make(above).map_err(refused)?;
    }
    let is_made = match DirBuilder::new().mode(0o700).create(scratch) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
        Err(error) => return Err(error),
    };
    trusted_paths::open_above(scratch).map_err(refused)?;
    if is_made {
        File::create_new(scratch.join(MADE))?;
    }
    Ok(())
}

fn refused(error: Distrust) -> io::Error {
    match error {
        Distrust::Io { source, .. } => source,
        other => io::Error::new(ErrorKind::PermissionDenied, other),
    }
}

/// Takes the scratch folder away if a check made it and nothing else is in it. With files of
/// somebody in it, it is theirs from now on.
pub(crate) fn let_go(scratch: &Path) {
    let is_ours = |name: &OsStr| {
        let name = name.as_bytes();
        name.starts_with(OURS.as_bytes()) || name.starts_with(LOST_KEYS.as_bytes())
    };
    let Ok(entries) = fs::read_dir(scratch) else {
        return;
    };
    let names: Vec<_> = entries.flatten().map(|it| it.file_name()).collect();
    // What another check, or the next one, needs.
    let needed = |name: &OsString| is_ours(name) && name != MADE;
    if names.iter().any(|name| name == MADE) && !names.iter().any(needed) {
        // Best effort: an empty folder is of no harm.
        let _ = fs::remove_file(scratch.join(MADE));
        let _ = fs::remove_dir(scratch);
    }
}

/// Makes a folder of our own in the scratch folder if need be, sees to it that it is ours alone,
/// and locks it; `None` where another check has it.
pub(crate) fn take(scratch: &Path, dir: &Path) -> io::Result<Option<File>> {
    make(scratch)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    // This process's own entry belongs to whom the process runs as.
    let us = fs::metadata("/proc/self")?.uid();
    if !found.is_dir() || found.uid() != us || found.mode() & 0o077 != 0 {
        let what = "it is not a folder of this user alone (mode 0700): remove it";
        return Err(io::Error::new(ErrorKind::PermissionDenied, what));
    }
    // We make none. Before anything is opened, the lock too: nobody else can add one any more.
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_symlink() {
            fs::remove_file(entry.path())?;
        }
    }
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(dir.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => Err(error),
    }
}
