//! The folder with its faults and its history, as the file system and the control socket use it.
//!
//! One lock for all: the order of events is the order of the operations. Paths are below the root.

mod bytes;
mod names;
mod state;

use std::collections::BTreeMap;
use std::fs::{self};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::crash_image::{Choice, build};
use crate::faults::Faults;
use crate::history::{ChangeHistory, DiskEvent};

use state::State;

/// Folder of removed and replaced files, below the root; not visible through the mount.
pub const HIDDEN: &str = ".faultfs";
/// Node number of the root.
pub const ROOT: u64 = 1;

/// Numbers of calls so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// The most concurrent reads since [`FaultDisk::slow_reads`].
    pub reads_at_once: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes of files.
    pub syncs: u64,
}

/// The disk with its faults.
#[derive(Debug)]
pub struct FaultDisk {
    root: PathBuf,
    state: Mutex<State>,
}

type Result<T> = std::result::Result<T, Errno>;

/// The error number of an error of the folder below.
#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn below(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl FaultDisk {
    /// A disk over the folder `root`, whose contents count as durable.
    ///
    /// # Errors
    /// When the folder fails.
    pub fn new(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root.join(HIDDEN))?;
        let mut state = State {
            nodes: BTreeMap::new(),
            by_path: BTreeMap::new(),
            next: ROOT,
            hidden: 0,
            faults: Faults::default(),
            history: ChangeHistory::default(),
            counts: Counts::default(),
            reading: 0,
            locks: BTreeMap::new(),
        };
        state.node(Path::new(""));
        Ok(Self {
            root: root.to_path_buf(),
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the faults.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
    }

    /// Makes reads take `takes` from now on, and restarts the count of concurrent reads.
    pub fn slow_reads(&self, takes: Duration) {
        let mut state = self.lock();
        state.faults.read_takes = takes;
        state.counts.reads_at_once = 0;
    }

    /// Remembers everything from now on; returns the number of events so far.
    pub fn record(&self) -> usize {
        let mut state = self.lock();
        state.history.keep = true;
        state.history.events.len()
    }

    /// Number of events remembered, and how many of them are changes that are not durable.
    #[must_use]
    pub fn events(&self) -> (usize, usize) {
        let state = self.lock();
        let count = state.history.events.len();
        (count, state.history.pending(count).len())
    }

    /// Indexes of the events that are flushes.
    #[must_use]
    pub fn sync_points(&self) -> Vec<usize> {
        let state = self.lock();
        let events = state.history.events.iter().enumerate();
        let syncs = events.filter(|(_, event)| !matches!(event, DiskEvent::Change(_)));
        syncs.map(|(index, _)| index).collect()
    }

    /// Numbers of calls so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Power loss and return: the folder becomes one of the states that may be left. Programs with
    /// open files must have ended.
    ///
    /// # Errors
    /// When the folder fails.
    pub fn cut(&self, seed: u64, unit: u64) -> io::Result<()> {
        let mut state = self.lock();
        let choice = Choice::of_seed(seed, unit, usize::MAX);
        build(&self.root, &state.history, state.places(), choice)?;
        state.history.events.clear();
        state.nodes.retain(|node, _| *node == ROOT);
        state.by_path.retain(|_, node| *node == ROOT);
        drop(state);
        fs::remove_dir_all(self.root.join(HIDDEN))?;
        fs::create_dir_all(self.root.join(HIDDEN))
    }

    /// Puts a state that a power loss may leave into the new folder `to`; the disk goes on.
    ///
    /// # Errors
    /// When a folder fails.
    pub fn snapshot(&self, to: &Path, choice: Choice) -> io::Result<()> {
        let state = self.lock();
        copy_folder(&self.root, to)?;
        build(to, &state.history, state.places(), choice)?;
        fs::remove_dir_all(to.join(HIDDEN))
    }

    // The file system calls the following functions.

    /// Total and free bytes.
    pub(crate) fn space(&self) -> Result<(u64, u64)> {
        let budget = self.lock().faults.budget;
        if let Some(budget) = budget {
            return Ok((
                budget,
                budget.saturating_sub(used(&self.root).map_err(below)?),
            ));
        }
        let space = rustix::fs::statvfs(&self.root)?;
        Ok((
            space.f_blocks * space.f_frsize,
            space.f_bavail * space.f_frsize,
        ))
    }
}

/// Bytes used by the files of a folder, without removed ones.
fn used(folder: &Path) -> io::Result<u64> {
    let mut total = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() && entry.file_name() != HIDDEN {
            total += used(&entry.path())?;
        } else if metadata.is_file() {
            total += metadata.blocks() * 512;
        }
    }
    Ok(total)
}

fn copy_folder(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
