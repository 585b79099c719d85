//! What was done to the folder, with what it takes to undo it.
//!
//! Units: bytes. A file is named by its node number, which it keeps when it is renamed.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// One change of the folder.
#[derive(Debug, Clone)]
pub enum DiskChange {
    /// Bytes of a file, within its length: a longer file is a change of its own before.
    Write {
        /// The file.
        node: u64,
        /// First byte.
        at: u64,
        /// What was there.
        old: Vec<u8>,
        /// What is there now.
        new: Vec<u8>,
    },
    /// The length of a file.
    Resize {
        /// The file.
        node: u64,
        /// Before.
        from: u64,
        /// After.
        to: u64,
        /// Bytes that were cut off.
        cut: Vec<u8>,
    },
    /// A file or folder has a new name.
    Name {
        /// The file or folder.
        node: u64,
        /// The name before; for a new one a place outside of what is seen.
        from: PathBuf,
        /// The name after; for a removed one a place outside of what is seen.
        to: PathBuf,
        /// What had that name before, and the place it was moved to.
        replaced: Option<(u64, PathBuf)>,
    },
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum DiskEvent {
    /// A change.
    Change(DiskChange),
    /// All earlier changes of a file's bytes and length are durable.
    Sync(u64),
    /// All earlier changes of names are durable.
    SyncNames,
}

/// Everything since the beginning, or since the oldest change that is not durable.
#[derive(Debug, Default)]
pub struct ChangeHistory {
    /// In order.
    pub events: Vec<DiskEvent>,
    /// Whether durable changes are kept as well.
    pub keep: bool,
}

impl ChangeHistory {
    /// Adds an event; lets go of what nobody will ask for.
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

    /// Which of the first `count` events are changes that are not durable then.
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
