//! The log of a group, as its members show it over a run.
//!
//! Checked at each step of a member:
//! * One leader a term.
//! * A committed entry stays at its index: other members commit the same one, and each later leader
//!   has it.
//! * A reply leaves when the records that it depends on are committed, and in the logs of a
//!   majority. The answer of a sync leaves when a majority has flushed them.
//! * Only the newest leader answers.
//! * A member that may have lost entries promises nothing until it has again what was committed.
//!
//! Where a majority of the members has lost its power, only flushed entries are promised.

use crate::member_disk::MemberDisk;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use zonal_consensus::{LogEntry, LogIndex, MemberRole, PeerMessage, ReplicaId, Term};
use zonal_driver::ReplicaStatus;
use zonal_types::Codec;

/// Kinds of messages with which a member promises something: it asks for votes, or gives one.
const ASKS: [u8; 2] = [5, 17];
const ANSWERS: [u8; 2] = [6, 18];

/// A committed entry.
#[derive(Debug, Clone, Copy)]
struct Committed {
    term: Term,
    digest: u64,
    by: ReplicaId,
}

#[derive(Default)]
struct State {
    leaders: BTreeMap<Term, ReplicaId>,
    committed: BTreeMap<LogIndex, Committed>,
    /// Everything up to here was flushed by a majority, as a leader knew.
    durable: LogIndex,
    /// Committed entries behind `durable` were forgotten once.
    has_forgotten: bool,
    /// Members that may have lost entries, with the last entry that was committed then.
    wards: BTreeMap<ReplicaId, LogIndex>,
    /// Members whose leader has ended their quarantine.
    told_release: BTreeSet<ReplicaId>,
    /// The newest term in which a member could serve.
    newest: Term,
    told: Vec<String>,
}

/// The history of one group.
#[derive(Default)]
pub struct GroupHistory {
    disks: RefCell<BTreeMap<ReplicaId, Rc<MemberDisk>>>,
    state: RefCell<State>,
}

/// The part of the history that a member has shown since its disk was opened.
#[derive(Debug, Default)]
pub struct MemberHistory {
    /// Entries up to here were compared.
    compared: LogIndex,
    /// The term whose leader it was last.
    led: Term,
}

/// FNV-1a of an entry.
fn digest(entry: &LogEntry) -> u64 {
    let eat = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    entry.to_bytes().iter().fold(0xcbf2_9ce4_8422_2325, eat)
}

impl GroupHistory {
    /// Adds a member's disk.
    pub fn add_disk(&self, member: ReplicaId, disk: Rc<MemberDisk>) {
        self.disks.borrow_mut().insert(member, disk);
    }

    /// Everything that is broken since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.state.borrow_mut().told)
    }

    /// A member cannot go on.
    pub fn complain(&self, member: ReplicaId, what: &str) {
        self.tell(&format!("member {member} {what}"));
    }

    fn tell(&self, what: &str) {
        self.state.borrow_mut().told.push(format!("group: {what}"));
    }

    /// A member has opened its disk.
    pub fn begins(&self, member: ReplicaId, is_ward: bool) {
        let mut state = self.state.borrow_mut();
        state.told_release.remove(&member);
        let last = state.committed.last_key_value();
        let last = last.map_or(LogIndex(0), |(index, _)| *index);
        if is_ward {
            state.wards.insert(member, last);
        } else {
            state.wards.remove(&member);
        }
    }

    /// How often a member has opened its disk.
    #[must_use]
    pub fn openings_of(&self, member: ReplicaId) -> u64 {
        let disks = self.disks.borrow();
        disks.get(&member).map_or(0, |disk| disk.openings())
    }

    /// A majority of the members has lost its power: entries that were not flushed may be gone.
    pub fn majority_lost_power(&self) {
        let mut state = self.state.borrow_mut();
        state.has_forgotten = true;
        let later = LogIndex(state.durable.0 + 1);
        state.committed.split_off(&later);
        state
            .wards
            .values_mut()
            .for_each(|upto| *upto = (*upto).min(LogIndex(later.0 - 1)));
    }

    /// A leader tells a member that its quarantine is over.
    pub fn tells_release(&self, member: ReplicaId) {
        self.state.borrow_mut().told_release.insert(member);
    }

    /// A member leaves its quarantine: its leader said so, or the others are no majority.
    pub fn released(&self, member: ReplicaId) {
        let ward = self.state.borrow_mut().wards.remove(&member);
        let is_told = self.state.borrow_mut().told_release.remove(&member);
        if let Some(upto) = ward.filter(|_| is_told) {
            self.must_hold(member, upto, "leaves its quarantine");
        }
    }

    /// Every committed entry up to `upto` must be in the log of a member.
    fn must_hold(&self, member: ReplicaId, upto: LogIndex, doing: &str) {
        let disks = self.disks.borrow();
        let Some(disk) = disks.get(&member) else {
            return;
        };
        let lacking = {
            let state = self.state.borrow();
            let mut known = state.committed.range(..=upto);
            known
                .find(|(index, one)| !disk.holds(**index, one.term))
                .map(|(index, one)| (*index, *one))
        };
        if let Some((index, one)) = lacking {
            let Committed { term, by, .. } = one;
            self.tell(&format!(
                "member {member} {doing} without entry {index} of term {term}, which member {by} \
                 committed"
            ));
        }
    }

    /// A member sends messages.
    pub fn sends(&self, member: ReplicaId, messages: &[PeerMessage]) {
        for message in messages {
            if message.clock > 0 {
                self.leads(member, message.term);
            }
            let Some(part) = &message.raft else {
                continue;
            };
            let gives = ANSWERS.contains(&part.kind) && !part.is_rejected;
            let is_ward = self.state.borrow().wards.contains_key(&member);
            if is_ward && (gives || ASKS.contains(&part.kind)) {
                self.tell(&format!("member {member} votes and may have lost entries"));
            }
        }
    }

    fn leads(&self, member: ReplicaId, term: Term) {
        let known = *self
            .state
            .borrow_mut()
            .leaders
            .entry(term)
            .or_insert(member);
        if known != member {
            self.tell(&format!("members {known} and {member} lead in term {term}"));
        }
    }

    /// Looks at a member after a step.
    pub fn look(&self, member: ReplicaId, status: &ReplicaStatus, shown: &mut MemberHistory) {
        let leads = matches!(status.role, MemberRole::Leads | MemberRole::TakesOver);
        if leads && shown.led != status.term {
            shown.led = status.term;
            self.leads(member, status.term);
            let last = self
                .state
                .borrow()
                .committed
                .last_key_value()
                .map(|(index, _)| *index);
            self.must_hold(member, last.unwrap_or_default(), "leads");
        }
        if status.role == MemberRole::Leads {
            let mut state = self.state.borrow_mut();
            state.newest = state.newest.max(status.term);
        }
        let disks = self.disks.borrow();
        let Some(disk) = disks.get(&member) else {
            return;
        };
        let from = shown.compared.0 + 1;
        shown.compared = shown.compared.max(status.committed);
        for index in (from..=status.committed.0).map(LogIndex) {
            if let Some(entry) = disk.entry(index) {
                self.commits(member, &entry);
            }
        }
    }

    fn commits(&self, member: ReplicaId, entry: &LogEntry) {
        let own = Committed {
            term: entry.term,
            digest: digest(entry),
            by: member,
        };
        let known = *self
            .state
            .borrow_mut()
            .committed
            .entry(entry.index)
            .or_insert(own);
        if (known.term, known.digest) != (own.term, own.digest) {
            self.tell(&format!(
                "members {} and {member} committed different entries {}, of terms {} and {}",
                known.by, entry.index, known.term, own.term
            ));
        }
    }

    /// A leader of `reign` lets an answer go that depends on no later record than those settled.
    pub fn settles(&self, member: ReplicaId, reign: Term) {
        let newest = self.state.borrow().newest;
        if newest > reign {
            self.tell(&format!(
                "member {member} answers as leader of term {reign}, another leads in term {newest}"
            ));
        }
    }

    /// A reply leaves that depends on the records up to `upto`.
    pub fn replies(
        &self,
        (member, name): (ReplicaId, &str),
        upto: LogIndex,
        status: &ReplicaStatus,
        is_sync: bool,
    ) {
        let members = &status.members;
        let known = self.state.borrow().committed.get(&upto).copied();
        let Some(known) = known else {
            // The first entry stands for the group's beginning. After a loss of power of a majority
            // the history has forgotten entries that a leader knows.
            let is_forgotten = self.state.borrow().has_forgotten && status.committed >= upto;
            if upto > LogIndex(1) && !is_forgotten {
                self.tell(&format!(
                    "member {member} replies to {name} before entry {upto} is committed"
                ));
            }
            return;
        };
        let holders: BTreeSet<ReplicaId> = {
            let disks = self.disks.borrow();
            // A member that had the entry may have lost its power since, and then promises nothing.
            let holds = |disk: &MemberDisk| match is_sync {
                true => disk.holds_durably(upto, known.term) || disk.is_empty(),
                false => disk.holds(upto, known.term) || disk.may_have_lost(),
            };
            let all = disks.iter().filter(|(_, disk)| holds(disk));
            all.map(|(member, _)| *member).collect()
        };
        // A majority of others could elect a leader without the entry. New voters may lack it.
        if members.majority_of(|one| u64::from(!holders.contains(&one))) == 1 {
            let lacks = match is_sync {
                true => "has not flushed",
                false => "does not have",
            };
            self.tell(&format!(
                "member {member} replies to {name}, and a majority {lacks} entry {upto}"
            ));
        }
        if is_sync {
            let mut state = self.state.borrow_mut();
            state.durable = state.durable.max(upto);
        }
    }

    /// Compares the applied states of all members, which have applied everything.
    pub fn compare_states(&self) {
        let disks = self.disks.borrow();
        let mut states = disks
            .iter()
            .map(|(member, disk)| (member, disk, disk.state().contents()));
        let Some((first, disk, contents)) = states.next() else {
            return;
        };
        for (member, other, other_contents) in states {
            let places = (disk.applied_place(), other.applied_place());
            if places.0 != places.1 {
                self.tell(&format!(
                    "members {first} and {member} are at {places:?} when all is quiet"
                ));
            } else if other_contents != contents {
                self.tell(&format!(
                    "the states of members {first} and {member} differ"
                ));
            }
        }
    }

    /// Whether all members have applied the same entry.
    #[must_use]
    pub fn is_level(&self) -> bool {
        let disks = self.disks.borrow();
        let places: BTreeSet<_> = disks.values().map(|disk| disk.applied_place()).collect();
        places.len() <= 1
    }

    /// Whether nothing is lost where a member loses its power: no other member is weak, and another
    /// one has everything that was committed. A founder has committed some entries alone.
    #[must_use]
    pub fn is_strong_without(&self, member: ReplicaId) -> bool {
        let disks = self.disks.borrow();
        let state = self.state.borrow();
        let Some((last, one)) = state.committed.last_key_value() else {
            return false;
        };
        let mut others = disks.iter().filter(|(other, _)| **other != member);
        others.clone().all(|(_, disk)| !disk.may_have_lost())
            && others.any(|(_, disk)| disk.holds(*last, one.term))
    }
}
