//! Renewals: how long the lease records of a session live beyond their own ends.
//!
//! A client polls for events while it caches anything; each poll renews all its records at once.
//! The client counts from the sending of the poll, and this table from its arrival, so the client
//! stops first. A client that vanishes renews nothing: its records end 5.5 s after its last poll.
//!
//! *Invariant*: a session that owes an acknowledgement for longer than [`ACKNOWLEDGE_MS`] is not
//! renewed, so no change waits longer than that and a term. Bounds: one entry a session with
//! records or a live renewal; of each, as many recalls as its queue has events.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use zonal_types::limits::{CACHE_GRACE_MS, CACHE_TERM_MS};
use zonal_types::{Instant, SessionId};

/// Time in which a client acknowledges a recall, if it is to be renewed, ms.
pub(super) const ACKNOWLEDGE_MS: u64 = 1_000;

#[derive(Debug, Default)]
struct Renewal {
    /// End of the last renewal.
    until: Instant,
    /// Lease records of the session.
    records: usize,
    /// Recalls without an acknowledgement: numbers of events, and when they were queued.
    recalls: VecDeque<(u64, Instant)>,
}

/// The renewals of all sessions of a shard.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    sessions: BTreeMap<SessionId, Renewal>,
    /// Place at which the sweep goes on.
    cursor: SessionId,
}

impl Renewals {
    /// Renews the records of a session that has at most `records_max` of them.
    pub(super) fn renew(
        &mut self,
        session: SessionId,
        acked: u64,
        records_max: usize,
        now: Instant,
    ) -> bool {
        let renewal = self.sessions.entry(session).or_default();
        while renewal
            .recalls
            .front()
            .is_some_and(|(number, _at)| *number <= acked)
        {
            renewal.recalls.pop_front();
        }
        let is_late = renewal
            .recalls
            .front()
            .is_some_and(|(_number, at)| at.plus_ms(ACKNOWLEDGE_MS) <= now);
        if is_late || renewal.records > records_max {
            return false;
        }
        renewal.until = now.plus_ms(CACHE_TERM_MS + CACHE_GRACE_MS);
        true
    }

    /// End of a record whose grant ends at `expiry`.
    pub(super) fn end_of(&self, session: SessionId, expiry: Instant) -> Instant {
        let renewal = self.sessions.get(&session);
        renewal.map_or(expiry, |renewal| renewal.until.max(expiry))
    }

    /// Notes a recall of this number.
    pub(super) fn recalled(&mut self, session: SessionId, number: u64, now: Instant) {
        let recalls = &mut self.sessions.entry(session).or_default().recalls;
        // An event that took this recall in is as old as its first one.
        if recalls.back().is_none_or(|(last, _at)| *last < number) {
            recalls.push_back((number, now));
        }
    }

    /// Counts a new record.
    pub(super) fn record_made(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default().records += 1;
    }

    /// Counts a removed record.
    pub(super) fn record_gone(&mut self, session: SessionId) {
        let renewal = self.sessions.get_mut(&session);
        let records = renewal.map_or(0, |renewal| {
            let before = renewal.records;
            renewal.records = before.saturating_sub(1);
            before
        });
        assert!(records > 0, "{session} has no lease record to lose");
    }

    /// The session uses nothing any more, and has no records.
    pub(super) fn session_closed(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// Checks the next `count` sessions and drops those that ended.
    pub(super) fn sweep(&mut self, now: Instant, count: usize) {
        for _ in 0..count {
            let mut rest = self
                .sessions
                .range((Bound::Excluded(self.cursor), Bound::Unbounded));
            let Some((session, renewal)) = rest.next() else {
                self.cursor = SessionId(0);
                return;
            };
            let session = *session;
            if renewal.records == 0 && renewal.until <= now {
                self.sessions.remove(&session);
            }
            self.cursor = session;
        }
    }

    /// Number of sessions with records or a renewal.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }
}
