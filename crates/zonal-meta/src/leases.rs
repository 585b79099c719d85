//! Call-back leases: which sessions may cache which part of a directory, and for how long.
//! docs/rfcs/2026-11-21-callback-leases.md says what a lease covers.
//!
//! A record {directory, session} has two halves: the entries with the directory's own attributes,
//! and the attributes of its children. A change calls [`Leases::recall`] repeatedly, after each
//! acknowledgement or at the time that the recall named. Once it returns `None` the change may be
//! executed. Recalled and acknowledged halves need no further recall until a new grant; nothing is
//! granted while a change waits.
//!
//! A record lives until its grant ends, or until its session's renewals end, whichever is later. A
//! session renews all its records with one poll for events ([`Leases::renew`]).
//!
//! *Invariants*: there are at most `records_max` records. A record that its session may still use
//! is never dropped. A directory with a waiting change grants nothing. *Units*: grants in ms from
//! the sending of the request; records end [`CACHE_GRACE_MS`] later.

mod renewals;

use crate::events::EventQueues;
use renewals::Renewals;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use zonal_basics::const_u32;
use zonal_types::limits::{CACHE_GRACE_MS, CACHE_LEASES_MAX, CACHE_TERM_MS};
use zonal_types::{Ino, Instant, SessionId};
use zonal_wire::meta::Event;

/// Records checked for expiry at each grant: two, so that the sweep outruns the growth.
const SWEEP_AT_GRANT: usize = 2;
/// Recalled children remembered in one record.
const RECALLED_CHILDREN_MAX: usize = 64;

#[derive(Debug)]
struct Record {
    /// End of the grant itself, without renewals.
    expiry: Instant,
    /// Number of the event that recalled the entries and the directory's attributes since the last
    /// grant.
    entries_recalled: Option<u64>,
    /// The same for children.
    children_recalled: BTreeMap<Ino, u64>,
}

/// The part of a mutation covered by the leases of one directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseChange {
    /// The directory whose leases cover it.
    pub directory: Ino,
    /// Its entries or its own attributes change.
    pub entries: bool,
    /// Children whose attributes (or data) change.
    pub children: Vec<Ino>,
    /// The children's pages must go, too.
    pub data: bool,
}

/// A recall in progress: a change waits for these acknowledgements, or until a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recall {
    /// Sessions with the event that each has to acknowledge. `u64::MAX`: it cannot any more, only
    /// time helps.
    pub wait_for: Vec<(SessionId, u64)>,
    /// Time at which the last of their records has expired.
    pub until: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Blocked {
    changes: u32,
    until: Instant,
}

impl Blocked {
    /// Asserts that at least one change waits: a directory without one is not blocked.
    fn check(self, directory: Ino) {
        assert!(
            self.changes > 0,
            "directory {directory} is blocked by no change"
        );
    }
}

/// The lease records of one shard.
#[derive(Debug)]
pub struct Leases {
    records: BTreeMap<(Ino, SessionId), Record>,
    /// How long each session's records live beyond their own ends.
    renewals: Renewals,
    /// Directories with waiting changes. The time bounds the effect of a lost change.
    blocked: BTreeMap<Ino, Blocked>,
    /// Place at which the sweep for expired records goes on.
    cursor: (Ino, SessionId),
    /// Until then sessions may use grants of a former life of this shard.
    grace_until: Instant,
    /// The sessions of that former life.
    grace_sessions: BTreeSet<SessionId>,
    records_max: usize,
}

impl Leases {
    /// No records. `before`: the sessions that the shard knew when it stopped. Changes by others
    /// wait for as long as their leases may run.
    #[must_use]
    pub fn new(now: Instant, before: BTreeSet<SessionId>) -> Self {
        Self {
            records: BTreeMap::new(),
            renewals: Renewals::default(),
            blocked: BTreeMap::new(),
            cursor: (Ino(0), SessionId(0)),
            grace_until: now.plus_ms(CACHE_TERM_MS + CACHE_GRACE_MS),
            grace_sessions: before,
            records_max: CACHE_LEASES_MAX,
        }
    }

    /// The same table with another bound.
    #[must_use]
    pub fn with_limit(mut self, records_max: usize) -> Self {
        self.records_max = records_max;
        self
    }

    /// Grants a lease: for how many ms the session may cache the directory's entries and the
    /// attributes that the lease covers (0: not at all). `now` is when the shard got the request,
    /// which is later than its sending.
    pub fn grant(&mut self, directory: Ino, session: SessionId, now: Instant) -> u32 {
        self.sweep(now, SWEEP_AT_GRANT);
        // A server that asks without a session hears of no recall: each change would wait for it.
        if session == SessionId(0) || self.is_blocked(directory, now) {
            return 0;
        }
        let key = (directory, session);
        if self.records.len() >= self.records_max && !self.records.contains_key(&key) {
            return 0;
        }
        let record = Record {
            expiry: now.plus_ms(CACHE_TERM_MS + CACHE_GRACE_MS),
            entries_recalled: None,
            children_recalled: BTreeMap::new(),
        };
        if self.records.insert(key, record).is_none() {
            self.renewals.record_made(session);
        }
        assert!(
            self.records.len() <= self.records_max,
            "{} lease records are past the bound",
            self.records.len()
        );
        const { const_u32(CACHE_TERM_MS) }
    }

    /// Renews all records of a session whose poll arrived at `now`, which has acknowledged events
    /// up to `acked`. True: the session may use what it was granted for [`CACHE_TERM_MS`] from the
    /// sending of the poll.
    ///
    /// Refused where the session owes an acknowledgement for longer than
    /// [`renewals::ACKNOWLEDGE_MS`]: a change would wait for it without end. Refused, too, where
    /// the table is nearly full and the session has a large part of it.
    pub fn renew(&mut self, session: SessionId, acked: u64, now: Instant) -> bool {
        let is_crowded = self.records.len() >= self.records_max / 4 * 3;
        let records_max = if is_crowded {
            self.records_max / 16
        } else {
            self.records_max
        };
        self.renewals.renew(session, acked, records_max, now)
    }

    /// Queues recalls for sessions that may have cached anything that these changes of session `by`
    /// touch. `None`: the change may be executed now. Else it waits, and the directories grant
    /// nothing until [`Self::finish`].
    ///
    /// `waiting`: this change was told to wait before, with the same directories, so they are
    /// blocked already. Where it names other directories now, finish the old ones first and pass
    /// false.
    pub fn recall(
        &mut self,
        changes: &[LeaseChange],
        by: SessionId,
        waiting: bool,
        now: Instant,
        events: &mut EventQueues,
    ) -> Option<Recall> {
        let mut recall = Recall {
            wait_for: Vec::new(),
            until: now,
        };
        if now < self.grace_until && self.grace_sessions.iter().any(|session| *session != by) {
            recall.until = self.grace_until;
        }
        for change in changes {
            self.recall_one(change, by, now, events, &mut recall);
        }
        if recall.until <= now {
            return None;
        }
        for change in changes {
            let blocked = self.blocked.entry(change.directory).or_insert(Blocked {
                changes: 0,
                until: recall.until,
            });
            if !waiting || blocked.changes == 0 {
                blocked.changes += 1;
            }
            blocked.until = blocked.until.max(recall.until);
            blocked.check(change.directory);
        }
        Some(recall)
    }

    /// Queues events for sessions that may have cached attributes of `inodes`, which `directory`
    /// covers. The change waits for none of them. Returns the sessions.
    pub fn tell(
        &mut self,
        (directory, inodes): (Ino, &[Ino]),
        by: SessionId,
        now: Instant,
        events: &mut EventQueues,
    ) -> Vec<SessionId> {
        let keys = (directory, SessionId(0))..=(directory, SessionId(u64::MAX));
        let told = self.records.range(keys).filter(|((_, session), record)| {
            *session != by && self.renewals.end_of(*session, record.expiry) > now
        });
        let told: Vec<SessionId> = told.map(|((_, session), _)| *session).collect();
        for session in &told {
            let event = Event::Invalidate {
                entries: Ino(0),
                inodes: inodes.to_vec(),
                data: false,
            };
            events.push(*session, event);
        }
        told
    }

    /// A waiting change was executed, refused or abandoned. Called once for each change that got
    /// `Some` from [`Self::recall`], with the same directories.
    pub fn finish(&mut self, changes: &[LeaseChange]) {
        for change in changes {
            if let Some(blocked) = self.blocked.get_mut(&change.directory) {
                blocked.check(change.directory);
                blocked.changes -= 1;
                if blocked.changes == 0 {
                    self.blocked.remove(&change.directory);
                }
            }
        }
    }

    /// True where no session may use grants of a former life any more.
    #[must_use]
    pub fn is_grace_over(&self, now: Instant) -> bool {
        now >= self.grace_until || self.grace_sessions.is_empty()
    }

    /// The session has dropped everything that a former life of this shard let it cache.
    pub fn session_dropped(&mut self, session: SessionId) {
        self.grace_sessions.remove(&session);
    }

    /// The session closed in good order and uses its cache no more. A session that vanished, or was
    /// ended by others, keeps its records until they expire.
    pub fn session_closed(&mut self, session: SessionId) {
        self.grace_sessions.remove(&session);
        self.records
            .retain(|(_directory, of), _record| *of != session);
        self.renewals.session_closed(session);
    }

    /// Checks the next `count` records and drops expired ones. For housekeeping while nothing is
    /// granted.
    pub fn sweep(&mut self, now: Instant, count: usize) {
        if now >= self.grace_until && !self.grace_sessions.is_empty() {
            self.grace_sessions = BTreeSet::new();
        }
        for _ in 0..count {
            let mut rest = self
                .records
                .range((Bound::Excluded(self.cursor), Bound::Unbounded));
            let Some((key, record)) = rest.next() else {
                self.cursor = (Ino(0), SessionId(0));
                break;
            };
            let key = *key;
            if self.renewals.end_of(key.1, record.expiry) <= now {
                self.remove(key);
            }
            self.cursor = key;
        }
        self.renewals.sweep(now, count);
    }

    /// Bound on the records.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.records_max
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// True where there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    fn is_blocked(&mut self, directory: Ino, now: Instant) -> bool {
        let Some(blocked) = self.blocked.get(&directory) else {
            return false;
        };
        if blocked.until.plus_ms(CACHE_TERM_MS) < now {
            self.blocked.remove(&directory);
            return false;
        }
        true
    }

    fn recall_one(
        &mut self,
        change: &LeaseChange,
        by: SessionId,
        now: Instant,
        events: &mut EventQueues,
        recall: &mut Recall,
    ) {
        let directory = change.directory;
        let keys = (directory, SessionId(0))..=(directory, SessionId(u64::MAX));
        let mut expired = Vec::new();
        for ((_directory, session), record) in self.records.range_mut(keys) {
            let end = self.renewals.end_of(*session, record.expiry);
            if end <= now {
                expired.push((directory, *session));
                continue;
            }
            if *session == by {
                continue;
            }
            let (number, new) = record.to_recall(change);
            let number = if new.is_empty() {
                number
            } else {
                let event = new.to_event(directory, change.data);
                let pushed = events.push(*session, event).unwrap_or(u64::MAX);
                self.renewals.recalled(*session, pushed, now);
                record.recalled(&new, pushed, events.acked(*session));
                number.max(pushed)
            };
            if number > events.acked(*session) {
                recall.wait_for.push((*session, number));
                recall.until = recall.until.max(end);
            }
        }
        for key in expired {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: (Ino, SessionId)) {
        if self.records.remove(&key).is_some() {
            self.renewals.record_gone(key.1);
        }
    }
}

/// Parts of a change that a session was not yet told to drop.
struct UnrecalledParts {
    entries: bool,
    children: Vec<Ino>,
}

impl UnrecalledParts {
    fn is_empty(&self) -> bool {
        !self.entries && self.children.is_empty()
    }

    fn to_event(&self, directory: Ino, data: bool) -> Event {
        let mut inodes = self.children.clone();
        if self.entries {
            inodes.push(directory);
        }
        Event::Invalidate {
            entries: if self.entries { directory } else { Ino(0) },
            inodes,
            data,
        }
    }
}

impl Record {
    /// The highest number of an event that covers part of the change, and the parts that none
    /// covers yet.
    fn to_recall(&self, change: &LeaseChange) -> (u64, UnrecalledParts) {
        let mut number = 0;
        let mut new = UnrecalledParts {
            entries: false,
            children: Vec::new(),
        };
        if change.entries {
            match self.entries_recalled {
                Some(event) => number = event,
                None => new.entries = true,
            }
        }
        for child in &change.children {
            match self.children_recalled.get(child) {
                Some(event) => number = number.max(*event),
                None => new.children.push(*child),
            }
        }
        (number, new)
    }

    /// Notes that event `number` covers the parts in `new`. Acknowledged children make room:
    /// recalling one of them again costs a message and is never wrong.
    fn recalled(&mut self, new: &UnrecalledParts, number: u64, acked: u64) {
        if new.entries {
            self.entries_recalled = Some(number);
        }
        if self.children_recalled.len() >= RECALLED_CHILDREN_MAX {
            self.children_recalled
                .retain(|_child, event| *event > acked);
        }
        for child in &new.children {
            self.children_recalled.insert(*child, number);
        }
    }
}

#[cfg(test)]
mod tests;
