//! Which thread asked for which request that a worker has under way: to see whether it is about to die.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Requests under way at most that can be told apart; a worker uses the slot of its own number.
const SLOTS: usize = 256;

/// Request and thread, by worker.
pub struct Callers {
    slots: Vec<(AtomicU64, AtomicU64)>,
    next: AtomicU64,
}

thread_local! {
    static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
}

impl Default for Callers {
    fn default() -> Self {
        let slots = (0..SLOTS)
            .map(|_index| (AtomicU64::new(0), AtomicU64::new(0)))
            .collect();
        Self {
            slots,
            next: AtomicU64::new(0),
        }
    }
}

impl Callers {
    /// The calling worker works on `unique`, which thread `tid` asked for.
    pub fn note(&self, unique: u64, tid: u32) {
        let index = SLOT.get().unwrap_or_else(|| {
            let index = (self.next.fetch_add(1, Ordering::Relaxed) as usize) % SLOTS;
            SLOT.set(Some(index));
            index
        });
        let (request, thread) = &self.slots[index];
        thread.store(tid.into(), Ordering::Relaxed);
        request.store(unique, Ordering::Release);
    }

    /// The thread that asked for a request under way; none where nobody waits for it (0).
    #[must_use]
    pub fn tid_of(&self, unique: u64) -> Option<u32> {
        let slot = self
            .slots
            .iter()
            .find(|(request, _)| request.load(Ordering::Acquire) == unique)?;
        let tid = u32::try_from(slot.1.load(Ordering::Relaxed)).ok();
        tid.filter(|tid| *tid != 0)
    }
}
