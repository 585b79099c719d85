//! Calls to a shard with one replica and with several, over loopback.

use super::*;
use std::sync::Mutex;
use zonal_net::{
    Handler, Identity, ListenConfig, Listeners, Peer, PoolConfig, ReplyBuilder, Role, ServerConfig,
    ServerHandle, serve,
};
use zonal_types::ZoneId;
use zonal_zonemap::{MapEdit, ZoneMap};

const CELL: CellId = CellId([5; 16]);
const SHARD: ShardId = ShardId(1);

/// A server that answers every request with one reply, and counts them.
struct Replica {
    node: NodeId,
    reply: MetaReply,
    asked: Arc<Mutex<Vec<(NodeId, u32)>>>,
}

impl Handler for Replica {
    fn handle(
        &self,
        _peer: &Peer,
        header: &Header,
        _body: &[u8],
        _payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        let asked = (self.node, header.deadline_ms);
        self.asked.lock().unwrap().push(asked);
        reply.message(&self.reply);
    }
}

/// Servers of a shard's replicas, on nodes from 1 on, and a server that calls them.
struct Group {
    peers: Peers,
    map: MapCache,
    servers: Vec<ServerHandle>,
    asked: Arc<Mutex<Vec<(NodeId, u32)>>>,
}

impl Group {
    fn new(replies: Vec<MetaReply>) -> Self {
        let asked: Arc<Mutex<Vec<(NodeId, u32)>>> = Arc::default();
        let (mut servers, mut edits, mut replicas) = (Vec::new(), Vec::new(), Vec::new());
        for (node, reply) in (1..).map(NodeId).zip(replies) {
            let identity = Identity::new(CELL, Role::Server, node, None);
            let listen = ListenConfig {
                has_unix: false,
                ..ListenConfig::one("127.0.0.1:0".parse().unwrap())
            };
            let listeners = Listeners::bind(&listen, &identity).unwrap();
            let asked = Arc::clone(&asked);
            let replica = Replica { node, reply, asked };
            let server = serve(listeners, ServerConfig::new(identity), Arc::new(replica));
            let server = server.unwrap();
            edits.push(MapEdit::Join {
                node,
                zone: ZoneId(1),
                zone_name: String::new(),
                address: server.addresses()[0].to_string(),
                shard: (node == NodeId(1)).then_some(SHARD),
                targets: Vec::new(),
            });
            replicas.push(node);
            servers.push(server);
        }
        let shard = SHARD;
        edits.push(MapEdit::SetReplicas { shard, replicas });
        let map = MapCache::here(CELL);
        map.publish(Arc::new(
            ZoneMap::new(CELL).edited(&edits).unwrap().unwrap(),
        ));
        let me = Identity::new(CELL, Role::Server, NodeId(9), None);
        let pool = Pool::new(me, PoolConfig::default());
        Self {
            peers: Peers::new(Arc::new(pool), CELL),
            map,
            servers,
            asked,
        }
    }

    fn call(&self) -> (Result<MetaReply, ErrorCode>, Vec<u32>) {
        let reply = self.peers.shard(&self.map, SHARD, &MetaRequest::StatFs);
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let nodes = asked.iter().map(|(node, _deadline)| node.0).collect();
        for (_node, deadline_ms) in asked {
            let is_brief = u64::from(deadline_ms) <= REPLICA_ATTEMPT_MS;
            assert_eq!(is_brief, self.servers.len() > 1, "{deadline_ms} ms");
        }
        (reply.map_err(|error| error.code()), nodes)
    }
}

fn names(leader: u32) -> MetaReply {
    MetaReply::NotLeader {
        leader: NodeId(leader),
    }
}

#[test]
fn a_call_finds_the_leader_and_the_next_begins_there() {
    let group = Group::new(vec![names(3), names(0), MetaReply::Done]);
    assert_eq!(group.call(), (Ok(MetaReply::Done), vec![1, 3]));
    assert_eq!(group.call(), (Ok(MetaReply::Done), vec![3]));
}

#[test]
fn a_call_passes_over_a_replica_whose_process_is_gone() {
    let mut group = Group::new(vec![MetaReply::Done, names(1), MetaReply::Done]);
    assert_eq!(group.call(), (Ok(MetaReply::Done), vec![1]));
    group.servers.remove(0);
    assert_eq!(group.call(), (Ok(MetaReply::Done), vec![2, 3]));
}

#[test]
fn a_call_to_a_group_without_a_leader_ends() {
    let group = Group::new(vec![names(0), names(2)]);
    let asked = vec![1, 2, 1, 2];
    assert_eq!(group.call(), (Err(ErrorCode::NotReady), asked));
}

#[test]
fn a_shard_with_one_replica_gets_one_message_a_call() {
    let group = Group::new(vec![MetaReply::Done]);
    assert_eq!(group.call(), (Ok(MetaReply::Done), vec![1]));
    let group = Group::new(vec![names(2)]);
    assert_eq!(group.call(), (Err(ErrorCode::NotReady), vec![1]));
}
