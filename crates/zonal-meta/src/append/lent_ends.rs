//! Lent ends: one session alone appends to a file at offsets that it names itself.
//!
//! The holder hands out offsets behind the end without asking and gathers what is appended. It asks
//! for a place only when it writes. Others wait until it has given the end back, and while a place
//! behind the end is being written:
//!
//! | waiting for the end | at most |
//! | --- | --- |
//! | an open, a truncation or a report | [`RECALL_MS`] from the first of them |
//! | an append | [`TAKE_AWAY_MS`] |
//!
//! The shard repeats the recall. From [`TICKET_MS`] on the holder gets no new place, and it loses
//! its session if it does not end the one that it has (`Tickets::overdue`).
//!
//! *Invariants*: an end is lent to a session that alone has the file open, while no append of the
//! file is in flight. Lent ends are volatile, as tickets are: sessions tell them again after a
//! restart, before others get places.

use std::collections::BTreeMap;
use zonal_types::limits::{APPEND_TICKETS_MAX, CACHE_GRACE_MS, CACHE_TERM_MS, TICKET_MS};
use zonal_types::{ErrorCode, Ino, Instant, PartitionId, SessionId};

/// Time for which requests other than appends wait for an end: as long as for a cache recall.
pub const RECALL_MS: u64 = CACHE_TERM_MS + CACHE_GRACE_MS;

/// Time for which appends of others wait for an end behind which nothing is being written. Longer
/// than for opens, less than `REQUEST_DEADLINE_MS`. From then on the holder gets no place, and the
/// bytes that it gathered are lost.
pub const TAKE_AWAY_MS: u64 = 8_000;

#[derive(Debug, Clone, Copy)]
struct LentEnd {
    session: SessionId,
    /// Offset before which everything is published, or belongs to nobody.
    next: u64,
    /// Since when others wait for it, and when the holder was last recalled.
    wanted: Option<(Instant, Instant)>,
}

/// The step that a session must take before it uses the end of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndRecall {
    /// Nothing: the end is not lent to another session.
    Free,
    /// Wait until this time at most. The session, if any, must be sent a recall.
    Wait(Instant, Option<SessionId>),
}

/// All ends that a shard has lent.
#[derive(Debug, Default)]
pub struct LentEnds {
    lent: BTreeMap<Ino, LentEnd>,
}

impl LentEnds {
    /// Lends the end, which is at `next`; repeats the grant where the session has it already.
    ///
    /// # Errors
    /// `Busy` where another session has it, others want it back, or [`APPEND_TICKETS_MAX`] ends are
    /// lent.
    pub fn lend(&mut self, ino: Ino, session: SessionId, next: u64) -> Result<(), ErrorCode> {
        let may_have = match self.lent.get(&ino) {
            Some(lent) => lent.session == session && lent.wanted.is_none(),
            None => self.lent.len() < APPEND_TICKETS_MAX,
        };
        if !may_have {
            return Err(ErrorCode::Busy);
        }
        let lent = LentEnd {
            session,
            next,
            wanted: None,
        };
        self.lent.insert(ino, lent);
        assert!(
            self.lent.len() <= APPEND_TICKETS_MAX,
            "{} ends are lent",
            self.lent.len()
        );
        Ok(())
    }

    /// True where the session may have a place at `offset`. A late request may ask for bytes that
    /// are published already.
    #[must_use]
    pub fn allows(&self, ino: Ino, session: SessionId, offset: u64) -> bool {
        let lent = self.lent.get(&ino);
        lent.is_some_and(|lent| lent.session == session && offset >= lent.next)
    }

    /// Since when others want the end.
    #[must_use]
    pub fn wanted_since(&self, ino: Ino) -> Option<Instant> {
        self.lent.get(&ino)?.wanted.map(|(since, _told)| since)
    }

    /// True where the holder may have another place besides its present one.
    #[must_use]
    pub fn allows_more(&self, ino: Ino, now: Instant) -> bool {
        let since = self.wanted_since(ino);
        since.is_none_or(|since| now < since.plus_ms(TICKET_MS))
    }

    /// The session has published the bytes before `end`.
    pub fn published(&mut self, ino: Ino, session: SessionId, end: u64) {
        if let Some(lent) = self.lent.get_mut(&ino)
            && lent.session == session
        {
            lent.next = lent.next.max(end);
        }
    }

    /// True where the end is lent to this session.
    #[must_use]
    pub fn is_lent_to(&self, ino: Ino, session: SessionId) -> bool {
        self.lent
            .get(&ino)
            .is_some_and(|lent| lent.session == session)
    }

    /// `by` is about to use the end. Returns the other session that holds it, to be recalled now,
    /// where it was not recalled within [`RECALL_MS`].
    pub fn want(&mut self, ino: Ino, by: SessionId, now: Instant) -> Option<SessionId> {
        let lent = self.lent.get_mut(&ino).filter(|lent| lent.session != by)?;
        let is_due = lent
            .wanted
            .is_none_or(|(_since, told)| now >= told.plus_ms(RECALL_MS));
        if is_due {
            let since = lent.wanted.map_or(now, |(since, _told)| since);
            lent.wanted = Some((since, now));
        }
        is_due.then_some(lent.session)
    }

    /// Called before `by` uses the end of the file. `appends`: set where `by` takes a place there;
    /// true where places are being written.
    pub fn recall(
        &mut self,
        ino: Ino,
        by: SessionId,
        now: Instant,
        appends: Option<bool>,
    ) -> EndRecall {
        let told = self.want(ino, by, now);
        let lent = self.lent.get(&ino).filter(|lent| lent.session != by);
        let Some((since, last)) = lent.and_then(|lent| lent.wanted) else {
            return EndRecall::Free;
        };
        let again = last.plus_ms(RECALL_MS);
        match appends {
            None if now >= since.plus_ms(RECALL_MS) => EndRecall::Free,
            None => EndRecall::Wait(since.plus_ms(RECALL_MS), told),
            Some(true) => EndRecall::Wait(again, told),
            Some(false) if now >= since.plus_ms(TAKE_AWAY_MS) => {
                zonal_types::mark!(EndTakenAway);
                self.lent.remove(&ino);
                EndRecall::Free
            }
            Some(false) => EndRecall::Wait(again.min(since.plus_ms(TAKE_AWAY_MS)), told),
        }
    }

    /// The session gives the end back.
    pub fn give_back(&mut self, ino: Ino, session: SessionId) {
        if self.is_lent_to(ino, session) {
            self.lent.remove(&ino);
        }
    }

    /// The file was truncated or is gone: it has another end, or none.
    pub fn ended(&mut self, ino: Ino) {
        self.lent.remove(&ino);
    }

    /// The session is gone.
    pub fn session_gone(&mut self, session: SessionId) {
        self.lent.retain(|_ino, lent| lent.session != session);
    }

    /// Files of a partition whose ends are lent.
    pub fn inos_of(&self, partition: PartitionId) -> impl Iterator<Item = Ino> + '_ {
        let lent = self.lent.keys().copied();
        lent.filter(move |ino| ino.partition() == partition)
    }

    /// Number of lent ends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lent.len()
    }

    /// True where none is lent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(5);
    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(ms)
    }

    #[test]
    fn an_end_is_lent_to_one_session_until_it_is_given_back() {
        let mut ends = LentEnds::default();
        assert_eq!(ends.recall(F, B, at(0), Some(false)), EndRecall::Free);
        assert_eq!(ends.lend(F, A, 100), Ok(()));
        assert_eq!(ends.lend(F, A, 100), Ok(()), "asked again");
        assert_eq!(ends.lend(F, B, 100), Err(ErrorCode::Busy));
        assert!(ends.allows(F, A, 100) && !ends.allows(F, B, 100));
        assert_eq!(
            ends.recall(F, A, at(0), Some(false)),
            EndRecall::Free,
            "its own"
        );
        let until = at(1 + RECALL_MS);
        assert_eq!(
            ends.recall(F, B, at(1), None),
            EndRecall::Wait(until, Some(A))
        );
        assert_eq!(ends.recall(F, B, at(2), None), EndRecall::Wait(until, None));
        assert_eq!(ends.lend(F, A, 100), Err(ErrorCode::Busy), "wanted back");
        ends.give_back(F, B);
        assert!(ends.allows(F, A, 100), "by its holder only");
        ends.give_back(F, A);
        assert_eq!(ends.recall(F, B, at(3), None), EndRecall::Free);
        assert!(ends.is_empty());
    }

    #[test]
    fn one_that_does_not_answer_keeps_it_from_appends_and_is_told_again() {
        let mut ends = LentEnds::default();
        ends.lend(F, A, 0).unwrap();
        let told = ends.recall(F, B, at(0), None);
        assert_eq!(told, EndRecall::Wait(at(RECALL_MS), Some(A)));
        let append = ends.recall(F, B, at(1), Some(true));
        assert_eq!(append, EndRecall::Wait(at(RECALL_MS), None));
        assert_eq!(ends.recall(F, B, at(RECALL_MS), None), EndRecall::Free);
        let append = ends.recall(F, B, at(RECALL_MS), Some(true));
        assert_eq!(
            append,
            EndRecall::Wait(at(2 * RECALL_MS), None),
            "told above"
        );
        let append = ends.recall(F, B, at(70_000), Some(true));
        assert_eq!(append, EndRecall::Wait(at(70_000 + RECALL_MS), Some(A)));
        assert!(ends.allows(F, A, 0), "what it gathered is still to come");
        assert_eq!(ends.recall(F, B, at(70_001), Some(false)), EndRecall::Free);
        assert!(!ends.allows(F, A, 0), "taken away");
        ends.lend(F, A, 0).unwrap();
        let append = ends.recall(F, B, at(0), Some(false));
        assert_eq!(append, EndRecall::Wait(at(RECALL_MS), Some(A)));
        let append = ends.recall(F, B, at(7_000), Some(false));
        assert_eq!(append, EndRecall::Wait(at(TAKE_AWAY_MS), Some(A)));
    }

    #[test]
    fn what_is_published_is_no_place_any_more() {
        let mut ends = LentEnds::default();
        ends.lend(F, A, 100).unwrap();
        assert!(!ends.allows(F, A, 99));
        ends.published(F, B, 300);
        ends.published(F, A, 200);
        assert!(!ends.allows(F, A, 199) && ends.allows(F, A, 200));
        ends.session_gone(B);
        assert_eq!(ends.len(), 1);
        ends.session_gone(A);
        assert!(ends.is_empty());
        ends.lend(F, A, 0).unwrap();
        ends.ended(F);
        assert!(ends.is_empty());
    }
}
