//! Requests that no honest client sends, in frames that are in order: each gets a typed reply or a closed connection, and
//! the servers go on as before.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, NODES, code, said};
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zonal_net::{Address, Identity, NetError, PayloadInto, Pool, PoolConfig, Request, Role};
use zonal_testkit::Rng;
use zonal_types::{
    Blob, CellId, Codec, Column, Credentials, DataId, Epoch, ErrorCode, Ino, MapVersion, Name,
    NodeId, PartitionId, SessionId, ShardId, StripePolicy, StripeSetId, TargetId, Timestamp,
    ZoneId,
};
use zonal_wire::{
    AdminReply, AdminRequest, AttrChange, Header, JoinTarget, LockKind, LockRange, ManagerReply,
    ManagerRequest, MetaReply, MetaRequest, NewKind, ObjectRef, ScrubOf, Service, SetTime,
    StorageReply, StorageRequest,
};
use zonal_zonemap::{MapEdit, TargetState, ZoneMap};

const RSS_KIB_MAX: u64 = 300 << 10;
const TIME_MAX: Duration = Duration::from_secs(20);
const RANDOM_PER_SERVICE: usize = 120;
const MUTATED_PER_SERVICE: usize = 350;
/// Ends of the numbers.
const EDGES: [u64; 8] = [
    0,
    1,
    (4 << 20) + 1,
    u32::MAX as u64,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX,
];

/// Where a service is, and how it is spoken to.
struct Server<'a> {
    pool: &'a Pool,
    to: SocketAddr,
    service: Service,
    session: SessionId,
    sequence: u32,
    sent: usize,
    refused: usize,
}

impl<'a> Server<'a> {
    fn new(pool: &'a Pool, to: SocketAddr, service: Service) -> Self {
        Self {
            pool,
            to,
            service,
            session: SessionId(0),
            sequence: 0,
            sent: 0,
            refused: 0,
        }
    }

    /// A header that a well-behaved client would send.
    fn header(&mut self) -> Header {
        self.sequence += 1;
        let mut header = Header::request(self.service, CellId::default());
        header.session = self.session;
        if self.service == Service::Meta {
            header.slot = 0;
            header.sequence = self.sequence;
        }
        header
    }

    /// The reply's body; `None` where the connection was closed.
    fn send(&mut self, header: Header, body: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        self.sent += 1;
        let request = Request {
            operation: "a hostile request",
            header,
            body,
            payload: &[payload],
        };
        let to = Address::any_node(self.to);
        let start = &body[..body.len().min(80)];
        match self.pool.call(to, request, PayloadInto::Owned) {
            Ok(reply) => {
                self.check(&reply.body, start);
                Some(reply.body)
            }
            Err(error @ (NetError::TimedOut { .. } | NetError::Unreachable { .. })) => {
                panic!("{:?}: {error}; request {start:?}", self.service)
            }
            Err(_closed) => {
                self.refused += 1;
                None
            }
        }
    }

    fn check(&self, body: &[u8], request: &[u8]) {
        let is_typed = match self.service {
            Service::Meta => MetaReply::from_bytes(body).is_ok(),
            Service::Storage => StorageReply::from_bytes(body).is_ok(),
            Service::Admin => AdminReply::from_bytes(body).is_ok(),
            _ => ManagerReply::from_bytes(body).is_ok(),
        };
        assert!(is_typed, "reply {body:?} to {request:?}");
    }

    fn meta(&mut self, request: &MetaRequest) -> MetaReply {
        let header = self.header();
        let body = self.send(header, &request.to_bytes(), &[]);
        MetaReply::from_bytes(&body.unwrap()).unwrap()
    }

    fn storage(&mut self, request: &StorageRequest, payload: &[u8]) -> StorageReply {
        let header = self.header();
        let body = self.send(header, &request.to_bytes(), payload);
        StorageReply::from_bytes(&body.unwrap()).unwrap()
    }

    fn manager(&mut self, request: &ManagerRequest) -> ManagerReply {
        let header = self.header();
        let body = self.send(header, &request.to_bytes(), &[]);
        ManagerReply::from_bytes(&body.unwrap()).unwrap()
    }

    fn open_session(&mut self, client: u64) {
        let request = MetaRequest::OpenSession {
            client,
            zone: ZoneId(1),
            name: "hostile".into(),
        };
        match self.meta(&request) {
            MetaReply::Session { session, .. } => self.session = session,
            other => panic!("{other:?}"),
        }
    }

    fn random_bodies(&mut self, random: &mut Rng) {
        for _ in 0..RANDOM_PER_SERVICE {
            let count = random.index(400);
            let mut body = random.bytes(count);
            // Half of them with a tag that means something.
            if let (0, Some(tag)) = (random.below(2), body.first_mut()) {
                *tag %= 85;
            }
            if self.is_harmless(&body) {
                let header = self.header();
                self.send(header, &body, &[]);
            }
        }
    }

    fn mutated(&mut self, random: &mut Rng, valid: &[Vec<u8>]) {
        for round in 0..MUTATED_PER_SERVICE {
            let mut body = valid[round % valid.len()].clone();
            body.truncate(4096);
            if random.below(3) == 0 {
                body.truncate(random.index(body.len() + 1));
            }
            for _ in 0..=random.below(4) {
                if !body.is_empty() {
                    let bit = random.index(body.len() * 8);
                    body[bit / 8] ^= 1 << (bit % 8);
                }
            }
            if self.is_harmless(&body) {
                let header = self.header();
                self.send(header, &body, &[]);
            }
        }
    }

    /// Not a request that rightly waits, ends the session, or adds to the map.
    fn is_harmless(&self, body: &[u8]) -> bool {
        match self.service {
            Service::Meta => !matches!(
                MetaRequest::from_bytes(body),
                Ok(MetaRequest::PollEvents { .. } | MetaRequest::CloseSession)
            ),
            Service::Storage | Service::Admin => true,
            _ => match ManagerRequest::from_bytes(body) {
                Ok(ManagerRequest::Join { .. }) => false,
                Ok(ManagerRequest::Edit { edits, .. }) => {
                    Vec::<MapEdit>::from_bytes(&edits.0).is_err()
                }
                _ => true,
            },
        }
    }

    /// Headers whose fields name nothing.
    fn odd_headers(&mut self, body: &[u8]) {
        for edge in EDGES {
            for field in 0..5 {
                let mut header = self.header();
                match field {
                    0 => header.session = SessionId(edge),
                    1 => header.slot = edge as u32,
                    2 => header.map_version = MapVersion(edge),
                    3 => header.epoch = Epoch(edge),
                    // A repeat or a step back; steps ahead would use the slot up.
                    _ => (header.slot, header.sequence) = (1, edge as u32),
                }
                self.send(header, body, &[1; 64]);
            }
        }
    }
}

fn root_user(groups: usize) -> Credentials {
    Credentials {
        uid: 0,
        gid: 0,
        groups: (0..groups as u32).collect(),
    }
}

fn name(text: &[u8]) -> Name {
    Name::new(text).unwrap()
}

fn lock(start: u64, end: u64) -> LockRange {
    LockRange {
        whole_file: false,
        owner: u64::MAX,
        pid: u32::MAX,
        kind: LockKind::Exclusive,
        start,
        end,
    }
}

fn create(who: Credentials, parent: Ino, text: &[u8], kind: NewKind) -> MetaRequest {
    MetaRequest::Create {
        who,
        parent,
        name: name(text),
        open: matches!(kind, NewKind::File),
        kind,
        mode: u32::MAX,
        umask: 0,
        zone: ZoneId(1),
        open_flags: u32::MAX,
        exclusive: false,
    }
}

/// Each operation on one inode, with this number wherever one goes.
fn on_inode(ino: Ino, edge: u64) -> Vec<MetaRequest> {
    let who = root_user(0);
    let some = || name(&[b'n'; 255]);
    let times = Timestamp {
        ..Timestamp::default()
    };
    let change = AttrChange {
        mode: Some(edge as u32),
        uid: Some(u32::MAX),
        gid: Some(edge as u32),
        atime: Some(SetTime::At { time: times }),
        mtime: Some(SetTime::Now),
        ctime: None,
    };
    let whos = || who.clone();
    let number = edge as u32;
    let delta = edge as i64;
    #[rustfmt::skip]
    let requests = vec![
        MetaRequest::Lookup { who: whos(), parent: ino, name: some() },
        MetaRequest::GetAttr { ino, data: true },
        MetaRequest::Access { who: whos(), ino, mask: number },
        MetaRequest::Readlink { ino },
        MetaRequest::ReadDir { who: whos(), dir: ino, cookie: edge, entries: number, plus: true },
        MetaRequest::GetXattr { who: whos(), ino, name: Blob(vec![b'x'; 300]) },
        MetaRequest::ListXattr { who: whos(), ino },
        MetaRequest::GetLock { ino, range: lock(edge, 0) },
        MetaRequest::Parent { ino },
        MetaRequest::Open { who: whos(), ino, open_flags: number },
        MetaRequest::SetAttr { who: whos(), ino, change },
        MetaRequest::Truncate { who: whos(), ino, size: edge, by_handle: false, confirmed_seq: edge, kill_suid: true },
        MetaRequest::ConfirmTruncate { ino, truncate_seq: edge, allocated_delta: delta },
        MetaRequest::ReportWrite { ino, size: edge, mtime: Some(times), allocated_delta: delta, kill_suid: true, inline: None, sync: false },
        MetaRequest::ReportWrite { ino, size: edge, mtime: None, allocated_delta: delta, kill_suid: true,
                                   inline: Some((number, Blob(vec![1; 70_000]))), sync: false },
        MetaRequest::ReadInline { ino },
        MetaRequest::AppendBegin { ino, length: u32::MAX, limit: edge },
        MetaRequest::AppendEnd { ino, offset: edge, reserved: u32::MAX, length: number, mtime: times,
                                 allocated_delta: i64::MIN, kill_suid: false, inline: Some((number, Blob(vec![1; 9]))) },
        MetaRequest::SetXattr { who: whos(), ino, name: Blob(b"user.a".to_vec()), value: Blob(vec![0; 65_537]), flags: number },
        MetaRequest::SetXattr { who: whos(), ino, name: Blob(b"system.posix_acl_access".to_vec()), value: Blob(vec![255; 300]), flags: 0 },
        MetaRequest::RemoveXattr { who: whos(), ino, name: Blob(Vec::new()) },
        MetaRequest::Touch { ino },
        MetaRequest::SetPolicy { who: whos(), dir: ino, policy: Some(StripePolicy { unit: number, count: u16::MAX, ..StripePolicy::default() }) },
        MetaRequest::Link { who: whos(), ino, parent: ino, name: some() },
        MetaRequest::Rename { who: whos(), parent: ino, name: some(), new_parent: Ino(edge), new_name: some(), flags: number },
        MetaRequest::Lock { ino, range: lock(edge, edge.wrapping_sub(1)), wait: true, waiter: edge },
        MetaRequest::Lock { ino, range: lock(u64::MAX, 0), wait: false, waiter: 0 },
        MetaRequest::Lock { ino, range: lock(edge, u64::MAX), wait: false, waiter: 0 },
        MetaRequest::Unlock { ino, range: lock(u64::MAX, edge) },
        MetaRequest::CancelLock { ino, waiter: edge },
        MetaRequest::ReleaseLocks { ino, owner: u64::MAX, whole_file: false },
        MetaRequest::Tmpfile { who: whos(), parent: ino, mode: number, umask: u32::MAX, zone: ZoneId(edge as u16), exclusive: true },
        MetaRequest::AttachDir { ino },
        MetaRequest::DetachDir { ino },
        MetaRequest::DropDir { ino },
        MetaRequest::HasEntry { ino },
        MetaRequest::Close { inos: vec![ino; 9] },
    ];
    requests
}

fn absurd_meta(server: &mut Server<'_>, dir: Ino) {
    let who = root_user(0);
    let file = match server.meta(&create(root_user(0), dir, b"file", NewKind::File)) {
        MetaReply::Opened { entry, .. } => entry.ino,
        other => panic!("{other:?}"),
    };
    let inodes = [
        file,
        dir,
        Ino(0),
        Ino(u64::MAX),
        Ino(i64::MAX as u64),
        Ino::new(PartitionId(1000), 1),
        Ino::new(dir.partition(), u64::MAX),
    ];
    for (ino, edge) in inodes.iter().zip(EDGES.iter().rev().cycle()) {
        for request in on_inode(*ino, *edge) {
            server.meta(&request);
        }
    }
    for edge in EDGES {
        for request in on_inode(file, edge) {
            server.meta(&request);
        }
    }
    let text = |count| NewKind::Symlink {
        text: Blob(vec![b't'; count]),
    };
    #[rustfmt::skip]
    let others = [
        create(root_user(65_536), dir, &[b'g'; 255], NewKind::File),
        create(root_user(65_537), dir, b"groups", NewKind::File),
        create(root_user(0), dir, b"none", text(0)),
        create(root_user(0), dir, b"long", text(4096)),
        create(root_user(0), dir, b"longer", text(900_000)),
        create(root_user(0), dir, b"device", NewKind::CharDevice { rdev: u32::MAX }),
        MetaRequest::Mkdir { who: who.clone(), parent: dir, name: name(&[0xff; 255]), mode: u32::MAX, umask: 0, zone: ZoneId(u16::MAX) },
        MetaRequest::Rmdir { who: who.clone(), parent: dir, name: name(b"file") },
        MetaRequest::Unlink { who, parent: file, name: name(b"file") },
        MetaRequest::PollEvents { acked: u64::MAX, wait_ms: 0 },
        MetaRequest::Reclaim { opens: (0..100_000).map(Ino).collect(), locks: vec![(Ino(9), lock(9, 3)); 100] },
        MetaRequest::Close { inos: vec![Ino(u64::MAX); 100_000] },
        MetaRequest::OpenSession { client: u64::MAX, zone: ZoneId(u16::MAX), name: "n".repeat(900_000) },
        MetaRequest::MakeDetachedDir { uid: 0, gid: 0, mode: u32::MAX, default_acl: Some(Blob(vec![255; 9])), token: 0 },
        MetaRequest::Sync,
        MetaRequest::StatFs,
    ];
    for request in others {
        server.meta(&request);
    }
    // Acknowledged events that were never sent must not hide the next ones.
    server.meta(&MetaRequest::PollEvents {
        acked: 0,
        wait_ms: 0,
    });
}

fn absurd_root(server: &mut Server<'_>) {
    for (text, zone) in [
        (&[0xff; 255][..], 1),
        (&[0xff], 1),
        (&[0xfe], 1),
        (b"nowhere", u16::MAX),
    ] {
        let request = MetaRequest::Mkdir {
            who: root_user(0),
            parent: Ino::ROOT,
            name: name(text),
            mode: u32::MAX,
            umask: 0,
            zone: ZoneId(zone),
        };
        server.meta(&request);
    }
    for edge in EDGES {
        for request in on_inode(Ino(edge), edge) {
            server.meta(&request);
        }
    }
}

fn object(target: TargetId, edge: u64) -> ObjectRef {
    ObjectRef {
        target,
        data_id: DataId(edge),
        column: Column(edge as u16),
        layout_gen: edge as u32,
        truncate_seq: 0,
        truncate_bytes: edge,
    }
}

fn absurd_storage(server: &mut Server<'_>, target: TargetId) {
    for edge in EDGES {
        for other in EDGES {
            let object = object(target, edge);
            #[rustfmt::skip]
            let requests = [
                StorageRequest::Read { object, offset: other, length: edge as u32 },
                StorageRequest::Punch { object, offset: edge, length: other },
                StorageRequest::Allocate { object, offset: edge, length: other, zero: other % 2 == 0 },
                StorageRequest::Map { object, offset: edge, end: other, limit: u32::MAX },
            ];
            for request in requests {
                server.storage(&request, &[]);
            }
        }
        let cut = ObjectRef {
            truncate_seq: edge,
            ..object(target, edge)
        };
        #[rustfmt::skip]
        let requests = [
            StorageRequest::Write { object: object(target, edge), offset: edge, sync: false, expected_version: edge, txn: edge, snap_epoch: edge },
            StorageRequest::Truncate { object: cut },
            StorageRequest::Stat { object: cut },
            StorageRequest::StatFs { target: TargetId(edge as u32) },
            StorageRequest::Sync { target: TargetId(edge as u32) },
            StorageRequest::Prepare { object: cut, txn: edge },
            StorageRequest::Resolve { object: cut, txn: edge },
            StorageRequest::MapExtents { object: cut, offset: edge, length: edge },
        ];
        for request in requests {
            server.storage(&request, &[7; 5000]);
            server.storage(&request, &[]);
        }
    }
    let objects = (0..10_000).map(|id| (DataId(u64::MAX - id), Column(id as u16)));
    let delete = StorageRequest::Delete {
        target,
        objects: objects.collect(),
    };
    assert_eq!(server.storage(&delete, &[]), StorageReply::Done);
}

fn absurd_manager(server: &mut Server<'_>, version: MapVersion, random: &mut Rng) {
    for edge in EDGES {
        let join = |zone, address: &str, meta| ManagerRequest::Join {
            node: NodeId(edge as u32),
            zone: ZoneId(zone),
            zone_name: "z".repeat(70_000),
            address: address.into(),
            meta,
            targets: vec![
                JoinTarget {
                    target: TargetId(1),
                    uuid: [edge as u8; 16],
                    capacity: edge,
                };
                9
            ],
        };
        for request in [
            ManagerRequest::GetMap {
                have: MapVersion(edge),
            },
            ManagerRequest::Junction { ino: Ino(edge) },
            ManagerRequest::Edit {
                expected: MapVersion(edge.max(1 << 40)),
                edits: Blob(vec![0; 4]),
            },
            ManagerRequest::Edit {
                expected: version,
                edits: Blob(random.bytes(50_000)),
            },
            join(1, "nowhere", false),
            join(1, "127.0.0.1:1", true),
        ] {
            server.manager(&request);
        }
    }
}

/// Edits that belong to the root shard and to joins: from outside, they would part the map from what it tells of.
fn foreign_edits(manager: &mut Server<'_>, dir: Ino) {
    let node = NodeId(u32::MAX);
    let edits = [
        MapEdit::RemoveJunction { ino: dir },
        MapEdit::MoveJunction {
            ino: dir,
            path: "/elsewhere".into(),
        },
        MapEdit::AddJunction {
            ino: Ino(u64::MAX),
            path: "\0".into(),
            zone: ZoneId(1),
        },
        MapEdit::Join {
            node,
            zone: ZoneId(u16::MAX),
            zone_name: String::new(),
            address: "nowhere".into(),
            shard: Some(ShardId(u32::MAX)),
            targets: Vec::new(),
        },
        MapEdit::SetSlot {
            set: StripeSetId(1),
            slot: u16::MAX,
            target: TargetId(u32::MAX),
        },
        MapEdit::SetTargetState {
            target: TargetId(u32::MAX),
            state: TargetState::Offline,
        },
    ];
    for edit in edits {
        let before = map_of(manager);
        let request = ManagerRequest::Edit {
            expected: before.version,
            edits: Blob(vec![edit].to_bytes()),
        };
        let reply = manager.manager(&request);
        assert!(matches!(reply, ManagerReply::Failed { .. }), "{reply:?}");
        assert_eq!(map_of(manager), before);
    }
}

fn valid_meta(dir: Ino) -> Vec<Vec<u8>> {
    let mut valid: Vec<_> = on_inode(dir, 4).iter().map(Codec::to_bytes).collect();
    valid.push(create(root_user(3), dir, b"mutated", NewKind::File).to_bytes());
    valid.push(
        MetaRequest::Reclaim {
            opens: vec![dir; 5],
            locks: vec![(dir, lock(1, 2)); 3],
        }
        .to_bytes(),
    );
    valid
}

fn valid_storage(target: TargetId) -> Vec<Vec<u8>> {
    let object = object(target, 5);
    #[rustfmt::skip]
    let requests = [
        StorageRequest::Read { object, offset: 0, length: 4096 },
        StorageRequest::Write { object, offset: 0, sync: true, expected_version: 0, txn: 0, snap_epoch: 0 },
        StorageRequest::Punch { object, offset: 0, length: 4096 },
        StorageRequest::Allocate { object, offset: 0, length: 4096, zero: true },
        StorageRequest::Map { object, offset: 0, end: 4096, limit: 10 },
        StorageRequest::Truncate { object },
        StorageRequest::Delete { target, objects: vec![(DataId(5), Column(5)); 4] },
        StorageRequest::StatFs { target },
    ];
    requests.iter().map(Codec::to_bytes).collect()
}

fn valid_manager(map: &ZoneMap) -> Vec<Vec<u8>> {
    let node = &map.nodes[0];
    let edit = MapEdit::SetSlot {
        set: map.sets[0].id,
        slot: 0,
        target: map.targets[0].id,
    };
    #[rustfmt::skip]
    let requests = [
        ManagerRequest::GetMap { have: map.version },
        ManagerRequest::Join { node: node.id, zone: node.zone, zone_name: "zone1".into(), address: node.address.clone(), meta: true, targets: Vec::new() },
        ManagerRequest::Edit { expected: map.version, edits: Blob(vec![edit].to_bytes()) },
        ManagerRequest::Junction { ino: Ino::ROOT },
    ];
    requests.iter().map(Codec::to_bytes).collect()
}

fn valid_admin(target: TargetId) -> Vec<Vec<u8>> {
    let requests = [
        AdminRequest::Health,
        AdminRequest::ScrubStart {
            of: ScrubOf::Target { target },
            rate: 1 << 20,
            anew: true,
        },
        AdminRequest::ScrubStop {
            of: ScrubOf::Shard { shard: ShardId(1) },
        },
        AdminRequest::ListObjects {
            target,
            after: Some((DataId(u64::MAX), Column(u16::MAX))),
            limit: u32::MAX,
        },
        AdminRequest::SnapshotBegin { shard: ShardId(1) },
        AdminRequest::SnapshotRead {
            snapshot: 1,
            after: Blob(vec![0xff; 5000]),
        },
        AdminRequest::SnapshotEnd { snapshot: 1 },
    ];
    requests.iter().map(Codec::to_bytes).collect()
}

/// What is for commands is refused from mounts, whatever it is.
fn refuses_mounts(pool: &Pool, to: SocketAddr, target: TargetId) {
    let mut server = Server::new(pool, to, Service::Admin);
    for body in valid_admin(target) {
        let header = server.header();
        let reply = server.send(header, &body, &[]).unwrap();
        match AdminReply::from_bytes(&reply).unwrap() {
            AdminReply::Failed { code, .. } => assert_eq!(code.0, ErrorCode::NotPermitted),
            other => panic!("{other:?}"),
        }
    }
}

/// Garbage of one that may ask.
fn odd_commands(to: SocketAddr, target: TargetId, random: &mut Rng) {
    let tool = Identity::new(CellId::default(), Role::Tool, NodeId(0), None);
    let pool = Pool::new(tool, PoolConfig::default());
    let mut admin = Server::new(&pool, to, Service::Admin);
    admin.random_bodies(random);
    admin.mutated(random, &valid_admin(target));
    admin.odd_headers(&valid_admin(target)[0]);
}

fn map_of(manager: &mut Server<'_>) -> ZoneMap {
    let request = ManagerRequest::GetMap {
        have: MapVersion(0),
    };
    match manager.manager(&request) {
        ManagerReply::Map { map, .. } => ZoneMap::from_bytes(&map.0).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn serves(server: &mut Server<'_>, dir: Ino) {
    server.open_session(0x5eed);
    let attr = server.meta(&MetaRequest::GetAttr {
        ino: dir,
        data: false,
    });
    assert!(matches!(attr, MetaReply::Attr { .. }), "{attr:?}");
    // A change, so that a shard whose log failed shows.
    let made = server.meta(&MetaRequest::Mkdir {
        who: root_user(0),
        parent: dir,
        name: name(b"afterwards"),
        mode: 0o755,
        umask: 0,
        zone: ZoneId(1),
    });
    assert!(matches!(made, MetaReply::Entry { .. }), "{made:?}");
    assert_eq!(server.meta(&MetaRequest::CloseSession), MetaReply::Done);
}

fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.unwrap().trim().split(' ').next();
    words.unwrap().parse().unwrap()
}

fn make_dir(root: &mut Server<'_>) -> Ino {
    let request = MetaRequest::Mkdir {
        who: root_user(0),
        parent: Ino::ROOT,
        name: name(b"home"),
        mode: 0o755,
        umask: 0,
        zone: ZoneId(1),
    };
    match root.meta(&request) {
        MetaReply::Entry { entry } => entry.ino,
        other => panic!("{other:?}"),
    }
}

#[test]
fn servers_survive_requests_that_no_client_sends() {
    let cell = Cell::up("hostile");
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let pool = Pool::new(identity, PoolConfig::default());
    let mut manager = Server::new(&pool, cell.address("manager", false), Service::Manager);
    let map = map_of(&mut manager);
    let address = |zone| {
        let shard = map.shard_of_zone(zone).unwrap();
        map.node(shard.node).unwrap().address.parse().unwrap()
    };
    let target = map.targets[0].id;
    let storage_address = &map.node(map.targets[0].node).unwrap().address;
    let mut root = Server::new(&pool, manager.to, Service::Meta);
    let mut zone = Server::new(&pool, address(ZoneId(1)), Service::Meta);
    let mut storage = Server::new(&pool, storage_address.parse().unwrap(), Service::Storage);
    root.open_session(1);
    zone.open_session(1);
    let dir = make_dir(&mut root);

    let start = Instant::now();
    let mut random = Rng(0x9e37_79b9_7f4a_7c15);
    let lap = |what: &str| println!("{what}: {:?}", start.elapsed());
    absurd_manager(&mut manager, map.version, &mut random);
    lap("manager");
    foreign_edits(&mut manager, dir);
    let rename = MetaRequest::Rename {
        who: root_user(0),
        parent: Ino::ROOT,
        name: name(b"home"),
        new_parent: Ino::ROOT,
        new_name: name(b"moved"),
        flags: 0,
    };
    assert_eq!(root.meta(&rename), MetaReply::Done);
    absurd_root(&mut root);
    lap("root shard");
    absurd_meta(&mut zone, dir);
    lap("zone shard");
    absurd_storage(&mut storage, target);
    lap("target");
    let valid = [
        valid_manager(&map),
        valid_meta(Ino::ROOT),
        valid_meta(dir),
        valid_storage(target),
    ];
    for to in [storage.to, zone.to] {
        refuses_mounts(&pool, to, target);
        odd_commands(to, target, &mut random);
        lap("commands");
    }
    let mut servers = [manager, root, zone, storage];
    for (server, valid) in servers.iter_mut().zip(&valid) {
        server.random_bodies(&mut random);
        server.mutated(&mut random, valid);
        let with_slot = MetaRequest::Touch { ino: dir }.to_bytes();
        let body = match server.service {
            Service::Meta => &with_slot,
            _ => &valid[0],
        };
        server.odd_headers(body);
        lap("garbled");
    }
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
    let sent: usize = servers.iter().map(|server| server.sent).sum();
    let refused: usize = servers.iter().map(|server| server.refused).sum();
    println!("{sent} requests, {refused} of them ended their connection");
    assert!(sent > 2000);

    let [mut manager, mut root, mut zone, mut storage] = servers;
    assert!(map_of(&mut manager).check().is_empty());
    serves(&mut root, Ino::ROOT);
    serves(&mut zone, dir);
    let write = StorageRequest::Write {
        object: object(target, 77),
        offset: 0,
        sync: true,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    };
    let written = storage.storage(&write, &[1; 4096]);
    assert!(
        matches!(written, StorageReply::Written { .. }),
        "{written:?}"
    );
    let status = cell.status();
    assert_eq!(code(&status), 0, "{}", said(&status));
    for node in NODES {
        let log = cell.log(node);
        assert!(
            !log.contains("panic") && !log.contains("ERROR"),
            "{node}:\n{log}"
        );
        let rss = rss_kib(cell.pid(node));
        println!("{node}: {} MiB", rss >> 10);
        assert!(rss < RSS_KIB_MAX, "{node}: {rss} KiB");
    }
}
