//! Write handles: users with a handle for writing, by file.
//!
//! Before a write through pages that clears set-id bits, the kernel sends a change of attributes
//! that does not name the write. The handle has the right to write. If its user has lost the right
//! since, the shard refuses the change, and this table shows that it is legitimate.
//!
//! The superuser needs no entry. *Bound*: open handles. Cost: one map entry at opens for writing by
//! other users.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Ino;

/// Users by file and handle.
#[derive(Debug, Default)]
pub struct WriteHandles(Mutex<BTreeMap<(Ino, u64), u32>>);

impl WriteHandles {
    fn map(&self) -> MutexGuard<'_, BTreeMap<(Ino, u64), u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handle for writing that `uid` opened.
    pub fn open(&self, ino: Ino, fh: u64, uid: u32) {
        if uid != 0 {
            self.map().insert((ino, fh), uid);
        }
    }

    /// Removes a released handle.
    pub fn close(&self, ino: Ino, fh: u64) {
        self.map().remove(&(ino, fh));
    }

    /// Number of handles.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Whether `uid` has a handle for writing.
    #[must_use]
    pub fn has(&self, ino: Ino, uid: u32) -> bool {
        let map = self.map();
        let mut handles = map.range((ino, 0)..=(ino, u64::MAX));
        handles.any(|(_handle, user)| *user == uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_writes_a_file_until_the_last_of_its_handles_ends() {
        let writers = WriteHandles::default();
        let (one, other) = (Ino(5), Ino(6));
        writers.open(one, 1, 100);
        writers.open(one, 2, 100);
        writers.open(other, 3, 101);
        writers.open(other, 4, 0);
        writers.close(one, 1);
        assert!(writers.has(one, 100) && writers.has(other, 101));
        assert!(!writers.has(one, 101) && !writers.has(other, 100) && !writers.has(other, 0));
        writers.close(one, 2);
        assert!(!writers.has(one, 100));
    }
}
