//! `zonal fs ls`, and the tree walk of other commands.

use super::cat_stat::{date, fields, shown};
use super::connection::{AccessArgs, CellConnection, Failures, about};
use crate::console;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use zonal_native::{Attr, FileKind};

/// List directories
#[derive(Debug, clap::Args)]
pub struct Ls {
    #[command(flatten)]
    access: AccessArgs,
    /// Show mode, links, owner, group, size, time (UTC) and targets of symbolic links
    #[arg(long, short)]
    long: bool,
    /// List everything below the directories, too
    #[arg(long, short)]
    recursive: bool,
    /// List directories themselves, not their entries
    #[arg(long, short)]
    directory: bool,
    /// As JSON, one object a path
    #[arg(long)]
    json: bool,
    /// Paths
    #[arg(default_value = "/", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

impl Ls {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("ls")?;
        let mut failures = Failures::default();
        for path in &self.paths {
            let listed = self.one(&cell, path, &mut failures);
            failures.note(listed);
        }
        cell.end(failures.finish())
    }

    fn one(
        &self,
        cell: &CellConnection,
        path: &Path,
        failures: &mut Failures,
    ) -> anyhow::Result<()> {
        let found = cell.native.lstat(&cell.user, path);
        let mut attr = found.map_err(|error| about(error, "list", path))?;
        if attr.kind == FileKind::Symlink && !self.directory && !self.long {
            // The attributes of the link's target, if it exists.
            attr = cell.native.stat(&cell.user, path).unwrap_or(attr);
        }
        if attr.kind != FileKind::Directory || self.directory {
            self.show(cell, path, &attr);
            return Ok(());
        }
        let mut visit = |path: &Path, attr: &Attr| {
            self.show(cell, path, attr);
            Ok(())
        };
        below(cell, path, self.recursive, failures, &mut visit)
    }

    fn show(&self, cell: &CellConnection, path: &Path, attr: &Attr) {
        let target = || {
            let is_link = attr.kind == FileKind::Symlink && (self.long || self.json);
            let text = is_link.then(|| cell.native.read_link(&cell.user, path))?;
            text.ok().map(|text| shown(&text, self.json))
        };
        if self.json {
            let mut fields = fields(path, attr, true);
            if let Some(target) = target() {
                fields.insert("target".into(), target.into());
            }
            console::json(serde_json::Value::from(fields));
        } else if self.long {
            let target = target().map_or(String::new(), |target| format!(" -> {target}"));
            console::line(format_args!(
                "{} {:>3} {:>5} {:>5} {:>12} {} {}{target}",
                mode(attr),
                attr.nlink,
                attr.uid,
                attr.gid,
                attr.size,
                date(attr.mtime.seconds),
                console::path(path)
            ));
        } else {
            console::line(console::path(path));
        }
    }
}

/// Formats a mode: `drwxr-sr-t`.
fn mode(attr: &Attr) -> String {
    let first = match attr.kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    };
    let mut text = String::from(first);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = attr.mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (attr.mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The path of a name in a directory.
pub fn join(dir: &Path, name: &std::ffi::OsStr) -> PathBuf {
    let mut bytes = dir.as_os_str().as_bytes().to_vec();
    if !bytes.ends_with(b"/") {
        bytes.push(b'/');
    }
    bytes.extend_from_slice(name.as_bytes());
    std::ffi::OsString::from(std::ffi::OsStr::from_bytes(&bytes)).into()
}

/// The last name of a path. `None` if the path ends with `.`, which means the directory's entries.
pub fn last_name(path: &Path) -> Option<&std::ffi::OsStr> {
    let is_inside = path.as_os_str().as_bytes().ends_with(b"/.");
    path.file_name().filter(|_| !is_inside)
}

/// The entries of a directory with attributes, in order. An entry whose shard does not answer is a
/// failure of its own.
pub fn entries(
    cell: &CellConnection,
    dir: &Path,
    failures: &mut Failures,
) -> anyhow::Result<Vec<(PathBuf, Attr)>> {
    let listed = cell.native.read_dir_plus(&cell.user, dir);
    let listed = listed.map_err(|error| about(error, "list", dir))?;
    let mut entries = Vec::new();
    for entry in listed {
        let entry = entry.map_err(|error| about(error, "list", dir))?;
        let path = join(dir, entry.name());
        let attr = match entry.attr() {
            Some(attr) => Ok(*attr),
            None => cell.native.lstat(&cell.user, &path),
        };
        match attr {
            Ok(attr) => entries.push((path, attr)),
            // Removed since.
            Err(error) if error.is_absent() => {}
            Err(error) => failures.add(about(error, "stat", &path)),
        }
    }
    entries.sort_by(|one, other| one.0.as_os_str().cmp(other.0.as_os_str()));
    Ok(entries)
}

/// Visits the entries of a directory, and with `recursive` everything below, each directory before
/// its entries. Symbolic links are not followed.
pub fn below(
    cell: &CellConnection,
    dir: &Path,
    recursive: bool,
    failures: &mut Failures,
    visit: &mut dyn FnMut(&Path, &Attr) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut waiting = vec![entries(cell, dir, failures)?.into_iter()];
    while let Some(last) = waiting.last_mut() {
        let Some((path, attr)) = last.next() else {
            waiting.pop();
            continue;
        };
        visit(&path, &attr)?;
        if recursive && attr.kind == FileKind::Directory {
            let inside = entries(cell, &path, failures);
            if let Some(inside) = failures.note(inside) {
                waiting.push(inside.into_iter());
            }
        }
    }
    Ok(())
}
