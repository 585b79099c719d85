//! Messages of a replica on their way to others: a lane for each other node, with a queue and a
//! thread.
//!
//! One call is under way on a lane. Messages that come meanwhile travel together in the next one,
//! so a slow network makes larger calls, not more of them. Messages for the node that a request
//! came from go back in its reply. Bounds: [`QUEUED_MAX`] messages in a lane, and [`CALL_BYTES`] in
//! a call; what is beyond is dropped, and Raft sends it again.
//!
//! The thread of a request that waits for a commit makes the calls by itself
//! ([`request_calls::RequestCalls`]). It sends to as many voters as a majority needs. The others
//! get the entries some at a time: [`BEHIND_MAX`], or those of a tick.
//! The lanes' threads make the others: those of ticks and of a replica that follows, and the ones
//! that no request waits for any more.
//!
//! *Invariants*:
//! 1. A lane's call has one owner: the lane itself ([`LaneCall::Left`]) or one thread.
//! 2. Messages in a lane are sent by a thread that knows of them, or at the next tick
//!    ([`Outbox::look`]).
//!
//! *Lock order*: `Outbox::state` is taken last, and never held while a socket is used.

use super::request_calls;
use crate::map_cache::MapCache;
use crate::peers::{PeerError, Peers, messages_of};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use zonal_consensus::{Membership, PeerMessage, ReplicaId};
use zonal_net::DetachedCall;
use zonal_types::{Codec, NodeId, ShardId};
use zonal_wait::Waiter;

/// Most messages that wait for one node.
const QUEUED_MAX: usize = 4_096;
/// Most bytes of messages in a call; one message alone may exceed them.
const CALL_BYTES: usize = 1 << 20;
/// Messages by which a voter may be behind that no commit waits for. Fewer wait for a tick.
const BEHIND_MAX: usize = 16;
/// How long a call may take, ms. Heartbeats wait behind it.
const CALL_MS: u32 = 1_000;

thread_local! {
    /// The node whose request this thread serves, and the messages that go back to it.
    static ANSWERING: RefCell<Option<(ReplicaId, Vec<PeerMessage>)>> = const { RefCell::new(None) };
}

/// The node of a replica: members are numbered by their nodes.
pub(super) fn node_of(member: ReplicaId) -> NodeId {
    NodeId(u32::try_from(member.0).unwrap_or(0))
}

/// The replica on a node.
pub(super) fn member_on(node: NodeId) -> ReplicaId {
    ReplicaId(node.0.into())
}

/// Takes the messages that come back in a reply.
pub(super) type Receive = Box<dyn Fn(NodeId, &[PeerMessage]) + Send + Sync>;

/// The lanes of one replica.
pub(super) struct Outbox {
    shard: ShardId,
    peers: Arc<Peers>,
    map: Arc<MapCache>,
    state: Mutex<OutboxState>,
    receive: Mutex<Option<Arc<Receive>>>,
}

#[derive(Default)]
pub(super) struct OutboxState {
    pub(super) lanes: BTreeMap<ReplicaId, Lane>,
    threads: Vec<JoinHandle<()>>,
    pub(super) is_stopping: bool,
    /// The thread of a request makes calls.
    pub(super) is_carried: bool,
    /// Threads of requests that wait for a commit, and do not make calls; the oldest first.
    pub(super) waiting: VecDeque<Thread>,
    /// History of waits for replies.
    pub(super) waiter: Waiter,
    /// The other voters; those that answered in time come first.
    voters: Vec<ReplicaId>,
    /// So many of them make a majority with this one; `None`: it is unknown, and all are needed.
    needed: Option<usize>,
}

/// The messages to one node.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) queue: VecDeque<PeerMessage>,
    pub(super) call: LaneCall,
    /// Its thread is to look at it.
    is_due: bool,
    due: Arc<Condvar>,
}

/// The call of a lane.
#[derive(Default)]
pub(super) enum LaneCall {
    /// None is under way.
    #[default]
    Free,
    /// The request was sent. Nobody waits for its reply.
    Left(Box<DetachedCall>),
    /// A thread has it.
    Taken,
}

/// The next step of a lane's thread.
enum LaneWork {
    Send(Vec<PeerMessage>),
    Finish(Box<DetachedCall>),
}

impl Lane {
    /// Has its thread look at it.
    pub(super) fn wake(&mut self) {
        self.is_due = true;
        self.due.notify_one();
    }

    /// Messages wait, and no call is under way.
    fn is_ready(&self) -> bool {
        matches!(self.call, LaneCall::Free) && !self.queue.is_empty()
    }

    /// All messages so far are on their way.
    fn is_under_way(&self) -> bool {
        !matches!(self.call, LaneCall::Free) && self.queue.is_empty()
    }

    /// A thread can send messages, or take an answer.
    fn has_work(&self) -> bool {
        self.is_ready() || matches!(self.call, LaneCall::Left(_))
    }

    fn take_work(&mut self) -> Option<LaneWork> {
        match std::mem::replace(&mut self.call, LaneCall::Taken) {
            LaneCall::Taken => None,
            LaneCall::Left(call) => Some(LaneWork::Finish(call)),
            LaneCall::Free if self.queue.is_empty() => {
                self.call = LaneCall::Free;
                None
            }
            LaneCall::Free => Some(LaneWork::Send(take_call(&mut self.queue))),
        }
    }
}

impl OutboxState {
    /// Has a request's thread that waits make the calls; false where none waits.
    pub(super) fn hand_to_waiting(&self) -> bool {
        if let Some(thread) = self.waiting.front()
            && self.lanes.values().any(Lane::has_work)
        {
            thread.unpark();
        }
        !self.waiting.is_empty()
    }

    /// Takes the messages of free lanes that a request's thread sends now. These are those for as
    /// many voters as a majority needs, and those of lanes with many. `to_all`: of all lanes.
    pub(super) fn take_ready(&mut self, to_all: bool) -> Vec<(ReplicaId, Vec<PeerMessage>)> {
        let others: Vec<ReplicaId> = self.lanes.keys().copied().collect();
        let others = others.iter().filter(|one| !self.voters.contains(one));
        let all: Vec<ReplicaId> = self.voters.iter().chain(others).copied().collect();
        let is_under_way = |one: &&ReplicaId| self.lanes.get(one).is_some_and(Lane::is_under_way);
        let under_way = self.voters.iter().filter(is_under_way).count();
        let mut wanted = match self.needed {
            Some(needed) if !to_all => needed.saturating_sub(under_way),
            _ => usize::MAX,
        };
        let mut taken = Vec::new();
        for to in all {
            let Some(lane) = self.lanes.get_mut(&to) else {
                continue;
            };
            if !lane.is_ready() || lane.is_due || (wanted == 0 && lane.queue.len() < BEHIND_MAX) {
                continue;
            }
            wanted = wanted.saturating_sub(1);
            lane.call = LaneCall::Taken;
            taken.push((to, take_call(&mut lane.queue)));
        }
        taken
    }

    /// A voter has not answered in time: others are asked before it.
    pub(super) fn note_late(&mut self, late: ReplicaId) {
        // A stable sort: the others keep their order.
        self.voters.sort_by_key(|one| *one == late);
    }

    /// Has the lanes' threads send what waits in lanes with many messages; of all lanes, where the
    /// voters are unknown.
    pub(super) fn hand_full_to_lanes(&mut self) {
        let least = match self.needed {
            Some(_) => BEHIND_MAX,
            None => 1,
        };
        for lane in self.lanes.values_mut() {
            if lane.is_ready() && lane.queue.len() >= least {
                lane.wake();
            }
        }
    }

    /// Has the lanes' threads finish all calls, and send what waits.
    pub(super) fn hand_to_lanes(&mut self) {
        for lane in self.lanes.values_mut() {
            if lane.has_work() || !lane.queue.is_empty() {
                lane.wake();
            }
        }
    }
}

impl Outbox {
    pub(super) fn new(shard: ShardId, peers: Arc<Peers>, map: Arc<MapCache>) -> Arc<Self> {
        Arc::new(Self {
            shard,
            peers,
            map,
            state: Mutex::default(),
            receive: Mutex::default(),
        })
    }

    /// Sets the members of the group, of which `own` is this one.
    pub(super) fn set_members(&self, own: ReplicaId, members: &Membership) {
        let mut state = self.state();
        let voters = members.voters.iter().copied();
        state.voters = voters.filter(|one| *one != own).collect();
        // While the members change there are two majorities.
        state.needed = members
            .outgoing
            .is_empty()
            .then_some(members.voters.len() / 2);
    }

    pub(super) fn state(&self) -> MutexGuard<'_, OutboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets where messages of replies go; `None`: nowhere, and nothing is sent any more.
    pub(super) fn deliver_to(&self, receive: Option<Receive>) {
        let mut state = self.state();
        state.lanes.values_mut().for_each(|lane| lane.queue.clear());
        drop(state);
        let mut place = self.receive.lock().unwrap_or_else(PoisonError::into_inner);
        *place = receive.map(Arc::new);
    }

    fn receiver(&self) -> Option<Arc<Receive>> {
        let place = self.receive.lock().unwrap_or_else(PoisonError::into_inner);
        place.clone()
    }

    /// Runs `serve`, and returns the messages that it has for the node `from`, as many as a reply
    /// takes; the others are sent.
    pub(super) fn answering(
        self: &Arc<Self>,
        from: NodeId,
        serve: impl FnOnce(),
    ) -> Vec<PeerMessage> {
        let node = member_on(from);
        ANSWERING.with_borrow_mut(|place| *place = Some((node, Vec::new())));
        serve();
        let answered = ANSWERING.with_borrow_mut(Option::take);
        let mut queue: VecDeque<PeerMessage> =
            answered.map_or_else(VecDeque::new, |(_, messages)| messages.into());
        let back = take_call(&mut queue);
        self.add(queue.into());
        back
    }

    /// Adds messages to the lanes of their receivers. A thread that makes calls for a request sends
    /// them by itself.
    pub(super) fn add(self: &Arc<Self>, messages: Vec<PeerMessage>) {
        let sends = request_calls::is_by(self);
        for message in messages {
            let message = ANSWERING.with_borrow_mut(|place| match place {
                Some((node, back)) if *node == message.to => {
                    back.push(message);
                    None
                }
                _ => Some(message),
            });
            let Some(message) = message else {
                continue;
            };
            let mut state = self.state();
            if state.is_stopping {
                return;
            }
            let to = message.to;
            if !state.lanes.contains_key(&to) {
                let outbox = Arc::clone(self);
                let thread = std::thread::Builder::new().name("replica-calls".into());
                match thread.spawn(move || outbox.run(to)) {
                    Ok(thread) => state.threads.push(thread),
                    // Raft sends again.
                    Err(_no_thread) => return,
                }
            }
            let lane = state.lanes.entry(to).or_default();
            if lane.queue.len() >= QUEUED_MAX {
                lane.queue.pop_front();
            }
            lane.queue.push_back(message);
            if !sends {
                lane.wake();
            }
        }
    }

    /// Closes idle connections.
    #[cfg(test)]
    pub(super) fn forget_connections(&self) {
        self.peers.close_idle();
    }

    /// A tick: has the lanes' threads do what no request's thread has done.
    pub(super) fn look(&self) {
        let mut state = self.state();
        if !state.is_carried {
            state.hand_to_lanes();
        }
    }

    /// Makes the calls of a lane that are due, until [`Self::stop`].
    fn run(&self, to: ReplicaId) {
        while let Some(work) = self.next(to) {
            let asked = match work {
                LaneWork::Send(messages) => {
                    let payload = messages.to_bytes();
                    let node = node_of(to);
                    self.peers
                        .exchange(&self.map, node, self.shard, &payload, CALL_MS)
                }
                LaneWork::Finish(call) => messages_of(*call),
            };
            let has_failed = asked.is_err();
            self.take_in(to, asked);
            if has_failed {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.free(to);
        }
    }

    /// Sends encoded messages on an idle connection; `None` where there is none.
    pub(super) fn begin(
        &self,
        to: ReplicaId,
        messages: &[u8],
    ) -> Result<Option<Box<DetachedCall>>, PeerError> {
        let limit = Duration::from_millis(CALL_MS.into());
        let begun =
            self.peers
                .begin_exchange(&self.map, node_of(to), self.shard, messages, limit)?;
        Ok(begun.map(Box::new))
    }

    /// Takes in the messages of a reply.
    pub(super) fn take_in(&self, from: ReplicaId, asked: Result<Vec<u8>, PeerError>) {
        if asked.is_err() {
            self.state().note_late(from);
        }
        let node = node_of(from);
        match asked {
            Ok(back) if back.is_empty() => {}
            Ok(back) => match (Vec::<PeerMessage>::from_bytes(&back), self.receiver()) {
                (Ok(back), Some(receive)) => receive(node, &back),
                (Ok(_), None) => {}
                (Err(_garbled), _) => {
                    tracing::warn!(
                        node = node.0,
                        "a replica sent messages that cannot be decoded"
                    );
                }
            },
            Err(error) => {
                tracing::debug!(%error, node = node.0, shard = self.shard.0, "no answer of a replica");
            }
        }
    }

    /// Ends the call of a lane's thread. A request that waits goes before the thread.
    fn free(&self, to: ReplicaId) {
        let mut state = self.state();
        if let Some(lane) = state.lanes.get_mut(&to) {
            lane.call = LaneCall::Free;
        }
        let is_left = state.is_carried || !state.hand_to_waiting();
        if let Some(lane) = state.lanes.get_mut(&to) {
            lane.is_due = is_left && !lane.queue.is_empty();
        }
    }

    fn next(&self, to: ReplicaId) -> Option<LaneWork> {
        let mut state = self.state();
        loop {
            if state.is_stopping {
                return None;
            }
            let lane = state.lanes.entry(to).or_default();
            if std::mem::take(&mut lane.is_due)
                && let Some(work) = lane.take_work()
            {
                return Some(work);
            }
            let due = Arc::clone(&lane.due);
            state = due.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the threads.
    pub(super) fn stop(&self) {
        let threads = {
            let mut state = self.state();
            state.is_stopping = true;
            state.lanes.values_mut().for_each(Lane::wake);
            std::mem::take(&mut state.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Takes messages from the front, as many as travel in one call.
fn take_call(queue: &mut VecDeque<PeerMessage>) -> Vec<PeerMessage> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while let Some(next) = queue.front() {
        bytes += size_of_message(next);
        if bytes > CALL_BYTES && !taken.is_empty() {
            break;
        }
        taken.extend(queue.pop_front());
    }
    taken
}

/// About how many bytes a message has.
fn size_of_message(message: &PeerMessage) -> usize {
    let entries = message.raft.iter().flat_map(|part| &part.entries);
    let bytes = entries.map(|entry| match &entry.body {
        zonal_consensus::EntryBody::Effect { bytes } => bytes.0.len() + 32,
        _ => 64,
    });
    200 + bytes.sum::<usize>()
}
