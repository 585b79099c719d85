//! Bytes per zone and target of all files below a directory.
//!
//! Memory is bounded: one open directory per level, and no name is kept. So a file with several
//! names counts with each of them. Other mounts below the directory are left out, and so are files
//! removed during the walk.

use crate::console;
use crate::exit::Failure;
use crate::mount::attributes;
use crate::progress::ProgressMeter;
use anyhow::Context;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{DirEntry, ReadDir};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Most directories open at once, below the usual limit of open files.
const LEVELS_MAX: usize = 512;

/// Totals of everything below a directory.
#[derive(Debug, Default)]
pub struct TreeTotals {
    files: u64,
    directories: u64,
    failures: u64,
    zones: BTreeMap<u64, u64>,
    targets: BTreeMap<u64, u64>,
}

/// Adds a JSON object's numbers, whose keys are numbers, to `sums`.
fn add(sums: &mut BTreeMap<u64, u64>, parts: &Value) {
    for (id, bytes) in parts.as_object().into_iter().flatten() {
        if let (Ok(id), Some(bytes)) = (id.parse(), bytes.as_u64()) {
            let sum = sums.entry(id).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
}

fn to_json(sums: &BTreeMap<u64, u64>) -> Value {
    let parts = sums.iter();
    Value::Object(Map::from_iter(
        parts.map(|(id, bytes)| (id.to_string(), (*bytes).into())),
    ))
}

impl TreeTotals {
    /// Walks everything below `root`. Failures are printed to standard error and counted.
    pub fn of(root: &Path, progress: &mut ProgressMeter) -> anyhow::Result<Self> {
        let whole = || format!("locate {}", console::path(root));
        let device = std::fs::metadata(root).with_context(whole)?.dev();
        let mut below = Self::default();
        let mut open: Vec<ReadDir> = vec![std::fs::read_dir(root).with_context(whole)?];
        while let Some(directory) = open.last_mut() {
            let entry = match directory.next() {
                Some(Ok(entry)) => entry,
                Some(Err(error)) => {
                    below.failed(root, &error.into());
                    open.pop();
                    continue;
                }
                None => {
                    open.pop();
                    continue;
                }
            };
            match below.entry(&entry, device) {
                Ok(Some(inner)) if open.len() < LEVELS_MAX => open.push(inner),
                Ok(Some(_)) => {
                    let text = format!(
                        "{}: more than {LEVELS_MAX} levels of directories",
                        console::path(&entry.path())
                    );
                    return Err(Failure::new(crate::exit::FAILED, text)
                        .hint("name a directory further down")
                        .into());
                }
                Ok(None) => {}
                Err(error) => {
                    let path = entry.path();
                    if !is_gone(&path) {
                        below.failed(&path, &error);
                    }
                }
            }
            progress.at(below.files, below.bytes());
        }
        Ok(below)
    }

    /// Counts one entry; opens a directory.
    fn entry(&mut self, entry: &DirEntry, device: u64) -> anyhow::Result<Option<ReadDir>> {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            // Does not follow a symbolic link, unlike the metadata of its path.
            if entry.metadata()?.dev() != device {
                return Ok(None);
            }
            self.directories += 1;
            return Ok(Some(std::fs::read_dir(entry.path())?));
        }
        if kind.is_file() {
            let text = attributes::get(&entry.path(), attributes::LOCATE)?;
            let value: Value = serde_json::from_str(&text)?;
            self.files += 1;
            add(&mut self.zones, &value["zones"]);
            add(&mut self.targets, &value["targets"]);
        }
        Ok(None)
    }

    fn failed(&mut self, path: &Path, error: &anyhow::Error) {
        self.failures += 1;
        console::note(format_args!("zonal: {}: {error:#}", console::path(path)));
    }

    fn bytes(&self) -> u64 {
        let bytes = self.zones.values();
        bytes.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The number of entries that could not be read.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Adds the totals to the fields of the directory.
    pub fn add_to(&self, fields: &mut Map<String, Value>) {
        fields.insert("files".into(), json!(self.files));
        fields.insert("directories".into(), json!(self.directories));
        fields.insert("zones".into(), to_json(&self.zones));
        fields.insert("targets".into(), to_json(&self.targets));
    }
}

fn is_gone(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_added_per_number_and_saturate() {
        let mut sums = BTreeMap::new();
        add(&mut sums, &json!({"2": 5, "10": 7}));
        add(&mut sums, &json!({"2": u64::MAX, "odd": 1}));
        add(&mut sums, &Value::Null);
        assert_eq!(to_json(&sums), json!({"2": u64::MAX, "10": 7}));
    }

    fn walked(dir: &Path) -> anyhow::Result<TreeTotals> {
        TreeTotals::of(dir, &mut ProgressMeter::new("files", false))
    }

    #[test]
    fn files_outside_a_cell_count_as_failures() {
        let dir = zonal_testkit::Scratch::new("walk");
        std::fs::create_dir(dir.join("sub")).unwrap();
        std::fs::write(dir.join("sub/file"), "").unwrap();
        std::os::unix::fs::symlink("file", dir.join("sub/link")).unwrap();
        let below = walked(&dir).unwrap();
        assert_eq!((below.files, below.directories), (0, 1));
        assert_eq!(below.failures(), 1);
    }

    #[test]
    fn a_tree_that_is_too_deep_is_refused() {
        let dir = zonal_testkit::Scratch::new("deep");
        let depth = |levels: usize| dir.join(vec!["d"; levels].join("/"));
        std::fs::create_dir_all(depth(LEVELS_MAX - 1)).unwrap();
        assert_eq!(walked(&dir).unwrap().directories, LEVELS_MAX as u64 - 1);
        std::fs::create_dir_all(depth(LEVELS_MAX)).unwrap();
        assert!(walked(&dir).is_err());
    }
}
