//! Removed attributes: the last attributes of directories, devices, FIFOs and links. A process may
//! still have one open, or stand in it, after it lost its last name through this mount or another.
//!
//! Shards count opens of files only. So they forget other inodes with their last name, while the
//! kernel asks for a directory's attributes before each operation in it. The client keeps the
//! attributes of these inodes and uses them where the shard no longer knows the inode. Inode
//! numbers are never used again, so an unknown inode was removed. The shard refuses names in it
//! (`NotFound`).
//!
//! Bound: [`GHOSTS_MAX`]; the entries updated longest ago are forgotten.

use zonal_basics::BoundedMap;
use zonal_types::{Attr, Ino};

/// Inodes remembered, removed or not.
pub const GHOSTS_MAX: usize = 32_768;

/// Attributes of inodes that are not files.
#[derive(Debug)]
pub struct RemovedAttributes(BoundedMap<Ino, Attr>);

impl Default for RemovedAttributes {
    fn default() -> Self {
        Self(BoundedMap::new(GHOSTS_MAX))
    }
}

impl RemovedAttributes {
    /// Remembers the attributes of an inode.
    pub fn note(&mut self, attr: &Attr) {
        self.0.insert(attr.ino, *attr);
    }

    /// Inodes remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Attributes of an inode that its shard does not know any more.
    #[must_use]
    pub fn get(&self, ino: Ino) -> Option<Attr> {
        let attr = self.0.get(&ino)?;
        Some(Attr { nlink: 0, ..*attr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode_cache::sample_attributes::directory;

    #[test]
    fn the_newest_attributes_are_kept_within_the_bound() {
        let mut ghosts = RemovedAttributes::default();
        let most = GHOSTS_MAX as u64;
        (0..most).for_each(|ino| ghosts.note(&directory(ino, 1)));
        ghosts.note(&directory(0, 1));
        (most..most + 9).for_each(|ino| ghosts.note(&directory(ino, 1)));
        assert_eq!(ghosts.len(), GHOSTS_MAX);
        assert_eq!(ghosts.get(Ino(0)).map(|attr| attr.nlink), Some(0));
        assert_eq!(ghosts.get(Ino(9)), None);
        assert!(ghosts.get(Ino(10)).is_some());
    }
}
