//! Patterns in paths of a cell, as a shell has them: `*`, `?`, `[a-z]`, in each name of a path.
//!
//! A path that exists as it is written is no pattern. A star does not match a leading dot. Matches
//! are in the order of their names.

use crate::cli::fs::connection::{CellConnection, about};
use crate::cli::fs::listing::join;
use crate::exit::{FAILED, Failure, NOT_FOUND};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use zonal_basics::glob;
use zonal_types::ErrorCode;

/// Paths that the patterns of one command may match.
const MATCHES_MAX: usize = 65_536;

/// The paths, with patterns replaced by what matches them. A pattern without a match is an error.
pub fn expanded(cell: &CellConnection, paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for path in paths {
        let is_pattern = glob::is_pattern(path.as_os_str().as_bytes());
        if !path.is_absolute() || !is_pattern || cell.native.stat(&cell.user, path).is_ok() {
            all.push(path.clone());
            continue;
        }
        let found = matching(cell, path)?;
        if found.is_empty() {
            let text = format!("no path matches {}", crate::console::path(path));
            return Err(Failure::new(NOT_FOUND, text).into());
        }
        all.extend(found);
        if all.len() > MATCHES_MAX {
            return Err(too_many().into());
        }
    }
    Ok(all)
}

fn too_many() -> Failure {
    let text = format!("the patterns match more than {MATCHES_MAX} paths");
    Failure::new(FAILED, text).hint("name the directory above them, with --recursive")
}

fn matching(cell: &CellConnection, pattern: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let names = pattern.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let mut found = vec![PathBuf::from("/")];
    for name in names {
        if !glob::is_pattern(name.as_bytes()) {
            found.iter_mut().for_each(|path| *path = join(path, name));
            continue;
        }
        let mut next = Vec::new();
        for dir in found {
            for entry in names_in(cell, &dir)? {
                if is_match(name, &entry) {
                    next.push(join(&dir, &entry));
                }
            }
            if next.len() > MATCHES_MAX {
                return Err(too_many().into());
            }
        }
        found = next;
    }
    // The last names may be plain: not each directory has them.
    found.retain(|path| cell.native.lstat(&cell.user, path).is_ok());
    Ok(found)
}

fn is_match(pattern: &OsStr, name: &OsStr) -> bool {
    let is_hidden = name.as_bytes().starts_with(b".");
    (!is_hidden || pattern.as_bytes().starts_with(b"."))
        && glob::is_of(pattern.as_bytes(), name.as_bytes())
}

/// Names in a directory, in order; none where it is no directory.
fn names_in(cell: &CellConnection, dir: &Path) -> anyhow::Result<Vec<OsString>> {
    let listed = match cell.native.read_dir(&cell.user, dir) {
        Ok(listed) => listed,
        Err(error) if error.code() == Some(ErrorCode::NotDirectory) || error.is_absent() => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(about(error, "list", dir)),
    };
    let mut names = Vec::new();
    for entry in listed {
        let entry = entry.map_err(|error| about(error, "list", dir))?;
        names.push(entry.name().to_owned());
    }
    names.retain(|name| !matches!(name.as_bytes(), b"." | b".."));
    names.sort();
    Ok(names)
}
