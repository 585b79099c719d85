//! Last attributes of what this client removed and a process may still have open: directories, devices, FIFOs, links.
//!
//! Shards count the opens of files only, so that they know nothing more of other inodes once the last name is gone;
//! fstat(2) of a descriptor must work all the same. Bounded by [`GHOSTS_MAX`]: the oldest are forgotten.

use std::collections::{BTreeMap, VecDeque};
use zonal_types::{Attr, Ino};

/// Removed inodes remembered.
pub const GHOSTS_MAX: usize = 4_096;

/// Attributes of removed inodes.
#[derive(Debug, Default)]
pub struct Ghosts {
    attrs: BTreeMap<Ino, Attr>,
    order: VecDeque<Ino>,
}

impl Ghosts {
    /// Remembers what an inode was; it has no name any more.
    pub fn add(&mut self, attr: &Attr) {
        let attr = Attr { nlink: 0, ..*attr };
        if self.attrs.insert(attr.ino, attr).is_none() {
            self.order.push_back(attr.ino);
        }
        while self.order.len() > GHOSTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.attrs.remove(&oldest);
        }
    }

    /// Inodes remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.attrs.len()
    }

    /// True where none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attrs.is_empty()
    }

    /// What it was.
    #[must_use]
    pub fn get(&self, ino: Ino) -> Option<Attr> {
        self.attrs.get(&ino).copied()
    }
}
