//! Lock table: POSIX byte-range locks (fcntl, also open-file-description locks) and flock, in two
//! spaces that do not conflict with one another.
//!
//! The table is volatile; after a restart sessions bring their locks back with
//! [`LockTable::reclaim`]. Owners are {session, owner}. Waiters are granted in order of arrival
//! where their ranges are free. As in Linux a later request may overtake a waiter that it conflicts
//! with, but only [`OVERTAKEN_MAX`] times. Then owners that hold nothing on that inode queue behind
//! it. Owners that hold something may still pass: making them wait could deadlock where Linux would
//! not.
//!
//! The kernel may use an owner's number again when its open file or process is gone. A release or
//! cancellation may come late, or twice. So each range remembers the open file and the request
//! number that took it last:
//!
//! | message | releases |
//! | --- | --- |
//! | close | ranges taken through its open file |
//! | cancellation | ranges that its request took |
//! | unlock | ranges taken by earlier requests |
//! | a lock request whose caller is gone | nothing, and it gets nothing |
//!
//! So the order in which messages arrive does not matter.
//!
//! *Invariants*:
//! 1. Ranges of one owner in one space are sorted and disjoint; adjacent ones differ in kind, open
//!    file or request.
//! 2. Ranges of two owners overlap only if both are shared.
//! 3. Each waiter is in the index.
//! 4. `ranges + 2 * waiting` stays within the bound, so that a grant from the queue cannot fail.

mod deadlock;
mod inode_locks;
mod invariants;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod reorder_tests;
#[cfg(test)]
mod tests;

use inode_locks::{FileLocks, Waiter, conflicts};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zonal_types::limits::{LOCK_WAITERS_MAX, LOCKS_MAX};
use zonal_types::{ErrorCode, Ino, PartitionId, SessionId};
use zonal_wire::meta::{Event, LockKind, LockRange};

/// Number of conflicting requests that may be granted before a waiter, until newcomers queue behind
/// it.
pub const OVERTAKEN_MAX: u32 = 64;

/// The holder of a lock, or a waiter for it: session, and owner within the session.
pub type LockOwner = (SessionId, u64);
/// A granted waiter: its session, and the event to send.
pub type Granted = (SessionId, Event);

/// Result of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAnswer {
    /// The lock is held.
    Granted,
    /// The request waits under its waiter number.
    Queued,
    /// Another owner has a conflicting lock, and the request did not want to wait.
    Conflict,
}

/// A change of an owner's range.
enum Change<'a> {
    /// Takes the range; `settled` as in the message.
    Take(u64),
    /// Takes back a range held since before our start.
    Reclaim,
    /// Gives up ranges taken before this request.
    GiveUp(u64),
    /// Gives up ranges taken before this request through this open file.
    Close { handle: u64, number: u64 },
    /// Restores the ranges that the request replaced.
    TakeBack(&'a [LockRange]),
}

/// All locks and waiters of one shard.
#[derive(Debug)]
pub struct LockTable {
    files: BTreeMap<Ino, FileLocks>,
    /// Inodes at which a session has locks or waiters.
    sessions: BTreeMap<SessionId, BTreeSet<Ino>>,
    /// The inode at which a waiter waits.
    waiters: BTreeMap<(SessionId, u64), Ino>,
    /// Waits of an owner in the POSIX space, for the deadlock search.
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

    /// An empty table with these bounds.
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

    /// Bounds on held ranges and on waiters.
    #[must_use]
    pub fn limits(&self) -> (usize, usize) {
        (self.ranges_max, self.waiters_max)
    }

    /// Sessions that have locks in a partition, or wait for some.
    #[must_use]
    pub fn sessions_in(&self, partition: PartitionId) -> BTreeSet<SessionId> {
        let range = partition.inos();
        let has_some = |inos: &BTreeSet<Ino>| inos.range(range.clone()).next().is_some();
        let all = self.sessions.iter().filter(|(_, inos)| has_some(inos));
        all.map(|(session, _)| *session).collect()
    }

    /// Number of held ranges.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges
    }

    /// Number of files at which the session holds or awaits locks.
    #[must_use]
    pub fn files_of(&self, session: SessionId) -> u32 {
        let files = self.sessions.get(&session).map_or(0, BTreeSet::len);
        u32::try_from(files).unwrap_or(u32::MAX)
    }

    /// Number of ranges that a session holds. Costs a look at each of its files.
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

    /// Number of waiters of a session.
    #[must_use]
    pub fn waiters_of(&self, session: SessionId) -> usize {
        let own = self.waiters.range((session, 0)..=(session, u64::MAX));
        own.count()
    }

    /// Number of waiters.
    #[must_use]
    pub fn waiter_count(&self) -> usize {
        self.waiters.len()
    }

    /// Requests a lock; with `waiter` it is queued where it conflicts. Also returns the waiters
    /// that a downgrade let in. A repeated request (same waiter) gets the same answer. Requests of
    /// the owner below `settled` are never cancelled, so their ranges may be merged with this one.
    ///
    /// # Errors
    /// `Invalid` (empty range, waiter number in use elsewhere), `NoLocks` (bound reached),
    /// `Deadlock`. `UnknownLease` where the request arrives after it was released or cancelled.
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
        if self.has_from_later(ino, owner, &range) {
            // A repeat.
            return Ok((LockAnswer::Granted, Vec::new()));
        }
        let mut granted = Vec::new();
        if self.converts(ino, owner, &range) {
            // A conversion by flock gives up the old lock first, as Linux does.
            self.change(ino, owner, &range, &Change::GiveUp(range.number));
            if range.kind == LockKind::Shared {
                // Take the new lock before anybody else gets a chance: a downgrade never fails.
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

    /// Releases a range of any kind, where earlier requests took it. Returns the waiters that it
    /// lets in.
    ///
    /// # Errors
    /// `Invalid` (empty range); `NoLocks` where the ranges that a split adds do not fit.
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

    /// The conflicting lock with the lowest start, if any.
    #[must_use]
    pub fn get(&self, session: SessionId, ino: Ino, range: LockRange) -> Option<LockRange> {
        let file = self.files.get(&ino)?;
        file.blockers((session, range.owner), &range)
            .min_by_key(|(owner, held)| (held.start, *owner))
            .map(|(_owner, held)| held)
    }

    /// Cancels a request, whether it waits or was granted; that may let waiters in. `before`: the
    /// owner's ranges there without the request.
    ///
    /// # Errors
    /// `Invalid` (empty range, `before` of another owner); `NoLocks` where the restored ranges do
    /// not fit.
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
        // Each restored range, and each of its ends, splits at most one other range.
        if self.ranges + 2 * (before.len() + self.waiters.len() + 1) > self.ranges_max {
            return Err(ErrorCode::NoLocks);
        }
        let owner = (session, range.owner);
        self.change(ino, owner, &range, &Change::TakeBack(before));
        let granted = self.serve_queue(ino);
        self.settle(ino, session);
        Ok(granted)
    }

    /// Releases the locks that an owner took in one space of an inode by requests before `number`
    /// (a close). `handle`: only those of this open file. Its waiters stay.
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

    /// Releases all locks and waiters of a session that is gone.
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

    /// Releases all locks on a deleted inode. Its waiters are granted: there is nothing left to
    /// wait for.
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

    /// Restores a lock that a session held before the shard's restart.
    ///
    /// # Errors
    /// `WouldBlock` where another owner has taken a conflicting lock meanwhile, `NoLocks`,
    /// `Invalid`.
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
        // Ranges taken since our start stay, and may cut this one into pieces.
        let since = held.map_or(0, |held| held.within(range.start, range.end).count());
        if self.ranges + 2 * (self.waiters.len() + since + 1) > self.ranges_max {
            self.settle(ino, session);
            return Err(ErrorCode::NoLocks);
        }
        self.change(ino, owner, &range, &Change::Reclaim);
        Ok(())
    }

    /// True where the session holds all of the range, in this kind.
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

    /// True where the owner holds the range, a part of it by a later request. That part stays the
    /// later request's: an older one that is withdrawn late must not end it.
    fn has_from_later(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> bool {
        if !self.holds(owner.0, ino, range) {
            return false;
        }
        let file = self.files.get(&ino);
        let held = file.and_then(|file| file.space(range.whole_file).get(&owner));
        let parts = held.into_iter();
        let mut parts = parts.flat_map(|held| held.within(range.start, range.end));
        parts.any(|part| part.number > range.number)
    }

    /// True where the request is settled: its caller has heard of the answer, or it was cancelled.
    fn is_late(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> bool {
        let file = self.files.get(&ino);
        let held = file.and_then(|file| file.space(range.whole_file).get(&owner));
        held.is_some_and(|held| range.number < held.settled())
    }

    /// True where `range` is of flock and its owner holds a lock of the other kind.
    fn converts(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> bool {
        let Some(file) = self.files.get(&ino).filter(|_| range.whole_file) else {
            return false;
        };
        let held = file.flock.get(&owner).and_then(|held| held.iter().next());
        held.is_some_and(|held| held.kind != range.kind && held.number <= range.number)
    }

    /// Changes the ranges of `owner` within the range.
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
        let free = self
            .ranges_max
            .saturating_sub(self.ranges + 2 * self.waiters.len());
        let room = before + free;
        let (start, end) = (range.start, range.end);
        match *how {
            Change::Take(settled) => {
                ranges.settle(settled);
                ranges.take(range, room);
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
        assert!(
            self.ranges >= before,
            "{} lock ranges are counted, {owner:?} has {before}",
            self.ranges
        );
        self.ranges = self.ranges - before + after;
        assert!(
            !takes || self.ranges + 2 * self.waiters.len() <= self.ranges_max,
            "{} lock ranges and {} waiters are past the bound",
            self.ranges,
            self.waiters.len()
        );
        if after > 0 {
            self.sessions.entry(owner.0).or_default().insert(ino);
        }
    }

    fn enqueue(&mut self, ino: Ino, waiter: Waiter) {
        let number = waiter.waiter;
        let before = self.waiters.insert((waiter.session, number), ino);
        assert_eq!(before, None, "waiter {number} waits already");
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
        let at = self.waiters.remove(&(gone.session, gone.waiter));
        assert_eq!(at, Some(ino), "waiter {} is not in the index", gone.waiter);
        if let Some(waits) = self.waiting_owners.get_mut(&gone.owner()) {
            waits.remove(&(ino, gone.waiter));
            if waits.is_empty() {
                self.waiting_owners.remove(&gone.owner());
            }
        }
    }

    /// Grants waiters that can be granted, in order of arrival.
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
            if !self.has_from_later(ino, owner, &range) {
                self.change(ino, owner, &range, &Change::Take(settled));
            }
            granted.push(event(ino, &waiter));
            // The grant may have downgraded the owner's own range: start again.
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
