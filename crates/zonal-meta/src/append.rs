//! Tickets for appends: who writes where behind the end of a file.
//!
//! A ticket reserves bytes behind all others. The size that readers see rises only over the finished tickets before
//! the first unfinished one, so nobody reads reserved bytes. What a given-up ticket reserved is returned where nothing
//! follows it, and stays a hole otherwise.
//!
//! *Invariants*: tickets of an inode are disjoint and sorted; the first is unfinished; volatile (a restart of the shard
//! forgets tickets, and [`Tickets::end`] refuses them then).
//! *Units*: bytes.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{ErrorCode, Ino, SessionId};

#[derive(Debug, Clone, Copy)]
struct Ticket {
    session: SessionId,
    reserved: u64,
    /// Bytes written, once it is over.
    written: Option<u64>,
}

/// All tickets of one shard.
#[derive(Debug, Default)]
pub struct Tickets {
    /// By offset.
    files: BTreeMap<Ino, BTreeMap<u64, Ticket>>,
    sessions: BTreeMap<SessionId, BTreeSet<Ino>>,
}

impl Tickets {
    /// No tickets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves `length` bytes behind the committed size and all tickets; returns where.
    ///
    /// # Errors
    /// `FileTooBig` where that is beyond the largest file.
    pub fn begin(
        &mut self,
        ino: Ino,
        session: SessionId,
        length: u64,
        committed: u64,
    ) -> Result<u64, ErrorCode> {
        let reserved_end = self
            .files
            .get(&ino)
            .and_then(|tickets| tickets.last_key_value())
            .map_or(0, |(offset, ticket)| offset + ticket.reserved);
        let offset = committed.max(reserved_end);
        let end = offset.checked_add(length).ok_or(ErrorCode::FileTooBig)?;
        if end > FILE_BYTES_MAX {
            return Err(ErrorCode::FileTooBig);
        }
        if length == 0 {
            return Ok(offset);
        }
        let ticket = Ticket {
            session,
            reserved: length,
            written: None,
        };
        self.files.entry(ino).or_default().insert(offset, ticket);
        self.sessions.entry(session).or_default().insert(ino);
        Ok(offset)
    }

    /// The ticket at `offset` is over with `written` of its `reserved` bytes written (0: given up). Returns the end that
    /// may be published now, if it moved: the file is at least as long as that.
    ///
    /// # Errors
    /// `UnknownLease` where there is no such ticket (the shard restarted, or the session was gone meanwhile): the
    /// client must begin and write again. `Invalid` where the numbers do not fit.
    pub fn end(
        &mut self,
        ino: Ino,
        session: SessionId,
        offset: u64,
        reserved: u64,
        written: u64,
    ) -> Result<Option<u64>, ErrorCode> {
        if reserved == 0 && written == 0 {
            return Ok(None);
        }
        let ticket = self
            .files
            .get_mut(&ino)
            .and_then(|tickets| tickets.get_mut(&offset))
            .filter(|ticket| ticket.session == session && ticket.written.is_none())
            .ok_or(ErrorCode::UnknownLease)?;
        if ticket.reserved != reserved || written > reserved {
            return Err(ErrorCode::Invalid);
        }
        ticket.written = Some(written);
        let published = self.settle(ino);
        self.forget_session(ino, session);
        Ok(published)
    }

    /// Whether {`ino`, `offset`} is an unfinished ticket of the session.
    #[must_use]
    pub fn is_open(&self, ino: Ino, session: SessionId, offset: u64) -> bool {
        self.files
            .get(&ino)
            .and_then(|tickets| tickets.get(&offset))
            .is_some_and(|ticket| ticket.session == session && ticket.written.is_none())
    }

    /// The session is gone: its unfinished tickets are given up. Returns, for each inode where more can be published
    /// now, the end.
    pub fn session_gone(&mut self, session: SessionId) -> Vec<(Ino, u64)> {
        let inos = self.sessions.remove(&session).unwrap_or_default();
        let mut published = Vec::new();
        for ino in inos {
            for ticket in self
                .files
                .get_mut(&ino)
                .into_iter()
                .flat_map(BTreeMap::values_mut)
            {
                if ticket.session == session && ticket.written.is_none() {
                    ticket.written = Some(0);
                }
            }
            published.extend(self.settle(ino).map(|end| (ino, end)));
        }
        published
    }

    /// The inode is gone.
    pub fn inode_gone(&mut self, ino: Ino) {
        let tickets = self.files.remove(&ino).unwrap_or_default();
        for ticket in tickets.values() {
            self.forget_session(ino, ticket.session);
        }
    }

    /// Tickets held, finished ones that wait for others included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.values().map(BTreeMap::len).sum()
    }

    /// True where there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns what the last tickets did not use, and takes finished ones off the front.
    fn settle(&mut self, ino: Ino) -> Option<u64> {
        let tickets = self.files.get_mut(&ino)?;
        while let Some(mut last) = tickets.last_entry() {
            match last.get().written {
                Some(0) => {
                    last.remove();
                }
                Some(written) => {
                    last.get_mut().reserved = written;
                    break;
                }
                None => break,
            }
        }
        let mut published = None;
        while let Some(first) = tickets.first_entry() {
            let Some(written) = first.get().written else {
                break;
            };
            if written > 0 {
                published = Some(first.key() + written);
            }
            first.remove();
        }
        if tickets.is_empty() {
            self.files.remove(&ino);
        }
        published
    }

    fn forget_session(&mut self, ino: Ino, session: SessionId) {
        let has_more = self.files.get(&ino).is_some_and(|tickets| {
            tickets
                .values()
                .any(|ticket| ticket.session == session && ticket.written.is_none())
        });
        if has_more {
            return;
        }
        if let Some(inos) = self.sessions.get_mut(&session) {
            inos.remove(&ino);
            if inos.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(5);
    const A: SessionId = SessionId(1);
    const B: SessionId = SessionId(2);

    #[test]
    fn only_a_finished_prefix_is_published() {
        let mut tickets = Tickets::new();
        assert_eq!(tickets.begin(F, A, 10, 100), Ok(100));
        assert_eq!(tickets.begin(F, B, 20, 100), Ok(110));
        assert_eq!(tickets.begin(F, A, 5, 100), Ok(130));
        assert_eq!(tickets.end(F, B, 110, 20, 20), Ok(None));
        assert_eq!(tickets.end(F, B, 110, 20, 20), Err(ErrorCode::UnknownLease));
        assert_eq!(tickets.end(F, A, 100, 10, 10), Ok(Some(130)));
        assert!(tickets.is_open(F, A, 130));
        assert_eq!(tickets.end(F, A, 130, 5, 5), Ok(Some(135)));
        assert!(tickets.is_empty() && tickets.sessions.is_empty());
        assert_eq!(tickets.begin(F, A, 1, 135), Ok(135));
    }

    #[test]
    fn a_given_up_ticket_is_returned_or_becomes_a_hole() {
        let mut tickets = Tickets::new();
        tickets.begin(F, A, 10, 0).unwrap();
        tickets.begin(F, B, 10, 0).unwrap();
        tickets.begin(F, A, 10, 0).unwrap();
        // The last one: returned, and the next gets the same place.
        assert_eq!(tickets.end(F, A, 20, 10, 0), Ok(None));
        assert_eq!(tickets.begin(F, B, 7, 0), Ok(20));
        // One in the middle: a hole.
        assert_eq!(tickets.end(F, B, 10, 10, 0), Ok(None));
        assert_eq!(tickets.end(F, B, 20, 7, 7), Ok(None));
        assert_eq!(tickets.end(F, A, 0, 10, 10), Ok(Some(27)));
        // Given-up ones behind one another are returned together; so is the rest of a short one.
        tickets.begin(F, A, 10, 27).unwrap();
        tickets.begin(F, A, 10, 27).unwrap();
        tickets.begin(F, A, 10, 27).unwrap();
        assert_eq!(tickets.end(F, A, 37, 10, 4), Ok(None));
        assert_eq!(tickets.end(F, A, 47, 10, 0), Ok(None));
        assert_eq!(tickets.begin(F, B, 1, 27), Ok(41));
        assert_eq!(tickets.end(F, A, 27, 10, 0), Ok(Some(41)));
    }

    #[test]
    fn a_session_that_goes_gives_its_tickets_up() {
        let mut tickets = Tickets::new();
        tickets.begin(F, A, 10, 0).unwrap();
        tickets.begin(F, B, 10, 0).unwrap();
        tickets.begin(Ino(6), A, 10, 50).unwrap();
        assert_eq!(tickets.end(F, B, 10, 10, 10), Ok(None));
        assert_eq!(tickets.session_gone(A), [(F, 20)]);
        assert_eq!(tickets.end(F, A, 0, 10, 10), Err(ErrorCode::UnknownLease));
        assert!(tickets.is_empty());
        tickets.begin(F, A, 10, 0).unwrap();
        tickets.inode_gone(F);
        assert!(tickets.is_empty() && tickets.sessions.is_empty());
    }

    #[test]
    fn numbers_are_checked() {
        let mut tickets = Tickets::new();
        let big = tickets.begin(F, A, 10, FILE_BYTES_MAX - 5);
        assert_eq!(big, Err(ErrorCode::FileTooBig));
        assert_eq!(
            tickets.begin(F, A, u64::MAX, 10),
            Err(ErrorCode::FileTooBig)
        );
        tickets.begin(F, A, 10, 0).unwrap();
        assert_eq!(tickets.end(F, A, 0, 10, 11), Err(ErrorCode::Invalid));
        assert_eq!(tickets.end(F, A, 0, 9, 9), Err(ErrorCode::Invalid));
        assert_eq!(tickets.end(F, B, 0, 10, 10), Err(ErrorCode::UnknownLease));
    }

    #[test]
    fn random_appends_never_overlap_nor_show_reserved_bytes() {
        let mut dice = 9_u64;
        let mut roll = |sides: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (dice >> 33) % sides
        };
        let mut tickets = Tickets::new();
        let (mut size, mut open, mut done) = (0, Vec::new(), Vec::<(u64, u64)>::new());
        for _ in 0..5000 {
            if roll(2) == 0 && open.len() < 20 {
                let length = 1 + roll(50);
                let offset = tickets.begin(F, A, length, size).unwrap();
                let overlaps = |(o, l): &(u64, u64)| *o < offset + length && offset < o + l;
                assert!(!open.iter().any(overlaps) && !done.iter().any(overlaps));
                assert!(offset >= size);
                open.push((offset, length));
            } else if !open.is_empty() {
                let (offset, length) = open.remove(roll(open.len() as u64) as usize);
                let written = if roll(3) == 0 { roll(length) } else { length };
                if written > 0 {
                    done.push((offset, written));
                }
                if let Some(end) = tickets.end(F, A, offset, length, written).unwrap() {
                    assert!(end > size);
                    size = end;
                }
                assert!(open.iter().all(|(offset, _)| *offset >= size));
            }
        }
    }
}
