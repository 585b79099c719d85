//! Listing cache: listings that the kernel takes over and keeps, and later work on them.
//!
//! The kernel takes over the attributes of a READDIRPLUS after the reply, in the listing thread. An
//! invalidation at that moment finds nothing, and the old attributes appear a moment later with
//! their whole time-out. So an event within [`SETTLE`] of a listing is carried out again after that
//! time. It is carried out once more after [`SETTLE_LATE`], for a thread that lost its processor
//! meanwhile. A thread of its own does this. Without listings the cost is one load per event.
//!
//! The same holds for names expired within that time of a look-up: the kernel takes over the answer
//! for a known name without any lock.
//!
//! The kernel never refreshes a kept listing while a handle of the directory is open and rewound.
//! So the mount drops it when its lease ends, and a listing without a lease once it was taken over.
//!
//! Bounds: [`AGAIN_MAX`] events wait; beyond it an event is not repeated, and stale attributes may
//! last five seconds. [`KEPT_MAX`] listings are kept; one more drops all of them.

use crate::fs::ZonalFs;
use crate::name_cache::NameBytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_client::inode_cache::LISTED_MAX;
use zonal_types::Ino;
use zonal_wire::Event;

/// Time within which a kernel thread takes over a listing.
pub(crate) const SETTLE: Duration = Duration::from_millis(20);
/// The same, for a thread that others kept from running.
const SETTLE_LATE: Duration = Duration::from_millis(400);
/// Events that wait for their repetition.
const AGAIN_MAX: usize = 65_536;
/// Listings that the kernel keeps.
const KEPT_MAX: usize = LISTED_MAX;
/// Work due within this time is done at once: one wake-up serves many.
const TOGETHER: Duration = Duration::from_millis(50);

/// Work to repeat.
#[derive(Clone)]
enum Repeat {
    Event(Event),
    /// Names whose look-ups were answered just before their expiry.
    Names(Ino, Vec<NameBytes>),
}

#[derive(Default)]
struct Queue {
    /// Work to repeat and its time: soon, and late.
    events: [VecDeque<(Instant, Repeat)>; 2],
    /// Directories whose listing the kernel keeps, and the time to drop it.
    kept: BTreeMap<Ino, Instant>,
    /// Time at which the thread looks at `kept` next.
    looks_at: Option<Instant>,
    is_ended: bool,
}

impl Queue {
    /// Time of the next work.
    fn next(&self) -> Option<Instant> {
        let events = self.events.iter().filter_map(|queue| queue.front());
        let events = events.map(|(at, _)| *at).min();
        let kept = self.looks_at.map(|at| at - TOGETHER);
        events.into_iter().chain(kept).min()
    }

    /// Takes out the events that are due.
    fn events_due(&mut self, now: Instant) -> Vec<Repeat> {
        let mut due = Vec::new();
        for queue in &mut self.events {
            let later = queue.partition_point(|(at, _)| *at <= now);
            due.extend(queue.drain(..later).map(|(_, event)| event));
        }
        due
    }

    /// Takes out the listings due by `now`, and computes the next time.
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

/// Time of the last listing, and work to repeat because of listings.
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

    /// Notes that a listing with attributes is about to be answered.
    pub fn note(&self) {
        self.last.store(self.now().max(1), Ordering::SeqCst);
    }

    /// Repeats an event later, if a listing may be on its way into the kernel.
    pub fn carried_out(&self, event: &Event) {
        let last = self.last.load(Ordering::SeqCst);
        if last == 0 || u128::from(self.now().saturating_sub(last)) > SETTLE.as_nanos() {
            return;
        }
        self.again(&Repeat::Event(event.clone()));
    }

    /// Repeats the expiry of names whose look-ups were answered a moment before.
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

    /// Notes the first page of a listing, valid for `left_ms`, before the kernel gets it.
    pub fn keep(&self, dir: Ino, left_ms: u64) {
        // Not before the kernel has taken it over.
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

    /// Takes all directories with a kept listing, to drop them now.
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

/// Repeats events and drops expired listings until the end.
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
    fn a_kept_listing_is_dropped_when_its_lease_ends_or_the_table_is_full() {
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
    fn only_events_near_a_listing_are_repeated() {
        let listings = ListingCache::default();
        let event = Event::Invalidate {
            entries: Ino(0),
            inodes: vec![Ino(5)],
            data: false,
        };
        listings.carried_out(&event);
        assert!(listings.queue().events[0].is_empty(), "nobody listed");
        let count = || listings.queue().events.each_ref().map(VecDeque::len);
        // If this thread loses its processor in between, the event comes too late.
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
