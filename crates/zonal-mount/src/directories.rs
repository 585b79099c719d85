//! Directory state that saves round trips: ends of listings, and parent directories.
//!
//! Bounds: [`PARENTS_MAX`] parents (a full table is emptied); one entry per open directory handle.
//! (A handle whose opener was killed before its answer is never closed. Listings of its directory
//! are then not kept.)

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Ino;

/// Parents remembered.
const PARENTS_MAX: usize = 65_536;

/// Tables about directories.
#[derive(Default)]
pub struct DirectoryTable {
    /// Parent directory by the last look-up or listing. Used only for the number of `..` in
    /// listings.
    parents: Mutex<BTreeMap<Ino, Ino>>,
    /// By open handle: cookie of the last entry, where the listing has ended.
    ends: Mutex<BTreeMap<u64, u64>>,
    /// Number of open handles, by directory.
    open: Mutex<BTreeMap<Ino, u32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DirectoryTable {
    /// Notes that `dir` lies in `above`.
    pub fn note_parent(&self, dir: Ino, above: Ino) {
        let mut parents = lock(&self.parents);
        if parents.len() >= PARENTS_MAX {
            parents.clear();
        }
        parents.insert(dir, above);
    }

    /// The parent directory, if known.
    #[must_use]
    pub fn parent(&self, dir: Ino) -> Option<Ino> {
        lock(&self.parents).get(&dir).copied()
    }

    /// Notes that a listing through this handle ended behind `cookie`.
    pub fn note_end(&self, fh: u64, cookie: u64) {
        lock(&self.ends).insert(fh, cookie);
    }

    /// True where a listing through this handle ended behind `cookie`. (Entries made behind it
    /// meanwhile may be listed or not, by POSIX; a rewound listing asks again.)
    #[must_use]
    pub fn is_at_end(&self, fh: u64, cookie: u64) -> bool {
        cookie != 0 && lock(&self.ends).get(&fh) == Some(&cookie)
    }

    /// Counts one more handle of `dir`; true where it is the only one.
    pub fn open(&self, dir: Ino) -> bool {
        let mut open = lock(&self.open);
        let handles = open.entry(dir).or_default();
        *handles += 1;
        *handles == 1
    }

    /// Ends a handle of `dir`.
    pub fn close(&self, dir: Ino, fh: u64) {
        self.forget_end(fh);
        let mut open = lock(&self.open);
        if let Some(handles) = open.get_mut(&dir) {
            *handles -= 1;
            if *handles == 0 {
                open.remove(&dir);
            }
        }
    }

    /// Forgets the end, because a listing through this handle begins again.
    pub fn forget_end(&self, fh: u64) {
        lock(&self.ends).remove(&fh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_belongs_to_its_handle_and_cookie() {
        let directories = DirectoryTable::default();
        directories.note_end(1, 77);
        assert!(directories.is_at_end(1, 77));
        assert!(
            !directories.is_at_end(1, 76)
                && !directories.is_at_end(2, 77)
                && !directories.is_at_end(1, 0)
        );
        directories.close(Ino(9), 1);
        assert!(!directories.is_at_end(1, 77));
    }

    #[test]
    fn only_the_first_handle_of_a_directory_is_the_sole_one() {
        let directories = DirectoryTable::default();
        assert!(directories.open(Ino(9)) && directories.open(Ino(8)));
        assert!(!directories.open(Ino(9)));
        directories.close(Ino(9), 1);
        assert!(!directories.open(Ino(9)), "one is left");
        directories.close(Ino(9), 2);
        directories.close(Ino(9), 3);
        assert!(directories.open(Ino(9)));
    }
}
