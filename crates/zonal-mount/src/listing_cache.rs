//! Listings that the kernel takes in and keeps, and what has to be done about them later.
//!
//! The kernel takes attributes of a READDIRPLUS over after the reply, in the thread that lists;
//! what an invalidation finds absent at that moment appears a moment later, old, with its whole
//! time-out. So an event that comes within [`SETTLE`] of a listing is carried out again after that
//! time, and once more after [`SETTLE_LATE`] for a thread that lost its processor meanwhile, by a
//! thread of its own. Without listings this costs one load of a number per event. The same is done
//! for names that were expired within that time of a look-up that told them: the kernel takes the
//! answer for a name that it knew over without any lock.
//!
//! What the kernel keeps of a listing it never asks about again, as long as a handle of the
//! directory is open and rewound. So it is dropped when the lease ends under which it was told; a
//! listing that has none, as soon as it was taken in.
//!
//! Bounds: [`AGAIN_MAX`] events wait; past that one is not repeated, and its five seconds at most
//! are waited for. [`KEPT_MAX`] listings are kept; with one more all of them are dropped.

use crate::fs::ZonalFs;
use crate::name_cache::NameBytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_client::kept_listings::LISTED_MAX;
use zonal_types::Ino;
use zonal_wire::Event;

/// A kernel thread takes a listing in within this time.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// One that others kept from running, within this.
const SETTLE_LATE: Duration = Duration::from_millis(400);
/// Events that wait to be carried out again.
const AGAIN_MAX: usize = 65_536;
/// Listings that the kernel keeps.
const KEPT_MAX: usize = LISTED_MAX;
/// What is due so soon is done at once: one wake-up serves many.
const TOGETHER: Duration = Duration::from_millis(50);

/// What is done again.
#[derive(Clone)]
enum Repeat {
    Event(Event),
    /// Names whose look-ups were answered when they were expired.
    Names(Ino, Vec<NameBytes>),
}

#[derive(Default)]
struct Queue {
    /// What is to be carried out again, and when: soon, and late.
    events: [VecDeque<(Instant, Repeat)>; 2],
    /// Directories whose listing the kernel keeps, and when that has to be dropped.
    kept: BTreeMap<Ino, Instant>,
    /// When the thread looks at them next.
    looks_at: Option<Instant>,
    is_ended: bool,
}

impl Queue {
    /// When there is something to do.
    fn next(&self) -> Option<Instant> {
        let events = self.events.iter().filter_map(|queue| queue.front());
        let events = events.map(|(at, _)| *at).min();
        let kept = self.looks_at.map(|at| at - TOGETHER);
        events.into_iter().chain(kept).min()
    }

    /// Takes out the events whose time has come.
    fn events_due(&mut self, now: Instant) -> Vec<Repeat> {
        let mut due = Vec::new();
        for queue in &mut self.events {
            let later = queue.partition_point(|(at, _)| *at <= now);
            due.extend(queue.drain(..later).map(|(_, event)| event));
        }
        due
    }

    /// Takes out what is due by `now`, and finds the next time.
    fn due(&mut self, now: Instant) -> Vec<Ino> {
        let is_due = |until: &Instant| *until <= now;
        let due: Vec<Ino> = self
            .kept
            .iter()
            .filter(|(_, until)| is_due(until))
            .map(|(dir, _)| *dir)
            .collect();
        self.kept.retain(|_, until| !is_due(until));
        self.looks_at = self.kept.values().min().copied();
        due
    }
}

/// When the last listing was answered, and what is to be done again because of it.
pub struct ListingCache {
    start: Instant,
    /// Nanoseconds from `start` to the last listing; 0: none.
    last: AtomicU64,
    queue: Mutex<Queue>,
    has_events: Condvar,
}

impl Default for ListingCache {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last: AtomicU64::new(0),
            queue: Mutex::default(),
            has_events: Condvar::new(),
        }
    }
}

impl ListingCache {
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
        self.again(&Repeat::Event(event.clone()));
    }

    /// Names were expired whose look-ups were answered a moment before: again later.
    pub fn expire_again(&self, dir: Ino, names: Vec<NameBytes>) {
        self.again(&Repeat::Names(dir, names));
    }

    fn again(&self, what: &Repeat) {
        let (mut queue, now) = (self.queue(), Instant::now());
        for (queue, delay) in queue.events.iter_mut().zip([SETTLE, SETTLE_LATE]) {
            if queue.len() < AGAIN_MAX {
                queue.push_back((now + delay, what.clone()));
            }
        }
        drop(queue);
        self.has_events.notify_one();
    }

    /// The kernel is about to be told the first part of a listing, which is true for so long.
    pub fn keep(&self, dir: Ino, left_ms: u64) {
        // Not before the kernel has taken it in.
        let settles = Instant::now() + SETTLE + TOGETHER;
        let until = settles.max(Instant::now() + Duration::from_millis(left_ms));
        let mut queue = self.queue();
        if queue.kept.len() >= KEPT_MAX && !queue.kept.contains_key(&dir) {
            queue.kept.values_mut().for_each(|until| *until = settles);
        }
        queue.kept.insert(dir, until);
        let next = if queue.kept.len() > KEPT_MAX {
            settles
        } else {
            until
        };
        if queue.looks_at.is_none_or(|at| next < at) {
            queue.looks_at = Some(next);
            drop(queue);
            self.has_events.notify_one();
        }
    }

    /// All directories whose listing the kernel keeps: they are dropped now.
    pub fn take_kept(&self) -> Vec<Ino> {
        let mut queue = self.queue();
        queue.looks_at = None;
        std::mem::take(&mut queue.kept).into_keys().collect()
    }

    /// Ends [`run`].
    pub fn end(&self) {
        self.queue().is_ended = true;
        self.has_events.notify_all();
    }
}

/// Carries events out again and drops what is kept no longer, until the end.
pub fn run(fs: &ZonalFs) {
    let listings = &fs.listings;
    loop {
        let mut queue = listings.queue();
        let (events, due) = loop {
            if queue.is_ended {
                return;
            }
            let (now, next) = (Instant::now(), queue.next());
            let waited = match next {
                Some(next) if next <= now => {
                    break (queue.events_due(now), queue.due(now + TOGETHER));
                }
                Some(next) => {
                    let waited = listings.has_events.wait_timeout(queue, next - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = listings.has_events.wait(queue);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
            queue = waited;
        };
        drop(queue);
        for dir in due {
            fs.drop_listing(dir);
        }
        for what in events {
            match what {
                Repeat::Event(event) => fs.drop_again(&event),
                Repeat::Names(dir, names) => fs.expiries.expire(dir, names, Vec::new()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_listing_is_due_when_its_term_ends_or_there_are_too_many() {
        let (listings, start) = (ListingCache::default(), Instant::now());
        listings.keep(Ino(5), 60_000);
        listings.keep(Ino(6), 0);
        let later = start + Duration::from_secs(1);
        assert_eq!(listings.queue().due(start), []);
        assert_eq!(listings.queue().due(later), [Ino(6)]);
        assert_eq!(listings.queue().due(later), []);
        listings.keep(Ino(5), 90_000);
        assert_eq!(listings.queue().due(start + Duration::from_secs(80)), []);
        for dir in 0..KEPT_MAX as u64 {
            listings.keep(Ino(100 + dir), 60_000);
        }
        let later = Instant::now() + SETTLE + TOGETHER;
        let due = listings.queue().due(later);
        assert_eq!((due.len(), listings.take_kept().len()), (KEPT_MAX, 1));
        assert!(listings.take_kept().is_empty());
    }

    #[test]
    fn only_events_near_a_listing_wait() {
        let listings = ListingCache::default();
        let event = Event::Invalidate {
            entries: Ino(0),
            inodes: vec![Ino(5)],
            data: false,
        };
        listings.carried_out(&event);
        assert!(listings.queue().events[0].is_empty(), "nobody listed");
        let count = || listings.queue().events.each_ref().map(VecDeque::len);
        // A thread that loses its processor in between comes too late.
        for _try in 0..100 {
            if count() == [0, 0] {
                listings.note();
                listings.carried_out(&event);
            }
        }
        assert_eq!(count(), [1, 1]);
        listings.last.store(1, Ordering::SeqCst);
        std::thread::sleep(SETTLE * 2);
        listings.carried_out(&event);
        assert_eq!(count(), [1, 1], "the listing is long over");
        let (soon, _) = listings.queue().events[0].front().cloned().unwrap();
        assert_eq!(listings.queue().events_due(soon).len(), 1);
        assert_eq!(count(), [0, 1], "once more later");
    }
}
