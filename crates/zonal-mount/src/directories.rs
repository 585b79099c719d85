//! What the mount remembers of directories to save round trips: where a listing ended, and what is
//! above.
//!
//! Bounds: [`PARENTS_MAX`] parents (a full table is emptied); one entry an open directory handle.
//! (A handle whose opener was killed before it had the answer is never closed: its directory's
//! listings are not kept any more.)

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Ino;

/// Parents remembered.
const PARENTS_MAX: usize = 65_536;

/// Tables of directories.
#[derive(Default)]
pub struct DirectoryTable {
    /// Directory above, as the last look-up or listing had it. Only for the number of `..` in
    /// listings.
    parents: Mutex<BTreeMap<Ino, Ino>>,
    /// By open handle: the cookie behind which the shard said that nothing follows.
    ends: Mutex<BTreeMap<u64, u64>>,
    /// Handles that are open, by directory.
    open: Mutex<BTreeMap<Ino, u32>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DirectoryTable {
    /// `dir` lies in `above`.
    pub fn note_parent(&self, dir: Ino, above: Ino) {
        let mut parents = lock(&self.parents);
        if parents.len() >= PARENTS_MAX {
            parents.clear();
        }
        parents.insert(dir, above);
    }

    /// The directory above, where it is known.
    #[must_use]
    pub fn parent(&self, dir: Ino) -> Option<Ino> {
        lock(&self.parents).get(&dir).copied()
    }

    /// A listing through this handle ended behind `cookie`.
    pub fn note_end(&self, fh: u64, cookie: u64) {
        lock(&self.ends).insert(fh, cookie);
    }

    /// True where a listing through this handle was told that nothing follows `cookie`. (What is
    /// made behind it meanwhile may be listed or not, as POSIX has it; a rewound listing asks
    /// again.)
    #[must_use]
    pub fn is_at_end(&self, fh: u64, cookie: u64) -> bool {
        cookie != 0 && lock(&self.ends).get(&fh) == Some(&cookie)
    }

    /// One more handle of `dir`; true where it is the only one.
    pub fn open(&self, dir: Ino) -> bool {
        let mut open = lock(&self.open);
        let handles = open.entry(dir).or_default();
        *handles += 1;
        *handles == 1
    }

    /// A handle of `dir` is closed.
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

    /// A listing through this handle begins anew.
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
    fn the_first_handle_is_the_only_one_until_there_are_others() {
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
