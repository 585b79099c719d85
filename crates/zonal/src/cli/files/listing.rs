//! Lines of `zonal files`: lost files as they are found, endangered files sorted at the end.
//!
//! Invariant: at most [`LISTED_MAX`] files are held. Where more are endangered, the least
//! endangered are counted and not listed.

use super::search::ScanEnd;
use crate::cell::connection::CellHandle;
use crate::console;
use crate::transfer::ObjectPaths;
use serde_json::json;
use std::collections::BTreeMap;
use zonal_fsck::survival::{FileSurvival, Survival};
use zonal_meta::inode::Inode;
use zonal_types::{Ino, TargetId};

/// Endangered files that are held, to be sorted.
const LISTED_MAX: usize = 262_144;

/// Numbers of files.
#[derive(Debug, Default)]
pub struct FileCounts {
    pub looked_at: u64,
    pub lost: u64,
    pub unavailable: u64,
    pub endangered: u64,
    /// Of the kind that is listed.
    pub found: u64,
}

/// A file to be listed.
struct FoundFile {
    ino: Ino,
    dir: Ino,
    survival: FileSurvival,
}

/// Files to be listed, by their whole copies.
#[derive(Default)]
struct HeldFiles {
    by_whole: BTreeMap<u16, Vec<FoundFile>>,
    count: usize,
}

impl HeldFiles {
    /// Holds a file. Where there are more than `max`, drops one of the least endangered.
    fn hold(&mut self, file: FoundFile, max: usize) {
        let of_number = self.by_whole.entry(file.survival.whole).or_default();
        of_number.push(file);
        self.count += 1;
        if self.count > max
            && let Some(mut least) = self.by_whole.last_entry()
        {
            least.get_mut().pop();
            if least.get().is_empty() {
                least.remove();
            }
            self.count -= 1;
        }
    }
}

/// Collects files, and prints them.
pub struct FileListing<'a> {
    cell: &'a CellHandle,
    is_endangered: bool,
    json: bool,
    pub counts: FileCounts,
    held: HeldFiles,
    printed: u64,
    names: Option<ObjectPaths>,
}

fn word(survival: Survival) -> &'static str {
    match survival {
        Survival::Lost => "lost",
        Survival::Unavailable => "unavailable",
        Survival::Endangered => "endangered",
        Survival::Whole => "whole",
    }
}

impl<'a> FileListing<'a> {
    /// A listing of endangered files, or of lost and unavailable files.
    pub fn new(cell: &'a CellHandle, is_endangered: bool, json: bool) -> Self {
        Self {
            cell,
            is_endangered,
            json,
            counts: FileCounts::default(),
            held: HeldFiles::default(),
            printed: 0,
            names: None,
        }
    }

    /// FileCounts a file, and lists or keeps it if it is of the wanted kind.
    pub fn take(&mut self, inode: &Inode, survival: FileSurvival) {
        let counts = &mut self.counts;
        counts.looked_at += 1;
        match survival.survival {
            Survival::Lost => counts.lost += 1,
            Survival::Unavailable => counts.unavailable += 1,
            Survival::Endangered => counts.endangered += 1,
            Survival::Whole => return,
        }
        let is_wanted = match self.is_endangered {
            true => survival.copies > 1,
            false => survival.survival < Survival::Endangered,
        };
        if !is_wanted {
            return;
        }
        counts.found += 1;
        let file = FoundFile {
            ino: inode.ino,
            dir: inode.parent,
            survival,
        };
        match self.is_endangered {
            true => self.held.hold(file, LISTED_MAX),
            false => self.print(&file),
        }
    }

    /// Prints the files that are held, and the totals.
    pub fn finish(mut self, end: &ScanEnd) -> FileCounts {
        for file in std::mem::take(&mut self.held)
            .by_whole
            .into_values()
            .flatten()
        {
            self.print(&file);
        }
        if let Some(names) = self.names.take() {
            // Best effort: an unclosed session ends by itself.
            let _ = names.close();
        }
        self.print_totals(end);
        self.counts
    }

    fn path(&mut self, file: &FoundFile) -> Option<String> {
        if self.names.is_none() {
            self.names = ObjectPaths::new(self.cell).ok();
        }
        self.names.as_mut()?.path_in(file.dir, file.ino)
    }

    fn print(&mut self, file: &FoundFile) {
        let path = self.path(file);
        let FileSurvival {
            survival,
            whole,
            copies,
            targets,
        } = &file.survival;
        let state = word(*survival);
        let is_first = self.printed == 0;
        self.printed += 1;
        if self.json {
            console::json(json!({
                "state": state,
                "inode": file.ino.0,
                "path": path,
                "copies": copies,
                "whole_copies": whole,
                "targets": targets.iter().map(|target| target.0).collect::<Vec<_>>(),
            }));
            return;
        }
        let line = |cells: [&str; 5]| {
            let [state, whole, targets, inode, path] = cells;
            console::line(format_args!(
                "{state:<12} {whole:<6} {targets:<12} {inode:<16} {path}"
            ));
        };
        if is_first {
            line(["STATE", "WHOLE", "NOT ON", "INODE", "PATH"]);
        }
        let targets: Vec<String> = targets.iter().map(TargetId::to_string).collect();
        let targets = match targets.as_slice() {
            [] => "-".to_owned(),
            some => some.join(","),
        };
        line([
            state,
            &format!("{whole}/{copies}"),
            &targets,
            &file.ino.to_string(),
            path.as_deref().unwrap_or("(no name)"),
        ]);
    }

    fn print_totals(&self, end: &ScanEnd) {
        let FileCounts {
            looked_at,
            lost,
            unavailable,
            endangered,
            found,
        } = self.counts;
        let not_listed = found - self.printed;
        if self.json {
            let silent = end.silent.iter().map(|shard| shard.0);
            console::json(json!({
                "name": "summary",
                "files": looked_at,
                "lost": lost,
                "unavailable": unavailable,
                "endangered": endangered,
                "not_listed": not_listed,
                "moved": end.has_moved,
                "silent_shards": silent.collect::<Vec<_>>(),
            }));
            return;
        }
        if not_listed > 0 {
            console::line(format_args!(
                "{not_listed} more files, the least endangered, are not listed"
            ));
        }
        console::line(format_args!(
            "{looked_at} files: {lost} lost, {unavailable} unavailable, {endangered} endangered"
        ));
        if end.has_moved {
            console::line(
                "directories moved between shards meanwhile: run this again, files may be missing",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn of_too_many_files_the_most_endangered_are_kept_first() {
        let mut held = HeldFiles::default();
        for (number, whole) in [(1, 2), (2, 1), (3, 2), (4, 0), (5, 1), (6, 2), (7, 1)] {
            let file = FoundFile {
                ino: Ino(number),
                dir: Ino::ROOT,
                survival: FileSurvival {
                    survival: Survival::Endangered,
                    whole,
                    copies: 3,
                    targets: BTreeSet::new(),
                },
            };
            held.hold(file, 3);
            assert!(held.count <= 3);
        }
        let files = held.by_whole.into_values().flatten();
        let files: Vec<u64> = files.map(|file| file.ino.0).collect();
        assert_eq!(files, [4, 2, 5]);
    }
}
