//! The folder with its faults and its history; what the file system and the control socket call.
//!
//! One lock for all: the order of events is the order in which they were done. Paths are below the root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;

use crate::build::{Choice, build};
use crate::faults::{Call, Faults};
use crate::history::{Change, Event, History};

/// Where removed and replaced files wait, below the root; not seen through the mount.
pub const HIDDEN: &str = ".faultfs";
/// Node number of the root.
pub const ROOT: u64 = 1;

/// A file or folder that the kernel knows.
#[derive(Debug, Clone)]
struct Node {
    path: PathBuf,
    file: Option<Arc<File>>,
}

/// Calls so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes of files.
    pub syncs: u64,
}

#[derive(Debug)]
struct State {
    nodes: BTreeMap<u64, Node>,
    by_path: BTreeMap<PathBuf, u64>,
    next: u64,
    hidden: u64,
    faults: Faults,
    history: History,
    counts: Counts,
    /// Who holds the lock of a file; all locks exclude.
    locks: BTreeMap<u64, u64>,
}

/// The disk.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
    state: Mutex<State>,
}

type Result<T> = std::result::Result<T, Errno>;

/// The error number of a failure below.
#[expect(clippy::needless_pass_by_value, reason = "as map_err gives it")]
fn below(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

impl Disk {
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
            history: History::default(),
            counts: Counts::default(),
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

    /// Changes what is to go wrong.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
    }

    /// Remembers everything from now on; events so far.
    pub fn record(&self) -> usize {
        let mut state = self.lock();
        state.history.keep = true;
        state.history.events.len()
    }

    /// Events remembered, and how many of them are changes that are not durable.
    #[must_use]
    pub fn events(&self) -> (usize, usize) {
        let state = self.lock();
        let count = state.history.events.len();
        (count, state.history.pending(count).len())
    }

    /// Which events are flushes.
    #[must_use]
    pub fn sync_points(&self) -> Vec<usize> {
        let state = self.lock();
        let events = state.history.events.iter().enumerate();
        let syncs = events.filter(|(_, event)| !matches!(event, Event::Change(_)));
        syncs.map(|(index, _)| index).collect()
    }

    /// Calls so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// The power goes and comes back: the folder becomes one of the states that may be left. Who had files open
    /// must have ended.
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

    /// Puts a state that a loss of power may leave into the new folder `to`; the disk goes on.
    ///
    /// # Errors
    /// When a folder fails.
    pub fn snapshot(&self, to: &Path, choice: Choice) -> io::Result<()> {
        let state = self.lock();
        copy_folder(&self.root, to)?;
        build(to, &state.history, state.places(), choice)?;
        fs::remove_dir_all(to.join(HIDDEN))
    }

    // What follows is called by the file system.

    pub(crate) fn node_of(&self, parent: u64, name: &Path) -> Result<u64> {
        let mut state = self.lock();
        let path = state.path(parent)?.join(name);
        if name == Path::new(HIDDEN) {
            return Err(Errno::NOENT);
        }
        fs::symlink_metadata(self.root.join(&path)).map_err(below)?;
        Ok(state.node(&path))
    }

    pub(crate) fn metadata(&self, node: u64) -> Result<fs::Metadata> {
        let state = self.lock();
        match state.nodes.get(&node) {
            Some(Node {
                file: Some(file), ..
            }) => file.metadata().map_err(below),
            Some(Node { path, .. }) => fs::symlink_metadata(self.root.join(path)).map_err(below),
            None => Err(Errno::NOENT),
        }
    }

    fn file(&self, state: &mut State, node: u64) -> Result<Arc<File>> {
        let known = state.nodes.get_mut(&node).ok_or(Errno::NOENT)?;
        if let Some(file) = &known.file {
            return Ok(Arc::clone(file));
        }
        let path = self.root.join(&known.path);
        let file = Arc::new(
            File::options()
                .read(true)
                .write(true)
                .open(path)
                .map_err(below)?,
        );
        known.file = Some(Arc::clone(&file));
        Ok(file)
    }

    pub(crate) fn open(&self, node: u64, truncate: bool) -> Result<()> {
        let mut state = self.lock();
        let file = self.file(&mut state, node)?;
        drop(state);
        drop(file);
        if truncate {
            self.resize(node, 0)
        } else {
            Ok(())
        }
    }

    pub(crate) fn read(&self, node: u64, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut state = self.lock();
        state.counts.reads += 1;
        let path = state.text(node)?;
        state
            .faults
            .check(Call::Read, &path, at, at + length as u64)?;
        let file = self.file(&mut state, node)?;
        let mut bytes = vec![0; length];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, at + done as u64).map_err(below)? {
                0 => break,
                count => done += count,
            }
        }
        bytes.truncate(done);
        state.faults.flip(&path, at, &mut bytes);
        Ok(bytes)
    }

    pub(crate) fn write(&self, node: u64, at: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        state.counts.writes += 1;
        let end = at + bytes.len() as u64;
        let path = state.text(node)?;
        state.faults.check(Call::Write, &path, at, end)?;
        let file = self.file(&mut state, node)?;
        if !is_allocated(&file, at, end) {
            self.check_budget(&state, bytes.len() as u64)?;
        }
        let length = file.metadata().map_err(below)?.len();
        if end > length {
            file.set_len(end).map_err(below)?;
            state.changed(Change::Resize {
                node,
                from: length,
                to: end,
                cut: Vec::new(),
            });
        }
        let mut old = vec![0; bytes.len()];
        file.read_exact_at(&mut old, at).map_err(below)?;
        file.write_all_at(bytes, at).map_err(below)?;
        state.changed(Change::Write {
            node,
            at,
            old,
            new: bytes.to_vec(),
        });
        Ok(())
    }

    pub(crate) fn resize(&self, node: u64, to: u64) -> Result<()> {
        let mut state = self.lock();
        let path = state.text(node)?;
        let file = self.file(&mut state, node)?;
        let from = file.metadata().map_err(below)?.len();
        state
            .faults
            .check(Call::Write, &path, from.min(to), from.max(to))?;
        let mut cut = vec![0; usize::try_from(from.saturating_sub(to)).unwrap_or(0)];
        file.read_exact_at(&mut cut, to.min(from)).map_err(below)?;
        file.set_len(to).map_err(below)?;
        state.changed(Change::Resize {
            node,
            from,
            to,
            cut,
        });
        Ok(())
    }

    pub(crate) fn allocate(&self, node: u64, mode: u32, at: u64, length: u64) -> Result<()> {
        if mode != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let mut state = self.lock();
        let path = state.text(node)?;
        state.faults.check(Call::Write, &path, at, at + length)?;
        let file = self.file(&mut state, node)?;
        let metadata = file.metadata().map_err(below)?;
        self.check_budget(&state, length.saturating_sub(metadata.blocks() * 512))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), at, length)?;
        let to = file.metadata().map_err(below)?.len();
        if to > metadata.len() {
            state.changed(Change::Resize {
                node,
                from: metadata.len(),
                to,
                cut: Vec::new(),
            });
        }
        Ok(())
    }

    pub(crate) fn sync(&self, node: u64) -> Result<()> {
        let mut state = self.lock();
        state.counts.syncs += 1;
        let path = state.text(node)?;
        state.faults.check(Call::Sync, &path, 0, u64::MAX)?;
        if !state.faults.lie {
            state.history.push(Event::Sync(node));
        }
        Ok(())
    }

    pub(crate) fn sync_names(&self, node: u64) -> Result<()> {
        let mut state = self.lock();
        let path = state.text(node)?;
        state.faults.check(Call::Sync, &path, 0, u64::MAX)?;
        if !state.faults.lie {
            state.history.push(Event::SyncNames);
        }
        Ok(())
    }

    pub(crate) fn lock_file(&self, node: u64, owner: u64, takes: bool) -> Result<()> {
        let mut state = self.lock();
        match (state.locks.get(&node), takes) {
            (Some(holder), true) if *holder != owner => return Err(Errno::AGAIN),
            (_, true) => drop(state.locks.insert(node, owner)),
            (Some(holder), false) if *holder == owner => drop(state.locks.remove(&node)),
            (_, false) => {}
        }
        Ok(())
    }

    /// Makes a file or, with `folder`, a folder.
    pub(crate) fn make(&self, parent: u64, name: &Path, folder: bool) -> Result<u64> {
        let mut state = self.lock();
        let path = state.path(parent)?.join(name);
        state
            .faults
            .check(Call::Write, &path.to_string_lossy(), 0, 0)?;
        let full = self.root.join(&path);
        if folder {
            fs::create_dir(&full).map_err(below)?;
        } else {
            self.check_budget(&state, 4096)?;
            File::options()
                .write(true)
                .create_new(true)
                .open(&full)
                .map_err(below)?;
        }
        let node = state.node(&path);
        let from = state.hidden_place();
        state.changed(Change::Name {
            node,
            from,
            to: path,
            replaced: None,
        });
        Ok(node)
    }

    pub(crate) fn remove(&self, parent: u64, name: &Path, folder: bool) -> Result<()> {
        let mut state = self.lock();
        let path = state.path(parent)?.join(name);
        let full = self.root.join(&path);
        let is_folder = fs::symlink_metadata(&full).map_err(below)?.is_dir();
        match (is_folder, folder) {
            (true, false) => return Err(Errno::ISDIR),
            (false, true) => return Err(Errno::NOTDIR),
            (true, true) if fs::read_dir(&full).map_err(below)?.next().is_some() => {
                return Err(Errno::NOTEMPTY);
            }
            _ => {}
        }
        let node = state.node(&path);
        let to = state.hidden_place();
        fs::rename(&full, self.root.join(&to)).map_err(below)?;
        state.moved(node, &to);
        state.changed(Change::Name {
            node,
            from: path,
            to,
            replaced: None,
        });
        Ok(())
    }

    pub(crate) fn rename(&self, parent: u64, name: &Path, to: (u64, &Path)) -> Result<()> {
        let mut state = self.lock();
        let from = state.path(parent)?.join(name);
        let to = state.path(to.0)?.join(to.1);
        state
            .faults
            .check(Call::Write, &to.to_string_lossy(), 0, 0)?;
        let metadata = fs::symlink_metadata(self.root.join(&from)).map_err(below)?;
        if metadata.is_dir() {
            return Err(Errno::XDEV);
        }
        let node = state.node(&from);
        let replaced = if self.root.join(&to).exists() && from != to {
            let other = state.node(&to);
            let kept = state.hidden_place();
            fs::rename(self.root.join(&to), self.root.join(&kept)).map_err(below)?;
            state.moved(other, &kept);
            Some((other, kept))
        } else {
            None
        };
        fs::rename(self.root.join(&from), self.root.join(&to)).map_err(below)?;
        state.moved(node, &to);
        state.changed(Change::Name {
            node,
            from,
            to,
            replaced,
        });
        Ok(())
    }

    /// Names with their nodes.
    pub(crate) fn list(&self, node: u64) -> Result<Vec<(std::ffi::OsString, u64, u32)>> {
        let mut state = self.lock();
        let path = state.path(node)?;
        let mut out = Vec::new();
        for entry in fs::read_dir(self.root.join(&path)).map_err(below)? {
            let entry = entry.map_err(below)?;
            if entry.file_name() != HIDDEN {
                let mode = entry.metadata().map_err(below)?.mode();
                let node = state.node(&path.join(entry.file_name()));
                out.push((entry.file_name(), node, mode));
            }
        }
        out.sort_unstable();
        Ok(out)
    }

    /// Bytes in all and free.
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

    fn check_budget(&self, state: &State, more: u64) -> Result<()> {
        let Some(budget) = state.faults.budget else {
            return Ok(());
        };
        if used(&self.root).map_err(below)?.saturating_add(more) > budget {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }
}

impl State {
    fn node(&mut self, path: &Path) -> u64 {
        if let Some(node) = self.by_path.get(path) {
            return *node;
        }
        let node = self.next;
        self.next += 1;
        let path = path.to_path_buf();
        self.by_path.insert(path.clone(), node);
        self.nodes.insert(node, Node { path, file: None });
        node
    }

    fn path(&self, node: u64) -> Result<PathBuf> {
        let node = self.nodes.get(&node).ok_or(Errno::NOENT)?;
        Ok(node.path.clone())
    }

    fn text(&self, node: u64) -> Result<String> {
        Ok(self.path(node)?.to_string_lossy().into_owned())
    }

    fn hidden_place(&mut self) -> PathBuf {
        self.hidden += 1;
        Path::new(HIDDEN).join(self.hidden.to_string())
    }

    fn moved(&mut self, node: u64, to: &Path) {
        if let Some(known) = self.nodes.get_mut(&node) {
            self.by_path.remove(&known.path);
            to.clone_into(&mut known.path);
            self.by_path.insert(to.to_path_buf(), node);
        }
    }

    fn changed(&mut self, change: Change) {
        self.history.push(Event::Change(change));
    }

    fn places(&self) -> BTreeMap<u64, PathBuf> {
        let nodes = self.nodes.iter();
        nodes
            .map(|(node, known)| (*node, known.path.clone()))
            .collect()
    }
}

/// Whether a range has its blocks already.
fn is_allocated(file: &File, at: u64, end: u64) -> bool {
    rustix::fs::seek(file, SeekFrom::Hole(at)).is_ok_and(|hole| hole >= end)
}

/// Bytes that the files of a folder take, removed ones left out.
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
