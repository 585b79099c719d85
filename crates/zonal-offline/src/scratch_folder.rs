//! The scratch folder of a check, and the check's own folders in it.
//!
//! Invariants:
//! 1. A scratch folder that existed before stays. One that a check made is removed when nothing is
//!    left in it, also where that check was interrupted and another one ends ([`MADE`]).
//! 2. An own folder belongs to the user of the check and is open to nobody else; otherwise it is
//!    not used. One check at a time uses it.
//! 3. The scratch folder is root's or the user's; others who may write in it cannot move own files.
//! 4. No link in an own folder is followed: it is removed as a link.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use zonal_disk::trusted_paths::{self, PathRefusal};

/// Marks a scratch folder that a check made.
pub const MADE: &str = "zonal-fsck.made";
/// Prefix of the names of the check's folders, and of [`MADE`].
const OURS: &str = "zonal-fsck.";
/// Prefix of files that must be kept between two checks; the target follows.
pub(crate) const LOST_KEYS: &str = "lost-keys.";
/// File that the check which uses the folder has locked.
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

fn refused(error: PathRefusal) -> io::Error {
    match error {
        PathRefusal::Io { source, .. } => source,
        other => io::Error::new(ErrorKind::PermissionDenied, other),
    }
}

/// Removes the scratch folder if a check made it and nothing else is in it. With files of somebody
/// in it, the folder is theirs from now on.
pub(crate) fn let_go(scratch: &Path) {
    let is_ours = |name: &OsStr| {
        let name = name.as_bytes();
        name.starts_with(OURS.as_bytes()) || name.starts_with(LOST_KEYS.as_bytes())
    };
    let Ok(entries) = fs::read_dir(scratch) else {
        return;
    };
    let names: Vec<_> = entries.flatten().map(|it| it.file_name()).collect();
    // This or the next check may need the file.
    let needed = |name: &OsString| is_ours(name) && name != MADE;
    if names.iter().any(|name| name == MADE) && !names.iter().any(needed) {
        // Best effort: an empty folder does no harm.
        let _ = fs::remove_file(scratch.join(MADE));
        let _ = fs::remove_dir(scratch);
    }
}

/// Makes an own folder in the scratch folder if need be, checks that only this user can use it, and
/// locks it. Returns `None` where another check has locked it.
pub(crate) fn take(scratch: &Path, dir: &Path) -> io::Result<Option<File>> {
    make(scratch)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(dir)?;
    // The process's own entry in /proc belongs to the user that it runs as.
    let us = fs::metadata("/proc/self")?.uid();
    if !found.is_dir() || found.uid() != us || found.mode() & 0o077 != 0 {
        let what = "it is not a folder of this user alone (mode 0700): remove it";
        return Err(io::Error::new(ErrorKind::PermissionDenied, what));
    }
    // The check makes no links. They are removed before anything is opened, the lock too: from now
    // on nobody else can add one.
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
