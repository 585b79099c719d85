//! A member with its disk: log, vote and applied state, and what a kill or a loss of power leaves.

use std::cell::RefCell;
use std::rc::Rc;

use zonal_consensus::{
    EntryLog, FlushOrder, GroupMember, LogEntry, LogIndex, LogUnread, MemberConfig, MemberWork,
    Membership, ReplicaId, SnapshotOffer, Term, Vote,
};
use zonal_testkit::Rng;

use super::PlantedBug;

/// Bytes on the disk and in the kernel's cache.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The entry before the first of `entries`, and its term.
    base: (LogIndex, Term),
    entries: Vec<LogEntry>,
    /// The log is durable up to here.
    flushed: LogIndex,
    vote: Vote,
    /// Applied entries in the checkpoint, which is durable.
    checkpoint: Vec<LogEntry>,
    members: Membership,
    life: u64,
}

impl Stored {
    pub fn empty(members: &[u64]) -> Self {
        Self {
            base: (LogIndex(0), Term(0)),
            entries: Vec::new(),
            flushed: LogIndex(0),
            vote: Vote::default(),
            checkpoint: Vec::new(),
            members: Membership::of_voters(members.iter().copied().map(ReplicaId)),
            life: 0,
        }
    }

    fn last(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.entries.len() as u64)
    }

    fn at(&self, index: LogIndex) -> Option<&LogEntry> {
        let at = index.0.checked_sub(self.base.0.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Drops the entries behind `last`.
    fn cut(&mut self, last: LogIndex) {
        let keep = last.0.saturating_sub(self.base.0.0);
        self.entries
            .truncate(usize::try_from(keep).unwrap_or(usize::MAX));
        self.flushed = self.flushed.min(last);
    }

    /// Drops the entries up to `index`.
    fn trim(&mut self, index: LogIndex) {
        if let Some(term) = self.at(index).map(|entry| entry.term) {
            let count = usize::try_from(index.0 - self.base.0.0).unwrap_or(0);
            self.entries.drain(..count);
            self.base = (index, term);
        }
    }
}

/// The log as the member reads it.
#[derive(Clone)]
pub struct SharedLog(Rc<RefCell<Stored>>);

impl EntryLog for SharedLog {
    fn first(&self) -> LogIndex {
        LogIndex(self.0.borrow().base.0.0 + 1)
    }

    fn last(&self) -> LogIndex {
        self.0.borrow().last()
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        let stored = self.0.borrow();
        match index == stored.base.0 {
            true => Some(stored.base.1),
            false => stored.at(index).map(|entry| entry.term),
        }
    }

    fn entries(&self, from: LogIndex, to: LogIndex, max: u64) -> Result<Vec<LogEntry>, LogUnread> {
        let stored = self.0.borrow();
        let count = usize::try_from((to.0 - from.0).min(max / 16 + 1)).unwrap_or(usize::MAX);
        let all = (from.0..to.0).take(count);
        all.map(|index| stored.at(LogIndex(index)).cloned().ok_or(LogUnread))
            .collect()
    }

    fn membership(&self) -> (LogIndex, Membership) {
        (LogIndex(0), self.0.borrow().members.clone())
    }
}

pub struct Replica {
    own: ReplicaId,
    disk: Rc<RefCell<Stored>>,
    member: Option<GroupMember<SharedLog>>,
    applied: Vec<LogEntry>,
    flush: Option<FlushOrder>,
    bug: Option<PlantedBug>,
    /// It lost its power, and was not brought up to date since.
    lost_power: bool,
}

impl Replica {
    pub fn start(own: ReplicaId, stored: Stored, seed: u64, bug: Option<PlantedBug>) -> Self {
        let mut replica = Self {
            own,
            disk: Rc::new(RefCell::new(stored)),
            member: None,
            applied: Vec::new(),
            flush: None,
            bug,
            lost_power: false,
        };
        replica.restart(seed, bug);
        replica
    }

    pub fn restart(&mut self, seed: u64, bug: Option<PlantedBug>) {
        let mut disk = self.disk.borrow_mut();
        disk.life += 1;
        self.applied = disk.checkpoint.clone();
        let last = self.applied.last();
        let applied = last.map_or((LogIndex(0), Term(0)), |entry| (entry.index, entry.term));
        let config = MemberConfig {
            group: 7,
            own: self.own,
            generation: 1,
            life: disk.life,
            seed,
            election_ticks: 20,
            heartbeat_ticks: 4,
            may_have_lost: self.lost_power && bug != Some(PlantedBug::LossUntold),
        };
        let (vote, flushed) = (disk.vote, disk.flushed);
        drop(disk);
        let log = SharedLog(Rc::clone(&self.disk));
        match GroupMember::new(config, log, vote, applied, flushed) {
            Ok(member) => self.member = Some(member),
            Err(error) => panic!("a member does not start: {error}"),
        }
    }

    pub fn own(&self) -> ReplicaId {
        self.own
    }

    pub fn member(&self) -> Option<&GroupMember<SharedLog>> {
        self.member.as_ref()
    }

    pub fn member_mut(&mut self) -> Option<&mut GroupMember<SharedLog>> {
        self.member.as_mut()
    }

    pub fn applied_entries(&self) -> Vec<LogEntry> {
        self.applied.clone()
    }

    /// True from a loss of power until a leader has brought this member up to date.
    pub fn is_weak(&self) -> bool {
        let still = self.member.as_ref().is_none_or(GroupMember::is_quarantined);
        self.lost_power && still
    }

    pub fn stop(&mut self) {
        self.lost_power = self.is_weak();
        self.member = None;
        self.flush = None;
    }

    pub fn lose_power(&mut self, rng: &mut Rng) {
        self.lost_power = true;
        let mut disk = self.disk.borrow_mut();
        let durable = disk
            .checkpoint
            .last()
            .map_or(LogIndex(0), |entry| entry.index);
        let durable = durable.max(disk.flushed);
        let more = disk.last().0.saturating_sub(durable.0);
        let last = LogIndex(durable.0 + rng.below(more + 1));
        disk.cut(last);
    }

    /// Starts again as an empty member, since its log contradicts the group's.
    pub fn wipe(&mut self) {
        self.stop();
        self.lost_power = true;
        let mut disk = self.disk.borrow_mut();
        *disk = Stored {
            vote: disk.vote,
            life: disk.life,
            members: disk.members.clone(),
            ..Stored::empty(&[])
        };
    }

    /// State, with its members, for a snapshot.
    pub fn state(&self) -> Vec<LogEntry> {
        self.applied.clone()
    }

    pub fn install(&mut self, offer: &SnapshotOffer, state: Option<Vec<LogEntry>>) {
        let point = &offer.point;
        let mut state = state.unwrap_or_default();
        state.retain(|entry| entry.index <= point.index);
        let mut disk = self.disk.borrow_mut();
        disk.entries.clear();
        disk.base = (point.index, point.term);
        disk.flushed = point.index;
        disk.members = point.members.clone();
        disk.checkpoint.clone_from(&state);
        self.applied = state;
    }

    /// Writes and applies; returns what was applied.
    pub fn carry_out(&mut self, work: MemberWork) -> Vec<LogEntry> {
        let mut disk = self.disk.borrow_mut();
        if let Some(vote) = work.vote {
            disk.vote = vote;
        }
        if let Some(first) = work.append.first() {
            disk.cut(LogIndex(first.index.0 - 1));
            disk.entries.extend(work.append);
        }
        if let Some((_, members)) = work.members.into_iter().next_back() {
            disk.members = members;
        }
        if work.flush.is_some() {
            self.flush = work.flush;
        }
        self.applied.extend(work.committed.iter().cloned());
        work.committed
    }

    pub fn finish_flush(&mut self) {
        let Some(order) = self.flush.take() else {
            return;
        };
        if self.bug != Some(PlantedBug::FlushPromised) {
            let mut disk = self.disk.borrow_mut();
            disk.flushed = disk.last();
        }
        if let Some(member) = &mut self.member {
            member.flushed(order);
        }
    }

    /// Makes the applied state durable, and trims the log but for some entries.
    pub fn checkpoint(&mut self, keeps: u64) {
        if self.member.is_none() {
            return;
        }
        let mut disk = self.disk.borrow_mut();
        disk.checkpoint.clone_from(&self.applied);
        if let Some(last) = self.applied.last() {
            disk.trim(LogIndex(last.index.0.saturating_sub(keeps)));
        }
    }
}
