//! The history of the folder: its changes, with the bytes and names needed to undo them.
//!
//! Units: bytes. A file is named by its node number, which it keeps when it is renamed.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// One change of the folder.
#[derive(Debug, Clone)]
pub enum DiskChange {
    /// Bytes of a file, within its length: growth is a change of its own before.
    Write {
        /// The file.
        node: u64,
        /// First byte.
        at: u64,
        /// The bytes before.
        old: Vec<u8>,
        /// The bytes after.
        new: Vec<u8>,
    },
    /// The length of a file.
    Resize {
        /// The file.
        node: u64,
        /// The length before.
        from: u64,
        /// The length after.
        to: u64,
        /// The bytes removed.
        cut: Vec<u8>,
    },
    /// A file or folder is renamed, created or removed.
    Name {
        /// The file or folder.
        node: u64,
        /// The name before; for a new file a place that is not visible.
        from: PathBuf,
        /// The name after; for a removed file a place that is not visible.
        to: PathBuf,
        /// The file that had the new name before, and the place it was moved to.
        replaced: Option<(u64, PathBuf)>,
    },
}

/// An event.
#[derive(Debug, Clone)]
pub enum DiskEvent {
    /// A change.
    Change(DiskChange),
    /// All earlier changes of a file's bytes and length are durable.
    Sync(u64),
    /// All earlier changes of names are durable.
    SyncNames,
}

/// All events since the beginning, or since the oldest change that is not durable.
#[derive(Debug, Default)]
pub struct ChangeHistory {
    /// In order.
    pub events: Vec<DiskEvent>,
    /// Whether durable changes are kept as well.
    pub keep: bool,
}

impl ChangeHistory {
    /// Adds an event; drops events that are no longer needed.
    pub fn push(&mut self, event: DiskEvent) {
        let is_sync = !matches!(event, DiskEvent::Change(_));
        self.events.push(event);
        if is_sync && !self.keep {
            let pending = self.pending(self.events.len());
            match pending.first() {
                Some(first) => drop(self.events.drain(..first)),
                None => self.events.clear(),
            }
        }
    }

    /// Those of the first `count` events that are changes and not durable at that time.
    #[must_use]
    pub fn pending(&self, count: usize) -> BTreeSet<usize> {
        let mut pending = BTreeSet::new();
        for (index, event) in self.events.iter().take(count).enumerate() {
            match event {
                DiskEvent::Change(_) => {
                    pending.insert(index);
                }
                DiskEvent::Sync(synced) => {
                    pending.retain(|index| self.node_of(*index) != Some(*synced));
                }
                DiskEvent::SyncNames => pending.retain(|index| self.node_of(*index).is_some()),
            }
        }
        pending
    }

    /// The file whose bytes or length an event changes.
    fn node_of(&self, index: usize) -> Option<u64> {
        match self.events.get(index)? {
            DiskEvent::Change(DiskChange::Write { node, .. } | DiskChange::Resize { node, .. }) => {
                Some(*node)
            }
            _ => None,
        }
    }
}
