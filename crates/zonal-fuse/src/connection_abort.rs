//! The end of a FUSE connection by force, also where its mount is nowhere to be found any more.
//!
//! The kernel has a file for it in the file system fusectl: `NUMBER/abort`, which belongs to
//! whoever mounted. It is opened while the mount is there for certain: from then on the file is
//! that of this connection and of no later one with its number, and it needs no mount point.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// Where fusectl is mounted, if it is.
const CONTROL: &str = "/sys/fs/fuse/connections";
/// What the kernel calls fusectl.
const MAGIC: i64 = 0x6573_5543;

/// What ends the connection of one mount.
#[derive(Debug)]
pub struct Abort(File);

impl Abort {
    /// Of what is mounted at `path`. The mount is not asked for anything, and busy only while this
    /// runs.
    ///
    /// # Errors
    /// Where nothing can be opened there; where fusectl is not mounted, and this process has no
    /// right to mount it.
    pub fn of(path: &Path) -> Result<Self, Errno> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // While it is held its number is of nobody else.
        let held = rustix::fs::open(path, how, Mode::empty())?;
        let sync = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&held, "", sync, StatxFlags::empty())?;
        // Its number here is that of its device, of which the first part is 0.
        let name = format!("{}/abort", found.stx_dev_minor);
        let how = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match rustix::fs::open(format!("{CONTROL}/{name}"), how, Mode::empty()) {
            Err(Errno::NOENT) => rustix::fs::openat(control()?, name.as_str(), how, Mode::empty())?,
            result => result?,
        };
        Ok(Self(file.into()))
    }

    /// The file, to be handed to another process.
    #[must_use]
    pub fn into_file(self) -> File {
        self.0
    }

    /// From a file that [`Self::into_file`] gave; none from any other one.
    #[must_use]
    pub fn from_file(file: File) -> Option<Self> {
        let kind = rustix::fs::fstatfs(&file).ok()?.f_type;
        (kind == MAGIC).then_some(Self(file))
    }

    /// Ends the connection: everything under way and after it fails. It is no error where it has
    /// ended.
    ///
    /// # Errors
    /// What the system says.
    pub fn end(&self) -> std::io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// fusectl, mounted nowhere.
fn control() -> Result<std::os::fd::OwnedFd, Errno> {
    let opened = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&opened)?;
    rustix::mount::fsmount(
        &opened,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )
}
