//! Tickets for appends: who writes where behind the end of a file.
//!
//! A ticket reserves bytes behind all others. The size that readers see rises only over the
//! finished tickets before the first unfinished one, so nobody reads reserved bytes; and an append
//! is acknowledged only when its bytes are published, so that every later reader sees it and no
//! crash takes it back: its end waits for the tickets before it, at most [`TICKET_MS`] from their
//! beginning, which is longer than any client tries: no append that was passed over is finished or
//! repeated later. Each end publishes its own bytes and no others: else a crash could publish an
//! append whose client then repeats it. What a given-up ticket reserved is returned where nothing
//! follows it, and stays a hole otherwise.
//!
//! A place, once given, is given up as seldom as can be: what was written there may lie over what
//! others wrote with an offset. Where the file grew past it, it stays. Where the file was then cut
//! behind its beginning, it stays, once, as far as the file goes: appended, then cut. The client
//! finds the same from the last shrink that it knows.
//!
//! Where one session alone has the file open, the end may be lent to it ([`lent_ends`]): it asks for
//! places at offsets of its own. Others wait for these. Who keeps one too long is
//! [`Tickets::overdue`], and its session is ended.
//!
//! *Invariants*: tickets of an inode are disjoint and sorted; volatile (a restart of the shard
//! forgets tickets, and [`Tickets::end`] refuses them then; nothing of them was acknowledged).
//! *Units*: bytes.

pub mod lent_ends;

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::limits::{
    APPEND_BYTES_MAX, APPEND_TICKETS_MAX, FILE_BYTES_MAX, TICKET_KEPT_MS, TICKET_MS,
};
use zonal_types::{ErrorCode, Ino, Instant, SessionId};

/// Stands for all files.
const ANY: Ino = Ino(0);

#[derive(Debug, Clone, Copy)]
struct Ticket {
    session: SessionId,
    reserved: u64,
    since: Instant,
    /// Bytes written, once it is over.
    written: Option<u64>,
    /// The file was cut behind its beginning: `reserved` and `written` are what is left.
    is_cut: bool,
    /// Its caller is gone: it is not published any more, and nobody waits for it. Its place stays
    /// its own until it is ended, as a write of it may be on its way.
    is_given_up: bool,
    /// At the end that was lent: its session may ask for it again, with what was appended since.
    is_lent: bool,
}

impl Ticket {
    fn new(session: SessionId, reserved: u64, since: Instant) -> Self {
        Self {
            session,
            reserved,
            since,
            written: None,
            is_cut: false,
            is_given_up: false,
            is_lent: false,
        }
    }

    fn cut(&mut self, length: u64) {
        self.reserved = self.reserved.min(length);
        self.written = self.written.map(|written| written.min(length));
        self.is_cut = true;
    }
}

/// What the end of a ticket leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The bytes are published: the file is at least as long as this (`None`: nothing was written).
    Published(Option<u64>),
    /// Tickets before it are unfinished: ask again when one has ended, or then.
    Wait(Instant),
}

/// All tickets of one shard.
#[derive(Debug, Default)]
pub struct Tickets {
    /// By offset.
    files: BTreeMap<Ino, BTreeMap<u64, Ticket>>,
    /// Tickets that were passed over, as too old or given up; their clients may still end them.
    /// True: given up.
    passed: BTreeMap<(Ino, u64), (SessionId, bool)>,
    sessions: BTreeMap<SessionId, BTreeSet<Ino>>,
    /// Places given since our start while sessions from before it may still have some: the first of
    /// each file.
    given: BTreeMap<Ino, u64>,
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
    /// `FileTooBig` where that is beyond the largest file; `Overloaded` where there are
    /// [`APPEND_TICKETS_MAX`]; `Invalid` past [`APPEND_BYTES_MAX`].
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
        self.files.entry(ino).or_default().insert(offset, ticket);
        self.sessions.entry(session).or_default().insert(ino);
        Ok(offset)
    }

    /// Reserves `length` bytes at `offset`, the end that is lent to the session; where it asked for
    /// that before, at least as much as then.
    ///
    /// # Errors
    /// `FileTooBig`, `Overloaded`, `Invalid` as [`Self::begin`]; `UnknownLease` where a part of it
    /// was given otherwise.
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
                    && !ticket.is_cut
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
        self.sessions.entry(session).or_default().insert(ino);
        Ok(())
    }

    /// Whether an append of the file is under way, or was passed over.
    #[must_use]
    pub fn has_any(&self, ino: Ino) -> bool {
        let mut passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
        self.files.contains_key(&ino) || passed.next().is_some()
    }

    /// Whose append keeps the lent end of the file from others, who want it since `since`, for
    /// longer than it may: nobody asks for its place again, or it is too late for that.
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

    /// Its holder asks whether the place is its own still.
    pub fn asked_for(&mut self, ino: Ino, session: SessionId, offset: u64, now: Instant) {
        let tickets = self.files.get_mut(&ino);
        let ticket = tickets.and_then(|tickets| tickets.get_mut(&offset));
        if let Some(ticket) = ticket.filter(|of| of.session == session && of.is_lent) {
            ticket.since = now;
        }
    }

    /// Whether another session's append of the file is under way, or was passed over.
    #[must_use]
    pub fn has_others(&self, ino: Ino, session: SessionId) -> bool {
        let known = self.files.get(&ino).into_iter().flat_map(BTreeMap::values);
        let mut passed = self.passed.range((ino, 0)..=(ino, u64::MAX));
        known.into_iter().any(|ticket| ticket.session != session)
            || passed.any(|(_at, (of, _))| *of != session)
    }

    /// Whether a place of the file was given, since our start, to one that did not have it before.
    #[must_use]
    pub fn is_any_given(&self, ino: Ino) -> bool {
        self.given.contains_key(&ino) || self.given.contains_key(&ANY)
    }

    /// A place was given while sessions from before our start may have some in that file: only what
    /// lies before it is theirs still.
    pub fn note_given(&mut self, ino: Ino, offset: u64) {
        if self.given.len() >= APPEND_TICKETS_MAX && !self.given.contains_key(&ino) {
            // Too many to tell: from here on nothing is theirs.
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

    /// No session from before our start is left that could have a place.
    pub fn forget_given(&mut self) {
        self.given.clear();
    }

    /// The ticket at `offset` is over with `written` of its `reserved` bytes written (0: given up).
    /// To be asked again with the same numbers after [`End::Wait`].
    ///
    /// # Errors
    /// `UnknownLease` where there is no such ticket (the shard restarted, or the session was gone
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
        let is_fitting = ticket.reserved == reserved || ticket.is_cut || is_more;
        let written = match ticket.is_cut {
            true => written.min(ticket.reserved),
            false => written,
        };
        match ticket.written {
            None if is_fitting && written <= reserved => {
                ticket.written = Some(written);
            }
            Some(before) if before == written => {}
            // Its client waits no more for it to be published.
            Some(_) if written == 0 => ticket.written = Some(0),
            _ => return Err(ErrorCode::Invalid),
        }
        trim(tickets);
        let mut end = End::Published(None);
        while written > 0
            && let Some(first) = tickets.first_entry()
        {
            let (at, ticket) = (*first.key(), *first.get());
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

    /// A ticket from before our restart, whose bytes may be on their way still. Nothing where its
    /// place is taken. `is_cut`: the file was, since, and this is what is left.
    pub fn reclaim(
        &mut self,
        ino: Ino,
        session: SessionId,
        (offset, reserved, is_cut): (u64, u32, bool),
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
            is_cut,
            ..Ticket::new(session, reserved, now)
        };
        tickets.insert(offset, ticket);
        self.sessions.entry(session).or_default().insert(ino);
    }

    /// The end of this append was executed before our restart: its ticket, if it was reclaimed, is
    /// over.
    pub fn was_ended(&mut self, ino: Ino, session: SessionId, offset: u64) {
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

    /// The session is gone: its tickets are given up, also those that wait. Whoever waits for them
    /// should ask again.
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

    /// The inode is gone: an end of one of its tickets is refused.
    pub fn inode_gone(&mut self, ino: Ino) {
        self.cut(ino, 0);
    }

    /// The file was cut: an end of a ticket that begins behind its end now, or that was cut before,
    /// is refused.
    pub fn cut(&mut self, ino: Ino, size: u64) {
        let mut tickets = self.files.remove(&ino).unwrap_or_default();
        let mut sessions: BTreeSet<SessionId> = tickets.values().map(|t| t.session).collect();
        tickets.retain(|at, ticket| *at < size && !ticket.is_cut);
        for (at, ticket) in &mut tickets {
            zonal_types::mark!(AppendKeptAfterCut);
            ticket.cut(size - at);
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

    /// Tickets of a session. Costs a look at each file of which it has any.
    #[must_use]
    pub fn of_session(&self, session: SessionId) -> usize {
        let inos = self.sessions.get(&session).into_iter().flatten();
        let files = inos.filter_map(|ino| self.files.get(ino));
        let tickets = files.flat_map(|tickets| tickets.values());
        tickets.filter(|ticket| ticket.session == session).count()
    }

    /// Tickets held, finished ones that wait for others included.
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

/// Returns what the last tickets did not use.
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
