//! Ends of files that are lent: one session alone gets places in the file, at offsets that it names
//! itself.
//!
//! It hands out offsets behind the end without asking, gathers what is appended, and asks for the
//! place when it writes that. Others wait until it has given the end back: an open, a cut or a
//! report at most [`RECALL_MS`] from the first of them, an append [`TAKE_AWAY_MS`], and while a
//! place behind the end is being written. The holder is told again and again. From [`TICKET_MS`] on
//! it gets no new place, and who does not end the one that it has loses its session
//! (`Tickets::overdue`).
//!
//! *Invariants*: an end is lent to a session that alone has the file open, while no append of the
//! file is under way; volatile, as tickets are: after a restart of the shard it is told again
//! before others get places.

use std::collections::BTreeMap;
use zonal_types::limits::{APPEND_TICKETS_MAX, CACHE_GRACE_MS, CACHE_TERM_MS, TICKET_MS};
use zonal_types::{ErrorCode, Ino, Instant, SessionId};

/// How long others than appends wait for an end to be given back: as long as for what is cached.
pub const RECALL_MS: u64 = CACHE_TERM_MS + CACHE_GRACE_MS;

/// How long appends of others wait for an end behind which nothing is being written: longer than
/// opens do, less than a request is tried (`REQUEST_DEADLINE_MS`). From then on the holder gets no
/// place, and what it gathered is lost.
pub const TAKE_AWAY_MS: u64 = 8_000;

#[derive(Debug, Clone, Copy)]
struct Lent {
    session: SessionId,
    /// Everything before it is published, or nobody's.
    next: u64,
    /// Since when others wait for it, and when it was told so last.
    wanted: Option<(Instant, Instant)>,
}

/// What another session that is about to use the end of a file has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndRecall {
    /// Nothing: it is not lent to another one.
    Free,
    /// Wait until then at most. The session has to be told, where that is new.
    Wait(Instant, Option<SessionId>),
}

/// All ends that one shard lends.
#[derive(Debug, Default)]
pub struct Ends {
    lent: BTreeMap<Ino, Lent>,
}

impl Ends {
    /// Lends the end, which is at `next`; the same again where the session has it.
    ///
    /// # Errors
    /// `Busy` where another session has it, or it is wanted back, or there are as many as tickets
    /// may be.
    pub fn lend(&mut self, ino: Ino, session: SessionId, next: u64) -> Result<(), ErrorCode> {
        let may_have = match self.lent.get(&ino) {
            Some(lent) => lent.session == session && lent.wanted.is_none(),
            None => self.lent.len() < APPEND_TICKETS_MAX,
        };
        if !may_have {
            return Err(ErrorCode::Busy);
        }
        let lent = Lent {
            session,
            next,
            wanted: None,
        };
        self.lent.insert(ino, lent);
        Ok(())
    }

    /// Whether the session may have a place at `offset`: a question that comes late is about what
    /// is published.
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

    /// Whether the holder may have another place than the one that it has.
    #[must_use]
    pub fn allows_more(&self, ino: Ino, now: Instant) -> bool {
        let since = self.wanted_since(ino);
        since.is_none_or(|since| now < since.plus_ms(TICKET_MS))
    }

    /// The session has published what lies before `end`.
    pub fn published(&mut self, ino: Ino, session: SessionId, end: u64) {
        if let Some(lent) = self.lent.get_mut(&ino)
            && lent.session == session
        {
            lent.next = lent.next.max(end);
        }
    }

    /// Whether it is lent to this session.
    #[must_use]
    pub fn is_lent_to(&self, ino: Ino, session: SessionId) -> bool {
        self.lent
            .get(&ino)
            .is_some_and(|lent| lent.session == session)
    }

    /// `by` is about to use the end: the session that has it, where that is another one and has not
    /// been told for [`RECALL_MS`]. It is told now.
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

    /// Before `by` does something with the end of the file. `appends`: it takes a place there, and
    /// this says whether places are being written.
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

    /// The session gives it back.
    pub fn give_back(&mut self, ino: Ino, session: SessionId) {
        if self.is_lent_to(ino, session) {
            self.lent.remove(&ino);
        }
    }

    /// The file was cut, or is gone: there is another end, or none.
    pub fn ended(&mut self, ino: Ino) {
        self.lent.remove(&ino);
    }

    /// The session is gone.
    pub fn session_gone(&mut self, session: SessionId) {
        self.lent.retain(|_ino, lent| lent.session != session);
    }

    /// How many are lent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lent.len()
    }

    /// True where none is.
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
        let mut ends = Ends::default();
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
        let mut ends = Ends::default();
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
        let mut ends = Ends::default();
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
