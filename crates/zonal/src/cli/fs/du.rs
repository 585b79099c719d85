//! `zonal fs du`.

use super::connection::{AccessArgs, CellConnection, Failures, about};
use super::listing::entries;
use crate::console;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use zonal_basics::byte_size;
use zonal_native::{Attr, FileKind, Ino};

/// Add up sizes below directories
///
/// A file with several names counts once.
#[derive(Debug, clap::Args)]
pub struct Du {
    #[command(flatten)]
    access: AccessArgs,
    /// Print only the sum of each path
    #[arg(long, short)]
    summarize: bool,
    /// As JSON, one object a directory: sizes of files, and bytes allocated on targets
    #[arg(long)]
    json: bool,
    /// Paths
    #[arg(default_value = "/", value_name = "PATH")]
    paths: Vec<PathBuf>,
}

#[derive(Default, Clone, Copy)]
struct Sum {
    size: u64,
    allocated: u64,
    files: u64,
    directories: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.size = self.size.saturating_add(other.size);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.files += other.files;
        self.directories += other.directories;
    }
}

impl Du {
    pub fn run(self) -> anyhow::Result<()> {
        let cell = self.access.connect("du")?;
        let (mut failures, mut seen) = (Failures::default(), BTreeSet::new());
        for path in &self.paths {
            let found = cell.native.stat(&cell.user, path);
            let found = found.map_err(|error| about(error, "stat", path));
            let Some(attr) = failures.note(found) else {
                continue;
            };
            let sum = self.sum(&cell, path, &attr, &mut seen, &mut failures);
            if self.summarize || attr.kind != FileKind::Directory {
                self.show(path, sum);
            }
        }
        cell.end(failures.finish())
    }

    fn sum(
        &self,
        cell: &CellConnection,
        path: &Path,
        attr: &Attr,
        seen: &mut BTreeSet<Ino>,
        failures: &mut Failures,
    ) -> Sum {
        let mut sum = Sum::default();
        if attr.kind != FileKind::Directory {
            if attr.nlink < 2 || seen.insert(attr.ino) {
                sum.add(Sum {
                    size: attr.size,
                    allocated: attr.allocated,
                    files: 1,
                    directories: 0,
                });
            }
            return sum;
        }
        sum.directories = 1;
        let listed = entries(cell, path, failures);
        for (path, attr) in failures.note(listed).unwrap_or_default() {
            sum.add(self.sum(cell, &path, &attr, seen, failures));
        }
        if !self.summarize {
            self.show(path, sum);
        }
        sum
    }

    fn show(&self, path: &Path, sum: Sum) {
        if self.json {
            console::json(json!({
                "path": console::json_path(path),
                "size": sum.size,
                "allocated": sum.allocated,
                "files": sum.files,
                "directories": sum.directories,
            }));
        } else {
            console::line(format_args!(
                "{:>12} {:>8} files  {}",
                byte_size::rounded(sum.size),
                sum.files,
                console::path(path)
            ));
        }
    }
}
