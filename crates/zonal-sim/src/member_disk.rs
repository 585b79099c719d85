//! Disk of a group's member: the log of entries, the vote and the members, and the applied state.
//!
//! It keeps what `zonal_disk::replica` keeps, at the same times:
//!
//! * Written entries survive a kill. A loss of power drops unflushed ones from the end of the
//!   writes; an entry is written again behind those that it makes void.
//! * The vote and the members are durable when they are written.
//! * The applied state is in memory above its last checkpoint, which is durable. An opening begins
//!   with the checkpoint.

use crate::disk::VirtualDisk;
use crate::rng::SimRng;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use zonal_consensus::{
    EntryBody, EntryLog, LogEntry, LogIndex, LogUnread, Membership, ReplicaId, Term, Vote,
};
use zonal_types::{ErrorCode, KvChange, codec_struct};

codec_struct! {
    /// The last applied entry, and the members since.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct StateProgress {
        /// Its place.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// The members.
        members: Membership,
        /// The entry that made them so.
        since: LogIndex,
        /// The last applied entry that changes members; later than `since` before its commit.
        changed: LogIndex,
    }
}

/// Entries in order of their places, behind one that is known.
#[derive(Debug, Clone, Default)]
struct Entries {
    /// The entry before the first, and its term.
    base: (LogIndex, Term),
    list: VecDeque<Rc<LogEntry>>,
}

impl Entries {
    fn last(&self) -> LogIndex {
        LogIndex(self.base.0.0 + self.list.len() as u64)
    }

    fn at(&self, index: LogIndex) -> Option<&Rc<LogEntry>> {
        let at = index.0.checked_sub(self.base.0.0 + 1)?;
        self.list.get(at as usize)
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        match index == self.base.0 {
            true => Some(self.base.1),
            false => self.at(index).map(|entry| entry.term),
        }
    }

    /// Puts an entry at its place; those there and behind are void.
    fn put(&mut self, entry: &Rc<LogEntry>) {
        let Some(at) = entry.index.0.checked_sub(self.base.0.0 + 1) else {
            return;
        };
        self.list.truncate(at as usize);
        if at as usize == self.list.len() {
            self.list.push_back(entry.clone());
        }
    }

    /// Forgets entries up to `index`.
    fn forget(&mut self, index: LogIndex) {
        while self.base.0 < index
            && let Some(first) = self.list.pop_front()
        {
            self.base = (first.index, first.term);
        }
    }

    /// Begins behind an applied entry.
    fn begin_behind(&mut self, index: LogIndex, term: Term) {
        self.forget(index);
        if self.base.0 != index {
            self.list.clear();
        }
        self.base = (index, term);
    }
}

#[derive(Debug, Clone, Default)]
struct Files {
    /// Entries as a reader sees them.
    entries: Entries,
    /// Entries that a loss of power leaves.
    flushed: Entries,
    /// Entries written since the last flush, oldest first.
    unflushed: Vec<Rc<LogEntry>>,
    vote: Vote,
    noted: Option<(LogIndex, Membership)>,
    may_have_lost: bool,
    openings: u64,
    applied: StateProgress,
    checkpoint: Option<StateProgress>,
}

/// One member's disk. It outlives the process.
pub struct MemberDisk {
    state: Rc<VirtualDisk>,
    files: RefCell<Files>,
    /// A planted bug: entries are written to the disk only when they are flushed.
    writes_late: bool,
}

impl MemberDisk {
    /// An empty disk, with the state on `state`.
    #[must_use]
    pub fn new(state: Rc<VirtualDisk>, writes_late: bool) -> Self {
        let files = Files {
            may_have_lost: true,
            ..Files::default()
        };
        Self {
            state,
            files: RefCell::new(files),
            writes_late,
        }
    }

    /// Makes an empty disk that of a group's first member.
    pub fn found(&self, own: ReplicaId) {
        let mut files = self.files.borrow_mut();
        files.may_have_lost = false;
        files.checkpoint = Some(StateProgress {
            index: LogIndex(1),
            term: Term(1),
            members: Membership::of_voters([own]),
            since: LogIndex(1),
            changed: LogIndex(1),
        });
    }

    /// Opens the disk after its process has ended.
    pub fn open(&self) {
        self.state.take_back();
        let mut files = self.files.borrow_mut();
        files.openings += 1;
        if self.writes_late {
            files.entries = files.flushed.clone();
            files.unflushed.clear();
        }
        let is_member = files.checkpoint.is_some();
        files.applied = files.checkpoint.clone().unwrap_or_default();
        let applied = (files.applied.index, files.applied.term);
        files.entries.begin_behind(applied.0, applied.1);
        files.flushed.begin_behind(applied.0, applied.1);
        if !is_member {
            files.entries.list.clear();
            files.may_have_lost = true;
        }
        if let Some((since, members)) = files.noted.clone()
            && is_member
            && since > files.applied.since
        {
            (files.applied.since, files.applied.members) = (since, members);
        }
        if files.vote.term < applied.1 {
            let (term, for_member) = (applied.1, ReplicaId(0));
            files.vote = Vote { term, for_member };
        }
    }

    /// Takes the power of a stopped member: some unflushed entries are gone.
    pub fn lose_power(&self, rng: &mut SimRng) {
        self.state.take_back();
        self.state.note_power_loss();
        let mut files = self.files.borrow_mut();
        files.may_have_lost = true;
        let written = std::mem::take(&mut files.unflushed);
        let kept = rng.below(written.len() as u64 + 1) as usize;
        let mut left = files.flushed.clone();
        written[..kept].iter().for_each(|entry| left.put(entry));
        files.flushed = left.clone();
        files.entries = left;
    }

    /// The applied state.
    #[must_use]
    pub fn state(&self) -> &Rc<VirtualDisk> {
        &self.state
    }

    /// Counts the openings.
    #[must_use]
    pub fn openings(&self) -> u64 {
        self.files.borrow().openings
    }

    /// Whether entries may be lost that the member has acknowledged.
    #[must_use]
    pub fn may_have_lost(&self) -> bool {
        self.files.borrow().may_have_lost
    }

    /// Whether the disk has no state: it is to be filled from a snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.borrow().checkpoint.is_none()
    }

    /// Notes that everything lost was made up for.
    pub fn end_loss(&self) {
        self.files.borrow_mut().may_have_lost = false;
    }

    /// The vote.
    #[must_use]
    pub fn vote(&self) -> Vote {
        self.files.borrow().vote
    }

    /// Writes and flushes the vote.
    pub fn save_vote(&self, vote: Vote) {
        self.files.borrow_mut().vote = vote;
    }

    /// The last applied entry.
    #[must_use]
    pub fn applied(&self) -> StateProgress {
        self.files.borrow().applied.clone()
    }

    /// The place and term of the last applied entry.
    #[must_use]
    pub fn applied_place(&self) -> (LogIndex, Term) {
        let files = self.files.borrow();
        (files.applied.index, files.applied.term)
    }

    /// Writes entries.
    pub fn append(&self, entries: &[LogEntry]) {
        let mut files = self.files.borrow_mut();
        for entry in entries {
            let entry = Rc::new(entry.clone());
            files.entries.put(&entry);
            files.unflushed.push(entry);
        }
    }

    /// Number of entries written since the last flush.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.files.borrow().unflushed.len()
    }

    /// Flushes the `count` oldest of the unflushed entries.
    pub fn flush(&self, count: usize) {
        let mut files = self.files.borrow_mut();
        let count = count.min(files.unflushed.len());
        let written: Vec<Rc<LogEntry>> = files.unflushed.drain(..count).collect();
        written.iter().for_each(|entry| files.flushed.put(entry));
    }

    /// Applies an entry with its changes.
    ///
    /// # Errors
    /// `Corrupt`: it does not follow the last applied one.
    pub fn apply(&self, entry: &LogEntry, changes: Vec<KvChange>) -> Result<(), ErrorCode> {
        let mut files = self.files.borrow_mut();
        if entry.index.0 != files.applied.index.0 + 1 {
            return Err(ErrorCode::Corrupt);
        }
        (files.applied.index, files.applied.term) = (entry.index, entry.term);
        if let EntryBody::Members { .. } = &entry.body {
            files.applied.changed = entry.index;
        }
        if !changes.is_empty() {
            self.state.append_changes(changes);
        }
        Ok(())
    }

    /// Notes durably the members since an applied entry.
    pub fn note_members(&self, since: LogIndex, members: Membership) {
        let mut files = self.files.borrow_mut();
        files.noted = Some((since, members.clone()));
        (files.applied.since, files.applied.members) = (since, members);
    }

    /// Makes the applied state durable, and forgets entries but for the last `keeps`.
    pub fn checkpoint(&self, keeps: u64) {
        let all = self.unflushed();
        self.flush(all);
        self.state.sync();
        let mut files = self.files.borrow_mut();
        let upto = LogIndex(files.applied.index.0.saturating_sub(keeps));
        files.entries.forget(upto);
        files.flushed.forget(upto);
        files.checkpoint = Some(files.applied.clone());
    }

    /// Empties the disk for a snapshot. It is a member's again after [`Self::end_fill`].
    pub fn begin_fill(&self) {
        self.state.clear();
        let mut files = self.files.borrow_mut();
        files.may_have_lost = true;
        files.checkpoint = None;
        files.entries = Entries::default();
        files.flushed = Entries::default();
        files.unflushed.clear();
    }

    /// Puts a part of a snapshot into the empty disk.
    pub fn fill(&self, changes: Vec<KvChange>) {
        self.state.append_changes(changes);
        self.state.sync();
    }

    /// Ends the filling with the progress of the snapshot.
    pub fn end_fill(&self, applied: StateProgress) {
        let mut files = self.files.borrow_mut();
        files.entries.begin_behind(applied.index, applied.term);
        files.flushed = files.entries.clone();
        files.checkpoint = Some(applied);
    }

    /// An entry of the log.
    #[must_use]
    pub fn entry(&self, index: LogIndex) -> Option<Rc<LogEntry>> {
        self.files.borrow().entries.at(index).cloned()
    }

    /// Whether the log or the checkpoint has an entry, as a kill leaves them.
    #[must_use]
    pub fn holds(&self, index: LogIndex, term: Term) -> bool {
        self.files.borrow().holds(index, term, false)
    }

    /// Whether a loss of power leaves an entry.
    #[must_use]
    pub fn holds_durably(&self, index: LogIndex, term: Term) -> bool {
        self.files.borrow().holds(index, term, true)
    }
}

impl Files {
    fn holds(&self, index: LogIndex, term: Term, is_flushed: bool) -> bool {
        let checkpoint = self.checkpoint.as_ref();
        let entries = if is_flushed {
            &self.flushed
        } else {
            &self.entries
        };
        checkpoint.is_some_and(|of| of.index >= index) || entries.term(index) == Some(term)
    }
}

/// The log of a member, as the member reads it.
#[derive(Clone)]
pub struct MemberLog(pub Rc<MemberDisk>);

impl EntryLog for MemberLog {
    fn first(&self) -> LogIndex {
        LogIndex(self.0.files.borrow().entries.base.0.0 + 1)
    }

    fn last(&self) -> LogIndex {
        self.0.files.borrow().entries.last()
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        self.0.files.borrow().entries.term(index)
    }

    fn entries(&self, from: LogIndex, to: LogIndex, max: u64) -> Result<Vec<LogEntry>, LogUnread> {
        let files = self.0.files.borrow();
        let (mut found, mut bytes) = (Vec::new(), 0);
        for index in from.0..to.0 {
            let entry = files.entries.at(LogIndex(index)).ok_or(LogUnread)?;
            bytes += match &entry.body {
                EntryBody::Effect { bytes } => bytes.0.len() as u64,
                EntryBody::TermStart | EntryBody::Members { .. } => 64,
            };
            if !found.is_empty() && bytes > max {
                break;
            }
            found.push(LogEntry::clone(entry));
        }
        Ok(found)
    }

    fn membership(&self) -> (LogIndex, Membership) {
        let files = self.0.files.borrow();
        (files.applied.since, files.applied.members.clone())
    }
}
