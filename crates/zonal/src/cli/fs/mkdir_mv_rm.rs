//! `zonal fs mkdir`, `mv` and `rm`.

use super::connection::{AccessArgs, CellConnection, Failures, about};
use super::listing::{entries, join};
use crate::console;
use crate::exit::Failure;
use std::path::{Path, PathBuf};
use zonal_native::{Error, ErrorCode, FileKind};

/// Make directories
#[derive(Debug, clap::Args)]
pub struct MkdirPaths {
    #[command(flatten)]
    access: AccessArgs,
    /// Make missing parent directories, too; no error if the directory exists
    #[arg(long, short)]
    parents: bool,
    /// Mode, in octal, before the umask
    #[arg(long, short, default_value = "777", value_parser = octal)]
    mode: u32,
    /// Directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

fn octal(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "an octal number up to 7777".to_owned())
}

/// Makes a directory and its missing parents.
pub fn make_parents(cell: &CellConnection, path: &Path, mode: u32) -> Result<(), Error> {
    let (native, user) = (&cell.native, &cell.user);
    let is_directory = |path: &Path| {
        let attr = native.stat(user, path)?;
        match attr.kind {
            FileKind::Directory => Ok(()),
            _ => Err(Error::from(ErrorCode::NotDirectory)),
        }
    };
    match native.mkdir(user, path, mode) {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Some(ErrorCode::Exists) => is_directory(path),
        Err(error) if error.is_absent() => {
            let above = path.parent().filter(|above| *above != path);
            make_parents(cell, above.ok_or(error)?, 0o777)?;
            match native.mkdir(user, path, mode) {
                Err(error) if error.code() == Some(ErrorCode::Exists) => is_directory(path),
                made => made.map(drop),
            }
        }
        Err(error) => Err(error),
    }
}

impl MkdirPaths {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("mkdir")?;
        let mut failures = Failures::default();
        for path in &self.paths {
            let made = match self.parents {
                true => make_parents(&cell, path, self.mode),
                false => cell.native.mkdir(&cell.user, path, self.mode).map(drop),
            };
            failures.note(made.map_err(|error| about(error, "make directory", path)));
        }
        cell.end(failures.finish())
    }
}

/// Rename, or move into a directory
///
/// An existing destination is replaced, as by rename(2). Both paths must be below one first-level
/// directory, or in the root.
#[derive(Debug, clap::Args)]
pub struct Mv {
    #[command(flatten)]
    access: AccessArgs,
    /// Never replace an existing file
    #[arg(long, short)]
    no_clobber: bool,
    /// Paths to rename; the last one is the new name, or a directory
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Mv {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("mv")?;
        let outcome = self.rename(&cell);
        cell.end(outcome)
    }

    fn rename(&self, cell: &CellConnection) -> anyhow::Result<()> {
        let Some((to, sources)) = self.paths.split_last() else {
            return Ok(());
        };
        let into = into_directory(cell, to, sources.len())?;
        let mut failures = Failures::default();
        for from in sources {
            let new = match (into, from.file_name()) {
                (true, Some(name)) => join(to, name),
                _ => to.clone(),
            };
            let renamed = match self.no_clobber {
                true => cell.native.rename_new(&cell.user, from, &new),
                false => cell.native.rename(&cell.user, from, &new),
            };
            let doing = format!("rename {} to", console::path(from));
            failures.note(renamed.map_err(|error| about(error, &doing, &new)));
        }
        failures.finish()
    }
}

/// Whether the destination is a directory. Fails if it is not and there are several sources.
pub fn into_directory(cell: &CellConnection, to: &Path, sources: usize) -> anyhow::Result<bool> {
    match cell.native.stat(&cell.user, to) {
        Ok(attr) if attr.kind == FileKind::Directory => Ok(true),
        Ok(_) if sources == 1 => Ok(false),
        Err(error) if error.is_absent() && sources == 1 => Ok(false),
        Err(error) if !error.is_absent() => Err(about(error, "stat", to)),
        Ok(_) | Err(_) => {
            let text = format!("{} is not a directory", console::path(to));
            let hint = "several sources go into a directory; `zonal fs mkdir` makes one";
            Err(Failure::new(2, text).hint(hint).into())
        }
    }
}

/// Remove files, and with -r trees
#[derive(Debug, clap::Args)]
pub struct Rm {
    #[command(flatten)]
    access: AccessArgs,
    /// Remove directories and everything below them
    #[arg(long, short)]
    recursive: bool,
    /// No error for missing paths
    #[arg(long, short)]
    force: bool,
    /// Paths to remove
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Rm {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("rm")?;
        let mut failures = Failures::default();
        for path in &self.paths {
            let removed = self.one(&cell, path, &mut failures);
            failures.note(removed);
        }
        cell.end(failures.finish())
    }

    fn one(
        &self,
        cell: &CellConnection,
        path: &Path,
        failures: &mut Failures,
    ) -> anyhow::Result<()> {
        let (native, user) = (&cell.native, &cell.user);
        let attr = match native.lstat(user, path) {
            Err(error) if error.is_absent() && self.force => return Ok(()),
            found => found.map_err(|error| about(error, "remove", path))?,
        };
        if attr.kind != FileKind::Directory {
            let removed = native.unlink(user, path);
            return absent_is_well(removed).map_err(|error| about(error, "remove", path));
        }
        if !self.recursive {
            let code = Error::from(ErrorCode::IsDirectory);
            let text = format!("remove {}: {code}", console::path(path));
            return Err(Failure::new(crate::exit::FAILED, text)
                .hint("-r removes it with everything below")
                .into());
        }
        if path.file_name().is_none() {
            let text = format!("{} is not removed", console::path(path));
            return Err(Failure::new(2, text)
                .hint("name the entries below it")
                .into());
        }
        remove_tree(cell, path, failures)
    }
}

fn absent_is_well(removed: Result<(), Error>) -> Result<(), Error> {
    match removed {
        Err(error) if error.is_absent() => Ok(()),
        removed => removed,
    }
}

/// Removes a tree, deepest entries first. Reports entries that cannot be removed, and keeps the
/// directories above them.
fn remove_tree(cell: &CellConnection, path: &Path, failures: &mut Failures) -> anyhow::Result<()> {
    let (native, user) = (&cell.native, &cell.user);
    for (path, attr) in entries(cell, path, failures)? {
        let removed = match attr.kind {
            FileKind::Directory => remove_tree(cell, &path, failures),
            _ => absent_is_well(native.unlink(user, &path))
                .map_err(|error| about(error, "remove", &path)),
        };
        failures.note(removed);
    }
    let removed = native.rmdir(user, path);
    absent_is_well(removed).map_err(|error| about(error, "remove", path))
}
