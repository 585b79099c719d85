//! Aborts a FUSE connection, also where its mount cannot be found any more.
//!
//! The kernel has a file for it in the file system fusectl: `NUMBER/abort`, owned by the user who
//! mounted. It is opened while the mount certainly exists. From then on the file belongs to this
//! connection, to no later one with its number, and needs no mount point.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Mount point of fusectl, where it is mounted.
const CONTROL: &str = "/sys/fs/fuse/connections";
/// The kernel's magic number of fusectl.
const MAGIC: i64 = 0x6573_5543;

/// A handle that aborts the connection of one mount.
#[derive(Debug)]
pub struct Abort(File);

impl Abort {
    /// Opens the handle of the mount at `path`. Sends no request to the mount, and keeps it busy
    /// only while this runs.
    ///
    /// # Errors
    /// Where nothing can be opened there; where fusectl is not mounted and this process may not
    /// mount it.
    pub fn of(path: &Path) -> Result<Self, Errno> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // While this descriptor is open, the connection's number is not reused.
        let held = rustix::fs::open(path, how, Mode::empty())?;
        let sync = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&held, "", sync, StatxFlags::empty())?;
        // The connection's number is that of its device, whose major part is 0.
        let name = format!("{}/abort", found.stx_dev_minor);
        let how = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(format!("{CONTROL}/{name}"), how, Mode::empty()) {
            Err(Errno::NOENT) => rustix::fs::openat(control()?, name.as_str(), how, Mode::empty())?,
            result => result?,
        };
        Ok(Self(file.into()))
    }

    /// The open file, to be handed to another process.
    #[must_use]
    pub fn into_file(self) -> File {
        self.0
    }

    /// Converts a file from [`Self::into_file`]; `None` for any other file.
    #[must_use]
    pub fn from_file(file: File) -> Option<Self> {
        let kind = rustix::fs::fstatfs(&file).ok()?.f_type;
        (kind == MAGIC).then_some(Self(file))
    }

    /// Aborts the connection: every request in flight or later fails. No error where it has ended
    /// already.
    ///
    /// # Errors
    /// Those of the system.
    pub fn end(&self) -> std::io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// Mounts fusectl without a mount point.
fn control() -> Result<std::os::fd::OwnedFd, Errno> {
    let opened = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&opened)?;
    rustix::mount::fsmount(
        &opened,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}
