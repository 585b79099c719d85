//! Names: create, remove, rename, list and flush.

use super::state::Node;
use super::{FaultDisk, HIDDEN, Result, below};
use crate::faults::DiskFaultKind;
use crate::history::{DiskChange, DiskEvent};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

impl FaultDisk {
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

    pub(crate) fn sync_names(&self, node: u64) -> Result<()> {
        let mut state = self.lock();
        let path = state.text(node)?;
        state
            .faults
            .check(DiskFaultKind::Sync, &path, 0, u64::MAX)?;
        if !state.faults.lie {
            state.history.push(DiskEvent::SyncNames);
        }
        Ok(())
    }

    /// Creates a file or, with `folder`, a folder.
    pub(crate) fn make(&self, parent: u64, name: &Path, folder: bool) -> Result<u64> {
        let mut state = self.lock();
        let path = state.path(parent)?.join(name);
        state
            .faults
            .check(DiskFaultKind::Write, &path.to_string_lossy(), 0, 0)?;
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
        state.changed(DiskChange::Name {
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
        state.changed(DiskChange::Name {
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
            .check(DiskFaultKind::Write, &to.to_string_lossy(), 0, 0)?;
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
        state.changed(DiskChange::Name {
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
}
