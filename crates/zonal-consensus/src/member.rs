//! A member of a group.
//!
//! The shell calls [`GroupMember::tick`] at each tick, [`GroupMember::receive`] for each message
//! and [`GroupMember::propose`] for each effect. After each of them it carries out the work:
//!
//! 1. [`GroupMember::take_work`]; `None`: nothing to do.
//! 2. Writes and flushes the vote; takes in a snapshot; writes entries. The order matters.
//! 3. Sends the messages, and applies what is committed.
//! 4. [`GroupMember::finish`] and again from 1.

mod inbox;
mod outbox;

use raft::eraftpb::Snapshot;
use raft::{Config, ProgressState, RawNode, Ready, SnapshotStatus, StateRole};
use zonal_basics::SplitMix64;
use zonal_types::codec::Codec;

use crate::entry::{EntryBody, LogEntry, LogIndex, MemberChange, Membership, ReplicaId, Term};
use crate::entry_log::EntryLog;
use crate::error::ConsensusError;
use crate::flush_progress::FlushProgress;
use crate::leader_lease::LeaderLease;
use crate::peer_message::{PeerMessage, SnapshotPoint};
use crate::quarantine::Quarantine;
use crate::raft_bridge::{self, RaftLogView};

/// Most bytes of entries in one message.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of entries that wait for their commit.
pub const PENDING_BYTES_MAX: u64 = 16 << 20;
/// Most messages with entries that are on their way to one member.
const IN_FLIGHT_MAX: usize = 64;

/// A member's term and vote: durable before any message that depends on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vote {
    /// The newest term that the member knows.
    pub term: Term,
    /// For whom it voted in that term; 0: nobody.
    pub for_member: ReplicaId,
}

/// The place of a snapshot that a leader offers, and the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// The leader that has it.
    pub from: ReplicaId,
    /// The last entry in it, its term, and the members then.
    pub point: SnapshotPoint,
}

/// A flush that a member asks of its shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushOrder {
    /// All entries up to here.
    pub index: LogIndex,
    /// How often entries had been cut off the log by then.
    cuts: u64,
}

/// The part of a member in its term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberRole {
    /// It leads, and has applied everything that leaders before it committed.
    Leads,
    /// It was elected, and may not serve yet.
    TakesOver,
    /// Another member leads.
    Follows(ReplicaId),
    /// It knows no leader.
    Seeks,
}

/// How a member is made.
#[derive(Debug, Clone, Copy)]
pub struct MemberConfig {
    /// The group.
    pub group: u64,
    /// This member.
    pub own: ReplicaId,
    /// The generation of the group that the store is of: each recovery of a lost majority begins
    /// another. 0: the store has nothing of a group yet.
    pub generation: u64,
    /// Counts the openings of this member's store; 1 and up.
    pub life: u64,
    /// Where its election time-outs come from.
    pub seed: u64,
    /// Ticks without a leader after which members may stand; at least four times the heartbeat.
    pub election_ticks: u32,
    /// Ticks between two messages of a leader.
    pub heartbeat_ticks: u32,
    /// The store may have lost unflushed entries.
    pub may_have_lost: bool,
}

/// Orders of a member to its shell, in the order of the fields.
#[derive(Debug, Default, PartialEq)]
pub struct MemberWork {
    /// Write and flush.
    pub vote: Option<Vote>,
    /// Replace log and state by those of this snapshot.
    pub install: Option<SnapshotOffer>,
    /// Write these behind the entry before the first of them; entries from there on are void.
    pub append: Vec<LogEntry>,
    /// Flush the log after the writes, soon, and call [`GroupMember::flushed`] then.
    pub flush: Option<FlushOrder>,
    /// Send; any may be lost.
    pub send: Vec<PeerMessage>,
    /// Apply.
    pub committed: Vec<LogEntry>,
    /// The members after entries of `committed` that change them: to be durable before anything is
    /// sent.
    pub members: Vec<(LogIndex, Membership)>,
}

/// How far another member is, as its leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberProgress {
    /// The member.
    pub member: ReplicaId,
    /// Its log is the leader's up to here.
    pub matched: LogIndex,
    /// It was heard within an election time-out.
    pub is_heard: bool,
    /// It may have lost entries, and has not said that it was brought up to date.
    pub is_ward: bool,
}

/// A member of a group, over its log.
pub struct GroupMember<L: EntryLog> {
    node: RawNode<RaftLogView<L>>,
    config: MemberConfig,
    /// Of election time-outs.
    seed: u64,
    /// Ticks since the start.
    clock: u64,
    /// The shell's clock in ticks: further than `clock` where the shell stood still.
    time: u64,
    quarantine: Quarantine,
    lease: LeaderLease,
    flushes: FlushProgress,
    /// How far this member has flushed.
    flushed: LogIndex,
    /// As follower: its log is the leader's up to here, as it has acknowledged in this term.
    agreed: (Term, LogIndex),
    /// The log should be flushed up to here.
    flush_wanted: LogIndex,
    /// The shell was asked to flush up to here.
    flush_asked: LogIndex,
    /// How often entries were cut off the log.
    cuts: u64,
    /// The newest clock of the leader, and the leader's term.
    heard: (Term, u64),
    /// The newest life of each other member.
    lives: std::collections::BTreeMap<ReplicaId, u64>,
    /// Messages without a part of Raft.
    outbox: Vec<ReplicaId>,
    /// The entry that made the members what they are.
    members_since: LogIndex,
    ready: Option<Ready>,
    light: MemberWork,
}

impl<L: EntryLog> GroupMember<L> {
    /// A member that has just started. Its store has the state up to the entry `applied`, which has
    /// this term. Its log is known to be durable up to `flushed`.
    ///
    /// # Errors
    /// `BadConfig`, or the log cannot be read.
    pub fn new(
        config: MemberConfig,
        log: L,
        vote: Vote,
        (applied, applied_term): (LogIndex, Term),
        flushed: LogIndex,
    ) -> Result<Self, ConsensusError> {
        let slowest = config.heartbeat_ticks.saturating_mul(4);
        if config.own.0 == 0 || config.life == 0 || config.election_ticks < slowest {
            return Err(ConsensusError::BadConfig);
        }
        let (members_since, members) = log.membership();
        let last_term = log.term(log.last()).unwrap_or_default();
        if vote.term < last_term || !(members.is_sane() || members == Membership::default()) {
            return Err(ConsensusError::BadConfig);
        }
        let election_tick = zonal_basics::to_usize(config.election_ticks.into());
        let raft_config = Config {
            id: config.own.0,
            election_tick,
            heartbeat_tick: zonal_basics::to_usize(config.heartbeat_ticks.into()),
            applied: applied.0,
            max_size_per_msg: MESSAGE_BYTES_MAX,
            max_inflight_msgs: IN_FLIGHT_MAX,
            check_quorum: true,
            pre_vote: true,
            // The library's draw is replaced (`redraw`).
            min_election_tick: election_tick,
            max_election_tick: 2 * election_tick + 1,
            max_uncommitted_size: PENDING_BYTES_MAX,
            // Followers learn of a commit by the next entry or heartbeat. A message of its own for
            // each commit doubled the messages of an effect.
            skip_bcast_commit: true,
            ..Config::default()
        };
        let view = RaftLogView {
            log,
            vote,
            applied: SnapshotPoint {
                index: applied,
                term: applied_term,
                members,
            },
        };
        let silent = slog::Logger::root(slog::Discard, slog::o!());
        let node =
            RawNode::new(&raft_config, view, &silent).map_err(|_| ConsensusError::BadConfig)?;
        let mut member = Self {
            node,
            config,
            seed: SplitMix64(config.seed ^ config.own.0.rotate_left(32) ^ config.life).bits(),
            clock: 0,
            time: 0,
            quarantine: Quarantine::new(config.may_have_lost),
            lease: LeaderLease::default(),
            flushes: FlushProgress::default(),
            flushed,
            agreed: (Term(0), LogIndex(0)),
            flush_wanted: flushed,
            flush_asked: flushed,
            cuts: 0,
            heard: (Term(0), 0),
            lives: std::collections::BTreeMap::new(),
            outbox: Vec::new(),
            members_since,
            ready: None,
            light: MemberWork::default(),
        };
        member.redraw();
        if member.is_alone() {
            // Nobody else has a vote, and what was lost is lost.
            member.quarantine.end();
            member
                .node
                .campaign()
                .map_err(|_| ConsensusError::BadConfig)?;
        }
        Ok(member)
    }

    /// The shell's clock, in ticks since the start. A process that stood still has not ticked
    /// meanwhile, but others have: its lease is judged by this clock.
    pub fn set_time(&mut self, ticks: u64) {
        self.time = self.time.max(ticks);
    }

    /// One tick of the shell's clock.
    pub fn tick(&mut self) {
        self.clock += 1;
        self.time = self.time.max(self.clock);
        let own = (self.config.own, self.clock);
        let patience = self.election_ticks() * 3;
        let members = self.members().clone();
        self.quarantine.tick(own, &members, patience);
        if self.quarantine.is_on()
            && self
                .clock
                .is_multiple_of(self.config.heartbeat_ticks.into())
        {
            self.outbox
                .extend(members.all().filter(|one| *one != own.0));
        }
        self.greet(&members);
        if self.may_vote() || self.node.raft.state == StateRole::Leader {
            self.node.tick();
            self.redraw();
        }
        if self.clock.is_multiple_of(self.election_ticks() * 4) {
            self.offer_again();
        }
    }

    /// A member that starts tells the others its generation, before it may vote: one that knows a
    /// later generation answers at once. Otherwise lost members that come back together would
    /// elect a leader of their own.
    fn greet(&mut self, members: &Membership) {
        let is_new = self.clock <= self.election_ticks();
        let is_due = self.clock % u64::from(self.config.heartbeat_ticks) == 1;
        if is_new && is_due && self.config.generation != 0 && !self.quarantine.is_on() {
            let own = self.config.own;
            self.outbox.extend(members.all().filter(|one| *one != own));
        }
    }

    /// Appends an effect, and returns its place. It is committed when [`Self::committed`] reaches
    /// this place while this member leads in the same term.
    ///
    /// # Errors
    /// `NotLeader`, or `Busy` while too much waits for its commit.
    pub fn propose(&mut self, bytes: Vec<u8>) -> Result<LogIndex, ConsensusError> {
        self.must_lead()?;
        let proposed = self.node.propose(Vec::new(), bytes);
        proposed.map_err(|_| ConsensusError::Busy)?;
        Ok(self.last())
    }

    /// Appends a change of the members, and returns its place.
    ///
    /// # Errors
    /// `NotLeader`, or `Busy` while another change is under way.
    pub fn propose_members(&mut self, change: &MemberChange) -> Result<LogIndex, ConsensusError> {
        self.must_lead()?;
        let raft_change = raft_bridge::to_raft_change(change);
        let proposed = self
            .node
            .propose_conf_change(change.to_bytes(), raft_change);
        proposed.map_err(|_| ConsensusError::Busy)?;
        Ok(self.last())
    }

    /// Hands the lead over to a member that is up to date.
    pub fn hand_over(&mut self, to: ReplicaId) {
        self.node.transfer_leader(to.0);
    }

    /// The shell has flushed the log as asked.
    pub fn flushed(&mut self, order: FlushOrder) {
        if order.cuts != self.cuts {
            // Entries were replaced meanwhile: these may not be flushed.
            return;
        }
        self.flushed = self.flushed.max(order.index);
        let term = self.term();
        match self.role() {
            MemberRole::Follows(leader) => self.outbox.push(leader),
            _ => self.flushes.note(term, self.config.own, self.flushed),
        }
    }

    /// As leader: asks a majority to flush up to this entry; [`Self::durable`] follows.
    pub fn want_flush(&mut self, index: LogIndex) {
        if self.node.raft.state != StateRole::Leader || self.flushes.wanted >= index {
            return;
        }
        let term = self.term();
        self.flushes.want(term, index);
        let own = self.config.own;
        let others: Vec<ReplicaId> = self.members().all().filter(|one| *one != own).collect();
        self.outbox.extend(others);
        self.ask_flush(index);
    }

    /// As leader: everything up to here is flushed by a majority.
    #[must_use]
    pub fn durable(&self) -> LogIndex {
        self.flushes.durable(self.term(), self.members(), |member| {
            let progress = self.node.raft.prs().get(member.0);
            LogIndex(progress.map_or(0, |progress| progress.matched))
        })
    }

    /// Everything up to here is committed, as far as this member knows.
    #[must_use]
    pub fn committed(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.committed)
    }

    /// The last entry, also where it is not yet written.
    #[must_use]
    pub fn last(&self) -> LogIndex {
        LogIndex(self.node.raft.raft_log.last_index())
    }

    /// The newest term that this member knows.
    #[must_use]
    pub fn term(&self) -> Term {
        Term(self.node.raft.term)
    }

    /// This member's part now.
    #[must_use]
    pub fn role(&self) -> MemberRole {
        let raft = &self.node.raft;
        let applied = &self.node.store().applied;
        match raft.state {
            StateRole::Leader if applied.term == self.term() => MemberRole::Leads,
            StateRole::Leader => MemberRole::TakesOver,
            _ if raft.leader_id != 0 => MemberRole::Follows(ReplicaId(raft.leader_id)),
            _ => MemberRole::Seeks,
        }
    }

    /// True while this member may answer reads by itself: it leads, and no other can. A shell that
    /// may have stood still calls [`Self::set_time`] first.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        let own = (self.config.own, self.time);
        self.role() == MemberRole::Leads
            && self.node.raft.lead_transferee.is_none()
            && self
                .lease
                .holds(self.term(), own, self.members(), self.election_ticks())
    }

    /// True while this member may have lost entries, and promises nothing.
    #[must_use]
    pub fn is_quarantined(&self) -> bool {
        self.quarantine.is_on()
    }

    /// The members, as of the last applied entry.
    #[must_use]
    pub fn members(&self) -> &Membership {
        &self.node.store().applied.members
    }

    /// As leader: how far the others are.
    #[must_use]
    pub fn others(&self) -> Vec<MemberProgress> {
        let progress = self.node.raft.prs();
        let others = progress
            .iter()
            .map(|(member, one)| (ReplicaId(*member), one));
        let mut others: Vec<MemberProgress> = others
            .filter(|(member, _)| *member != self.config.own)
            .map(|(member, one)| MemberProgress {
                member,
                matched: LogIndex(one.matched),
                is_heard: one.recent_active,
                is_ward: self.quarantine.guards(member),
            })
            .collect();
        others.sort_unstable_by_key(|one| one.member);
        others
    }

    /// The log.
    pub fn log(&self) -> &L {
        &self.node.store().log
    }

    /// The next work, in the order of its fields. [`Self::finish`] must follow.
    ///
    /// # Errors
    /// An entry is not one that this crate made: the log is damaged.
    pub fn take_work(&mut self) -> Result<Option<MemberWork>, ConsensusError> {
        let mut work = std::mem::take(&mut self.light);
        if self.ready.is_none() && self.node.has_ready() {
            let mut ready = self.node.ready();
            self.describe(&mut ready, &mut work)?;
            self.ready = Some(ready);
        }
        let index = self.flush_wanted.min(self.last());
        if index > self.flush_asked {
            self.flush_asked = index;
            let cuts = self.cuts;
            work.flush = Some(FlushOrder { index, cuts });
        }
        for to in std::mem::take(&mut self.outbox) {
            let message = self.envelope(to, None);
            work.send.push(message);
        }
        self.note_applied(&mut work)?;
        let is_idle = work == MemberWork::default();
        Ok((!is_idle || self.ready.is_some()).then_some(work))
    }

    /// The work that was taken is done.
    ///
    /// # Errors
    /// As [`Self::take_work`].
    pub fn finish(&mut self) -> Result<(), ConsensusError> {
        if let Some(ready) = self.ready.take() {
            let mut light = self.node.advance_append(ready);
            let mut work = std::mem::take(&mut self.light);
            self.send_raft(light.take_messages(), &mut work)?;
            for entry in light.take_committed_entries() {
                work.committed.push(raft_bridge::from_raft_entry(&entry)?);
            }
            self.light = work;
        }
        let applied = self.node.store().applied.index;
        self.node.advance_apply_to(applied.0);
        Ok(())
    }

    /// Writes down what a step of the library wants.
    fn describe(&mut self, ready: &mut Ready, work: &mut MemberWork) -> Result<(), ConsensusError> {
        if let Some(state) = ready.hs() {
            let vote = Vote {
                term: Term(state.term),
                for_member: ReplicaId(state.vote),
            };
            if vote != self.node.store().vote {
                self.node.mut_store().vote = vote;
                work.vote = Some(vote);
            }
        }
        work.install = self.offered(ready.snapshot());
        for entry in ready.take_entries() {
            work.append.push(raft_bridge::from_raft_entry(&entry)?);
        }
        let first = work.append.first().map(|entry| entry.index);
        if let Some(first) = first.filter(|first| *first <= self.log().last()) {
            self.cut(LogIndex(first.0 - 1));
        }
        let messages = [ready.take_messages(), ready.take_persisted_messages()];
        self.send_raft(messages.into_iter().flatten(), work)?;
        for entry in ready.take_committed_entries() {
            work.committed.push(raft_bridge::from_raft_entry(&entry)?);
        }
        Ok(())
    }

    fn change_members(&mut self, change: &MemberChange) -> Result<Membership, ConsensusError> {
        let change = raft_bridge::to_raft_change(change);
        let state = self.node.apply_conf_change(&change);
        let state = state.map_err(|_| ConsensusError::Senseless("a change of members"))?;
        let members = raft_bridge::membership(&state);
        self.node.mut_store().applied.members = members.clone();
        Ok(members)
    }

    fn offered(&mut self, snapshot: &Snapshot) -> Option<SnapshotOffer> {
        let point = raft_bridge::snapshot_point(snapshot)?;
        self.node.mut_store().applied = point.clone();
        self.members_since = point.index;
        self.cut(LogIndex(0));
        let from = ReplicaId(self.node.raft.leader_id);
        Some(SnapshotOffer { from, point })
    }

    /// Notes what the shell is about to apply, and carries out changes of the members.
    fn note_applied(&mut self, work: &mut MemberWork) -> Result<(), ConsensusError> {
        for entry in &work.committed {
            if let EntryBody::Members { change, .. } = &entry.body
                && entry.index > self.members_since
            {
                let members = self.change_members(change)?;
                self.members_since = entry.index;
                work.members.push((entry.index, members));
            }
        }
        if let Some(last) = work.committed.last() {
            let applied = &mut self.node.mut_store().applied;
            (applied.index, applied.term) = (last.index, last.term);
        }
        Ok(())
    }

    /// Replaces the election time-out that the library draws from the thread's generator. Ours
    /// follows from seed, term and clock, and changes at times, so that two members that stand
    /// together do not do so for ever.
    fn redraw(&mut self) {
        let period = self.clock / (4 * self.election_ticks());
        let state = self.seed ^ self.term().0.rotate_left(20) ^ period.rotate_left(40);
        let drawn = SplitMix64(state).bits() % self.election_ticks();
        let ticks = zonal_basics::to_usize(self.election_ticks() + 1 + drawn);
        self.node.raft.set_randomized_election_timeout(ticks);
    }

    /// Offers snapshots again that were not taken in: the message may be lost. The library would
    /// wait for ever.
    fn offer_again(&mut self) {
        let prs = self.node.raft.prs();
        let waiting = prs
            .iter()
            .filter(|(_, one)| one.state == ProgressState::Snapshot);
        let waiting: Vec<u64> = waiting.map(|(member, _)| *member).collect();
        for member in waiting {
            self.node.report_snapshot(member, SnapshotStatus::Failure);
        }
    }

    /// False while the member may have lost entries, and just after its start: it may have promised
    /// a leader not to vote.
    fn may_vote(&self) -> bool {
        !self.quarantine.is_on() && (self.clock > self.election_ticks() || self.is_alone())
    }

    fn is_alone(&self) -> bool {
        let members = self.members();
        members.voters == [self.config.own] && members.outgoing.is_empty()
    }

    fn must_lead(&self) -> Result<(), ConsensusError> {
        match self.role() {
            MemberRole::Leads => Ok(()),
            MemberRole::Follows(leader) => Err(ConsensusError::NotLeader(Some(leader))),
            MemberRole::TakesOver | MemberRole::Seeks => Err(ConsensusError::NotLeader(None)),
        }
    }

    fn ask_flush(&mut self, index: LogIndex) {
        self.flush_wanted = self.flush_wanted.max(index);
    }

    /// Entries behind `last` are about to be replaced.
    fn cut(&mut self, last: LogIndex) {
        self.cuts += 1;
        self.flushed = self.flushed.min(last);
        // Of those before, too, a flush may be under way whose end will not count.
        self.flush_asked = self.flushed;
    }

    fn election_ticks(&self) -> u64 {
        self.config.election_ticks.into()
    }
}
