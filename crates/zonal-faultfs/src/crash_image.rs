//! Crash images: makes the folder that a power loss would leave at some moment.
//!
//! It undoes all changes from the first one that was not durable on, newest first. Then it redoes
//! those up to the moment: durable changes completely, of the others the part that the choice
//! selects.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::history::{ChangeHistory, DiskChange, DiskEvent};
use zonal_testkit::Rng;

/// Selects a state that a power loss may leave.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Number of events that have happened.
    pub events: usize,
    /// Bytes that arrive as one unit: 512 or 4096.
    pub unit: u64,
    /// Chance of a unit to arrive, of 4: 0 none, 4 all.
    pub odds: u64,
    /// Draws the selection.
    pub rng: Rng,
}

impl Choice {
    /// The state of a seed, after `events` events.
    #[must_use]
    pub fn of_seed(seed: u64, unit: u64, events: usize) -> Self {
        let mut rng = Rng(seed);
        let odds = rng.below(5);
        Self {
            events,
            unit: unit.max(1),
            odds,
            rng,
        }
    }

    fn arrives(&mut self) -> bool {
        self.rng.below(4) < self.odds
    }
}

/// Turns the folder `root`, in its state after all of `history`, into an earlier state. `places`
/// are the files' paths in it.
///
/// # Errors
/// When the folder fails, or does not match the history.
pub fn build(
    root: &Path,
    history: &ChangeHistory,
    mut places: BTreeMap<u64, PathBuf>,
    mut choice: Choice,
) -> io::Result<()> {
    let count = choice.events.min(history.events.len());
    let pending = history.pending(count);
    let first = pending.first().copied().unwrap_or(count).min(count);
    for event in history.events.iter().skip(first).rev() {
        if let DiskEvent::Change(change) = event {
            undo(root, change, &mut places)?;
        }
    }
    let is_name = |index: &usize| {
        matches!(
            history.events.get(*index),
            Some(DiskEvent::Change(DiskChange::Name { .. }))
        )
    };
    let names = pending.iter().filter(|index| is_name(index)).count() as u64;
    let mut names_left = if choice.odds >= 4 {
        names
    } else {
        choice.rng.below(names + 1)
    };
    for (index, event) in history.events.iter().enumerate().take(count).skip(first) {
        let DiskEvent::Change(change) = event else {
            continue;
        };
        if !pending.contains(&index) {
            redo(root, change, &mut places)?;
            continue;
        }
        match change {
            DiskChange::Name { .. } => {
                if names_left > 0 {
                    names_left -= 1;
                    redo(root, change, &mut places)?;
                }
            }
            DiskChange::Resize { .. } => {
                if choice.arrives() {
                    redo(root, change, &mut places)?;
                }
            }
            DiskChange::Write { node, at, new, .. } => {
                let file = open(root, &places, *node)?;
                let mut done = 0;
                while done < new.len() as u64 {
                    let here = at + done;
                    let step = (choice.unit - here % choice.unit).min(new.len() as u64 - done);
                    if choice.arrives() {
                        let range = usize_of(done)..usize_of(done + step);
                        file.write_all_at(new.get(range).unwrap_or_default(), here)?;
                    }
                    done += step;
                }
            }
        }
    }
    Ok(())
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn open(root: &Path, places: &BTreeMap<u64, PathBuf>, node: u64) -> io::Result<File> {
    let path = places.get(&node).ok_or(io::ErrorKind::NotFound)?;
    File::options().write(true).open(root.join(path))
}

fn undo(root: &Path, change: &DiskChange, places: &mut BTreeMap<u64, PathBuf>) -> io::Result<()> {
    match change {
        DiskChange::Write { node, at, old, .. } => {
            open(root, places, *node)?.write_all_at(old, *at)
        }
        DiskChange::Resize {
            node, from, cut, ..
        } => {
            let file = open(root, places, *node)?;
            file.set_len(*from)?;
            file.write_all_at(cut, from - cut.len() as u64)
        }
        DiskChange::Name {
            node,
            from,
            to,
            replaced,
        } => {
            fs::rename(root.join(to), root.join(from))?;
            places.insert(*node, from.clone());
            if let Some((other, kept)) = replaced {
                fs::rename(root.join(kept), root.join(to))?;
                places.insert(*other, to.clone());
            }
            Ok(())
        }
    }
}

fn redo(root: &Path, change: &DiskChange, places: &mut BTreeMap<u64, PathBuf>) -> io::Result<()> {
    match change {
        DiskChange::Write { node, at, new, .. } => {
            open(root, places, *node)?.write_all_at(new, *at)
        }
        DiskChange::Resize { node, to, .. } => open(root, places, *node)?.set_len(*to),
        DiskChange::Name {
            node,
            from,
            to,
            replaced,
        } => {
            if let Some((other, kept)) = replaced {
                fs::rename(root.join(to), root.join(kept))?;
                places.insert(*other, kept.clone());
            }
            fs::rename(root.join(from), root.join(to))?;
            places.insert(*node, to.clone());
            Ok(())
        }
    }
}
