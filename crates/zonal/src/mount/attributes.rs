//! Extended attributes for requests of commands to a mount.

use crate::exit::{Failure, NOT_FOUND, USAGE};
use rustix::fd::BorrowedFd;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::path::Path;

/// Read and written: the striping of files, such as `unit=1048576,count=3`.
pub const LAYOUT: &str = "zonal.layout";
/// Read: where a file's bytes are stored, as JSON.
pub const LOCATE: &str = "zonal.locate";
/// Written on a parent directory: `ZONE MODE NAME` makes a directory (mode in octal).
pub const MKDIR: &str = "zonal.mkdir";

fn explain(error: Errno, path: &Path) -> anyhow::Error {
    match error {
        Errno::OPNOTSUPP | Errno::NODATA if !path.is_dir() && has(path, LOCATE) => {
            let text = format!("{} is not a directory", path.display());
            Failure::new(USAGE, text)
                .hint("a file keeps the layout that it was made with; set its directory's")
                .into()
        }
        Errno::OPNOTSUPP | Errno::NODATA => {
            let text = format!("{} is not in a mounted cell", path.display());
            Failure::new(NOT_FOUND, text)
                .hint("`zonal mount` mounts one")
                .into()
        }
        Errno::NOENT => Failure::new(NOT_FOUND, error.to_string()).into(),
        error => error.into(),
    }
}

/// Whether the path has an attribute.
fn has(path: &Path, name: &str) -> bool {
    rustix::fs::getxattr(path, name, &mut [0_u8; 0][..]).is_ok()
}

/// The value of an attribute.
pub fn get(path: &Path, name: &str) -> anyhow::Result<String> {
    let mut buffer = vec![0_u8; 65_536];
    let length =
        rustix::fs::getxattr(path, name, &mut buffer[..]).map_err(|error| explain(error, path))?;
    buffer.truncate(length);
    Ok(String::from_utf8(buffer)?)
}

/// Sets an attribute.
pub fn set(path: &Path, name: &str, value: &[u8]) -> anyhow::Result<()> {
    try_set(path, name, value).map_err(|error| explain(error, path))
}

/// As [`set`], with the bare error.
pub fn try_set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

/// A directory by its path, or an open one.
#[derive(Debug, Clone, Copy)]
pub enum PathOrOpen<'a> {
    Named(&'a Path),
    Open(BorrowedFd<'a>),
}

impl PathOrOpen<'_> {
    /// As the function [`get`].
    pub fn get(self, name: &str) -> anyhow::Result<String> {
        match self {
            Self::Named(path) => get(path, name),
            Self::Open(dir) => {
                let mut buffer = vec![0_u8; 65_536];
                let length = rustix::fs::fgetxattr(dir, name, &mut buffer[..])?;
                buffer.truncate(length);
                Ok(String::from_utf8(buffer)?)
            }
        }
    }

    /// As the function [`set`].
    pub fn set(self, name: &str, value: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Named(path) => set(path, name, value),
            Self::Open(dir) => {
                let flags = XattrFlags::empty();
                Ok(rustix::fs::fsetxattr(dir, name, value, flags)?)
            }
        }
    }

    /// Removes an attribute, with the bare error.
    pub fn try_remove(self, name: &str) -> Result<(), Errno> {
        match self {
            Self::Named(path) => rustix::fs::removexattr(path, name),
            Self::Open(dir) => rustix::fs::fremovexattr(dir, name),
        }
    }
}
