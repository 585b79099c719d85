//! Owners of byte-range locks, by the handle through which they took them. Locks that remain when a
//! handle is released belong to open file descriptions.
//!
//! A process that closes a descriptor loses its locks on the file, and is forgotten then. So many
//! processes with one inherited handle leave nothing. *Bound*: owners that hold locks, or held some
//! and live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Owners by handle.
#[derive(Default)]
pub struct HandleLocks(Mutex<BTreeMap<u64, BTreeSet<u64>>>);

impl HandleLocks {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, BTreeSet<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `owner` requests a lock through this handle.
    pub fn note(&self, fh: u64, owner: u64) {
        self.map().entry(fh).or_default().insert(owner);
    }

    /// Forgets `owner`, whose locks were released with a descriptor of this handle.
    pub fn forget(&self, fh: u64, owner: u64) {
        let mut map = self.map();
        if let Some(owners) = map.get_mut(&fh) {
            owners.remove(&owner);
            if owners.is_empty() {
                map.remove(&fh);
            }
        }
    }

    /// Takes the owners whose locks may remain when the handle is released.
    #[must_use]
    pub fn take(&self, fh: u64) -> BTreeSet<u64> {
        self.map().remove(&fh).unwrap_or_default()
    }

    /// Owners of all handles.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_that_come_and_go_through_one_handle_leave_nothing() {
        let locks = HandleLocks::default();
        locks.note(7, 1);
        for owner in 100..200 {
            locks.note(7, owner);
            locks.note(7, owner);
            assert_eq!(locks.len(), 2);
            locks.forget(7, owner);
        }
        locks.forget(8, 1);
        assert_eq!(locks.take(7), BTreeSet::from([1]));
        assert_eq!((locks.take(7), locks.len()), (BTreeSet::new(), 0));
        locks.note(7, 1);
        locks.forget(7, 1);
        assert!(locks.map().is_empty());
    }
}
