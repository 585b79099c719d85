//! Well-formed requests for impossible things, one list for each role.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "numbers of tests are small"
)]

use super::{EDGES, Server};
use std::sync::Arc;
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_testkit::Rng;
use zonal_types::{
    Blob, CellId, Codec, Column, Credentials, DataId, ErrorCode, Ino, MapVersion, Name, NodeId,
    PartitionId, ShardId, StripePolicy, StripeSetId, TargetId, Timestamp, ZoneId,
};
use zonal_wire::{
    AttrChange, ClientTraffic, ErrorNumber, JoinTarget, LeaseKind, LockKind, LockRange,
    ManagerReply, ManagerRequest, MetaReply, MetaRequest, NewKind, ObjectRef, Service, SetTime,
    StorageReply, StorageRequest,
};
use zonal_zonemap::{Fetch, FetchError, MapEdit, TargetState, ZoneMap};

pub fn root_user(groups: usize) -> Credentials {
    Credentials {
        uid: 0,
        gid: 0,
        groups: (0..groups as u32).collect(),
    }
}

pub fn name(text: &[u8]) -> Name {
    Name::new(text).unwrap()
}

pub fn lock(start: u64, end: u64) -> LockRange {
    LockRange {
        whole_file: false,
        owner: u64::MAX,
        handle: u64::MAX,
        number: 5,
        pid: u32::MAX,
        kind: LockKind::Exclusive,
        start,
        end,
    }
}

pub fn create(who: Credentials, parent: Ino, text: &[u8], kind: NewKind) -> MetaRequest {
    MetaRequest::Create {
        who,
        parent,
        name: name(text),
        open: matches!(kind, NewKind::File),
        kind,
        mode: u32::MAX,
        umask: 0,
        zone: ZoneId(1),
        node: NodeId(0),
        open_flags: u32::MAX,
        exclusive: false,
    }
}

/// Every operation on one inode, with this value for each number.
pub fn on_inode(ino: Ino, edge: u64) -> Vec<MetaRequest> {
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
    let traffic = ClientTraffic {
        read_in_zone: edge,
        written_cross_zone: edge,
        ..ClientTraffic::default()
    };
    #[rustfmt::skip]
    let requests = vec![
        MetaRequest::Lookup { who: whos(), parent: ino, name: some() },
        MetaRequest::GetAttr { ino, data: true },
        MetaRequest::Access { who: whos(), ino, mask: number },
        MetaRequest::Readlink { ino },
        MetaRequest::ReadDir { who: whos(), dir: ino, cookie: edge, entries: number, plus: true },
        MetaRequest::ReadDirs { who: whos(), dirs: vec![ino; 16], entries: number },
        MetaRequest::ReadDirs { who: whos(), dirs: vec![ino; 100_000], entries: number },
        MetaRequest::GetXattr { who: whos(), ino, name: Blob(vec![b'x'; 300]) },
        MetaRequest::ListXattr { who: whos(), ino },
        MetaRequest::GetLock { ino, range: lock(edge, 0) },
        MetaRequest::Parent { ino },
        MetaRequest::Open { who: whos(), ino, open_flags: number },
        MetaRequest::SetAttr { who: whos(), ino, change },
        MetaRequest::Truncate { who: whos(), ino, size: edge, by_handle: false, confirmed_seq: edge, kill_suid: true },
        MetaRequest::ConfirmTruncate { ino, truncate_seq: edge, allocated_delta: delta },
        MetaRequest::ReportWrite { ino, size: edge, truncate_seq: edge, mtime: Some(times), allocated_delta: delta, kill_suid: true, inline: None, sync: false },
        MetaRequest::ReportWrite { ino, size: edge, truncate_seq: edge, mtime: None, allocated_delta: delta, kill_suid: true,
                                   inline: Some((number, Blob(vec![1; 70_000]))), sync: false },
        MetaRequest::DisownBehind { ino, reserves: true },
        MetaRequest::TakePrivileges { who: whos(), ino },
        MetaRequest::ReadInline { ino },
        MetaRequest::AppendBegin { ino, length: u32::MAX, limit: edge },
        MetaRequest::AppendEnd { ino, offset: edge, reserved: u32::MAX, length: number, mtime: times,
                                 allocated_delta: i64::MIN, kill_suid: false, inline: Some((number, Blob(vec![1; 9]))) },
        MetaRequest::SetXattr { who: whos(), ino, name: Blob(b"user.a".to_vec()), value: Blob(vec![0; 65_537]), flags: number },
        MetaRequest::SetXattr { who: whos(), ino, name: Blob(b"system.posix_acl_access".to_vec()), value: Blob(vec![255; 300]), flags: 0 },
        MetaRequest::RemoveXattr { who: whos(), ino, name: Blob(Vec::new()) },
        MetaRequest::Touch { reads: vec![(ino, times); 2_000] },
        MetaRequest::Touch { reads: vec![(ino, times); 9] },
        MetaRequest::SetPolicy { who: whos(), dir: ino, policy: Some(StripePolicy { unit: number, count: u16::MAX, ..StripePolicy::default() }) },
        MetaRequest::Link { who: whos(), ino, parent: ino, name: some() },
        MetaRequest::Rename { who: whos(), parent: ino, name: some(), new_parent: Ino(edge), new_name: some(), flags: number },
        MetaRequest::Lock { ino, range: lock(edge, edge.wrapping_sub(1)), wait: true, waiter: edge, settled: edge },
        MetaRequest::Lock { ino, range: lock(u64::MAX, 0), wait: false, waiter: 0, settled: edge },
        MetaRequest::Lock { ino, range: lock(edge, u64::MAX), wait: false, waiter: 0, settled: edge },
        MetaRequest::Unlock { ino, range: lock(u64::MAX, edge) },
        MetaRequest::CancelLock { ino, range: lock(0, edge), waiter: edge, before: vec![lock(edge, u64::MAX); 99] },
        MetaRequest::GiveUpAppends { appends: vec![(ino, edge); 99] },
        MetaRequest::ReportTraffic { number: edge, traffic: vec![(DataId(ino.0), traffic); 9] },
        MetaRequest::ReportTraffic { number: edge, traffic: vec![(DataId(edge), traffic); 10_000] },
        MetaRequest::TakeLease { ino, kind: LeaseKind::Write, start: edge, end: 0 },
        MetaRequest::RenewLeases { leases: vec![(ino, edge); 99] },
        MetaRequest::ReturnLease { ino, lease: edge, size: Some(edge), mtime: None },
        MetaRequest::ReleaseLocks { ino, owner: u64::MAX, whole_file: false, handle: Some(edge), number: edge },
        MetaRequest::Tmpfile { who: whos(), parent: ino, mode: number, umask: u32::MAX, zone: ZoneId(edge as u16), node: NodeId(0), exclusive: true },
        MetaRequest::AttachDir { ino },
        MetaRequest::DetachDir { ino },
        MetaRequest::DropDir { ino },
        MetaRequest::SettleDir { ino, since: times, has_entry: false },
        MetaRequest::HasEntry { ino },
        MetaRequest::Close { inos: vec![ino; 9] },
    ];
    requests
}

pub fn impossible_meta_requests(server: &mut Server<'_>, dir: Ino) {
    let who = root_user(0);
    let file = match server.meta(&create(root_user(0), dir, b"file", NewKind::File)) {
        MetaReply::Opened { entry, .. } => entry.ino,
        other => panic!("{other:?}"),
    };
    let lease = MetaRequest::TakeLease {
        ino: file,
        kind: LeaseKind::Read,
        start: 0,
        end: 1,
    };
    let code = ErrorNumber(ErrorCode::NotSupported);
    assert_eq!(server.meta(&lease), MetaReply::Failed { code });
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
        MetaRequest::PollEvents { boot: u64::MAX, acked: u64::MAX, wait_ms: 0 },
        MetaRequest::Reclaim { opens: (0..100_000).map(Ino).collect(), locks: vec![(Ino(9), lock(9, 3)); 100] },
        MetaRequest::Close { inos: vec![Ino(u64::MAX); 100_000] },
        MetaRequest::OpenSession { zone: ZoneId(u16::MAX), name: "n".repeat(900_000) },
        MetaRequest::MakeDetachedDir { uid: 0, gid: 0, mode: u32::MAX, default_acl: Some(Blob(vec![255; 9])), token: 0 },
        MetaRequest::Sync,
        MetaRequest::StatFs,
    ];
    for request in others {
        server.meta(&request);
    }
    // Acknowledged events that were never sent must not hide the next ones.
    server.meta(&MetaRequest::PollEvents {
        boot: 0,
        acked: 0,
        wait_ms: 0,
    });
}

pub fn impossible_root_requests(server: &mut Server<'_>) {
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

pub fn object(target: TargetId, edge: u64) -> ObjectRef {
    ObjectRef {
        target,
        set: StripeSetId(0),
        slot: edge as u16,
        data_id: DataId(edge),
        column: Column(edge as u16),
        layout_gen: edge as u32,
        truncate_seq: 0,
        truncate_bytes: edge,
    }
}

pub fn impossible_storage_requests(server: &mut Server<'_>, target: TargetId) {
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
            StorageRequest::WriteRanges { object: object(target, edge), ranges: vec![(edge, 2500), (edge.wrapping_add(2500), 2500)] },
            StorageRequest::WriteRanges { object: object(target, edge), ranges: vec![(0, edge as u32), (edge, 1)] },
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
    for (expected_version, txn, snap_epoch) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        let conditional = StorageRequest::Write {
            object: object(target, 1),
            offset: 0,
            sync: false,
            expected_version,
            txn,
            snap_epoch,
        };
        let reply = server.storage(&conditional, &[7; 5000]);
        let not_supported = ErrorNumber(ErrorCode::NotSupported);
        assert!(
            matches!(reply, StorageReply::Failed { code, .. } if code == not_supported),
            "{reply:?}"
        );
    }
    // Ranges that overlap, run backwards, are empty or too many; with more or fewer bytes than the
    // payload, or without one.
    let whole: Vec<(u64, u32)> = (0..1250).map(|at| (at * 8, 4)).collect();
    let bad = [
        vec![(0, 2500), (2499, 2500)],
        vec![(2500, 2500), (0, 2500)],
        vec![(0, 5000), (6000, 0)],
        vec![(0, 2500), (3000, 2499)],
        vec![(0, 2500), (3000, 2501)],
        vec![(0, u32::MAX), (1 << 40, u32::MAX)],
        whole,
        vec![],
    ];
    for ranges in bad {
        let object = object(target, 1);
        let reply = server.storage(&StorageRequest::WriteRanges { object, ranges }, &[7; 5000]);
        let invalid = ErrorNumber(ErrorCode::Invalid);
        assert!(
            matches!(reply, StorageReply::Failed { code, .. } if code == invalid),
            "{reply:?}"
        );
    }
    let objects = (0..10_000).map(|id| (DataId(u64::MAX - id), Column(id as u16)));
    let delete = StorageRequest::Delete {
        target,
        objects: objects.collect(),
    };
    let refused = server.storage(&delete, &[]);
    let not_permitted = ErrorNumber(ErrorCode::NotPermitted);
    assert!(
        matches!(refused, StorageReply::Failed { code, .. } if code == not_permitted),
        "{refused:?}"
    );
    // In a cell without keys, a peer that claims to be a server is one.
    let as_server = Identity::new(CellId::default(), Role::Server, NodeId(9), None);
    let pool = Pool::new(as_server, PoolConfig::default());
    let mut peer = Server::new(&pool, server.to, Service::Storage);
    assert_eq!(peer.storage(&delete, &[]), StorageReply::Done);
}

pub fn impossible_manager_requests(server: &mut Server<'_>, version: MapVersion, random: &mut Rng) {
    for edge in EDGES {
        let join = |zone, address: &str, meta| ManagerRequest::Join {
            node: NodeId(edge as u32),
            zone: ZoneId(zone),
            zone_name: "z".repeat(70_000),
            address: address.into(),
            meta,
            meta_zone: ZoneId(zone),
            targets: vec![
                JoinTarget {
                    target: TargetId(1),
                    uuid: [edge as u8; 16],
                    capacity: edge,
                };
                9
            ],
            starts: Vec::new(),
        };
        for request in [
            ManagerRequest::GetMap {
                have: MapVersion(edge),
            },
            ManagerRequest::Junction { ino: Ino(edge) },
            ManagerRequest::Junctions {
                after: Some(("/\u{0}\u{fe}".repeat(2000), Ino(edge))),
                entries: u32::MAX,
            },
            ManagerRequest::JunctionsAt {
                path: "\u{0}".repeat(5000),
            },
            ManagerRequest::GetMapPart {
                version: MapVersion(edge),
                offset: edge,
            },
            ManagerRequest::GetMapPart {
                version,
                offset: edge,
            },
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

/// Edits that only shards, the manager or joins make: from outside, they would make the map
/// disagree with the cell.
pub fn foreign_edits(manager: &mut Server<'_>) {
    let node = NodeId(u32::MAX);
    let edits = [
        MapEdit::OpenSets { zone: ZoneId(1) },
        MapEdit::SetWidth { slots: 1 },
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

pub fn map_of(manager: &mut Server<'_>) -> ZoneMap {
    let fetch = Fetch::newer(Arc::new(ZoneMap::unknown(CellId::default())));
    let map = fetch.run(|request| Ok::<_, FetchError>(manager.manager(request)));
    Arc::unwrap_or_clone(map.unwrap())
}
