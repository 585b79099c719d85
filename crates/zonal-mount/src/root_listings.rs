//! Listings of the root that are open, by the thread that opened them. A stat of a first-level
//! directory by this thread belongs to its listing, as `ls -l` does it, and waits for no server
//! long.
//!
//! *Bound*: [`ROOT_LISTINGS_MAX`]; a full table is emptied. (A handle whose opener was killed
//! before its answer is never closed.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Open listings of the root that are remembered.
const ROOT_LISTINGS_MAX: usize = 4_096;

/// Open listings of the root.
#[derive(Default)]
pub struct RootListings {
    /// Thread by handle.
    threads: Mutex<BTreeMap<u64, u32>>,
    /// Whether there are any: most stats check only this.
    is_any: AtomicBool,
}

impl RootListings {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u32>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a handle of the root that a thread opens; 0: a thread that this process cannot name.
    pub fn open(&self, fh: u64, tid: u32) {
        if tid == 0 {
            return;
        }
        let mut threads = self.lock();
        if threads.len() >= ROOT_LISTINGS_MAX {
            threads.clear();
        }
        threads.insert(fh, tid);
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// Notes that a handle is closed.
    pub fn close(&self, fh: u64) {
        if self.is_any.load(Ordering::Relaxed) {
            let mut threads = self.lock();
            threads.remove(&fh);
            self.is_any.store(!threads.is_empty(), Ordering::Relaxed);
        }
    }

    /// Whether a thread has a listing open.
    pub fn has(&self, tid: u32) -> bool {
        self.is_any.load(Ordering::Relaxed) && self.lock().values().any(|known| *known == tid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_lists_until_its_last_handle_is_closed() {
        let listings = RootListings::default();
        assert!(!listings.has(7));
        listings.open(2, 7);
        listings.open(4, 7);
        listings.open(6, 8);
        listings.close(2);
        assert!(listings.has(7) && listings.has(8) && !listings.has(9));
        listings.close(4);
        assert!(!listings.has(7) && listings.has(8));
        for fh in 0..ROOT_LISTINGS_MAX as u64 {
            listings.open(100 + fh, 9);
        }
        assert!(
            listings.has(9) && !listings.has(8),
            "a full table is emptied"
        );
    }
}
