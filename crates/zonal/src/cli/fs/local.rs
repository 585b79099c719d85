//! Local files: reads and sets their extended attributes, owners, modes and times.

use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use zonal_native::{Attr, FileKind, Timestamp};

/// Name and value of an extended attribute.
pub type Xattr = (Vec<u8>, Vec<u8>);

/// Largest value of an extended attribute in Linux, in bytes.
const VALUE_MAX: usize = 65_536;

/// Whether an attribute is copied. SELinux labels belong to the machine and are not.
pub fn is_copied(name: &[u8]) -> bool {
    name != b"security.selinux" && !name.starts_with(b"zonal.")
}

/// Whether a failure to set this attribute fails the copy: true for attributes that users set.
pub fn must_be_kept(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

/// The extended attributes of a file or directory; empty if the file system has none.
pub fn xattrs(path: &Path) -> std::io::Result<Vec<Xattr>> {
    let mut names = vec![0_u8; VALUE_MAX];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    names.truncate(length);
    let names = names.split(|byte| *byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| !name.is_empty() && is_copied(name)) {
        let mut value = vec![0_u8; VALUE_MAX];
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                found.push((name.to_vec(), value));
            }
            // Removed since, or not permitted for this user.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Sets extended attributes.
fn set_xattrs(path: &Path, xattrs: &[Xattr]) -> std::io::Result<()> {
    for (name, value) in xattrs.iter().filter(|(name, _)| is_copied(name)) {
        let name_text = CString::new(name.as_slice())?;
        match rustix::fs::lsetxattr(path, name_text.as_c_str(), value, XattrFlags::empty()) {
            Err(error) if must_be_kept(name) => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Access and modification time of a file, as the cell has them.
pub fn times(metadata: &Metadata) -> [Timestamp; 2] {
    let time = |seconds, nanos: i64| Timestamp {
        seconds,
        nanos: u32::try_from(nanos).unwrap_or(0),
    };
    [
        time(metadata.atime(), metadata.atime_nsec()),
        time(metadata.mtime(), metadata.mtime_nsec()),
    ]
}

/// Whether this user may change owners.
pub fn gives_owners() -> bool {
    rustix::process::geteuid().is_root()
}

/// The mode bits to keep: set-id bits only if the file keeps its owner.
pub fn kept_mode(mode: u32, uid: u32) -> u32 {
    let keeps = gives_owners() || uid == rustix::process::geteuid().as_raw();
    mode & if keeps { 0o7777 } else { 0o1777 }
}

/// Sets owner, extended attributes, mode and times of a file copied from the cell. A symbolic link
/// has no mode.
///
/// The order matters: a new owner drops capabilities, and a mode may drop the right to set
/// attributes. So attributes are set after the owner and before the mode.
pub fn set_attributes(path: &Path, attr: &Attr, xattrs: &[Xattr]) -> std::io::Result<()> {
    if gives_owners() {
        std::os::unix::fs::lchown(path, Some(attr.uid), Some(attr.gid))?;
    }
    set_xattrs(path, xattrs)?;
    if attr.kind != FileKind::Symlink {
        let mode = Mode::from_raw_mode(kept_mode(attr.mode, attr.uid));
        rustix::fs::chmod(path, mode)?;
    }
    let time = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanos.into(),
    };
    let times = Timestamps {
        last_access: time(attr.atime),
        last_modification: time(attr.mtime),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
