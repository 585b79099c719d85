//! Walks the directories below one, each opened in the one above it. So no symbolic link is
//! followed, not even one that a program puts in a directory's place meanwhile.
//!
//! *Bounds*: one open directory a level, [`LEVELS_MAX`] levels, and no name but that of the present
//! directory and those of [`NAMED`] failures.

use crate::console;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most directories open at once, below the usual limit of open files.
const LEVELS_MAX: usize = 512;
/// Directories that an error names.
const NAMED: usize = 5;

/// Counts of a walk.
#[derive(Default)]
pub struct TreeCounts {
    pub done: u64,
    /// The first failures, with the reason.
    pub failed: Vec<String>,
    pub failures: u64,
}

impl TreeCounts {
    fn note_failure(&mut self, path: &Path, why: &str) {
        self.failures += 1;
        if self.failed.len() < NAMED {
            self.failed.push(format!("{}: {why}", console::path(path)));
        }
    }
}

/// Calls `act` for each directory below `top` on its file system, for one before those below it. A
/// directory that is removed meanwhile is passed over. Where one fails, the walk goes on.
pub fn below(
    top: &Path,
    act: &dyn Fn(BorrowedFd<'_>) -> anyhow::Result<()>,
    counts: &mut TreeCounts,
) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, top, flags, Mode::empty()).and_then(|top| {
        let device = rustix::fs::fstat(&top)?.st_dev;
        Ok((device, Dir::new(top)?))
    });
    let (device, mut open) = match opened {
        Ok((device, dir)) => (device, vec![dir]),
        Err(error) => return counts.note_failure(top, &error.to_string()),
    };
    let mut path = top.to_path_buf();
    while let Some(dir) = open.last_mut() {
        let entry = match dir.read() {
            Some(Ok(entry)) => entry,
            ended => {
                if let Some(Err(error)) = ended
                    && !is_gone(error)
                {
                    counts.note_failure(&path, &error.to_string());
                }
                open.pop();
                path.pop();
                continue;
            }
        };
        let name = entry.file_name();
        let may_be_one = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
        if !may_be_one || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        path.push(OsStr::from_bytes(name.to_bytes()));
        match inner(dir, name, device, act) {
            Ok(None) => {}
            Ok(Some((acted, inner))) => {
                match acted {
                    Ok(()) => counts.done += 1,
                    Err(error) => counts.note_failure(&path, &error.to_string()),
                }
                if open.len() < LEVELS_MAX {
                    open.push(inner);
                    continue;
                }
                let why = format!("is {LEVELS_MAX} levels down; name it to go on below it");
                counts.note_failure(&path, &why);
            }
            Err(error) => counts.note_failure(&path, &error.to_string()),
        }
        path.pop();
    }
}

/// Opens a directory and acts on it; `None` where it is gone, or is on another file system.
fn inner(
    above: &Dir,
    name: &CStr,
    device: u64,
    act: &dyn Fn(BorrowedFd<'_>) -> anyhow::Result<()>,
) -> Result<Option<(anyhow::Result<()>, Dir)>, Errno> {
    let above = above.fd()?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened: OwnedFd = match rustix::fs::openat(above, name, flags, Mode::empty()) {
        Ok(opened) => opened,
        // Removed meanwhile, or something else has its name.
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(error) if is_gone(error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = match rustix::fs::fstat(&opened) {
        Err(error) if is_gone(error) => return Ok(None),
        found => found?,
    };
    if found.st_dev != device {
        return Ok(None);
    }
    let dir = Dir::new(opened)?;
    let acted = act(dir.fd()?);
    match acted {
        // A directory that is just removed has no layout any more; the others have one.
        Err(error) if matches!(error.downcast_ref(), Some(&Errno::NODATA)) => Ok(None),
        Err(_) if !is_at(above, name, found.st_ino) => Ok(None),
        acted => Ok(Some((acted, dir))),
    }
}

/// Whether the error says that a directory was removed.
fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::STALE)
}

/// Whether the directory still has its name. Another one that has it by now took the layout that
/// its parent had got.
fn is_at(above: BorrowedFd<'_>, name: &CStr, inode: u64) -> bool {
    match rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => found.st_ino == inode,
        Err(error) => !is_gone(error),
    }
}
