//! Calls of a replica to two others, over loopback: which thread makes them.

use super::*;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use std::sync::{Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Instant;
use zonal_net::{
    Handler, Identity, ListenConfig, Listeners, Peer, Pool, PoolConfig, ReplyBuilder, Role,
    ServerConfig, ServerHandle, serve,
};
use zonal_types::{CellId, NodeId, ShardId, ZoneId};
use zonal_wire::{Header, ReplicaReply};
use zonal_zonemap::{MapEdit, ZoneMap};

const CELL: CellId = CellId([5; 16]);
const SHARD: ShardId = ShardId(1);
const OWN: ReplicaId = ReplicaId(9);
/// Longer than any of these tests takes.
const LONG: Duration = Duration::from_secs(20);

fn message(from: ReplicaId, to: ReplicaId) -> PeerMessage {
    PeerMessage {
        generation: 1,
        group: 1,
        from,
        to,
        life: 1,
        term: zonal_consensus::Term(1),
        is_quarantined: false,
        released: 0,
        clock: 0,
        echo: 0,
        flushed: zonal_consensus::LogIndex(0),
        wanted: zonal_consensus::LogIndex(0),
        raft: None,
    }
}

/// A replica that answers each call with one message, once its gate is open.
struct Follower {
    own: ReplicaId,
    is_shut: Arc<(Mutex<bool>, Condvar)>,
}

impl Handler for Follower {
    fn handle(
        &self,
        _peer: &Peer,
        _header: &Header,
        _body: &[u8],
        _payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        let (is_shut, opened) = &*self.is_shut;
        let guard = is_shut.lock().unwrap();
        drop(opened.wait_while(guard, |is_shut| *is_shut).unwrap());
        let bytes = vec![message(self.own, OWN)].to_bytes();
        reply.payload_mut(bytes.len()).copy_from_slice(&bytes);
        reply.message(&ReplicaReply::Exchanged);
    }
}

/// Answers that a replica has taken in: from whom, and on which thread.
type Answers = Arc<Mutex<Vec<(NodeId, ThreadId)>>>;

/// A replica on node 9, beside those on nodes 1 and 2.
struct Group {
    outbox: Arc<Outbox>,
    answers: Answers,
    gates: Vec<Arc<(Mutex<bool>, Condvar)>>,
    _servers: Vec<ServerHandle>,
}

impl Group {
    fn new() -> Self {
        let (mut servers, mut gates, mut edits) = (Vec::new(), Vec::new(), Vec::new());
        for node in [1, 2].map(NodeId) {
            let identity = Identity::new(CELL, Role::Server, node, None);
            let listen = ListenConfig {
                has_unix: false,
                ..ListenConfig::one("127.0.0.1:0".parse().unwrap())
            };
            let listeners = Listeners::bind(&listen, &identity).unwrap();
            let is_shut: Arc<(Mutex<bool>, Condvar)> = Arc::default();
            gates.push(Arc::clone(&is_shut));
            let own = ReplicaId(node.0.into());
            let follower = Arc::new(Follower { own, is_shut });
            let server = serve(listeners, ServerConfig::new(identity), follower).unwrap();
            edits.push(MapEdit::Join {
                node,
                zone: ZoneId(1),
                zone_name: String::new(),
                address: server.addresses()[0].to_string(),
                shard: (node == NodeId(1)).then_some(SHARD),
                targets: Vec::new(),
            });
            servers.push(server);
        }
        let map = Arc::new(MapCache::here(CELL));
        map.publish(Arc::new(
            ZoneMap::new(CELL).edited(&edits).unwrap().unwrap(),
        ));
        let own = Identity::new(CELL, Role::Server, NodeId(9), None);
        let pool = Pool::new(own, PoolConfig::default());
        let peers = Arc::new(Peers::new(Arc::new(pool), CELL));
        let outbox = Outbox::new(SHARD, peers, map);
        let answers = Answers::default();
        let taken = Arc::clone(&answers);
        outbox.deliver_to(Some(Box::new(move |from, _messages| {
            let thread = std::thread::current().id();
            taken.lock().unwrap().push((from, thread));
        })));
        let group = Self {
            outbox,
            answers,
            gates,
            _servers: servers,
        };
        // Connects: the lanes' threads do that.
        group.add();
        group.wait_for(2);
        while !group.is_free() {
            std::thread::yield_now();
        }
        group.answers.lock().unwrap().clear();
        group
    }

    /// Adds a message to each of the others.
    fn add(&self) {
        let others = [1, 2].map(ReplicaId);
        self.outbox.add(others.map(|to| message(OWN, to)).into());
    }

    fn is_free(&self) -> bool {
        let state = self.outbox.state();
        let mut lanes = state.lanes.values();
        lanes.all(|lane| matches!(lane.call, LaneCall::Free) && lane.queue.is_empty())
    }

    fn answers(&self) -> Vec<(NodeId, ThreadId)> {
        self.answers.lock().unwrap().clone()
    }

    fn wait_for(&self, count: usize) {
        let end = Instant::now() + LONG;
        while self.answers().len() < count {
            assert!(Instant::now() < end, "{:?}", self.answers());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn set_shut(&self, at: usize, shut: bool) {
        let (is_shut, opened) = &*self.gates[at];
        *is_shut.lock().unwrap() = shut;
        opened.notify_all();
    }

    /// Calls of a request to which nobody is late.
    fn patient_calls(&self) -> RequestCalls {
        let mut calls = RequestCalls::begin(&self.outbox);
        calls.late = LONG;
        calls
    }

    /// Carries until so many answers were taken in, as a request does that waits for them.
    fn carry_until(&self, calls: &mut RequestCalls, count: usize) {
        while self.answers().len() < count {
            assert!(calls.carry(LONG), "another thread carries");
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        (0..2).for_each(|at| self.set_shut(at, false));
        self.outbox.stop();
    }
}

#[test]
fn the_thread_of_a_request_makes_its_calls_and_wakes_no_other() {
    let group = Group::new();
    let own = std::thread::current().id();
    for round in 1..20 {
        let mut calls = RequestCalls::begin(&group.outbox);
        group.add();
        group.carry_until(&mut calls, 2 * round);
        calls.end();
    }
    assert!(group.answers().iter().all(|(_, thread)| *thread == own));
    assert_eq!(group.answers().len(), 38);
}

#[test]
fn an_answer_that_comes_late_is_taken_by_the_next_request_or_at_the_next_tick() {
    let group = Group::new();
    let own = std::thread::current().id();
    group.set_shut(1, true);
    let mut calls = RequestCalls::begin(&group.outbox);
    group.add();
    group.carry_until(&mut calls, 1);
    calls.end();
    assert_eq!(group.answers(), [(NodeId(1), own)]);
    // The next request is not held up either.
    let mut calls = RequestCalls::begin(&group.outbox);
    group.add();
    group.carry_until(&mut calls, 2);
    calls.end();
    group.set_shut(1, false);
    let mut calls = RequestCalls::begin(&group.outbox);
    group.carry_until(&mut calls, 3);
    calls.end();
    assert!(group.answers().iter().all(|(_, thread)| *thread == own));
    // The message that waited behind the late answer.
    group.outbox.look();
    group.wait_for(4);
    assert_ne!(group.answers()[3].1, own);
}

#[test]
fn a_request_that_waits_carries_on_after_the_first() {
    let group = Group::new();
    group.set_shut(1, true);
    let mut first = RequestCalls::begin(&group.outbox);
    group.add();
    group.carry_until(&mut first, 1);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut calls = RequestCalls::begin(&group.outbox);
            group.add();
            while group.answers().len() < 4 {
                if !calls.carry(LONG) {
                    std::thread::park_timeout(LONG);
                }
            }
            calls.end();
            std::thread::current().id()
        });
        while group.outbox.state().waiting.is_empty() {
            std::thread::yield_now();
        }
        group.set_shut(1, false);
        first.end();
        let second = second.join().unwrap();
        assert!(group.answers()[1..].iter().all(|(_, by)| *by == second));
    });
}

#[test]
fn calls_of_a_request_that_is_parked_are_left_to_the_lanes() {
    let group = Group::new();
    let own = std::thread::current().id();
    let calls = RequestCalls::begin(&group.outbox);
    group.add();
    drop(calls);
    group.wait_for(2);
    assert!(group.answers().iter().all(|(_, thread)| *thread != own));
    // A thread that waits for something else leaves its messages, too.
    let calls = RequestCalls::begin(&group.outbox);
    group.add();
    leave_to_others();
    group.wait_for(4);
    calls.end();
}

#[test]
fn calls_to_a_server_that_is_gone_are_left_to_its_lane() {
    let group = Group::new();
    group.set_shut(1, true);
    group.outbox.forget_connections();
    let mut calls = RequestCalls::begin(&group.outbox);
    group.add();
    assert!(!calls.carry(LONG), "connecting may take long");
    group.wait_for(1);
    calls.end();
    group.set_shut(1, false);
    group.wait_for(2);
}

/// Entries at once for as many as a majority needs: the other voter gets them some at a time.
#[test]
fn a_group_of_three_sends_each_entry_to_one_voter_at_once() {
    let group = Group::new();
    let voters = [1, 2, 9].map(ReplicaId);
    let members = zonal_consensus::Membership::of_voters(voters);
    group.outbox.set_members(OWN, &members);
    let waits_for_second = || group.outbox.state().lanes[&ReplicaId(2)].queue.len();
    for round in 1..16 {
        let mut calls = group.patient_calls();
        group.add();
        group.carry_until(&mut calls, round);
        calls.end();
        assert_eq!(waits_for_second(), round);
    }
    assert!(group.answers().iter().all(|(from, _)| *from == NodeId(1)));
    // The sixteenth goes to both.
    let mut calls = group.patient_calls();
    group.add();
    group.carry_until(&mut calls, 17);
    calls.end();
    assert_eq!(waits_for_second(), 0);
    // Fewer wait for a tick.
    let mut calls = group.patient_calls();
    group.add();
    group.carry_until(&mut calls, 18);
    calls.end();
    group.outbox.look();
    group.wait_for(19);
    assert_eq!(group.answers()[18].0, NodeId(2));
}

#[test]
fn a_voter_that_is_late_is_asked_after_the_others() {
    let group = Group::new();
    let voters = [1, 2, 9].map(ReplicaId);
    let members = zonal_consensus::Membership::of_voters(voters);
    group.outbox.set_members(OWN, &members);
    group.set_shut(0, true);
    for round in 1..4 {
        let mut calls = RequestCalls::begin(&group.outbox);
        group.add();
        group.carry_until(&mut calls, round);
        calls.end();
    }
    assert!(group.answers().iter().all(|(from, _)| *from == NodeId(2)));
    // It is not waited for any more: its messages wait behind its late answer.
    assert_eq!(group.outbox.state().lanes[&ReplicaId(1)].queue.len(), 2);
    group.set_shut(0, false);
    group.outbox.look();
    group.wait_for(4);
}
