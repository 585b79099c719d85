//! Files that commands write and read. What is written is whole or not there, and its owner's
//! alone: under a name of chance first, so only a regular file can be replaced. What is read is a
//! regular file as well: a pipe would wait for ever.

use crate::exit::{Failure, NOT_FOUND, REFUSED};
use anyhow::Context;
use rustix::fs::OFlags;
use std::fs::{File, FileType, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// What is at a path that is no regular file, in words.
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

/// Whether there is a regular file at `path`, and not only a link to one.
///
/// # Errors
/// Where there is anything else.
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

/// Lets `write` make a file beside `path`, which takes its name once it is whole.
pub fn write_whole<T>(
    path: &Path,
    write: impl FnOnce(File) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    is_replaceable(path)?;
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".{:016x}.partial", getrandom::u64()?));
    let partial = Path::new(&partial);
    // What files hold is in it, in clear; nobody else has put this one there.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let file = options.open(partial);
    let written = write(file.with_context(|| partial.display().to_string())?);
    if written.is_err() {
        // Best effort: what failed is already being reported.
        let _ = std::fs::remove_file(partial);
    }
    let written = written?;
    std::fs::rename(partial, path).with_context(|| path.display().to_string())?;
    Ok(written)
}

/// Opens a regular file, or a link to one, to be read.
///
/// # Errors
/// Where there is none, or anything else.
pub fn open_regular(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    // The opening of a pipe would wait for a writer.
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
