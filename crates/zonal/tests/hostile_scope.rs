//! A client with a valid certificate for /projects/a sends every request to every server: nothing
//! outside its path changes, and it learns nothing.
//!
//! `ZONAL_HOSTILE_MESSAGES` sets the number of messages; `make test-long` sends 100,000.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
#[allow(dead_code, reason = "the other test uses the rest")]
mod hostile;
#[path = "../../zonal-meta/tests/random_requests/mod.rs"]
mod random_requests;
mod scoped_cell;

/// Helpers for `hostile`.
mod common {
    pub use crate::scoped_cell::name;
}

use hostile::EDGES;
use hostile::valid_requests::{valid_admin, valid_manager};
use random_requests::Noise;
use scoped_cell::{SECRET, World, ask, pool};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use zonal_net::{Pool, Role};
use zonal_testkit::Rng;
use zonal_types::{
    Blob, CellId, ClientId, ClientIdentity, Codec, Column, Credentials, DataId, Ino, MapVersion,
    NodeId, SessionId, ShardId, StripeSetId, TargetId, Timestamp, ZoneId,
};
use zonal_wire::meta::FileUse;
use zonal_wire::meta::flags::{O_RDONLY, O_WRONLY};
use zonal_wire::{
    AdminReply, AdminRequest, AppendPlace, AttrChange, ErrorNumber, Header, LeaseKind,
    ManagerReply, ManagerRequest, MetaReply, MetaRequest, ObjectRef, Service, StorageReply,
    StorageRequest,
};

const SEED: u64 = 0x5c0de;

fn messages() -> usize {
    let given = std::env::var("ZONAL_HOSTILE_MESSAGES").ok();
    given.map_or(20_000, |text| text.parse().unwrap())
}

/// Counts of replies.
#[derive(Default)]
struct Count {
    sent: AtomicUsize,
    done: AtomicUsize,
    closed: AtomicUsize,
}

impl Count {
    /// Checks that a reply holds no secret; returns its body.
    fn take(
        &self,
        asked: &dyn std::fmt::Debug,
        reply: Option<(Vec<u8>, Vec<u8>)>,
    ) -> Option<Vec<u8>> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let Some((body, payload)) = reply else {
            self.closed.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        for bytes in [&body, &payload] {
            assert!(
                !tells(bytes),
                "{asked:?}: {}",
                String::from_utf8_lossy(bytes)
            );
        }
        Some(body)
    }

    fn note(&self, is_done: bool) {
        self.done.fetch_add(usize::from(is_done), Ordering::Relaxed);
    }
}

fn tells(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|part| part == SECRET)
}

/// Requests that the random ones do not cover.
fn odd(random: &mut Rng, inos: &[Ino]) -> MetaRequest {
    let ino = inos[random.index(inos.len())];
    let number = EDGES[random.index(EDGES.len())];
    let who = Credentials::root();
    let place = AppendPlace {
        offset: number,
        length: 100,
        truncate_seq: 0,
    };
    match random.below(28) {
        0 => MetaRequest::OpenSession {
            zone: ZoneId(1),
            name: "hostile".into(),
        },
        1 => MetaRequest::PollEvents {
            boot: random.below(2),
            acked: number,
            wait_ms: 1,
        },
        2 => MetaRequest::CloseSession,
        3 => MetaRequest::EvictSession,
        4 => MetaRequest::DropLeases,
        5 => MetaRequest::ReclaimAppends {
            appends: vec![(ino, place)],
        },
        6 => MetaRequest::GiveUpAppends {
            appends: vec![(ino, number)],
        },
        7 => MetaRequest::StatFs,
        8 => MetaRequest::Sync,
        9 => MetaRequest::TakePrivileges { who, ino },
        10 => MetaRequest::TakeLease {
            ino,
            kind: LeaseKind::Write,
            start: 0,
            end: number,
        },
        11 => MetaRequest::RenewLeases {
            leases: vec![(ino, number)],
        },
        12 => MetaRequest::ReturnLease {
            ino,
            lease: number,
            size: Some(number),
            mtime: None,
        },
        13 => MetaRequest::MakeDetachedDir {
            uid: 0,
            gid: 0,
            mode: 0o777,
            default_acl: None,
            token: number,
        },
        14 => MetaRequest::DropDir { ino },
        15 => MetaRequest::HasEntry { ino },
        16 => MetaRequest::SettleDir {
            ino,
            since: Timestamp::default(),
            has_entry: false,
        },
        17 => MetaRequest::HasOpen {
            subject: "zonal://cell/admin/a".into(),
            data_id: DataId(ino.0),
            for_use: FileUse::Write,
        },
        18 => MetaRequest::ReadDirs {
            who,
            dirs: inos.iter().rev().take(16).copied().collect(),
            entries: 100,
        },
        19 => MetaRequest::Reclaim {
            opens: inos.to_vec(),
            locks: Vec::new(),
        },
        20 => MetaRequest::Touch {
            reads: inos
                .iter()
                .map(|ino| (*ino, Timestamp::default()))
                .collect(),
        },
        21 => MetaRequest::LendEnd { ino },
        22 => MetaRequest::AppendAt {
            ino,
            offset: number,
            length: 100,
        },
        23 => MetaRequest::ReturnEnds { inos: vec![ino] },
        24 => MetaRequest::ReportTraffic {
            number,
            traffic: vec![(DataId(ino.0), zonal_wire::ClientTraffic::default())],
        },
        _ => MetaRequest::ReadInline { ino },
    }
}

/// Sends all requests to shards.
fn at_shards(world: &mut World, pool: &Pool, count: &Count, messages: usize) {
    let mut random = Rng(SEED);
    let above = [Ino::ROOT, world.projects];
    let mut noise = Noise {
        random: Rng(SEED + 1),
        inos: [&world.outside[..], &above, &world.inside, &world.inside].concat(),
    };
    let at = [world.manager, world.shard];
    let mut own = [SessionId(0); 2];
    let own_identity = ClientIdentity::first(ClientId(0xbad));
    let mut sequence = 0;
    for number in 0..messages {
        if number % 2_000 == 0 {
            world.keep_alive();
        }
        let index = usize::from(random.below(4) > 0);
        if own[index] == SessionId(0) {
            let open = MetaRequest::OpenSession {
                zone: ZoneId(1),
                name: "hostile".into(),
            };
            let mut header = Header::request(Service::Meta, CellId::default());
            header.identity = own_identity;
            let body = count.take(&open, ask(pool, at[index], header, &open.to_bytes(), &[]));
            match MetaReply::from_bytes(&body.unwrap()).unwrap() {
                MetaReply::Session { session, .. } => own[index] = session,
                other => panic!("{other:?}"),
            }
        }
        let request = match random.below(5) {
            0 => odd(&mut random, &noise.inos),
            _ => noise.request(),
        };
        // The end of an append waits for earlier ones, which nobody ends here.
        let waits = matches!(
            request,
            MetaRequest::AppendBegin { .. } | MetaRequest::AppendEnd { .. }
        );
        if waits && random.below(40) > 0 {
            continue;
        }
        sequence += 1;
        let mut header = Header::request(Service::Meta, CellId::default());
        (header.slot, header.sequence) = (random.below(4) as u32, sequence);
        header.identity = match random.below(30) {
            0 => ClientIdentity::first(ClientId([0xad, 1, 2][random.index(3)])),
            1 => ClientIdentity::default(),
            _ => own_identity,
        };
        header.session = match random.below(30) {
            0 => SessionId(0),
            1 => SessionId(random.bits()),
            2 => SessionId(random.below(100)),
            3 => world.sessions[index],
            _ => own[index],
        };
        let reply = ask(pool, at[index], header, &request.to_bytes(), &[]);
        let Some(body) = count.take(&request, reply) else {
            continue;
        };
        let reply = MetaReply::from_bytes(&body).unwrap();
        let failed = matches!(
            reply,
            MetaReply::Failed { .. } | MetaReply::StaleShard { .. }
        );
        count.note(!failed);
        if header.session == own[index] && request == MetaRequest::CloseSession {
            own[index] = SessionId(0);
        } else if header.session != own[index] && header.session != SessionId(0) {
            let is_first = matches!(
                request,
                MetaRequest::OpenSession { .. } | MetaRequest::StatFs | MetaRequest::Sync
            );
            assert!(failed || is_first, "{request:?}: {reply:?}");
        }
        let found = match &reply {
            MetaReply::Entry { entry }
            | MetaReply::Opened { entry, .. }
            | MetaReply::Made { entry, .. } => entry.ino,
            MetaReply::Attr { attr, .. } => attr.ino,
            _ => continue,
        };
        assert!(!world.outside.contains(&found), "{request:?}: {reply:?}");
        if noise.inos.len() < 80 && found.is_valid() {
            noise.inos.push(found);
        }
    }
}

/// Sends all requests to a target.
fn at_target(world: &Wanted, pool: &Pool, count: &Count, messages: usize) {
    let mut random = Rng(SEED + 2);
    for _ in 0..messages {
        let data_id = match random.below(6) {
            0 => DataId(random.bits()),
            _ => world.data[random.index(world.data.len())],
        };
        let edge = EDGES[random.index(EDGES.len())];
        let object = ObjectRef {
            target: match random.below(9) {
                0 => TargetId(random.bits() as u32),
                _ => world.target,
            },
            set: StripeSetId([0, 0, 0, 1, edge as u32][random.index(5)]),
            slot: [0, 1, edge as u16][random.index(3)],
            data_id,
            column: Column([0, 0, 0, 1][random.index(4)]),
            layout_gen: random.below(2) as u32,
            truncate_seq: [0, 1, edge][random.index(3)],
            truncate_bytes: [0, edge][random.index(2)],
        };
        let (target, offset) = (object.target, [0, 0, 4096, edge][random.index(4)]);
        let txn = edge;
        let payload = vec![0x55; random.index(9_000)];
        let length = payload.len() as u32;
        let request = match random.below(18) {
            0 | 1 => StorageRequest::Write {
                object,
                offset,
                sync: random.below(50) == 0,
                expected_version: 0,
                txn: 0,
                snap_epoch: 0,
            },
            2 => StorageRequest::Truncate { object },
            3 => StorageRequest::Punch {
                object,
                offset,
                length: edge,
            },
            4 => StorageRequest::Allocate {
                object,
                offset,
                length: 8192,
                zero: true,
            },
            5 => StorageRequest::Map {
                object,
                offset,
                end: u64::MAX,
                limit: 9,
            },
            6 => StorageRequest::Stat { object },
            7 => StorageRequest::Sync { target },
            8 => StorageRequest::Delete {
                target,
                objects: vec![(object.data_id, object.column)],
            },
            9 => StorageRequest::StatFs { target },
            10 => StorageRequest::WriteRanges {
                object,
                ranges: vec![(offset, length)],
            },
            11 => StorageRequest::Prepare { object, txn },
            12 => StorageRequest::Commit { object, txn },
            13 => StorageRequest::Abort { object, txn },
            14 => StorageRequest::Resolve { object, txn },
            15 => StorageRequest::CommitExtents { object, txn },
            16 => StorageRequest::MapExtents {
                object,
                offset,
                length: edge,
            },
            _ => StorageRequest::Read {
                object,
                offset,
                length: 65_536,
            },
        };
        let mut header = Header::request(Service::Storage, CellId::default());
        let client = ClientIdentity::first(ClientId(1 + random.below(9)));
        (header.identity, header.sequence) = (client, random.below(9) as u32);
        let reply = ask(pool, world.storage, header, &request.to_bytes(), &payload);
        if let Some(body) = count.take(&request, reply) {
            let reply = StorageReply::from_bytes(&body).unwrap();
            count.note(!matches!(reply, StorageReply::Failed { .. }));
        }
    }
}

/// Sends all requests to the manager, and admin requests to all servers.
fn at_servers(world: &Wanted, pool: &Pool, count: &Count, messages: usize) {
    let mut random = Rng(SEED + 3);
    for _ in 0..messages {
        let number = random.bits();
        let to = world.at[random.index(3)];
        if random.below(2) == 0 {
            let body = match random.below(3) {
                0 => AdminRequest::ListSessions {
                    shard: ShardId(random.below(2) as u32),
                    after: SessionId(0),
                    limit: 100,
                }
                .to_bytes(),
                1 => AdminRequest::NumberClaimed {
                    node: NodeId(random.below(4) as u32),
                    claimed_by: "127.0.0.1:1".into(),
                }
                .to_bytes(),
                _ => {
                    let valid = valid_admin(world.target);
                    valid[random.index(valid.len())].clone()
                }
            };
            let header = Header::request(Service::Admin, CellId::default());
            let asked = AdminRequest::from_bytes(&body).unwrap();
            if let Some(body) = count.take(&asked, ask(pool, to, header, &body, &[])) {
                match AdminReply::from_bytes(&body).unwrap() {
                    AdminReply::Failed { code, .. } => {
                        assert_eq!(code, ErrorNumber(zonal_types::ErrorCode::NotPermitted));
                    }
                    other => panic!("{asked:?}: {other:?}"),
                }
            }
            continue;
        }
        let request = match random.below(6) {
            0 => ManagerRequest::GetMap {
                have: MapVersion([0, number][random.index(2)]),
            },
            1 => ManagerRequest::GetRevoked { have: number },
            2 => ManagerRequest::Revoke {
                serials: vec![number],
            },
            3 => ManagerRequest::Junction { ino: Ino(number) },
            4 => ManagerRequest::Edit {
                expected: world.map.version,
                edits: Blob(random.bytes(40)),
            },
            _ => {
                let valid = valid_manager(&world.map);
                let body = &valid[random.index(valid.len())];
                ManagerRequest::from_bytes(body).unwrap()
            }
        };
        let header = Header::request(Service::Manager, CellId::default());
        let reply = ask(pool, world.at[0], header, &request.to_bytes(), &[]);
        if let Some(body) = count.take(&request, reply) {
            let reply = ManagerReply::from_bytes(&body).unwrap();
            let failed = matches!(reply, ManagerReply::Failed { .. });
            let may = matches!(
                request,
                ManagerRequest::GetMap { .. }
                    | ManagerRequest::GetMapPart { .. }
                    | ManagerRequest::GetRevoked { .. }
                    | ManagerRequest::GetSubnets
                    | ManagerRequest::Junction { .. }
                    | ManagerRequest::Junctions { .. }
                    | ManagerRequest::JunctionsAt { .. }
            );
            assert_eq!(failed, !may, "{request:?}: {reply:?}");
            count.note(!failed);
        }
    }
}

/// Data for the other threads.
struct Wanted {
    data: Vec<DataId>,
    target: TargetId,
    storage: SocketAddr,
    at: [SocketAddr; 3],
    map: zonal_zonemap::ZoneMap,
}

#[test]
fn a_hostile_client_changes_and_learns_nothing_outside_its_path() {
    let messages = messages();
    println!("{messages} messages, seed {SEED:#x}");
    let mut world = World::new("hostile-scope");
    let key = world.key("hostile", &["--path", "/projects/a"]);
    let before = world.seen();
    // The secrets are there, so a leak would be found.
    assert!(
        before.values().filter(|bytes| tells(bytes)).count() >= 12,
        "{before:#?}"
    );
    let pools: [Pool; 3] = std::array::from_fn(|_| pool(Role::Client, &key));
    let wanted = Wanted {
        data: world.data.values().copied().collect(),
        target: world.target,
        storage: world.storage,
        at: [world.manager, world.shard, world.storage],
        map: world.map.clone(),
    };
    let counts: [Count; 3] = std::array::from_fn(|_| Count::default());
    std::thread::scope(|scope| {
        let (wanted, pools, counts) = (&wanted, &pools, &counts);
        scope.spawn(|| at_target(wanted, &pools[1], &counts[1], messages / 4));
        scope.spawn(|| at_servers(wanted, &pools[2], &counts[2], messages / 10));
        // Shards skip some messages.
        at_shards(&mut world, &pools[0], &counts[0], messages * 7 / 10);
    });
    for (count, what) in counts.iter().zip(["shards", "target", "servers"]) {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (sent, done, closed) = (of(&count.sent), of(&count.done), of(&count.closed));
        println!("{what}: {sent} sent, {done} done, {closed} ended their connection");
        assert!(sent > messages / 12 && closed == 0);
        // Most requests are refused, but not all.
        assert!(done > 0 && done < sent, "{what}");
    }
    world.keep_alive();
    let after = world.seen();
    for (what, bytes) in &before {
        assert_eq!(Some(bytes), after.get(what), "{what}");
    }
    assert_eq!(before.len(), after.len(), "{:?}", after.keys());
    for node in cell::NODES {
        let log = world.cell.log(node);
        assert!(
            !log.contains("panic") && !log.contains("ERROR"),
            "{node}:\n{log}"
        );
    }
}

#[test]
fn a_client_with_a_path_reads_and_writes_below_it_and_nowhere_else() {
    let mut world = World::new("scope-bytes");
    let key = world.key("a", &["--path", "/projects/a"]);
    let pool = pool(Role::Client, &key);
    let storage = |request: &StorageRequest, payload: &[u8]| {
        let mut header = Header::request(Service::Storage, CellId::default());
        header.epoch = world.slot().1;
        let (body, bytes) =
            ask(&pool, world.storage, header, &request.to_bytes(), payload).unwrap();
        (StorageReply::from_bytes(&body).unwrap(), bytes)
    };
    let meta = |session, request: &MetaRequest| {
        let mut header = Header::request(Service::Meta, CellId::default());
        header.session = session;
        header.identity = ClientIdentity::first(ClientId(7));
        let (body, _) = ask(&pool, world.shard, header, &request.to_bytes(), &[]).unwrap();
        MetaReply::from_bytes(&body).unwrap()
    };
    let open = MetaRequest::OpenSession {
        zone: ZoneId(1),
        name: "a".into(),
    };
    let MetaReply::Session { session, .. } = meta(SessionId(0), &open) else {
        panic!("no session");
    };
    let file = world.inside[1];
    let object = world.object(file);
    let read = |object| StorageRequest::Read {
        object,
        offset: 0,
        length: 6,
    };
    let write = |object| StorageRequest::Write {
        object,
        offset: 0,
        sync: false,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    };
    let refused = |(reply, bytes): (StorageReply, Vec<u8>)| {
        assert!(bytes.is_empty());
        match reply {
            StorageReply::Failed { code, .. } => assert_eq!(code.0, zonal_types::ErrorCode::Access),
            other => panic!("{other:?}"),
        }
    };
    // It has nothing open.
    refused(storage(&read(object), &[]));
    let open = |ino, open_flags| MetaRequest::Open {
        who: Credentials::root(),
        ino,
        open_flags,
    };
    let opened = meta(session, &open(file, 0));
    assert!(
        matches!(
            opened,
            MetaReply::Opened { .. } | MetaReply::OpenedSmall { .. }
        ),
        "{opened:?}"
    );
    let (reply, bytes) = storage(&read(object), &[]);
    assert_eq!(bytes, b"public", "{reply:?}");
    refused(storage(&write(object), b"x"));
    refused(storage(&StorageRequest::Truncate { object }, &[]));
    let opened = meta(session, &open(file, 2));
    assert!(
        matches!(
            opened,
            MetaReply::Opened { .. } | MetaReply::OpenedSmall { .. }
        ),
        "{opened:?}"
    );
    let (written, _) = storage(&write(object), b"Public");
    let is_written = matches!(written, StorageReply::Written { .. });
    assert!(is_written, "{written:?}");
    assert_eq!(storage(&read(object), &[]).1, b"Public");
    // A truncation number that the shard never gave: every later one would look older.
    for number in [1, 2, 1 << 40, u64::MAX] {
        let object = truncated_by(number, object);
        refused(storage(&StorageRequest::Truncate { object }, &[]));
        refused(storage(&write(object), b"x"));
    }
    // Columns that its layout does not have, which no deletion would find.
    for column in [1, 1000].map(Column) {
        refused(storage(&write(ObjectRef { column, ..object }), b"x"));
    }
    for ino in world.outside.clone() {
        let object = world.object(ino);
        refused(storage(&read(object), &[]));
        refused(storage(&write(object), b"x"));
        let opened = meta(session, &open(ino, 0));
        assert!(matches!(opened, MetaReply::Failed { .. }), "{opened:?}");
    }
    // From 5 s after the last close, no target serves the object any more.
    for _ in 0..2 {
        let closed = meta(session, &MetaRequest::Close { inos: vec![file] });
        assert_eq!(closed, MetaReply::Done);
    }
    within_20_s("it is not served any more", || {
        matches!(storage(&read(object), &[]).0, StorageReply::Failed { .. })
    });
    world.keep_alive();
}

/// The object with another truncation number of its file.
fn truncated_by(truncate_seq: u64, object: ObjectRef) -> ObjectRef {
    ObjectRef {
        truncate_seq,
        ..object
    }
}

fn within_20_s(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// A client may only write files that its users may only write.
#[test]
fn a_client_cannot_read_files_its_users_may_only_write() {
    let mut world = World::new("scope-users");
    let key = world.key("users", &["--uid-range", "1000-1999"]);
    let pool = pool(Role::Client, &key);
    let file = world.inside[1];
    let change = AttrChange {
        mode: Some(0o622),
        ..AttrChange::default()
    };
    let (who, ino) = (Credentials::root(), file);
    let changed = world.meta(file, &MetaRequest::SetAttr { who, ino, change });
    assert!(!matches!(changed, MetaReply::Failed { .. }), "{changed:?}");
    let object = world.object(file);
    let storage = |request: &StorageRequest, payload: &[u8]| {
        let mut header = Header::request(Service::Storage, CellId::default());
        header.epoch = world.slot().1;
        let asked = ask(&pool, world.storage, header, &request.to_bytes(), payload);
        let (body, bytes) = asked.unwrap();
        (StorageReply::from_bytes(&body).unwrap(), bytes)
    };
    let mut session = SessionId(0);
    let mut meta = |request: &MetaRequest| {
        let mut header = Header::request(Service::Meta, CellId::default());
        header.session = session;
        header.identity = ClientIdentity::first(ClientId(8));
        let (body, _) = ask(&pool, world.shard, header, &request.to_bytes(), &[]).unwrap();
        let reply = MetaReply::from_bytes(&body).unwrap();
        if let MetaReply::Session { session: id, .. } = &reply {
            session = *id;
        }
        reply
    };
    meta(&MetaRequest::OpenSession {
        zone: ZoneId(1),
        name: "users".into(),
    });
    let mut open = |open_flags| {
        let (uid, gid, groups) = (1000, 1000, Vec::new());
        let who = Credentials { uid, gid, groups };
        let ino = file;
        let request = MetaRequest::Open {
            who,
            ino,
            open_flags,
        };
        let opened = meta(&request);
        matches!(opened, MetaReply::Opened { .. })
    };
    let (length, offset, sync) = (6, 0, false);
    let read = StorageRequest::Read {
        object,
        offset,
        length,
    };
    let write = StorageRequest::Write {
        object,
        offset,
        sync,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    };
    let (reads, writes) = (O_RDONLY, O_WRONLY);
    assert!(!open(reads) && open(writes));
    let (written, _) = storage(&write, b"x");
    assert!(
        matches!(written, StorageReply::Written { .. }),
        "{written:?}"
    );
    let stat = storage(&StorageRequest::Stat { object }, &[]).0;
    assert!(!matches!(stat, StorageReply::Failed { .. }), "{stat:?}");
    let (reply, bytes) = storage(&read, &[]);
    let code = ErrorNumber(zonal_types::ErrorCode::Access);
    assert!(
        matches!(reply, StorageReply::Failed { code: of, .. } if of == code),
        "{reply:?}"
    );
    assert!(bytes.is_empty());
    world.keep_alive();
}
