//! The state of the disk: nodes, paths and locks of its files, and their history.

use super::{Counts, HIDDEN, Result};
use crate::faults::Faults;
use crate::history::{ChangeHistory, DiskChange, DiskEvent};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file or folder that the kernel knows.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) path: PathBuf,
    pub(super) file: Option<Arc<File>>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) by_path: BTreeMap<PathBuf, u64>,
    pub(super) next: u64,
    pub(super) hidden: u64,
    pub(super) faults: Faults,
    pub(super) history: ChangeHistory,
    pub(super) counts: Counts,
    /// Reads in progress.
    pub(super) reading: u64,
    /// Owners of the file's lock; all locks are exclusive.
    pub(super) locks: BTreeMap<u64, u64>,
}

impl State {
    pub(super) fn node(&mut self, path: &Path) -> u64 {
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

    pub(super) fn path(&self, node: u64) -> Result<PathBuf> {
        let node = self.nodes.get(&node).ok_or(Errno::NOENT)?;
        Ok(node.path.clone())
    }

    pub(super) fn text(&self, node: u64) -> Result<String> {
        Ok(self.path(node)?.to_string_lossy().into_owned())
    }

    pub(super) fn hidden_place(&mut self) -> PathBuf {
        self.hidden += 1;
        Path::new(HIDDEN).join(self.hidden.to_string())
    }

    pub(super) fn moved(&mut self, node: u64, to: &Path) {
        if let Some(known) = self.nodes.get_mut(&node) {
            self.by_path.remove(&known.path);
            to.clone_into(&mut known.path);
            self.by_path.insert(to.to_path_buf(), node);
        }
    }

    pub(super) fn changed(&mut self, change: DiskChange) {
        self.history.push(DiskEvent::Change(change));
    }

    pub(super) fn places(&self) -> BTreeMap<u64, PathBuf> {
        let nodes = self.nodes.iter();
        nodes
            .map(|(node, known)| (*node, known.path.clone()))
            .collect()
    }
}
