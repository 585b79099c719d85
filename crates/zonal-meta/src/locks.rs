//! Locks of programs: POSIX byte ranges (fcntl, also open-file-description locks) and flock, in two
//! spaces that do not see one another.
//!
//! The table is volatile; after a restart sessions bring their locks back with
//! [`LockTable::reclaim`]. Owners are {session, owner}. A waiter is granted in the order of arrival
//! where its range is free. As in Linux a later request may overtake a waiter that it conflicts
//! with, but only [`OVERTAKEN_MAX`] times; then owners that hold nothing on that inode queue behind
//! it. (Owners that hold something may still pass: making them wait could deadlock where Linux
//! would not.)
//!
//! An owner may be named again by the kernel when the open file or process that it was is gone, and
//! a release or a take-back may come late, or twice. So each range remembers the open file and the
//! request (a number that grows) that took it last. A close gives up what was got through its open
//! file; a take-back what its request got; an unlock what was got before it; a request that comes
//! when it is over for its caller gets nothing. The order in which messages arrive cannot matter
//! then.
//!
//! *Invariants*: ranges of one owner in one space are sorted and disjoint, and adjacent ones differ
//! in kind, open file or request; ranges of two owners overlap only if both are shared; each waiter
//! is in the index; `ranges + 2 * waiting` stays within the bound, so that a grant out of the queue
//! cannot fail.

mod deadlock;
mod inode_locks;
mod invariants;
#[cfg(test)]
mod reorder_tests;
#[cfg(test)]
mod tests;

use inode_locks::{FileLocks, Waiter, conflicts};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zonal_types::limits::{LOCK_WAITERS_MAX, LOCKS_MAX};
use zonal_types::{ErrorCode, Ino, SessionId};
use zonal_wire::meta::{Event, LockKind, LockRange};

/// How often conflicting requests may be granted before a waiter, until newcomers must queue behind
/// it.
pub const OVERTAKEN_MAX: u32 = 64;

/// Who holds or wants a lock: session, and the owner within it.
pub type LockOwner = (SessionId, u64);
/// A waiter that was granted, and the event that tells its session.
pub type Granted = (SessionId, Event);

/// What came of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAnswer {
    /// The lock is held.
    Granted,
    /// The request waits under its waiter number.
    Queued,
    /// Somebody else has a conflicting lock, and the request did not want to wait.
    Conflict,
}

/// What becomes of a range of one owner.
enum Change<'a> {
    /// Its request holds it; `settled` as in the message.
    Take(u64),
    /// It is held since before our start.
    Reclaim,
    /// What was got before this request is given up.
    GiveUp(u64),
    /// The same, only what was got through this open file.
    Close { handle: u64, number: u64 },
    /// What its request got is as before again.
    TakeBack(&'a [LockRange]),
}

/// All locks and waiters of one shard.
#[derive(Debug)]
pub struct LockTable {
    files: BTreeMap<Ino, FileLocks>,
    /// Inodes at which a session has locks or waiters.
    sessions: BTreeMap<SessionId, BTreeSet<Ino>>,
    /// Where a waiter waits.
    waiters: BTreeMap<(SessionId, u64), Ino>,
    /// What an owner waits for in the POSIX space, for the search for deadlocks.
    waiting_owners: BTreeMap<LockOwner, BTreeSet<(Ino, u64)>>,
    ranges: usize,
    ranges_max: usize,
    waiters_max: usize,
}

impl Default for LockTable {
    fn default() -> Self {
        Self::new()
    }
}

impl LockTable {
    /// An empty table with the bounds of docs/limits.md.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limits(LOCKS_MAX, LOCK_WAITERS_MAX)
    }

    /// An empty table for so many ranges and waiters.
    #[must_use]
    pub fn with_limits(ranges_max: usize, waiters_max: usize) -> Self {
        Self {
            files: BTreeMap::new(),
            sessions: BTreeMap::new(),
            waiters: BTreeMap::new(),
            waiting_owners: BTreeMap::new(),
            ranges: 0,
            ranges_max,
            waiters_max,
        }
    }

    /// Bounds on ranges held and requests waiting.
    #[must_use]
    pub fn limits(&self) -> (usize, usize) {
        (self.ranges_max, self.waiters_max)
    }

    /// Ranges held.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges
    }

    /// Files at which the session has locks or waits for one.
    #[must_use]
    pub fn files_of(&self, session: SessionId) -> u32 {
        let files = self.sessions.get(&session).map_or(0, BTreeSet::len);
        u32::try_from(files).unwrap_or(u32::MAX)
    }

    /// Ranges that a session holds. Costs a look at each file at which it has any.
    #[must_use]
    pub fn ranges_of(&self, session: SessionId) -> usize {
        let inos = self.sessions.get(&session).into_iter().flatten();
        let files = inos.filter_map(|ino| self.files.get(ino));
        let owners = (session, 0)..=(session, u64::MAX);
        files
            .flat_map(|file| [&file.posix, &file.flock])
            .flat_map(|space| space.range(owners.clone()))
            .map(|(_owner, ranges)| ranges.len())
            .sum()
    }

    /// Requests of a session that wait.
    #[must_use]
    pub fn waiters_of(&self, session: SessionId) -> usize {
        let own = self.waiters.range((session, 0)..=(session, u64::MAX));
        own.count()
    }

    /// Requests waiting.
    #[must_use]
    pub fn waiter_count(&self) -> usize {
        self.waiters.len()
    }

    /// Asks for a lock; with `waiter` it is queued where it conflicts. Also returns the waiters
    /// that a downgrade let in. A repeated request (same waiter) gets the same answer. `settled`:
    /// requests of the owner below it are never taken back, so that their ranges may become one
    /// with this.
    ///
    /// # Errors
    /// `Invalid` (empty range, waiter number in use elsewhere), `NoLocks` (bound reached),
    /// `Deadlock`; `UnknownLease` where the request comes when it is over for its caller.
    pub fn lock(
        &mut self,
        session: SessionId,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
        settled: u64,
    ) -> Result<(LockAnswer, Vec<Granted>), ErrorCode> {
        check_range(&range)?;
        if let Some(number) = waiter
            && let Some(at) = self.waiters.get(&(session, number))
        {
            return if *at == ino {
                Ok((LockAnswer::Queued, Vec::new()))
            } else {
                Err(ErrorCode::Invalid)
            };
        }
        if self.ranges + 2 * self.waiters.len() + 2 > self.ranges_max {
            return Err(ErrorCode::NoLocks);
        }
        let owner = (session, range.owner);
        if self.is_late(ino, owner, &range) {
            return Err(ErrorCode::UnknownLease);
        }
        let mut granted = Vec::new();
        if self.converts(ino, owner, &range) {
            // A conversion by flock gives the old lock up first, as Linux does.
            self.change(ino, owner, &range, &Change::GiveUp(range.number));
            if range.kind == LockKind::Shared {
                // Ours goes back in before anybody else gets a chance: a downgrade never fails.
                self.change(ino, owner, &range, &Change::Take(settled));
            }
            granted = self.serve_queue(ino);
        }
        let file = self.files.entry(ino).or_default();
        let free = file.blockers(owner, &range).next().is_none();
        let must_queue = waiter.is_some() && file.must_queue(owner, &range, usize::MAX);
        if free && !must_queue {
            for other in &mut file.queue {
                if other.owner() != owner && conflicts(&other.range, &range) {
                    other.overtaken = other.overtaken.saturating_add(1);
                }
            }
            self.change(ino, owner, &range, &Change::Take(settled));
            granted.extend(self.serve_queue(ino));
            return Ok((LockAnswer::Granted, granted));
        }
        let Some(number) = waiter else {
            self.settle(ino, session);
            return Ok((LockAnswer::Conflict, granted));
        };
        let refused = if self.waiters.len() >= self.waiters_max {
            Some(ErrorCode::NoLocks)
        } else if !range.whole_file && self.would_deadlock(ino, owner, &range) {
            Some(ErrorCode::Deadlock)
        } else {
            None
        };
        if let Some(code) = refused {
            self.settle(ino, session);
            return Err(code);
        }
        let waiter = Waiter {
            session,
            waiter: number,
            range,
            settled,
            overtaken: 0,
        };
        self.enqueue(ino, waiter);
        Ok((LockAnswer::Queued, granted))
    }

    /// Gives a range up (all kinds), where requests before this one took it. Returns who is let in.
    ///
    /// # Errors
    /// `Invalid` (empty range), `NoLocks` where the split that this makes does not fit.
    pub fn unlock(
        &mut self,
        session: SessionId,
        ino: Ino,
        range: LockRange,
    ) -> Result<Vec<Granted>, ErrorCode> {
        check_range(&range)?;
        let owner = (session, range.owner);
        let splits = self
            .files
            .get(&ino)
            .and_then(|file| file.space(range.whole_file).get(&owner))
            .is_some_and(|ranges| ranges.contains_inside(range.start, range.end));
        if splits && self.ranges + 2 * self.waiters.len() + 1 > self.ranges_max {
            return Err(ErrorCode::NoLocks);
        }
        self.change(ino, owner, &range, &Change::GiveUp(range.number));
        let granted = self.serve_queue(ino);
        self.settle(ino, session);
        Ok(granted)
    }

    /// The first lock (lowest start) that stands in the way of `range`.
    #[must_use]
    pub fn get(&self, session: SessionId, ino: Ino, range: LockRange) -> Option<LockRange> {
        let file = self.files.get(&ino)?;
        file.blockers((session, range.owner), &range)
            .min_by_key(|(owner, held)| (held.start, *owner))
            .map(|(_owner, held)| held)
    }

    /// Takes a request back, whether it waits or was granted; its going may let others in.
    /// `before`: what its owner held there without it.
    ///
    /// # Errors
    /// `Invalid` (empty range, `before` of another owner), `NoLocks` where what was before does not
    /// fit.
    pub fn cancel(
        &mut self,
        session: SessionId,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
        before: &[LockRange],
    ) -> Result<Vec<Granted>, ErrorCode> {
        check_range(&range)?;
        for old in before {
            check_range(old)?;
            if (old.owner, old.whole_file) != (range.owner, range.whole_file) {
                return Err(ErrorCode::Invalid);
            }
        }
        if let Some(waiter) = waiter
            && self.waiters.get(&(session, waiter)) == Some(&ino)
            && let Some(file) = self.files.get_mut(&ino)
            && let Some(index) = file
                .queue
                .iter()
                .position(|w| w.session == session && w.waiter == waiter)
            && let Some(gone) = file.queue.remove(index)
        {
            self.forget_waiter(ino, &gone);
        }
        // Each piece, and each end of one, splits another at most.
        if self.ranges + 2 * (before.len() + self.waiters.len() + 1) > self.ranges_max {
            return Err(ErrorCode::NoLocks);
        }
        let owner = (session, range.owner);
        self.change(ino, owner, &range, &Change::TakeBack(before));
        let granted = self.serve_queue(ino);
        self.settle(ino, session);
        Ok(granted)
    }

    /// Releases the locks that one owner got in one space of an inode by requests before `number`
    /// (a close), through one open file (`handle`) or all. Its waiters stay.
    pub fn release_owner(
        &mut self,
        session: SessionId,
        ino: Ino,
        (owner, whole_file): (u64, bool),
        handle: Option<u64>,
        number: u64,
    ) -> Vec<Granted> {
        let all = LockRange {
            whole_file,
            owner,
            handle: 0,
            number,
            pid: 0,
            kind: LockKind::Shared,
            start: 0,
            end: u64::MAX,
        };
        let how = handle.map_or(Change::GiveUp(number), |handle| Change::Close {
            handle,
            number,
        });
        self.change(ino, (session, owner), &all, &how);
        let granted = self.serve_queue(ino);
        self.settle(ino, session);
        granted
    }

    /// The session is gone, with all its locks and waiters.
    pub fn release_session(&mut self, session: SessionId) -> Vec<Granted> {
        let inos = self.sessions.remove(&session).unwrap_or_default();
        let mut granted = Vec::new();
        for ino in inos {
            let Some(file) = self.files.get_mut(&ino) else {
                continue;
            };
            let owners = (session, 0)..=(session, u64::MAX);
            for space in [&mut file.posix, &mut file.flock] {
                let gone: Vec<LockOwner> = space.range(owners.clone()).map(|(o, _)| *o).collect();
                for owner in gone {
                    self.ranges -= space.remove(&owner).map_or(0, |ranges| ranges.len());
                }
            }
            let (gone, stay) = std::mem::take(&mut file.queue)
                .into_iter()
                .partition(|waiter| waiter.session == session);
            file.queue = stay;
            let gone: VecDeque<Waiter> = gone;
            for waiter in &gone {
                self.forget_waiter(ino, waiter);
            }
            granted.extend(self.serve_queue(ino));
            self.settle(ino, session);
        }
        granted
    }

    /// All locks on an inode are gone (it was deleted). Waiters are granted: there is nothing left
    /// to wait for.
    pub fn release_inode(&mut self, ino: Ino) -> Vec<Granted> {
        let Some(file) = self.files.remove(&ino) else {
            return Vec::new();
        };
        let mut sessions: BTreeSet<SessionId> = BTreeSet::new();
        for (owner, ranges) in file.posix.iter().chain(file.flock.iter()) {
            self.ranges -= ranges.len();
            sessions.insert(owner.0);
        }
        let mut granted = Vec::new();
        for waiter in &file.queue {
            sessions.insert(waiter.session);
            self.forget_waiter(ino, waiter);
            granted.push(event(ino, waiter));
        }
        for session in sessions {
            self.settle(ino, session);
        }
        granted
    }

    /// A lock that a session held before the shard's restart.
    ///
    /// # Errors
    /// `WouldBlock` where another has got a conflicting lock meanwhile, `NoLocks`, `Invalid`.
    pub fn reclaim(
        &mut self,
        session: SessionId,
        ino: Ino,
        range: LockRange,
    ) -> Result<(), ErrorCode> {
        check_range(&range)?;
        let owner = (session, range.owner);
        let file = self.files.entry(ino).or_default();
        if file.blockers(owner, &range).next().is_some() {
            return Err(ErrorCode::WouldBlock);
        }
        let held = file.space(range.whole_file).get(&owner);
        // What it got since our start stays, and may cut this into pieces.
        let since = held.map_or(0, |held| held.within(range.start, range.end).count());
        if self.ranges + 2 * (self.waiters.len() + since + 1) > self.ranges_max {
            self.settle(ino, session);
            return Err(ErrorCode::NoLocks);
        }
        self.change(ino, owner, &range, &Change::Reclaim);
        Ok(())
    }

    /// Whether the session has all of that range, and in that way.
    #[must_use]
    pub fn holds(&self, session: SessionId, ino: Ino, range: &LockRange) -> bool {
        let file = self.files.get(&ino);
        let held = file.and_then(|file| {
            let space = file.space(range.whole_file);
            space.get(&(session, range.owner))
        });
        let mut next = Some(range.start);
        for part in held
            .into_iter()
            .flat_map(|held| held.within(range.start, range.end))
        {
            if next != Some(part.start) || part.kind != range.kind {
                return false;
            }
            next = part.end.checked_add(1);
        }
        next.is_none_or(|next| next > range.end)
    }

    /// True where the request is settled: its caller has heard of it, or it was taken back.
    fn is_late(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> bool {
        let file = self.files.get(&ino);
        let held = file.and_then(|file| file.space(range.whole_file).get(&owner));
        held.is_some_and(|held| range.number < held.settled())
    }

    /// True where `range` is of flock and its owner has one of another kind.
    fn converts(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> bool {
        let Some(file) = self.files.get(&ino).filter(|_| range.whole_file) else {
            return false;
        };
        let held = file.flock.get(&owner).and_then(|held| held.iter().next());
        held.is_some_and(|held| held.kind != range.kind && held.number <= range.number)
    }

    /// Changes what `owner` has in the range.
    fn change(&mut self, ino: Ino, owner: LockOwner, range: &LockRange, how: &Change<'_>) {
        let takes = matches!(how, Change::Take(_) | Change::Reclaim);
        if !takes && !self.files.contains_key(&ino) {
            return;
        }
        let file = self.files.entry(ino).or_default();
        let space = file.space_mut(range.whole_file);
        if !takes && !space.contains_key(&owner) {
            return;
        }
        let ranges = space.entry(owner).or_default();
        let before = ranges.len();
        let (start, end) = (range.start, range.end);
        match *how {
            Change::Take(settled) => {
                ranges.settle(settled);
                ranges.replace(start, end, Some(range.into()));
            }
            Change::Reclaim => ranges.reclaim(range),
            Change::GiveUp(number) => ranges.give_up(start, end, |held| held.number < number),
            Change::Close { handle, number } => ranges.give_up(start, end, |held| {
                held.handle == handle && held.number < number
            }),
            Change::TakeBack(before) => ranges.take_back(start, end, range.number, before),
        }
        let after = ranges.len();
        if after == 0 {
            space.remove(&owner);
        }
        self.ranges = self.ranges - before + after;
        if after > 0 {
            self.sessions.entry(owner.0).or_default().insert(ino);
        }
    }

    fn enqueue(&mut self, ino: Ino, waiter: Waiter) {
        let number = waiter.waiter;
        self.waiters.insert((waiter.session, number), ino);
        self.sessions.entry(waiter.session).or_default().insert(ino);
        if !waiter.range.whole_file {
            self.waiting_owners
                .entry(waiter.owner())
                .or_default()
                .insert((ino, number));
        }
        self.files.entry(ino).or_default().queue.push_back(waiter);
    }

    fn forget_waiter(&mut self, ino: Ino, gone: &Waiter) {
        self.waiters.remove(&(gone.session, gone.waiter));
        if let Some(waits) = self.waiting_owners.get_mut(&gone.owner()) {
            waits.remove(&(ino, gone.waiter));
            if waits.is_empty() {
                self.waiting_owners.remove(&gone.owner());
            }
        }
    }

    /// Grants what can be granted, in order of arrival.
    fn serve_queue(&mut self, ino: Ino) -> Vec<Granted> {
        let mut granted = Vec::new();
        let mut index = 0;
        while let Some(file) = self.files.get_mut(&ino)
            && let Some(waiter) = file.queue.get(index)
        {
            let owner = waiter.owner();
            let (range, settled) = (waiter.range, waiter.settled);
            if file.blockers(owner, &range).next().is_some()
                || file.must_queue(owner, &range, index)
            {
                index += 1;
                continue;
            }
            for other in file.queue.iter_mut().take(index) {
                if other.owner() != owner && conflicts(&other.range, &range) {
                    other.overtaken = other.overtaken.saturating_add(1);
                }
            }
            let Some(waiter) = file.queue.remove(index) else {
                break;
            };
            self.forget_waiter(ino, &waiter);
            self.change(ino, owner, &range, &Change::Take(settled));
            granted.push(event(ino, &waiter));
            // The owner's own range may have shrunk in kind (a downgrade): look from the start
            // again.
            index = 0;
        }
        granted
    }

    /// Drops empty entries after a release.
    fn settle(&mut self, ino: Ino, session: SessionId) {
        let concerned = self
            .files
            .get(&ino)
            .is_some_and(|file| file.concerns(session));
        if !concerned && let Some(inos) = self.sessions.get_mut(&session) {
            inos.remove(&ino);
            if inos.is_empty() {
                self.sessions.remove(&session);
            }
        }
        if self.files.get(&ino).is_some_and(FileLocks::is_empty) {
            self.files.remove(&ino);
        }
    }
}

fn event(ino: Ino, waiter: &Waiter) -> Granted {
    let granted = Event::LockGranted {
        ino,
        waiter: waiter.waiter,
    };
    (waiter.session, granted)
}

fn check_range(range: &LockRange) -> Result<(), ErrorCode> {
    let whole = range.start == 0 && range.end == u64::MAX;
    if range.start > range.end || range.whole_file && !whole {
        return Err(ErrorCode::Invalid);
    }
    Ok(())
}
