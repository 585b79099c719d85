//! A folder of files under changes of bytes and names, and the states of it that a power loss may
//! leave.
//!
//! A change of names is durable once a flush of its folder has ended that was issued after the
//! change had ended. Of the other changes a prefix has arrived, of any length: file systems write
//! names in order.

use super::{Covered, FileChange, Image, SparseBytes, states};
use crate::Rng;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// An operation on a folder. Paths are below it, with `/` between names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FolderOperation {
    /// A new folder.
    MakeFolder(String),
    /// A new, empty file with this number; it replaces a file of that name.
    Create {
        /// Its number, which it keeps when it is renamed.
        file: u32,
        /// Its name.
        path: String,
    },
    /// A change of a file's bytes.
    Change {
        /// The file.
        file: u32,
        /// The change.
        change: FileChange,
    },
    /// A flush of a file.
    Flush(u32),
    /// A rename; it replaces a file that has the new name.
    Rename {
        /// The name before.
        from: String,
        /// The name after.
        to: String,
    },
    /// Removal of a name.
    Remove(String),
    /// A flush of the names in a folder; the empty path is the folder itself.
    FlushNames(String),
}

/// The target of a name: a file by number, or `None` for a folder.
type Names = BTreeMap<String, Option<u32>>;

/// A change of names that is not durable.
#[derive(Debug, Clone)]
struct PendingName {
    number: u64,
    has_ended: bool,
    act: FolderOperation,
}

/// An operation that was issued and has not ended.
#[derive(Debug, Clone)]
enum Unfinished {
    Change { file: u32, ticket: u64 },
    Name,
    Flush { file: u32, covered: Covered },
    FlushNames(Vec<u64>),
}

/// A folder with its pending changes.
#[derive(Debug, Clone, Default)]
pub struct CrashFolder {
    files: BTreeMap<u32, Image>,
    names: Names,
    pending: Vec<PendingName>,
    under_way: BTreeMap<u64, Unfinished>,
}

/// One state of a folder.
#[derive(Debug, Clone, PartialEq)]
pub struct FolderState {
    /// Its files; `None` for a folder.
    pub entries: BTreeMap<String, Option<SparseBytes>>,
}

fn change_names(names: &mut Names, act: &FolderOperation) {
    match act {
        FolderOperation::MakeFolder(path) => drop(names.insert(path.clone(), None)),
        FolderOperation::Create { file, path } => drop(names.insert(path.clone(), Some(*file))),
        FolderOperation::Rename { from, to } => {
            if let Some(moved) = names.remove(from) {
                names.insert(to.clone(), moved);
            }
        }
        FolderOperation::Remove(path) => drop(names.remove(path)),
        FolderOperation::Change { .. }
        | FolderOperation::Flush(_)
        | FolderOperation::FlushNames(_) => {}
    }
}

/// The folder in which an act changes names.
fn folder_of(act: &FolderOperation) -> &str {
    let path = match act {
        FolderOperation::MakeFolder(path) | FolderOperation::Remove(path) => path,
        FolderOperation::Create { path, .. } => path,
        FolderOperation::Rename { to, .. } => to,
        FolderOperation::Change { .. }
        | FolderOperation::Flush(_)
        | FolderOperation::FlushNames(_) => return "",
    };
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl CrashFolder {
    /// Issues an operation; `number` identifies it until it has ended.
    pub fn issue(&mut self, number: u64, act: FolderOperation) {
        let under_way = match act {
            FolderOperation::Change { file, change } => {
                let ticket = self.files.entry(file).or_default().issue(change);
                Unfinished::Change { file, ticket }
            }
            FolderOperation::Flush(file) => {
                let covered = self.files.entry(file).or_default().flush();
                Unfinished::Flush { file, covered }
            }
            FolderOperation::FlushNames(path) => {
                let covered = self
                    .pending
                    .iter()
                    .filter(|name| name.has_ended && folder_of(&name.act) == path);
                Unfinished::FlushNames(covered.map(|name| name.number).collect())
            }
            FolderOperation::MakeFolder(_)
            | FolderOperation::Create { .. }
            | FolderOperation::Rename { .. }
            | FolderOperation::Remove(_) => {
                if let FolderOperation::Create { file, .. } = &act {
                    self.files.insert(*file, Image::default());
                }
                self.pending.push(PendingName {
                    number,
                    has_ended: false,
                    act,
                });
                Unfinished::Name
            }
        };
        self.under_way.insert(number, under_way);
    }

    /// Ends an operation, successfully or not.
    pub fn ended(&mut self, number: u64, is_well: bool) {
        match self.under_way.remove(&number) {
            Some(Unfinished::Change { file, ticket }) if is_well => {
                self.files.entry(file).or_default().ended(ticket);
            }
            Some(Unfinished::Flush { file, covered }) if is_well => {
                self.files.entry(file).or_default().flushed(&covered);
            }
            Some(Unfinished::FlushNames(covered)) if is_well => {
                let names = &mut self.names;
                self.pending.retain(|name| {
                    let is_covered = covered.contains(&name.number);
                    if is_covered {
                        change_names(names, &name.act);
                    }
                    !is_covered
                });
            }
            Some(Unfinished::Name) if is_well => {
                let found = self.pending.iter_mut().find(|name| name.number == number);
                if let Some(name) = found {
                    name.has_ended = true;
                }
            }
            // Names change whole or not at all.
            Some(Unfinished::Name) => self.pending.retain(|name| name.number != number),
            _ => {}
        }
    }

    /// Makes everything so far durable.
    pub fn settle(&mut self) {
        self.files.values_mut().for_each(Image::settle);
        for name in self.pending.drain(..) {
            change_names(&mut self.names, &name.act);
        }
        self.under_way.clear();
    }

    /// The state that a reader sees while the power is on.
    #[must_use]
    pub fn live(&self) -> FolderState {
        let contents = self.files.iter().map(|(file, image)| (*file, image.live()));
        self.state(self.pending.len(), &contents.collect())
    }

    /// States that a power loss may leave now, at most `limit`. As [`states`] of all files, each
    /// combined with every number of the pending names; where those are too many, with random
    /// numbers of them.
    #[must_use]
    pub fn states(&self, unit: u64, limit: usize, rng: &mut Rng) -> Vec<FolderState> {
        let images: Vec<&Image> = self.files.values().collect();
        let all = states(&images, unit, limit, rng);
        let numbers = self.pending.len() + 1;
        let is_every = all.len() * numbers <= limit;
        (0..limit.min(all.len() * numbers))
            .map(|state| {
                let arrived = if is_every {
                    state / all.len()
                } else {
                    rng.index(numbers)
                };
                let contents = all[state % all.len()].iter().cloned();
                let contents = self.files.keys().copied().zip(contents);
                self.state(arrived, &contents.collect())
            })
            .collect()
    }

    fn state(&self, arrived: usize, contents: &BTreeMap<u32, SparseBytes>) -> FolderState {
        let mut names = self.names.clone();
        for name in self.pending.iter().take(arrived) {
            change_names(&mut names, &name.act);
        }
        let entry = |(path, file): (String, Option<u32>)| {
            let bytes = file.map(|file| contents.get(&file).cloned().unwrap_or_default());
            (path, bytes)
        };
        let entries = names.into_iter().map(entry).collect();
        FolderState { entries }
    }
}

impl FolderState {
    /// Creates the folder `dir` with this state; it must be missing or empty.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write_to(&self, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir)?;
        for (path, bytes) in &self.entries {
            let to = dir.join(path);
            match bytes {
                None => std::fs::create_dir_all(to)?,
                Some(bytes) => {
                    if let Some(parent) = to.parent() {
                        std::fs::create_dir_all(parent)?;
                    }
                    bytes.write_to(&to)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A folder with a durable file `a`, in which `b` then replaces `a`, with the flushes that the
    /// arguments select.
    fn replaced(flushes_file: bool, flushes_names: bool) -> CrashFolder {
        let mut folder = CrashFolder::default();
        let mut number = 0;
        let mut act = |folder: &mut CrashFolder, act| {
            number += 1;
            folder.issue(number, act);
            folder.ended(number, true);
        };
        let write = |file, byte| FolderOperation::Change {
            file,
            change: FileChange::Write {
                at: 0,
                bytes: vec![byte; 2],
            },
        };
        let create = |file, path: &str| FolderOperation::Create {
            file,
            path: path.into(),
        };
        act(&mut folder, create(0, "a"));
        act(&mut folder, write(0, b'o'));
        folder.settle();
        act(&mut folder, create(1, "b"));
        act(&mut folder, write(1, b'n'));
        if flushes_file {
            act(&mut folder, FolderOperation::Flush(1));
        }
        let (from, to) = ("b".into(), "a".into());
        act(&mut folder, FolderOperation::Rename { from, to });
        if flushes_names {
            act(&mut folder, FolderOperation::FlushNames(String::new()));
        }
        folder
    }

    fn contents_of_a(folder: &CrashFolder) -> BTreeSet<String> {
        let states = folder.states(1, 50, &mut Rng(1));
        let found = states.iter().filter_map(|state| {
            let bytes = state.entries.get("a")?.as_ref()?.to_vec();
            Some(String::from_utf8_lossy(&bytes).into_owned())
        });
        found.collect()
    }

    #[test]
    fn a_file_that_is_replaced_is_the_old_or_the_new_one_where_it_is_flushed_before_the_rename() {
        let list = |list: &[&str]| -> BTreeSet<String> {
            list.iter().map(|text| (*text).to_owned()).collect()
        };
        assert_eq!(contents_of_a(&replaced(true, true)), list(&["nn"]));
        assert_eq!(contents_of_a(&replaced(true, false)), list(&["nn", "oo"]));
        let unsafe_one = contents_of_a(&replaced(false, false));
        assert_eq!(unsafe_one, list(&["", "\0n", "n", "nn", "oo"]));
        let live = replaced(false, false).live();
        assert_eq!(live.entries["a"], Some(SparseBytes::of(b"nn")));
    }

    #[test]
    fn a_failed_change_of_names_has_no_effect() {
        let mut folder = replaced(true, true);
        folder.issue(90, FolderOperation::Remove("a".into()));
        folder.ended(90, false);
        assert_eq!(contents_of_a(&folder).len(), 1);
        assert!(folder.live().entries.contains_key("a"));
    }
}
