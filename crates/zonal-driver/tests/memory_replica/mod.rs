//! A replica on a disk in memory: what a kill leaves, and what the next start makes of it.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]
#![allow(dead_code, reason = "each test uses a part of it")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use zonal_consensus::{
    EntryLog, LogEntry, LogIndex, LogUnread, MemberConfig, Membership, PeerMessage, ReplicaId,
    Term, Vote,
};
use zonal_driver::{ReplicaDriver, ReplicaHost};
use zonal_types::codec::{Blob, Codec};
use zonal_types::{ErrorCode, KvChange};

pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// The state after an entry.
#[derive(Debug, Clone, Default)]
pub struct Applied {
    pub index: LogIndex,
    pub term: Term,
    pub contents: Contents,
    pub members: Membership,
    pub since: LogIndex,
}

/// The part that survives a kill.
#[derive(Debug, Default)]
pub struct Disk {
    /// The entry before the first of `entries`, and its term.
    base: (LogIndex, Term),
    entries: Vec<LogEntry>,
    vote: Vote,
    /// The newest members that were noted.
    members: (LogIndex, Membership),
    pub checkpoint: Applied,
    life: u64,
    /// Everything is to be learned from a snapshot.
    is_empty: bool,
    /// Recoveries of the group so far.
    recoveries: u64,
}

impl Disk {
    /// A disk without anything.
    pub fn empty() -> Self {
        Self {
            is_empty: true,
            ..Self::default()
        }
    }

    /// The disk of a member that founds its group.
    pub fn founding(own: ReplicaId) -> Self {
        let applied = Applied {
            index: LogIndex(1),
            term: Term(1),
            members: Membership::of_voters([own]),
            since: LogIndex(1),
            ..Applied::default()
        };
        Self::filled(&Self::default(), applied)
    }

    /// This disk after a snapshot was put into it.
    pub fn filled(&self, applied: Applied) -> Self {
        let term = self.vote.term.max(applied.term);
        Self {
            base: (applied.index, applied.term),
            vote: match term == self.vote.term {
                true => self.vote,
                false => Vote {
                    term,
                    for_member: ReplicaId(0),
                },
            },
            members: (applied.since, applied.members.clone()),
            checkpoint: applied,
            life: self.life,
            entries: Vec::new(),
            is_empty: self.is_empty,
            recoveries: self.recoveries,
        }
    }

    /// This disk in a generation of the group, from 1.
    pub fn in_generation(self, generation: u64) -> Self {
        Self {
            recoveries: generation - 1,
            ..self
        }
    }

    fn at(&self, index: LogIndex) -> Option<&LogEntry> {
        let at = index.0.checked_sub(self.base.0.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?)
    }

    /// Forgets entries up to here, as a full log does.
    pub fn trim(&mut self, upto: LogIndex) {
        if let Some(term) = self.at(upto).map(|entry| entry.term) {
            let count = usize::try_from(upto.0 - self.base.0.0).unwrap();
            self.entries.drain(..count);
            self.base = (upto, term);
        }
    }
}

#[derive(Clone)]
pub struct SharedLog(Rc<RefCell<Disk>>);

impl EntryLog for SharedLog {
    fn first(&self) -> LogIndex {
        LogIndex(self.0.borrow().base.0.0 + 1)
    }

    fn last(&self) -> LogIndex {
        let disk = self.0.borrow();
        LogIndex(disk.base.0.0 + disk.entries.len() as u64)
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        let disk = self.0.borrow();
        match index == disk.base.0 {
            true => Some(disk.base.1),
            false => disk.at(index).map(|entry| entry.term),
        }
    }

    fn entries(&self, from: LogIndex, to: LogIndex, _max: u64) -> Result<Vec<LogEntry>, LogUnread> {
        let disk = self.0.borrow();
        let some = (from.0..to.0).take(16);
        some.map(|index| disk.at(LogIndex(index)).cloned().ok_or(LogUnread))
            .collect()
    }

    fn membership(&self) -> (LogIndex, Membership) {
        self.0.borrow().members.clone()
    }
}

/// The host of a running replica.
pub struct MemoryHost {
    pub disk: Rc<RefCell<Disk>>,
    pub applied: RefCell<Applied>,
    pub sent: RefCell<Vec<PeerMessage>>,
    pub wants_flush: Cell<bool>,
    /// Writes to the log.
    pub writes: Cell<u64>,
    /// The clock, where it has gone on without ticks.
    pub ticks: Cell<u64>,
    /// The members are noted in the state only, not on the disk: a planted bug.
    pub forgets_members: bool,
}

type Changes = Vec<(Blob, Option<Blob>)>;

impl ReplicaHost for MemoryHost {
    type Log = SharedLog;

    fn log(&self) -> SharedLog {
        SharedLog(Rc::clone(&self.disk))
    }

    fn ticks(&self) -> u64 {
        self.ticks.get()
    }

    fn vote(&self) -> Vote {
        self.disk.borrow().vote
    }

    fn applied(&self) -> (LogIndex, Term) {
        let applied = self.applied.borrow();
        (applied.index, applied.term)
    }

    fn save_vote(&self, vote: Vote) -> Result<(), ErrorCode> {
        self.disk.borrow_mut().vote = vote;
        Ok(())
    }

    fn append(&self, entries: &[LogEntry]) -> Result<(), ErrorCode> {
        let mut disk = self.disk.borrow_mut();
        self.writes
            .set(self.writes.get() + entries.len().min(1) as u64);
        for entry in entries {
            let keep = entry.index.0 - disk.base.0.0 - 1;
            disk.entries.truncate(usize::try_from(keep).unwrap());
            disk.entries.push(entry.clone());
        }
        Ok(())
    }

    fn apply(&self, entry: &LogEntry, changes: Vec<KvChange>) {
        let mut applied = self.applied.borrow_mut();
        assert_eq!(entry.index.0, applied.index.0 + 1, "applied in order");
        (applied.index, applied.term) = (entry.index, entry.term);
        for change in changes {
            change.apply_to(&mut applied.contents);
        }
    }

    fn note_members(&self, since: LogIndex, members: Membership) -> Result<(), ErrorCode> {
        if !self.forgets_members {
            self.disk.borrow_mut().members = (since, members.clone());
        }
        let mut applied = self.applied.borrow_mut();
        (applied.since, applied.members) = (since, members);
        Ok(())
    }

    fn encode(&self, effect: &[KvChange]) -> Result<Vec<u8>, ErrorCode> {
        let pair = |one: &KvChange| (Blob(one.key.clone()), one.value.clone().map(Blob));
        Ok(effect.iter().map(pair).collect::<Changes>().to_bytes())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<KvChange>, ErrorCode> {
        let pairs = Changes::from_bytes(bytes).map_err(|_| ErrorCode::Corrupt)?;
        let change = |(key, value): (Blob, Option<Blob>)| KvChange {
            key: key.0,
            value: value.map(|value| value.0),
        };
        Ok(pairs.into_iter().map(change).collect())
    }

    fn send(&self, messages: Vec<PeerMessage>) {
        self.sent.borrow_mut().extend(messages);
    }

    fn request_flush(&self) {
        self.wants_flush.set(true);
    }

    fn end_quarantine(&self) -> Result<(), ErrorCode> {
        self.disk.borrow_mut().is_empty = false;
        Ok(())
    }

    fn note_change(&self) {}
}

/// Starts a replica on a disk.
pub fn start(
    own: ReplicaId,
    disk: &Rc<RefCell<Disk>>,
    seed: u64,
    forgets_members: bool,
) -> ReplicaDriver<MemoryHost> {
    let (config, applied) = {
        let mut disk = disk.borrow_mut();
        disk.life += 1;
        if forgets_members {
            disk.members = (disk.checkpoint.since, disk.checkpoint.members.clone());
        }
        let config = MemberConfig {
            group: 5,
            own,
            generation: disk.recoveries + 1,
            life: disk.life,
            seed,
            election_ticks: 20,
            heartbeat_ticks: 4,
            may_have_lost: disk.is_empty,
        };
        let mut applied = disk.checkpoint.clone();
        (applied.since, applied.members) = disk.members.clone();
        (config, applied)
    };
    let host = MemoryHost {
        disk: Rc::clone(disk),
        applied: RefCell::new(applied),
        sent: RefCell::default(),
        wants_flush: Cell::new(false),
        writes: Cell::new(0),
        ticks: Cell::new(0),
        forgets_members,
    };
    ReplicaDriver::open(config, host).unwrap()
}
