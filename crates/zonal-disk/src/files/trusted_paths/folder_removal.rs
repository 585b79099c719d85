//! Removal of a folder: from an open folder, step by step.
//!
//! 1. It follows no link: it removes the link itself.
//! 2. It changes nothing on another mount, not even one of the same file system: the folder that
//!    has the mount stays.

use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Deepest nesting of folders that is removed: more than any store has.
const DEPTH_MAX: u32 = 16;

/// Removes `name` with all of its contents; a missing name is no error.
pub(super) fn remove(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    remove_at(dir, name, 0)
}

fn remove_at(dir: &OwnedFd, name: &OsStr, depth: u32) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    if depth == DEPTH_MAX {
        let what = "folders lie deeper in one another than those of a store";
        return Err(io::Error::other(what));
    }
    let inner = open_beneath(dir, name)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&inner)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    for name in names {
        remove_at(&inner, &name, depth + 1)?;
    }
    Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Opens a folder of `dir` itself, neither behind a link nor on another mount.
fn open_beneath(dir: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let bounds = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match rustix::fs::openat2(dir, name, how, Mode::empty(), bounds) {
        // Linux before 5.6, or a system call filter that does not know the call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        result => return Ok(result?),
    }
    let inner = rustix::fs::openat(dir, name, how, Mode::empty())?;
    if mount_id(dir)? == mount_id(&inner)? {
        Ok(inner)
    } else {
        Err(Errno::XDEV.into())
    }
}

/// The number of the mount that an open file is on, as the kernel reports it.
fn mount_id(file: impl AsFd) -> io::Result<String> {
    let number = file.as_fd().as_raw_fd();
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.map(|id| id.trim().to_owned());
    id.ok_or_else(|| io::Error::other("the kernel does not tell mounts apart"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use zonal_testkit::Scratch;

    #[test]
    fn removal_of_a_folder_spares_the_targets_of_its_links() {
        let scratch = Scratch::new("removing");
        let (folder, other) = (scratch.join("one"), scratch.join("other"));
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("kept"), "x").unwrap();
        fs::write(folder.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&other, folder.join("a/link")).unwrap();
        let dir = OwnedFd::from(fs::File::open(&*scratch).unwrap());
        std::os::unix::fs::symlink(&other, scratch.join("link")).unwrap();
        for name in ["one", "link", "nothing"] {
            remove(&dir, OsStr::new(name)).unwrap();
        }
        assert!(!folder.exists() && !scratch.join("link").exists());
        assert!(other.join("kept").exists());
        assert_eq!(mount_id(&dir).unwrap(), mount_id(&dir).unwrap());
    }

    #[test]
    fn folders_nested_deeper_than_a_store_are_left() {
        let scratch = Scratch::new("removing-deep");
        let deep = scratch.join(["d"; 20].join("/"));
        fs::create_dir_all(&deep).unwrap();
        let dir = OwnedFd::from(fs::File::open(&*scratch).unwrap());
        assert!(remove(&dir, OsStr::new("d")).is_err());
        assert!(deep.exists());
    }
}
