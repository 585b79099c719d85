//! Append tickets: reservations of bytes behind the end of a file.
//!
//! A ticket reserves bytes behind all others. The published size rises only over finished tickets
//! before the first unfinished one, so nobody reads reserved bytes. An append is acknowledged only
//! when its bytes are published: every later reader sees them, and no crash takes them back.
//!
//! The end of an append waits for the tickets before it, at most [`TICKET_MS`] from their
//! beginning. That is longer than any client retries, so an append that was passed over is neither
//! finished nor repeated later. Each end publishes its own bytes only: else a crash could publish
//! an append that its client then repeats. Bytes of a given-up ticket are returned where nothing
//! follows them, and stay a hole otherwise.
//!
//! A place is revoked as seldom as possible, because bytes written there may overwrite bytes that
//! others wrote with an offset:
//!
//! | event | the ticket |
//! | --- | --- |
//! | the file grew past it | stays |
//! | it was truncated behind the ticket's beginning | stays, once, shortened to the new size |
//! | it was truncated before the ticket's beginning | is refused |
//!
//! The client reaches the same result from the last truncation that it knows.
//!
//! The shard may lend the end of a file to a session that alone has it open ([`lent_ends`]). That
//! session reserves places at offsets of its own, and others wait for them. [`Tickets::overdue`]
//! names a session that keeps a place too long; the shard ends it.
//!
//! *Invariants*: tickets of an inode are disjoint and sorted. They are volatile: after a restart of
//! the shard [`Tickets::end`] refuses old ones, of which nothing was acknowledged. *Units*: bytes.

pub mod lent_ends;

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::limits::{
    APPEND_BYTES_MAX, APPEND_TICKETS_MAX, FILE_BYTES_MAX, TICKET_KEPT_MS, TICKET_MS,
};
use zonal_types::{ErrorCode, Ino, Instant, PartitionId, SessionId};

/// Key that stands for all files.
const ANY: Ino = Ino(0);

#[derive(Debug, Clone, Copy)]
struct Ticket {
    session: SessionId,
    reserved: u64,
    since: Instant,
    /// Bytes written, once the append has ended.
    written: Option<u64>,
    /// The file was truncated behind the ticket's beginning: `reserved` and `written` are what is
    /// left.
    is_truncated: bool,
    /// The caller is gone: the append is not published, and nobody waits for it. The place stays
    /// reserved until the ticket ends, because a write to it may be on its way.
    is_given_up: bool,
    /// The place is at a lent end: its session may extend the reservation.
    is_lent: bool,
}

impl Ticket {
    fn new(session: SessionId, reserved: u64, since: Instant) -> Self {
        Self {
            session,
            reserved,
            since,
            written: None,
            is_truncated: false,
            is_given_up: false,
            is_lent: false,
        }
    }

    fn truncate(&mut self, length: u64) {
        self.reserved = self.reserved.min(length);
        self.written = self.written.map(|written| written.min(length));
        self.is_truncated = true;
    }
}

/// Result of ending a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The bytes are published: the file is at least this long (`None`: nothing was written).
    Published(Option<u64>),
    /// Earlier tickets are unfinished: ask again when one has ended, or at this time.
    Wait(Instant),
}

/// All append tickets of one shard.
#[derive(Debug, Default)]
pub struct Tickets {
    /// Tickets by offset.
    files: BTreeMap<Ino, BTreeMap<u64, Ticket>>,
    /// Tickets that were passed over because they were too old or given up (true). Their clients
    /// may still end them.
    passed: BTreeMap<(Ino, u64), (SessionId, bool)>,
    sessions: BTreeMap<SessionId, BTreeSet<Ino>>,
    /// The first place of each file that was given since our start while sessions from before it
    /// may still hold some.
    given: BTreeMap<Ino, u64>,
}

impl Tickets {
    /// No tickets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reserves `length` bytes behind the committed size and all tickets; returns the offset.
    ///
    /// # Errors
    /// `FileTooBig` beyond the largest file; `Overloaded` at [`APPEND_TICKETS_MAX`] tickets;
    /// `Invalid` past [`APPEND_BYTES_MAX`].
    pub fn begin(
        &mut self,
        ino: Ino,
        session: SessionId,
        length: u64,
        committed: u64,
        now: Instant,
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
        if length > APPEND_BYTES_MAX as u64 {
            return Err(ErrorCode::Invalid);
        }
        if length == 0 {
            return Ok(offset);
        }
        if self.len() >= APPEND_TICKETS_MAX {
            return Err(ErrorCode::Overloaded);
        }
        let ticket = Ticket::new(session, length, now);
        let tickets = self.files.entry(ino).or_default();
        tickets.insert(offset, ticket);
        check_disjoint(tickets, offset);
        self.sessions.entry(session).or_default().insert(ino);
        Ok(offset)
    }

    /// Reserves `length` bytes at `offset`, at the end that is lent to the session. A repeat may
    /// extend the reservation.
    ///
    /// # Errors
    /// `FileTooBig`, `Overloaded`, `Invalid` as [`Self::begin`]; `UnknownLease` where a part of the
    /// range is reserved otherwise.
    pub fn begin_at(
        &mut self,
        ino: Ino,
        session: SessionId,
        (offset, length): (u64, u64),
        now: Instant,
    ) -> Result<(), ErrorCode> {
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(ErrorCode::FileTooBig)?;
        if length == 0 || length > APPEND_BYTES_MAX as u64 {
            return Err(ErrorCode::Invalid);
        }
        let is_full = self.len() >= APPEND_TICKETS_MAX;
        let known = self.files.get(&ino);
        let mut within = known
            .into_iter()
            .flat_map(|tickets| tickets.range(..end).rev());
        let last = within.next().filter(|(at, t)| *at + t.reserved > offset);
        match last {
            Some((at, ticket))
                if *at == offset
                    && ticket.session == session
                    && ticket.written.is_none()
                    && !ticket.is_truncated
                    && !ticket.is_given_up => {}
            Some(_taken) => return Err(ErrorCode::UnknownLease),
            None if self.passed.contains_key(&(ino, offset)) => {
                return Err(ErrorCode::UnknownLease);
            }
            None if is_full => return Err(ErrorCode::Overloaded),
            None => {}
        }
        let tickets = self.files.entry(ino).or_default();
        let ticket = tickets
            .entry(offset)
            .or_insert(Ticket::new(session, length, now));
        ticket.reserved = ticket.reserved.max(length);
        (ticket.since, ticket.is_lent) = (now, true);
        check_disjoint(tickets, offset);
        self.sessions.entry(session).or_default().insert(ino);
        Ok(())
    }

    /// True where an append of the file is in flight, or was passed over.
    #[must_use]
    pub fn has_any(&self, ino: Ino) -> bool {
        let mut passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
        self.files.contains_key(&ino) || passed.next().is_some()
    }

    /// True where an append to a file of the partition is in flight.
    #[must_use]
    pub fn has_in(&self, partition: PartitionId) -> bool {
        self.files.keys().any(|ino| ino.partition() == partition)
    }

    /// Sessions whose appends keep the lent end for too long from others, who want it since
    /// `since`. Either they no longer ask for their place, or it is too late for that.
    #[must_use]
    pub fn overdue(&self, ino: Ino, since: Instant, now: Instant) -> BTreeSet<SessionId> {
        if now < since.plus_ms(TICKET_MS) {
            return BTreeSet::new();
        }
        let is_over = now >= since.plus_ms(TICKET_KEPT_MS);
        let known = self.files.get(&ino).into_iter().flat_map(BTreeMap::values);
        let overdue = known.filter(|t| is_over || now >= t.since.plus_ms(TICKET_MS));
        let passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
        let passed = passed.map(|(_at, (of, _))| *of);
        overdue.map(|ticket| ticket.session).chain(passed).collect()
    }

    /// The holder asks whether it still has its place.
    pub fn renew(&mut self, ino: Ino, session: SessionId, offset: u64, now: Instant) {
        let tickets = self.files.get_mut(&ino);
        let ticket = tickets.and_then(|tickets| tickets.get_mut(&offset));
        if let Some(ticket) = ticket.filter(|of| of.session == session && of.is_lent) {
            ticket.since = now;
        }
    }

    /// True where another session's append of the file is in flight, or was passed over.
    #[must_use]
    pub fn has_others(&self, ino: Ino, session: SessionId) -> bool {
        let known = self.files.get(&ino).into_iter().flat_map(BTreeMap::values);
        let mut passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
        known.into_iter().any(|ticket| ticket.session != session)
            || passed.any(|(_at, (of, _))| *of != session)
    }

    /// True where a place of the file was newly given since our start.
    #[must_use]
    pub fn has_new_places(&self, ino: Ino) -> bool {
        self.given.contains_key(&ino) || self.given.contains_key(&ANY)
    }

    /// Notes that a place was given while sessions from before our start may hold others in that
    /// file. From now on they keep only places before it.
    pub fn note_new_place(&mut self, ino: Ino, offset: u64) {
        if self.given.len() >= APPEND_TICKETS_MAX && !self.given.contains_key(&ino) {
            // Too many files to remember: from here on those sessions keep no place.
            self.given.clear();
            self.given.insert(ANY, 0);
        }
        let first = self.given.entry(ino).or_insert(offset);
        *first = offset.min(*first);
    }

    /// The caller of the append at `offset` is gone.
    pub fn give_up(&mut self, ino: Ino, session: SessionId, offset: u64) {
        let tickets = self.files.get_mut(&ino);
        let ticket = tickets.and_then(|tickets| tickets.get_mut(&offset));
        if let Some(ticket) = ticket.filter(|ticket| ticket.session == session) {
            ticket.is_given_up = true;
        }
    }

    /// No session from before our start is left that could hold a place.
    pub fn forget_new_places(&mut self) {
        self.given.clear();
    }

    /// Ends the ticket at `offset`, with `written` of its `reserved` bytes written (0: given up).
    /// After [`End::Wait`] the caller asks again with the same numbers.
    ///
    /// # Errors
    /// `UnknownLease` where there is no ticket (the shard restarted, or the session was gone
    /// meanwhile): the client must begin and write again. `Invalid` where the numbers do not fit.
    pub fn end(
        &mut self,
        ino: Ino,
        session: SessionId,
        offset: u64,
        (reserved, written): (u64, u64),
        now: Instant,
    ) -> Result<End, ErrorCode> {
        if reserved == 0 && written == 0 {
            return Ok(End::Published(None));
        }
        if let Some((of, is_given_up)) = self.passed.get(&(ino, offset))
            && *of == session
        {
            if *is_given_up && written > 0 {
                return Err(ErrorCode::UnknownLease);
            }
            self.passed.remove(&(ino, offset));
            self.forget_session(ino, session);
            return Ok(End::Published(
                (written > 0).then_some(offset + written.min(reserved)),
            ));
        }
        let tickets = self.files.get_mut(&ino).ok_or(ErrorCode::UnknownLease)?;
        let ticket = tickets
            .get_mut(&offset)
            .filter(|ticket| ticket.session == session)
            .ok_or_else(|| {
                zonal_types::mark!(AppendUnknown);
                ErrorCode::UnknownLease
            })?;
        if ticket.is_given_up && written > 0 {
            return Err(ErrorCode::UnknownLease);
        }
        let is_more = ticket.is_lent && reserved < ticket.reserved;
        let is_fitting = ticket.reserved == reserved || ticket.is_truncated || is_more;
        let written = match ticket.is_truncated {
            true => written.min(ticket.reserved),
            false => written,
        };
        match ticket.written {
            None if is_fitting && written <= reserved => {
                ticket.written = Some(written);
            }
            Some(before) if before == written => {}
            // Its client no longer waits for it to be published.
            Some(_) if written == 0 => ticket.written = Some(0),
            _ => return Err(ErrorCode::Invalid),
        }
        trim(tickets);
        let mut end = End::Published(None);
        while written > 0
            && let Some(first) = tickets.first_entry()
        {
            let (at, ticket) = (*first.key(), *first.get());
            assert!(at <= offset, "the end at {offset} passes over {at}");
            let until = ticket.since.plus_ms(TICKET_MS);
            if at == offset {
                end = End::Published(Some(offset + written));
                first.remove();
                break;
            }
            if ticket.written != Some(0) && !ticket.is_given_up && now < until {
                zonal_types::mark!(AppendWaited);
                end = End::Wait(until);
                break;
            }
            if ticket.written != Some(0) {
                zonal_types::mark!(AppendPassedOver);
                let passed = (ticket.session, ticket.is_given_up);
                self.passed.insert((ino, at), passed);
            }
            first.remove();
        }
        self.drop_empty(ino);
        self.forget_session(ino, session);
        Ok(end)
    }

    /// Restores a ticket from before our restart, whose bytes may still be on their way. Does
    /// nothing where its place is taken. `is_truncated`: the file was truncated since, and this is
    /// what is left.
    pub fn reclaim(
        &mut self,
        ino: Ino,
        session: SessionId,
        (offset, reserved, is_truncated): (u64, u32, bool),
        now: Instant,
    ) {
        let reserved = u64::from(reserved);
        let end = offset.saturating_add(reserved);
        let is_place = (1..=APPEND_BYTES_MAX as u64).contains(&reserved) && end <= FILE_BYTES_MAX;
        if !is_place || self.len() >= APPEND_TICKETS_MAX {
            return;
        }
        let tickets = self.files.entry(ino).or_default();
        let is_past = |file| self.given.get(&file).is_some_and(|first| end > *first);
        let is_given = is_past(ino) || is_past(ANY);
        let before = tickets.range(..end).next_back();
        if is_given || before.is_some_and(|(at, ticket)| at + ticket.reserved > offset) {
            self.drop_empty(ino);
            return;
        }
        zonal_types::mark!(AppendReclaimed);
        let ticket = Ticket {
            is_truncated,
            ..Ticket::new(session, reserved, now)
        };
        tickets.insert(offset, ticket);
        check_disjoint(tickets, offset);
        self.sessions.entry(session).or_default().insert(ino);
    }

    /// The end of this append was executed before our restart: its ticket, if reclaimed, is over.
    pub fn drop_executed(&mut self, ino: Ino, session: SessionId, offset: u64) {
        if self.is_open(ino, session, offset)
            && let Some(tickets) = self.files.get_mut(&ino)
        {
            tickets.remove(&offset);
            self.drop_empty(ino);
            self.forget_session(ino, session);
        }
    }

    /// Whether {`ino`, `offset`} is a ticket of the session, finished or not.
    #[must_use]
    pub fn is_known(&self, ino: Ino, session: SessionId, offset: u64) -> bool {
        let files = self.files.get(&ino);
        files
            .and_then(|tickets| tickets.get(&offset))
            .is_some_and(|ticket| ticket.session == session)
            || self
                .passed
                .get(&(ino, offset))
                .is_some_and(|(of, _)| *of == session)
    }

    /// Whether {`ino`, `offset`} is an unfinished ticket of the session.
    #[must_use]
    pub fn is_open(&self, ino: Ino, session: SessionId, offset: u64) -> bool {
        self.files
            .get(&ino)
            .and_then(|tickets| tickets.get(&offset))
            .is_some_and(|ticket| ticket.session == session && ticket.written.is_none())
    }

    /// The session is gone: its tickets are given up, also those that wait. Requests that wait for
    /// them should ask again.
    pub fn session_gone(&mut self, session: SessionId) {
        for ino in self.sessions.remove(&session).unwrap_or_default() {
            if let Some(tickets) = self.files.get_mut(&ino) {
                for ticket in tickets.values_mut().filter(|t| t.session == session) {
                    ticket.written = Some(0);
                }
                trim(tickets);
            }
            self.drop_empty(ino);
            let passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
            let gone: Vec<_> = passed
                .filter(|(_at, (of, _))| *of == session)
                .map(|(at, _of)| *at)
                .collect();
            for at in gone {
                self.passed.remove(&at);
            }
        }
    }

    /// The inode is gone: ends of its tickets are refused.
    pub fn inode_gone(&mut self, ino: Ino) {
        self.truncate(ino, 0);
    }

    /// The file was truncated to `size`. Ends of tickets that begin behind it, or that were
    /// shortened before, are refused.
    pub fn truncate(&mut self, ino: Ino, size: u64) {
        let mut tickets = self.files.remove(&ino).unwrap_or_default();
        let mut sessions: BTreeSet<SessionId> = tickets.values().map(|t| t.session).collect();
        tickets.retain(|at, ticket| *at < size && !ticket.is_truncated);
        for (at, ticket) in &mut tickets {
            zonal_types::mark!(AppendKeptAfterTruncation);
            ticket.truncate(size - at);
        }
        trim(&mut tickets);
        if !tickets.is_empty() {
            self.files.insert(ino, tickets);
        }
        let passed: Vec<_> = self
            .passed
            .range((ino, 0)..=(ino, u64::MAX))
            .map(|(at, _of)| *at)
            .collect();
        for at in passed {
            sessions.extend(self.passed.remove(&at).map(|(of, _)| of));
        }
        for session in sessions {
            self.forget_session(ino, session);
        }
    }

    /// Number of tickets of a session. Costs a look at each file in which it has any.
    #[must_use]
    pub fn of_session(&self, session: SessionId) -> usize {
        let inos = self.sessions.get(&session).into_iter().flatten();
        let files = inos.filter_map(|ino| self.files.get(ino));
        let tickets = files.flat_map(|tickets| tickets.values());
        tickets.filter(|ticket| ticket.session == session).count()
    }

    /// Number of tickets, finished ones that wait for others included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.values().map(BTreeMap::len).sum::<usize>() + self.passed.len()
    }

    /// True where there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.passed.is_empty()
    }

    fn drop_empty(&mut self, ino: Ino) {
        if self.files.get(&ino).is_some_and(BTreeMap::is_empty) {
            self.files.remove(&ino);
        }
    }

    fn forget_session(&mut self, ino: Ino, session: SessionId) {
        let has_more = self.files.get(&ino).is_some_and(|tickets| {
            tickets
                .values()
                .any(|ticket| ticket.session == session && ticket.written != Some(0))
        });
        let mut passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
        if has_more || passed.any(|(_at, (of, _))| *of == session) {
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

/// Asserts that the ticket at `offset` overlaps no neighbour.
fn check_disjoint(tickets: &BTreeMap<u64, Ticket>, offset: u64) {
    let before = tickets.range(..offset).next_back();
    let own = tickets.get(&offset).map_or(0, |ticket| ticket.reserved);
    let next = tickets.range(offset + 1..).next();
    assert!(
        before.is_none_or(|(at, ticket)| at + ticket.reserved <= offset)
            && next.is_none_or(|(at, _ticket)| offset + own <= *at),
        "append tickets overlap at {offset}: {before:?}, {own} bytes, {next:?}"
    );
}

/// Returns the unused bytes of the last tickets.
fn trim(tickets: &mut BTreeMap<u64, Ticket>) {
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
}

#[cfg(test)]
mod tests;
