//! Who has which file open for writing.
//!
//! A write through the kernel's pages that takes set-id bits is preceded by a change of attributes,
//! which does not say that it belongs to a write. The right to write is the handle's: where its
//! user has lost it since, the shard refuses the change, and this says that it is right. The
//! superuser needs no such word, and is not kept. *Bound*: open handles. Per operation: opens for
//! writing and their releases by others than the superuser, one entry of a map.

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

    /// A handle for writing that `uid` opened.
    pub fn open(&self, ino: Ino, fh: u64, uid: u32) {
        if uid != 0 {
            self.map().insert((ino, fh), uid);
        }
    }

    /// It is released.
    pub fn close(&self, ino: Ino, fh: u64) {
        self.map().remove(&(ino, fh));
    }

    /// Handles kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().len()
    }

    /// Whether a handle is open that `uid` opened for writing.
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
