//! A shard with several replicas: which of them is asked, how long it is waited for, and what is
//! left as with one.

use crate::cell::ClientOptions;
use crate::cell::session::SlotPlace;
use crate::client::Client;
use crate::transport::net::{Message, Net, NetFailure, ServerReply};
use crate::transport::operation::OperationContext;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use zonal_types::limits::{REPLICA_ATTEMPT_MS, REQUEST_DEADLINE_MS};
use zonal_types::{
    Blob, CellId, ClientId, Codec, Epoch, ErrorCode, Instant, MapVersion, NodeId, SessionId,
    ShardId, Timestamp, ZoneId,
};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, ManagerReply, MetaReply, MetaRequest, Service};
use zonal_zonemap::{MapEdit, ZoneMap};

/// The shard of the tests; node 1 owns it.
const SHARD: ShardId = ShardId(1);

/// A node as the shard's replica.
#[derive(Clone, Copy)]
enum Replica {
    Leads,
    /// It names the leader; 0: it knows none.
    Names(u32),
    /// Nothing listens.
    Gone,
    Stopped,
    Refuses(ErrorCode),
}
use Replica::{Gone, Leads, Names, Refuses, Stopped};

/// A message to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    node: u32,
    request: &'static str,
    deadline_ms: u32,
    slot: (u32, u32),
    session: u64,
}

#[derive(Default)]
struct Scene {
    now_ms: u64,
    map: Option<ZoneMap>,
    replicas: BTreeMap<u32, Replica>,
    asked: Vec<Asked>,
    managers_asked: u32,
    manager_is_stopped: bool,
    /// The version that shards name in their replies.
    newest: MapVersion,
}

/// A network of replicas and a manager, on which time passes only in waits.
#[derive(Clone, Default)]
struct ScriptedNet(Arc<Mutex<Scene>>);

impl ScriptedNet {
    fn answer(&self, header: &Header, node: u32, body: &[u8]) -> Result<Vec<u8>, NetFailure> {
        let mut scene = self.0.lock().unwrap();
        if header.service == Service::Manager {
            scene.managers_asked += 1;
            if scene.manager_is_stopped {
                scene.now_ms += u64::from(header.deadline_ms);
                return Err(NetFailure::TimedOut);
            }
            let map = scene.map.as_ref().expect("a map");
            let (version, part) = (map.version, map.to_bytes());
            let reply = ManagerReply::MapPart {
                version,
                newest: version,
                bytes: part.len() as u64,
                offset: 0,
                part: Blob(part),
            };
            return Ok(reply.to_bytes());
        }
        let request = MetaRequest::from_bytes(body).expect("a request");
        scene.asked.push(Asked {
            node,
            request: request.name(),
            deadline_ms: header.deadline_ms,
            slot: (header.slot, header.sequence),
            session: header.session.0,
        });
        let reply = match scene.replicas.get(&node).copied().unwrap_or(Gone) {
            Gone => return Err(NetFailure::Unreachable),
            Stopped => {
                scene.now_ms += u64::from(header.deadline_ms);
                return Err(NetFailure::TimedOut);
            }
            Names(leader) => MetaReply::NotLeader {
                leader: NodeId(leader),
            },
            Refuses(code) => MetaReply::Failed {
                code: ErrorNumber(code),
            },
            Leads => match request {
                MetaRequest::OpenSession { .. } => MetaReply::Session {
                    session: SessionId(5),
                    boot: 1,
                    epoch: Epoch(1),
                    term_ms: 60_000,
                    now: Timestamp::default(),
                    resumed: false,
                },
                MetaRequest::StatFs => MetaReply::StatFs {
                    inodes: 3,
                    names_left: 4,
                },
                MetaRequest::PollEvents { .. } => MetaReply::Events {
                    boot: 1,
                    lease_ms: 0,
                    events: Vec::new(),
                },
                _other => MetaReply::Done,
            },
        };
        Ok(reply.to_bytes())
    }
}

impl Net for ScriptedNet {
    type Pending = Result<ServerReply, NetFailure>;
    type Sink = ();

    fn now(&self) -> Instant {
        Instant(0).plus_ms(self.0.lock().unwrap().now_ms)
    }

    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }

    fn random(&self) -> u64 {
        7
    }

    async fn sleep(&self, _context: &OperationContext, ms: u64) {
        self.0.lock().unwrap().now_ms += ms;
    }

    fn start(
        &self,
        _context: &OperationContext,
        _address: &str,
        message: &Message<'_>,
    ) -> Result<Self::Pending, NetFailure> {
        let answer = self.answer(&message.header, message.node.0, message.body);
        let mut header = message.header;
        header.map_version = self.0.lock().unwrap().newest;
        Ok(answer.map(|body| ServerReply {
            header,
            body,
            payload_bytes: 0,
        }))
    }

    async fn finish(
        &self,
        _context: &OperationContext,
        pending: Self::Pending,
        _payload: Option<&mut [u8]>,
    ) -> Result<ServerReply, NetFailure> {
        pending
    }

    async fn await_first(
        &self,
        _context: &OperationContext,
        pending: &[&Self::Pending],
        _ms: u64,
    ) -> Option<usize> {
        (!pending.is_empty()).then_some(0)
    }

    fn suits_sink(&self, _address: &str, _node: NodeId) -> bool {
        false
    }

    async fn finish_into(
        &self,
        _context: &OperationContext,
        pending: Self::Pending,
        _sink: &mut (),
        _bytes: usize,
    ) -> Result<ServerReply, NetFailure> {
        pending
    }

    fn complain(&self, _: &OperationContext, _: &str, _: &str, _: NetFailure) {}
}

/// The result of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("a client waits"),
    }
}

/// A client and the network of a shard with these replicas, on the nodes from 1 on.
struct Group {
    net: ScriptedNet,
    client: Client<ScriptedNet>,
}

fn map(replicas: &[u32]) -> ZoneMap {
    let join = |node: u32| MapEdit::Join {
        node: NodeId(node),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: format!("127.0.0.1:{}", 7000 + node),
        shard: (node == 1).then_some(SHARD),
        targets: Vec::new(),
    };
    let mut edits: Vec<MapEdit> = (1..=4).map(join).collect();
    edits.push(MapEdit::SetReplicas {
        shard: SHARD,
        replicas: replicas.iter().copied().map(NodeId).collect(),
    });
    let map = ZoneMap::new(CellId([1; 16]));
    map.edited(&edits).expect("edits").expect("a change")
}

impl Group {
    fn new(replicas: &[Replica]) -> Self {
        let nodes: Vec<u32> = (1..=replicas.len() as u32).collect();
        let net = ScriptedNet::default();
        {
            let mut scene = net.0.lock().unwrap();
            scene.map = Some(map(&nodes));
            scene.replicas = nodes.into_iter().zip(replicas.iter().copied()).collect();
        }
        let options = ClientOptions::new("manager", ZoneId(1), ClientId(9));
        let client = ready(Client::connect(net.clone(), options)).expect("a map");
        net.0.lock().unwrap().managers_asked = 0;
        Self { net, client }
    }

    fn becomes(&self, node: u32, replica: Replica) {
        self.net.0.lock().unwrap().replicas.insert(node, replica);
    }

    fn ask(&self, request: &MetaRequest) -> Result<MetaReply, ErrorCode> {
        ready(self.client.begin().meta(&self.client.link(SHARD), request))
    }

    /// Nodes that a request asks, those of opening the session too.
    fn statfs(&self) -> (Result<(), ErrorCode>, Vec<u32>) {
        self.asked();
        let outcome = self.ask(&MetaRequest::StatFs).map(|_figures| ());
        let asked = self.asked().into_iter();
        (outcome, asked.map(|asked| asked.node).collect())
    }

    /// Takes the messages since the last call.
    fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.net.0.lock().unwrap().asked)
    }

    fn now_ms(&self) -> u64 {
        self.net.0.lock().unwrap().now_ms
    }

    /// A group whose first replica leads, and has given the client a session.
    fn led(replicas: &[Replica]) -> Self {
        let group = Self::new(replicas);
        assert_eq!(group.statfs().0, Ok(()));
        group
    }
}

#[test]
fn a_shard_with_one_replica_gets_one_message_a_request() {
    let group = Group::new(&[Leads]);
    assert_eq!(group.statfs(), (Ok(()), vec![1, 1]), "with the session's");
    assert_eq!(group.statfs(), (Ok(()), vec![1]));
    group.becomes(1, Stopped);
    group.ask(&MetaRequest::StatFs).unwrap_err();
    let waits: Vec<u32> = group
        .asked()
        .iter()
        .map(|asked| asked.deadline_ms)
        .collect();
    assert_eq!(waits[0], REQUEST_DEADLINE_MS as u32, "a whole attempt");
    assert_eq!(group.net.0.lock().unwrap().managers_asked, 0);
}

#[test]
fn the_leader_that_a_replica_names_is_asked_at_once_and_remembered() {
    let group = Group::new(&[Names(3), Names(3), Leads]);
    assert_eq!(group.statfs(), (Ok(()), vec![1, 3, 3]));
    assert_eq!(group.statfs(), (Ok(()), vec![3]));
    assert_eq!(group.now_ms(), 0, "no pause");
    assert_eq!(group.net.0.lock().unwrap().managers_asked, 0);
}

#[test]
fn without_a_known_leader_the_replicas_are_asked_in_turn() {
    let group = Group::led(&[Leads, Names(0), Names(0)]);
    group.becomes(1, Names(0));
    group.becomes(3, Leads);
    assert_eq!(group.statfs(), (Ok(()), vec![1, 2, 3]));
    assert!(group.now_ms() > 0, "after two in vain there is a pause");
    assert_eq!(group.statfs(), (Ok(()), vec![3]));
}

#[test]
fn a_wrongly_named_leader_keeps_nobody_from_the_right_one() {
    let group = Group::led(&[Leads, Names(1), Names(1)]);
    group.becomes(1, Gone);
    group.becomes(3, Leads);
    assert_eq!(group.statfs(), (Ok(()), vec![1, 2, 1, 3]));
    assert_eq!(group.statfs(), (Ok(()), vec![3]));
}

#[test]
fn a_stopped_leader_is_waited_for_briefly() {
    let group = Group::led(&[Leads, Names(3), Names(0)]);
    group.becomes(1, Stopped);
    group.becomes(3, Leads);
    assert_eq!(group.statfs(), (Ok(()), vec![1, 2, 3]));
    assert!(group.now_ms() < 3_000, "{} ms", group.now_ms());
}

#[test]
fn replicas_without_processes_are_a_time_out() {
    let group = Group::led(&[Leads, Names(1), Names(1)]);
    for node in 1..=3 {
        group.becomes(node, Gone);
    }
    // A majority may come back, elsewhere too. EIO says that the process is gone for good.
    assert_eq!(group.statfs().0, Err(ErrorCode::TimedOut));
}

#[test]
fn a_poll_that_fails_goes_on_to_the_next_replica() {
    let group = Group::led(&[Leads, Leads, Names(1)]);
    group.becomes(1, Stopped);
    group.asked();
    let poll = MetaRequest::PollEvents {
        boot: 1,
        acked: 0,
        wait_ms: 1_250,
    };
    assert!(group.ask(&poll).is_ok());
    let waits = group.asked().into_iter();
    let waits: Vec<_> = waits.map(|asked| (asked.node, asked.deadline_ms)).collect();
    let both = REPLICA_ATTEMPT_MS as u32 + 1_250;
    assert_eq!(waits, [(1, both), (2, both)], "the poll's wait is added");
}

#[test]
fn a_change_keeps_session_slot_and_sequence_at_all_replicas() {
    let group = Group::led(&[Leads, Names(3), Names(0)]);
    group.becomes(1, Gone);
    group.becomes(3, Leads);
    group.asked();
    let link = group.client.link(SHARD);
    let mut place = SlotPlace::new(4);
    let call = group.client.begin();
    let deadline = call.deadline();
    let reply = ready(call.ask(&link, &MetaRequest::DropLeases, Some(&mut place), deadline));
    assert_eq!(reply, Ok(MetaReply::Done));
    let asked = group.asked();
    let nodes: Vec<u32> = asked.iter().map(|asked| asked.node).collect();
    assert_eq!(nodes, [1, 2, 3]);
    for asked in asked {
        assert_eq!((asked.session, asked.slot), (5, (4, 1)), "{asked:?}");
    }
}

#[test]
fn a_group_without_a_leader_is_a_timeout_and_then_a_silent_server() {
    let group = Group::led(&[Leads, Names(0), Names(0)]);
    group.becomes(1, Names(0));
    let begun = group.now_ms();
    let (outcome, asked) = group.statfs();
    assert_eq!(outcome, Err(ErrorCode::TimedOut));
    let took = group.now_ms() - begun;
    assert!((10_000..13_000).contains(&took), "{took} ms");
    assert!(asked.len() < 60, "with pauses: {}", asked.len());
    let begun = group.now_ms();
    assert_eq!(group.statfs().0, Err(ErrorCode::TimedOut));
    assert!(group.now_ms() - begun < 2_000, "the next waits briefly");
    group.becomes(2, Leads);
    assert_eq!(group.statfs().0, Ok(()));
    assert_eq!(group.statfs(), (Ok(()), vec![2]));
}

#[test]
fn an_answer_of_another_replica_ends_the_deadline_that_a_dead_one_began() {
    let group = Group::led(&[Leads, Leads, Leads]);
    group.becomes(1, Stopped);
    let (call, link) = (group.client.begin(), group.client.link(SHARD));
    assert!(ready(call.meta(&link, &MetaRequest::StatFs)).is_ok());
    assert_eq!(call.context().ends(), None);
}

#[test]
fn a_replica_that_has_not_the_shard_is_passed_over() {
    let group = Group::led(&[Leads, Leads, Leads]);
    group.becomes(1, Refuses(ErrorCode::NotOwner));
    assert_eq!(group.statfs(), (Ok(()), vec![1, 2]));
}

#[test]
fn a_replica_that_a_newer_map_has_not_is_asked_no_more() {
    let group = Group::led(&[Names(3), Names(3), Leads]);
    let mut newer = map(&[1, 2, 4]);
    newer.version = MapVersion(9);
    group.net.0.lock().unwrap().map = Some(newer);
    group.becomes(1, Leads);
    ready(group.client.begin().refresh_map()).unwrap();
    assert_eq!(group.statfs(), (Ok(()), vec![1]));
}

#[test]
fn a_refusal_by_a_shard_that_had_one_replica_leads_to_a_newer_map() {
    let group = Group::led(&[Leads]);
    let mut newer = map(&[1, 2, 3]);
    newer.version = MapVersion(9);
    group.net.0.lock().unwrap().map = Some(newer);
    group.becomes(1, Names(2));
    group.becomes(2, Leads);
    assert_eq!(group.statfs(), (Ok(()), vec![1, 1, 2]));
}

#[test]
fn requests_sent_together_go_on_to_the_leader() {
    let group = Group::led(&[Leads, Names(3), Names(1)]);
    group.becomes(1, Names(3));
    group.becomes(3, Leads);
    group.asked();
    let call = group.client.begin();
    let call = call.briefly(500);
    let requests = [(group.client.link(SHARD), MetaRequest::StatFs)];
    let replies = ready(call.ask_together(&requests));
    assert!(matches!(replies[..], [Ok(MetaReply::StatFs { .. })]));
    let asked: Vec<u32> = group.asked().iter().map(|asked| asked.node).collect();
    assert_eq!(asked, [1, 3]);
}

#[test]
fn a_session_opens_soon_beside_a_silent_manager_with_a_newer_map() {
    let group = Group::new(&[Leads]);
    {
        let mut scene = group.net.0.lock().unwrap();
        scene.manager_is_stopped = true;
        scene.newest = MapVersion(9);
    }
    assert_eq!(group.statfs(), (Ok(()), vec![1, 1]));
    assert!(group.now_ms() < 500, "{} ms", group.now_ms());
}

#[test]
fn a_brief_operation_waits_for_a_lock_at_most_until_its_end() {
    let group = Group::new(&[Leads]);
    let lock = async_lock::Mutex::new(());
    let _held = lock.try_lock().unwrap();
    let whole = group.client.begin();
    let brief = whole.briefly(300);
    assert_eq!(
        ready(brief.wait_for(&lock)).err(),
        Some(ErrorCode::TimedOut)
    );
    assert_eq!(group.now_ms(), 300);
}
