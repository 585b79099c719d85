//! The directories of one shard as a tree: finds cycles, which no path from the root reaches.

use zonal_types::Ino;

/// Most directories of one shard that are checked for cycles (24 bytes each, and one more during
/// the search).
pub const DIRECTORIES_MAX: usize = 8 << 20;

/// A directory and the entry that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Directory {
    /// The directory.
    pub ino: Ino,
    /// The directory of its entry.
    pub dir: Ino,
    /// The entry's cookie.
    pub cookie: u64,
}

/// The directories of a shard, sorted by inode number.
#[derive(Debug, Default)]
pub struct DirectoryTree {
    directories: Vec<Directory>,
    /// There were more than [`DIRECTORIES_MAX`]; the others are left out.
    pub is_cut: bool,
}

const UNKNOWN: u8 = 0;
const ON_PATH: u8 = 1;
const DONE: u8 = 2;

impl DirectoryTree {
    /// Adds a directory that has a name. Directories are added in the order of their inode numbers.
    pub fn push(&mut self, directory: Directory) {
        if self.directories.len() < DIRECTORIES_MAX {
            self.directories.push(directory);
        } else {
            self.is_cut = true;
        }
    }

    /// All directories, sorted by inode number.
    #[must_use]
    pub fn directories(&self) -> &[Directory] {
        &self.directories
    }

    /// The directory with this inode number.
    #[must_use]
    pub fn get(&self, ino: Ino) -> Option<&Directory> {
        let at = self.position(ino)?;
        self.directories.get(at)
    }

    fn position(&self, ino: Ino) -> Option<usize> {
        self.directories
            .binary_search_by_key(&ino, |directory| directory.ino)
            .ok()
    }

    /// Returns one directory of each cycle; a repair removes its entry. Visits each directory once.
    #[must_use]
    pub fn cycles(&self) -> Vec<Directory> {
        let mut state = vec![UNKNOWN; self.directories.len()];
        let mut cycles = Vec::new();
        let mut path = Vec::new();
        for start in 0..self.directories.len() {
            let mut at = Some(start);
            while let Some(here) = at.filter(|here| state[*here] == UNKNOWN) {
                state[here] = ON_PATH;
                path.push(here);
                at = self.position(self.directories[here].dir);
            }
            if let Some(here) = at.filter(|here| state[*here] == ON_PATH) {
                cycles.push(self.directories[here]);
            }
            for here in path.drain(..) {
                state[here] = DONE;
            }
        }
        cycles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cycle_is_cut_once_and_trees_are_left_alone() {
        let mut tree = DirectoryTree::default();
        for (ino, dir) in [
            (2, 1),
            (3, 2),
            (4, 3),
            (5, 7),
            (6, 5),
            (7, 6),
            (8, 7),
            (9, 9),
        ] {
            tree.push(Directory {
                ino: Ino(ino),
                dir: Ino(dir),
                cookie: ino,
            });
        }
        let cut: Vec<u64> = tree.cycles().iter().map(|cut| cut.ino.0).collect();
        assert_eq!(cut, [5, 9]);
        assert!(tree.get(Ino(4)).is_some() && tree.get(Ino(1)).is_none());
    }
}
