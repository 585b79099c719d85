//! Listings that the kernel may still be taking in when an event says that what they told is old.
//!
//! The kernel takes attributes of a READDIRPLUS over after the reply, in the thread that lists; what an invalidation finds
//! absent at that moment appears a moment later, old, with its whole time-out. So an event that comes within
//! [`SETTLE`] of a listing is carried out once more after that time, by a thread of its own. Without listings this
//! costs one load of a number per event.
//!
//! Bound: [`AGAIN_MAX`] events wait; past that one is not repeated, and its five seconds at most are waited for.

use crate::fs::ZonalFs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_wire::Event;

/// A kernel thread takes a listing in within this time.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// Events that wait to be carried out again.
const AGAIN_MAX: usize = 65_536;

#[derive(Default)]
struct Queue {
    events: Vec<Event>,
    is_ended: bool,
}

/// When the last listing was answered, and what is to be done again because of it.
pub struct Listings {
    start: Instant,
    /// Nanoseconds from `start` to the last listing; 0: none.
    last: AtomicU64,
    queue: Mutex<Queue>,
    has_events: Condvar,
}

impl Default for Listings {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            queue: Mutex::default(),
            has_events: Condvar::new(),
        }
    }
}

impl Listings {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// A listing with attributes is about to be answered.
    pub fn note(&self) {
        self.last.store(self.now().max(1), Ordering::SeqCst);
    }

    /// An event was carried out: again later, if a listing may be on its way.
    pub fn carried_out(&self, event: &Event) {
        let last = self.last.load(Ordering::SeqCst);
        if last == 0 || self.now().saturating_sub(last) > SETTLE.as_nanos() as u64 {
            return;
        }
        let mut queue = self.queue();
        if queue.events.len() < AGAIN_MAX {
            queue.events.push(event.clone());
            drop(queue);
            self.has_events.notify_one();
        }
    }

    /// Ends [`run`].
    pub fn end(&self) {
        self.queue().is_ended = true;
        self.has_events.notify_all();
    }
}

/// Carries events out again, until the end.
pub fn run(fs: &ZonalFs) {
    let listings = &fs.listings;
    loop {
        {
            let mut queue = listings.queue();
            while queue.events.is_empty() {
                if queue.is_ended {
                    return;
                }
                queue = listings
                    .has_events
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        std::thread::sleep(SETTLE);
        let events = std::mem::take(&mut listings.queue().events);
        events
            .iter()
            .for_each(|event| crate::background::drop_cached(fs, event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::Ino;

    #[test]
    fn only_events_near_a_listing_wait() {
        let listings = Listings::default();
        let event = Event::Invalidate {
            entries: Ino(0),
            inodes: vec![Ino(5)],
            data: false,
        };
        listings.carried_out(&event);
        assert!(listings.queue().events.is_empty(), "nobody listed");
        listings.note();
        listings.carried_out(&event);
        assert_eq!(listings.queue().events.len(), 1);
        listings.last.store(1, Ordering::SeqCst);
        std::thread::sleep(SETTLE * 2);
        listings.carried_out(&event);
        assert_eq!(listings.queue().events.len(), 1, "the listing is long over");
    }
}
