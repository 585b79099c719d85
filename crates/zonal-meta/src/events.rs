//! Event queues: one queue a session, numbered from 1. An event stays until the session
//! acknowledges it.
//!
//! *Invariants*: numbers of a queue rise without gaps. An event that was handed out does not
//! change; only events never handed out take in others. No queue is longer than its bound.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zonal_types::limits::SESSION_EVENTS_MAX;
use zonal_types::{Ino, SessionId};
use zonal_wire::meta::Event;

/// Newest unsent events that are looked at for one that can take in a new event.
const COALESCE_DEPTH: usize = 16;
/// Inodes in one event.
const COALESCE_INODES_MAX: usize = 128;

#[derive(Debug)]
struct Queue {
    /// Number of the next event.
    next: u64,
    /// Highest number handed out.
    sent: u64,
    acked: u64,
    pending: VecDeque<(u64, Event)>,
}

/// The queues of all sessions of a shard.
#[derive(Debug)]
pub struct EventQueues {
    queues: BTreeMap<SessionId, Queue>,
    overflowed: BTreeSet<SessionId>,
    events_max: usize,
}

impl Default for EventQueues {
    fn default() -> Self {
        Self::new()
    }
}

impl EventQueues {
    /// No queues, with the bound of docs/limits.md.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(SESSION_EVENTS_MAX)
    }

    /// No queues, each with at most `events_max` events.
    #[must_use]
    pub fn with_limit(events_max: usize) -> Self {
        Self {
            queues: BTreeMap::new(),
            overflowed: BTreeSet::new(),
            events_max,
        }
    }

    /// Opens the queue of a session that begins, or continues after a restart of the shard; numbers
    /// start at 1. Does nothing where the session has a queue.
    pub fn open(&mut self, session: SessionId) {
        self.queues.entry(session).or_insert_with(|| Queue {
            next: 1,
            sent: 0,
            acked: 0,
            pending: VecDeque::new(),
        });
    }

    /// Drops the queue of a session that is gone.
    pub fn close(&mut self, session: SessionId) {
        self.queues.remove(&session);
        self.overflowed.remove(&session);
    }

    /// Queues an event and returns its number. `None` where the session is unknown or its queue is
    /// full; a full queue ends the session ([`Self::take_overflowed`]). An `Invalidate` may join
    /// one that was not handed out yet.
    pub fn push(&mut self, session: SessionId, event: Event) -> Option<u64> {
        let queue = self.queues.get_mut(&session)?;
        if let Some(number) = queue.coalesce(&event) {
            return Some(number);
        }
        if queue.pending.len() >= self.events_max {
            self.overflowed.insert(session);
            return None;
        }
        let number = queue.next;
        queue.check();
        queue.next += 1;
        queue.pending.push_back((number, event));
        Some(number)
    }

    /// The session has acted on all events up to `number`. Returns true where that is new. Numbers
    /// never handed out are ignored.
    pub fn ack(&mut self, session: SessionId, number: u64) -> bool {
        let Some(queue) = self.queues.get_mut(&session) else {
            return false;
        };
        let number = number.min(queue.sent);
        if number <= queue.acked {
            return false;
        }
        queue.acked = number;
        while queue
            .pending
            .front()
            .is_some_and(|(n, _event)| *n <= number)
        {
            queue.pending.pop_front();
        }
        queue.check();
        true
    }

    /// The highest number that the session acknowledged; 0 for an unknown session.
    #[must_use]
    pub fn acked(&self, session: SessionId) -> u64 {
        self.queues.get(&session).map_or(0, |queue| queue.acked)
    }

    /// True where [`Self::poll`] would return something.
    #[must_use]
    pub fn has_events(&self, session: SessionId) -> bool {
        self.queues
            .get(&session)
            .is_some_and(|queue| !queue.pending.is_empty())
    }

    /// The oldest unacknowledged events, at most `limit`. They are returned again until they are
    /// acknowledged.
    pub fn poll(&mut self, session: SessionId, limit: usize) -> Vec<(u64, Event)> {
        let Some(queue) = self.queues.get_mut(&session) else {
            return Vec::new();
        };
        let events: Vec<_> = queue.pending.iter().take(limit).cloned().collect();
        if let Some((number, _event)) = events.last() {
            queue.sent = queue.sent.max(*number);
        }
        events
    }

    /// Sessions whose queue overflowed since the last call; the shard ends them.
    pub fn take_overflowed(&mut self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.overflowed)
    }

    /// Unacknowledged events of all sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.values().map(|queue| queue.pending.len()).sum()
    }

    /// Length of the longest queue.
    #[must_use]
    pub fn longest(&self) -> usize {
        let lengths = self.queues.values().map(|queue| queue.pending.len());
        lengths.max().unwrap_or(0)
    }

    /// Bound on the events of one session; a session that reaches it ends.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.events_max
    }

    /// True where no event waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.values().all(|queue| queue.pending.is_empty())
    }
}

impl Queue {
    /// Asserts that numbers rise: acknowledged events were sent, and sent ones were queued.
    fn check(&self) {
        assert!(
            self.acked <= self.sent && self.sent < self.next,
            "event numbers fall: acknowledged {}, sent {}, next {}",
            self.acked,
            self.sent,
            self.next
        );
    }

    fn coalesce(&mut self, event: &Event) -> Option<u64> {
        let Event::Invalidate {
            entries,
            inodes,
            data,
        } = event
        else {
            return None;
        };
        let sent = self.sent;
        let unsent = self.pending.iter_mut().rev().take(COALESCE_DEPTH);
        for (number, queued) in unsent.take_while(|(number, _event)| *number > sent) {
            let Event::Invalidate {
                entries: into_entries,
                inodes: into_inodes,
                data: into_data,
            } = queued
            else {
                continue;
            };
            let one_directory =
                *entries == Ino(0) || *into_entries == Ino(0) || entries == into_entries;
            if data != into_data || !one_directory {
                continue;
            }
            let new = inodes.iter().filter(|ino| !into_inodes.contains(ino));
            let new: Vec<Ino> = new.copied().collect();
            if into_inodes.len() + new.len() > COALESCE_INODES_MAX {
                continue;
            }
            into_inodes.extend(new);
            if *into_entries == Ino(0) {
                *into_entries = *entries;
            }
            return Some(*number);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId(1);

    fn invalidate(entries: u64, inodes: &[u64]) -> Event {
        Event::Invalidate {
            entries: Ino(entries),
            inodes: inodes.iter().map(|ino| Ino(*ino)).collect(),
            data: false,
        }
    }

    fn granted(waiter: u64) -> Event {
        Event::LockGranted {
            ino: Ino(1),
            waiter,
        }
    }

    #[test]
    fn events_stay_until_acknowledged() {
        let mut events = EventQueues::new();
        assert_eq!(events.push(A, granted(1)), None);
        events.open(A);
        assert_eq!(events.push(A, granted(1)), Some(1));
        assert_eq!(events.push(A, granted(2)), Some(2));
        assert!(!events.ack(A, 2), "never handed out");
        assert_eq!(events.poll(A, 1), [(1, granted(1))]);
        assert_eq!(events.poll(A, 9), [(1, granted(1)), (2, granted(2))]);
        assert!(events.ack(A, 1));
        assert!(!events.ack(A, 1));
        assert_eq!(events.acked(A), 1);
        assert_eq!(events.poll(A, 9), [(2, granted(2))]);
        assert!(events.ack(A, u64::MAX));
        assert_eq!((events.acked(A), events.has_events(A)), (2, false));
        assert!(events.is_empty());
    }

    #[test]
    fn unsent_invalidations_take_others_in() {
        let mut events = EventQueues::new();
        events.open(A);
        assert_eq!(events.push(A, invalidate(5, &[5, 6])), Some(1));
        assert_eq!(events.push(A, invalidate(5, &[5, 7])), Some(1));
        assert_eq!(events.push(A, invalidate(0, &[8])), Some(1));
        assert_eq!(events.push(A, invalidate(9, &[9])), Some(2));
        assert_eq!(events.poll(A, 1), [(1, invalidate(5, &[5, 6, 7, 8]))]);
        assert_eq!(
            events.push(A, invalidate(5, &[5])),
            Some(3),
            "1 is on its way"
        );
        let many: Vec<u64> = (100..300).collect();
        assert_eq!(events.push(A, invalidate(5, &many)), Some(4));
    }

    #[test]
    fn a_full_queue_ends_its_session() {
        let mut events = EventQueues::with_limit(2);
        events.open(A);
        events.push(A, granted(1));
        events.push(A, granted(2));
        assert_eq!(events.push(A, granted(3)), None);
        assert_eq!(events.take_overflowed(), BTreeSet::from([A]));
        assert_eq!(events.take_overflowed(), BTreeSet::new());
        assert_eq!(events.len(), 2);
    }

    #[test]
    #[should_panic(expected = "event numbers fall")]
    fn a_number_that_was_sent_already_is_not_queued() {
        let mut queues = EventQueues::new();
        queues.open(A);
        queues.queues.get_mut(&A).unwrap().sent = 1;
        queues.push(A, granted(1));
    }
}
