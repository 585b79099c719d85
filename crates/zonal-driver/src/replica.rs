//! Driver of a replica: a member of a group over its store, with many threads around it.
//!
//! The core ([`GroupMember`]) decides; this driver writes, applies and sends what it orders, under
//! one mutex, so in the order of its decisions. Flushes happen outside of the mutex.
//!
//! *Reigns.* While the member leads, its shard serves in this process. An effect is in the log and
//! in the store when [`ReplicaDriver::append`] returns, and may leave the process once
//! [`ReplicaDriver::settled`] says so. The driver refuses appends of an earlier reign.
//!
//! *Ends.* A replica ends when its store must be opened anew ([`ReplicaEnd`]). It then does nothing
//! more, and all waits end.
//!
//! *Lock order*: the shard's mutex, then `ReplicaDriver::state`, then the host's locks, then
//! `progress_waits`.
//!
//! Costs of an effect at the leader: one write of its entry, one message to each other member, and
//! one back from a majority. Nobody flushes. A group of one sends nothing.

mod host;
mod member_steps;
mod progress_waits;

use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use zonal_consensus::member::MemberProgress;
use zonal_consensus::{
    ConsensusError, EntryBody, EntryLog, FlushOrder, GroupMember, LogEntry, LogIndex, MemberChange,
    MemberConfig, MemberRole, MemberWork, Membership, PeerMessage, ReplicaId, SnapshotOffer,
    SnapshotPoint, Term,
};
use zonal_types::{ErrorCode, KvChange};

pub use host::ReplicaHost;
pub use member_steps::{MemberStep, next_step};
use progress_waits::ProgressWaits;

/// Why a replica must be opened anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaEnd {
    /// Entries that it had applied as leader were replaced by another leader's.
    Replaced,
    /// It lacks entries that no log has any more, or has some that its group has lost: the leader
    /// offers a snapshot.
    Behind(Box<SnapshotOffer>),
    /// Its group went on without it, in this generation: its store must not be used again.
    Superseded(u64),
    /// Its store failed.
    Failed(ErrorCode),
}

/// How far a replica is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its part.
    pub role: MemberRole,
    /// The newest term that it knows.
    pub term: Term,
    /// The last entry of its log.
    pub last: LogIndex,
    /// Everything up to here is committed, as far as it knows.
    pub committed: LogIndex,
    /// It may have lost entries, and does not vote.
    pub is_quarantined: bool,
    /// The members.
    pub members: Membership,
    /// How far the other members are, as their leader knows.
    pub others: Vec<MemberProgress>,
}

/// Changes that a host acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReplicaNews {
    reign: Option<Term>,
    is_quarantined: bool,
    has_ended: bool,
}

struct State<L: EntryLog> {
    member: GroupMember<L>,
    /// A flush that the member has ordered and the host has not begun.
    flush: Option<FlushOrder>,
    end: Option<ReplicaEnd>,
    /// The newest news that the host has got.
    told: ReplicaNews,
}

/// A replica on its host.
pub struct ReplicaDriver<H: ReplicaHost> {
    host: H,
    state: Mutex<State<H::Log>>,
    commits: ProgressWaits,
    flushes: ProgressWaits,
}

impl<H: ReplicaHost> ReplicaDriver<H> {
    /// A replica that has just started.
    ///
    /// # Errors
    /// The log cannot be read, or does not fit the vote.
    pub fn open(config: MemberConfig, host: H) -> Result<Self, ConsensusError> {
        let applied = host.applied();
        let told = ReplicaNews {
            reign: None,
            is_quarantined: config.may_have_lost,
            has_ended: false,
        };
        let member = GroupMember::new(config, host.log(), host.vote(), applied, applied.0)?;
        let driver = Self {
            host,
            state: Mutex::new(State {
                member,
                flush: None,
                end: None,
                told,
            }),
            commits: ProgressWaits::default(),
            flushes: ProgressWaits::default(),
        };
        driver.work(&mut driver.lock());
        Ok(driver)
    }

    /// The host that it runs on.
    pub fn host(&self) -> &H {
        &self.host
    }

    fn lock(&self) -> MutexGuard<'_, State<H::Log>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One tick of the host's clock.
    pub fn tick(&self) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.member.tick();
            self.work(&mut state);
        }
    }

    /// Takes in messages of other members.
    ///
    /// # Errors
    /// A message is refused; those before it were taken in.
    pub fn receive(&self, messages: &[PeerMessage]) -> Result<(), ConsensusError> {
        let mut state = self.lock();
        for message in messages {
            if state.end.is_some() {
                return Ok(());
            }
            match state.member.receive(message) {
                Err(ConsensusError::Diverged(_)) => {
                    self.end_with(&mut state, ReplicaEnd::Behind(Box::new(offer_of(message))));
                }
                Err(ConsensusError::Superseded(generation)) => {
                    self.end_with(&mut state, ReplicaEnd::Superseded(generation));
                }
                Err(older @ ConsensusError::OlderGeneration(_)) => {
                    // The sender is told.
                    self.work(&mut state);
                    return Err(older);
                }
                received => received?,
            }
            self.work(&mut state);
        }
        Ok(())
    }

    /// The end of the replica, once there is one.
    pub fn end(&self) -> Option<ReplicaEnd> {
        self.lock().end.clone()
    }

    /// Ends the replica: nothing is written or answered any more.
    pub fn stop(&self) {
        self.end_with(&mut self.lock(), ReplicaEnd::Failed(ErrorCode::NotReady));
    }

    /// The reign of this replica: its term, while it leads.
    pub fn reign(&self) -> Option<Term> {
        Self::reign_of(&self.lock())
    }

    fn reign_of(state: &State<H::Log>) -> Option<Term> {
        let leads = state.end.is_none() && state.member.role() == MemberRole::Leads;
        leads.then(|| state.member.term())
    }

    /// The member that leads, as far as this one knows.
    pub fn leader(&self) -> Option<ReplicaId> {
        let state = self.lock();
        match state.member.role() {
            MemberRole::Follows(leader) => Some(leader),
            _ => None,
        }
    }

    /// How far the replica is.
    pub fn status(&self) -> ReplicaStatus {
        let state = self.lock();
        let member = &state.member;
        ReplicaStatus {
            role: member.role(),
            term: member.term(),
            last: member.last(),
            committed: member.committed(),
            is_quarantined: member.is_quarantined(),
            members: member.members().clone(),
            others: member.others(),
        }
    }

    /// Whether this replica knows that `own` is a member, and whether `other` is one.
    pub fn has_members(&self, own: ReplicaId, other: ReplicaId) -> (bool, bool) {
        let state = self.lock();
        let members = state.member.members();
        (members.has(own), members.has(other))
    }

    /// Appends an effect and applies it; returns its place.
    ///
    /// # Errors
    /// `NotOwner` where the reign is over, `Overloaded` where too much waits for its commit; others
    /// where the store fails. The shard is then ahead of its log and must not serve on.
    pub fn append(&self, reign: Term, effect: &[KvChange]) -> Result<LogIndex, ErrorCode> {
        let mut state = self.lock();
        Self::must_reign(&state, reign)?;
        let bytes = self.host.encode(effect)?;
        let proposed = state.member.propose(bytes);
        let index = proposed.map_err(|error| refusal(&error))?;
        self.work(&mut state);
        match &state.end {
            None => Ok(index),
            Some(ReplicaEnd::Failed(code)) => Err(*code),
            Some(_) => Err(ErrorCode::NotOwner),
        }
    }

    /// Changes the members.
    ///
    /// # Errors
    /// `NotOwner` where this replica does not lead, `Busy` while another change is under way.
    pub fn change_members(&self, change: &MemberChange) -> Result<LogIndex, ErrorCode> {
        let mut state = self.lock();
        let proposed = state.member.propose_members(change);
        let index = proposed.map_err(|error| match error {
            ConsensusError::Busy => ErrorCode::Busy,
            other => refusal(&other),
        })?;
        self.work(&mut state);
        Ok(index)
    }

    /// Hands the lead over to another member.
    pub fn hand_over(&self, to: ReplicaId) {
        let mut state = self.lock();
        state.member.hand_over(to);
        self.work(&mut state);
    }

    /// The last entry: a reply that was decided now may depend on it.
    pub fn position(&self) -> LogIndex {
        self.lock().member.last()
    }

    /// Entries that wait for their commit.
    pub fn uncommitted(&self) -> u64 {
        let state = self.lock();
        state.member.last().0 - state.member.committed().0
    }

    /// Waits until everything up to `upto` is committed and no other member can lead: replies that
    /// depend on it may leave.
    ///
    /// # Errors
    /// `NotOwner` where the reign ends first: nobody knows whether the entries will be committed.
    pub async fn settled(&self, reign: Term, upto: LogIndex) -> Result<(), ErrorCode> {
        let mut wait = self.commits.begin(upto);
        poll_fn(|context| {
            let mut state = self.lock();
            if let Err(code) = Self::must_reign(&state, reign) {
                return Poll::Ready(Err(code));
            }
            state.member.set_time(self.host.ticks());
            if state.member.committed() >= upto && state.member.has_lease() {
                return Poll::Ready(Ok(()));
            }
            wait.set(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits until a snapshot of the state up to `upto` may be lent: entries that are not committed
    /// may be taken back. A leader that takes over lends what it has applied, which is committed.
    /// Without that it would wait for members that wait for the snapshot.
    ///
    /// # Errors
    /// `NotOwner` where this member does not lead, or its reign ends first.
    pub async fn lendable(&self, upto: LogIndex) -> Result<(), ErrorCode> {
        let reign = {
            let state = self.lock();
            let role = state.member.role();
            let leads = matches!(role, MemberRole::Leads | MemberRole::TakesOver);
            if leads && state.end.is_none() && state.member.committed() >= upto {
                return Ok(());
            }
            Self::reign_of(&state).ok_or(ErrorCode::NotOwner)?
        };
        self.settled(reign, upto).await
    }

    /// Waits until a majority has flushed everything up to `upto`.
    ///
    /// # Errors
    /// As [`Self::settled`].
    pub async fn durable(&self, reign: Term, upto: LogIndex) -> Result<(), ErrorCode> {
        {
            let mut state = self.lock();
            Self::must_reign(&state, reign)?;
            state.member.want_flush(upto);
            self.work(&mut state);
        }
        let mut wait = self.flushes.begin(upto);
        poll_fn(|context| {
            let state = self.lock();
            if let Err(code) = Self::must_reign(&state, reign) {
                return Poll::Ready(Err(code));
            }
            if state.member.durable() >= upto {
                return Poll::Ready(Ok(()));
            }
            wait.set(context.waker());
            Poll::Pending
        })
        .await
    }

    /// The flush to make now; the host flushes the log up to its index, and calls
    /// [`Self::flushed`] then.
    pub fn take_flush(&self) -> Option<FlushOrder> {
        self.lock().flush.take()
    }

    /// The host has flushed the log as ordered.
    pub fn flushed(&self, order: FlushOrder) {
        let mut state = self.lock();
        if state.end.is_none() {
            state.member.flushed(order);
            self.work(&mut state);
        }
    }

    /// The store has failed.
    pub fn fail(&self, code: ErrorCode) {
        self.end_with(&mut self.lock(), ReplicaEnd::Failed(code));
    }

    fn must_reign(state: &State<H::Log>, reign: Term) -> Result<(), ErrorCode> {
        match Self::reign_of(state) {
            Some(term) if term == reign => Ok(()),
            _ => Err(ErrorCode::NotOwner),
        }
    }

    /// Carries out all work of the member, and wakes those who waited for it.
    fn work(&self, state: &mut State<H::Log>) {
        state.member.set_time(self.host.ticks());
        while state.end.is_none() {
            let done = match state.member.take_work() {
                Ok(None) => break,
                Ok(Some(work)) => self.carry_out(state, work),
                Err(_damaged) => Err(ReplicaEnd::Failed(ErrorCode::Corrupt)),
            };
            if let Err(end) = done {
                return self.end_with(state, end);
            }
        }
        self.tell(state);
        if Self::reign_of(state).is_none() {
            self.commits.wake_all();
            self.flushes.wake_all();
            return;
        }
        if state.member.has_lease() {
            self.commits.wake_up_to(state.member.committed());
        }
        self.flushes.wake_up_to(state.member.durable());
    }

    fn carry_out(&self, state: &mut State<H::Log>, work: MemberWork) -> Result<(), ReplicaEnd> {
        let failed = ReplicaEnd::Failed;
        let host = &self.host;
        if state.told.is_quarantined && !state.member.is_quarantined() {
            // Before any message says so: who counts on this member finds it so after a kill, too.
            host.end_quarantine().map_err(failed)?;
            state.told.is_quarantined = false;
        }
        if let Some(vote) = work.vote {
            host.save_vote(vote).map_err(failed)?;
        }
        if let Some(offer) = work.install {
            return Err(ReplicaEnd::Behind(Box::new(offer)));
        }
        let applied = host.applied().0;
        if work
            .append
            .first()
            .is_some_and(|first| first.index <= applied)
        {
            return Err(ReplicaEnd::Replaced);
        }
        host.append(&work.append).map_err(failed)?;
        let mut members = work.members.into_iter().peekable();
        for entry in &work.committed {
            self.apply(entry).map_err(failed)?;
            if let Some((since, members)) = members.next_if(|(index, _)| *index == entry.index) {
                host.note_members(since, members).map_err(failed)?;
            }
        }
        if state.member.role() == MemberRole::Leads {
            // Its shard decides against its own effects.
            for entry in &work.append {
                self.apply(entry).map_err(failed)?;
            }
        }
        host.send(work.send);
        if work.flush.is_some() {
            state.flush = work.flush;
            host.request_flush();
        }
        let finished = state.member.finish();
        finished.map_err(|_damaged| failed(ErrorCode::Corrupt))
    }

    /// Applies an entry, unless it was applied at its append.
    fn apply(&self, entry: &LogEntry) -> Result<(), ErrorCode> {
        if entry.index > self.host.applied().0 {
            let changes = match &entry.body {
                EntryBody::Effect { bytes } => self.host.decode(&bytes.0)?,
                EntryBody::TermStart | EntryBody::Members { .. } => Vec::new(),
            };
            self.host.apply(entry, changes);
        }
        Ok(())
    }

    fn end_with(&self, state: &mut State<H::Log>, end: ReplicaEnd) {
        state.end.get_or_insert(end);
        self.commits.wake_all();
        self.flushes.wake_all();
        self.tell(state);
    }

    /// Tells the host what has changed.
    fn tell(&self, state: &mut State<H::Log>) {
        let news = ReplicaNews {
            reign: Self::reign_of(state),
            is_quarantined: state.told.is_quarantined,
            has_ended: state.end.is_some(),
        };
        if news == state.told {
            return;
        }
        state.told = news;
        self.host.note_change();
    }
}

/// The offer of a leader whose log contradicts entries that this member knows as committed. A
/// majority has lost its power, and unflushed entries with it. The member is to begin anew, if the
/// leader has a snapshot.
fn offer_of(message: &PeerMessage) -> SnapshotOffer {
    SnapshotOffer {
        from: message.from,
        point: SnapshotPoint {
            index: LogIndex(0),
            term: message.term,
            members: Membership::default(),
        },
    }
}

fn refusal(error: &ConsensusError) -> ErrorCode {
    match error {
        ConsensusError::NotLeader(_) => ErrorCode::NotOwner,
        ConsensusError::Busy => ErrorCode::Overloaded,
        _ => ErrorCode::Corrupt,
    }
}
