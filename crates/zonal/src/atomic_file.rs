//! Files that commands write and read.
//!
//! * Written: whole or not at all, readable by its owner only. The bytes go into a temporary file
//!   with a random name first, so only a regular file can be replaced.
//! * Read: only a regular file is opened, since opening a pipe would wait for ever.

use crate::exit::{Failure, NOT_FOUND, REFUSED};
use anyhow::Context;
use rustix::fs::OFlags;
use std::fs::{File, FileType, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Describes a file that is not a regular one, for people.
fn kind(found: FileType) -> &'static str {
    if found.is_symlink() {
        "a symbolic link"
    } else if found.is_dir() {
        "a folder"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn refused(path: &Path, found: FileType) -> Failure {
    let text = format!(
        "{} is {}, no regular file; nothing was touched",
        path.display(),
        kind(found)
    );
    Failure::new(REFUSED, text)
}

/// Whether `path` is a regular file that may be replaced; false where nothing is there.
///
/// # Errors
/// Anything else is there, a symbolic link too.
pub fn is_replaceable(path: &Path) -> anyhow::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(found) => Err(refused(path, found.file_type())
            .hint("name a new file, or a regular one with --force")
            .into()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Calls `write` with a temporary file beside `path`, then renames it to `path`.
pub fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    is_replaceable(path)?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{:016x}.partial", getrandom::u64()?));
    let partial = Path::new(&partial);
    // Mode 0600 because a backup holds file contents in clear; `create_new` because nobody else may
    // have placed this file.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(partial);
    let written = write(file.with_context(|| partial.display().to_string())?);
    if written.is_err() {
        // Best effort: the first failure is already being reported.
        let _ = std::fs::remove_file(partial);
    }
    let written = written?;
    std::fs::rename(partial, path).with_context(|| path.display().to_string())?;
    Ok(written)
}

/// Opens a regular file, or a link to one, for reading.
///
/// # Errors
/// Nothing is there, or not a regular file.
pub fn open_regular(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).map_err(|error| {
        let text = format!("{}: {error}", path.display());
        Failure::new(NOT_FOUND, text)
    })?;
    let found = file
        .metadata()
        .with_context(|| path.display().to_string())?;
    if !found.is_file() {
        return Err(refused(path, found.file_type()).into());
    }
    Ok(file)
}
