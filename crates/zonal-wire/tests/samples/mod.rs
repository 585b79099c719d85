//! Samples of every message, with different values in similar fields, for the golden and the
//! hostile tests. A test checks that no tag is missing.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod agent;
mod corpus;
mod replica;

pub use agent::{agent_replies, agent_requests};
pub use corpus::{Kind, corpus, corpus_path, kinds};
pub use replica::{replica_replies, replica_requests};

use zonal_types::layout::{Component, ComponentKind};
use zonal_types::{
    Attr, Blob, CellId, ClientId, ClientIdentity, Codec, Column, Credentials, DataId, Epoch,
    ErrorCode, Fence, FileData, FileKind, HolderNumber, Incarnation, Ino, Layout, LayoutGen,
    MapVersion, Name, NodeId, PartitionId, Placement, Redundancy, Relocation, RelocationState,
    SessionId, ShardId, StripePolicy, StripeSetId, TargetId, Timestamp, TraceId, ZoneId,
};
use zonal_wire::frame::{PayloadAt, Room};
use zonal_wire::meta::{BytesPlace, FileUse, Listing, ShardLoad};
use zonal_wire::{
    AdminReply, AdminRequest, AppendPlace, AttrChange, CellChange, CellEvent, ClientTraffic,
    ClientZoneTraffic, Damaged, DirAfter, DirEntry, DirectoryTraffic, DrainStatus, Entry,
    ErrorNumber, Event, Header, JoinTarget, JoinTokenStatus, JoinTokenTerms, Junction, KnownState,
    LeaseGrant, LeaseKind, LockKind, LockRange, ManagerReply, ManagerRequest, MetaReply,
    MetaRequest, MoveStage, MoveStatus, MovedEntry, NewKind, NodeActivity, NodeState, ObjectEntry,
    ObjectRef, OperationTimes, RelocationPlan, RoleHealth, ScrubOf, ScrubReport, ScrubState,
    Service, SessionEntry, SetTime, Sighting, StartMark, StateCause, StorageReply, StorageRequest,
    StoreStart, SubnetZone, Suspicion, TargetRoom,
};

pub fn headers() -> Vec<(&'static str, Header)> {
    let cell = CellId(*b"0123456789abcdef");
    let plain = Header::request(Service::Manager, cell);
    let full = Header {
        body_bytes: 0x0001_0203,
        payload_bytes: 0x0004_0506,
        tlv_bytes: 0x0708,
        session: SessionId(0x1112_1314_1516_1718),
        slot: 5,
        sequence: 0x2122_2324,
        map_version: MapVersion(0x3132_3334_3536_3738),
        epoch: Epoch(0x4142_4344_4546_4748),
        deadline_ms: 10_000,
        request_id: 0x5152_5354,
        trace: TraceId(0x6162_6364_6566_6768),
        payload_crc: Some(0xdead_beef),
        ..Header::request(Service::Storage, cell)
    };
    let ordered = Header {
        order: 0x7172_7374_7576_7778,
        is_guarded: true,
        ..plain
    };
    let in_region = Header {
        payload_bytes: 0x0004_0506,
        payload_at: PayloadAt::Region {
            offset: 0x0102_0304_0506_0708,
        },
        ..plain
    };
    let with_room = Header {
        room: Some(Room {
            offset: 0x1112_1314_1516_1718,
            length: 0x2122_2324,
        }),
        ..plain
    };
    let in_room = Header {
        payload_bytes: 0x0004_0506,
        payload_at: PayloadAt::Region { offset: 0 },
        ..plain.reply()
    };
    vec![
        ("plain", plain),
        ("full", full),
        ("reply", full.reply()),
        ("meta", Header::request(Service::Meta, cell)),
        ("connection", Header::request(Service::Connection, cell)),
        ("admin", Header::request(Service::Admin, cell)),
        ("in_region", in_region),
        ("with_room", with_room),
        ("in_room", in_room),
        ("agent", Header::request(Service::Agent, cell)),
        ("replica", Header::request(Service::Replica, cell)),
        ("ordered", ordered),
    ]
}

fn ino(sequence: u64) -> Ino {
    Ino::new(PartitionId(3), sequence)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn who() -> Credentials {
    Credentials {
        uid: 1000,
        gid: 100,
        groups: vec![7, 8],
    }
}

fn time(seconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanos: 999_999_999,
    }
}

fn attr() -> Attr {
    Attr {
        ino: ino(17),
        kind: FileKind::File,
        mode: 0o644,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 0x0102_0304_0506,
        allocated: 8192,
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        change: 12,
        xattrs: 9,
    }
}

fn traffic() -> ClientTraffic {
    ClientTraffic {
        read_in_zone: 1 << 40,
        read_cross_zone: 5,
        written_in_zone: 1 << 33,
        written_cross_zone: 7,
    }
}

/// A file with copies, one of them stale.
fn copied_file_data() -> FileData {
    let mut data = file_data();
    data.layout.components[0].redundancy = Redundancy::Copies { copies: 2, step: 1 };
    data.layout.components[0].relocations = vec![Relocation {
        object: Column(1),
        set: StripeSetId(5),
        slot: 2,
        state: RelocationState::Filling,
        as_of: MapVersion(9),
    }];
    data.layout.stale = vec![TargetId(7), TargetId(9)];
    data.as_of = MapVersion(0x4a);
    data
}

fn file_data() -> FileData {
    let component = Component {
        kind: ComponentKind::Striped,
        start: 0,
        end: u64::MAX,
        data_id: DataId(0x99),
        zone: ZoneId(2),
        set: StripeSetId(4),
        start_column: Column(1),
        count: 3,
        unit: 1 << 20,
        span: 0,
        redundancy: Redundancy::None,
        relocations: Vec::new(),
    };
    FileData {
        layout: Layout {
            layout_gen: LayoutGen(1),
            components: vec![component],
            stale: Vec::new(),
        },
        as_of: MapVersion(0),
        truncate_seq: 6,
        truncate_size: 4097,
    }
}

fn dir_after() -> DirAfter {
    DirAfter {
        attr: Attr {
            kind: FileKind::Directory,
            ..attr()
        },
        attr_ms: 4_000,
    }
}

fn entry() -> Entry {
    Entry {
        ino: ino(17),
        kind: FileKind::File,
        attr: Some(attr()),
        entry_ms: 5000,
        attr_ms: 4000,
    }
}

fn lock() -> LockRange {
    LockRange {
        whole_file: false,
        owner: 0xabcd,
        handle: 0x300,
        number: 77,
        pid: 4242,
        kind: LockKind::Exclusive,
        start: 10,
        end: u64::MAX,
    }
}

fn object() -> ObjectRef {
    ObjectRef {
        target: TargetId(6),
        set: StripeSetId(2),
        slot: 5,
        data_id: DataId(0x99),
        column: Column(2),
        layout_gen: 1,
        truncate_seq: 6,
        truncate_bytes: 4096,
    }
}

#[rustfmt::skip]
pub fn meta_requests() -> Vec<MetaRequest> {
    use MetaRequest as M;
    let (who, dir, file) = (who(), ino(16), ino(17));
    let change = AttrChange { mode: Some(0o4755), uid: None, gid: Some(9), atime: Some(SetTime::Now), mtime: Some(SetTime::At { time: time(5) }), ctime: None };
    let create = |kind| M::Create { who: who.clone(), parent: dir, name: name("a"), kind, mode: 0o644, umask: 0o22, zone: ZoneId(1), node: NodeId(7), open: true, open_flags: 2, exclusive: false };
    let policy = StripePolicy { unit: 65536, count: 3, redundancy: Redundancy::None, placement: Placement::Node };
    vec![
        M::OpenSession { zone: ZoneId(1), name: "mount".into() },
        M::PollEvents { boot: 9, acked: 4, wait_ms: 20_000 },
        M::CloseSession,
        M::EvictSession,
        M::DropLeases,
        M::Reclaim { opens: vec![file], locks: vec![(file, lock())] },
        M::ReclaimAppends { appends: vec![(file, AppendPlace { offset: 4096, length: 20, truncate_seq: 3 })] },
        M::Lookup { who: who.clone(), parent: dir, name: name("\u{e4} name") },
        M::GetAttr { ino: file, data: true },
        M::Access { who: who.clone(), ino: file, mask: 5 },
        M::Readlink { ino: file },
        M::ReadDir { who: who.clone(), dir, cookie: 0x8000, entries: 128, plus: true },
        M::GetXattr { who: who.clone(), ino: file, name: Blob(b"user.a".to_vec()) },
        M::ListXattr { who: who.clone(), ino: file },
        M::GetLock { ino: file, range: lock() },
        M::StatFs,
        M::Sync,
        M::Parent { ino: dir },
        M::FileOf { data_id: DataId(0x99) },
        M::ReadInline { ino: file },
        M::ReadDirs { who: who.clone(), dirs: vec![dir, Ino(0x77)], entries: 204 },
        create(NewKind::File),
        create(NewKind::Symlink { text: Blob(b"../target".to_vec()) }),
        create(NewKind::CharDevice { rdev: 0x103 }),
        M::Mkdir { who: who.clone(), parent: Ino::ROOT, name: name("data"), mode: 0o755, umask: 0, zone: ZoneId(2) },
        M::Tmpfile { who: who.clone(), parent: dir, mode: 0o600, umask: 0o77, zone: ZoneId(1), node: NodeId(7), exclusive: true },
        M::Unlink { who: who.clone(), parent: dir, name: name("a") },
        M::Rmdir { who: who.clone(), parent: dir, name: name("d") },
        M::Rename { who: who.clone(), parent: dir, name: name("a"), new_parent: ino(18), new_name: name("b"), flags: 2 },
        M::Link { who: who.clone(), ino: file, parent: dir, name: name("c") },
        M::Open { who: who.clone(), ino: file, open_flags: 0o1001 },
        M::Close { inos: vec![file, file] },
        M::SetAttr { who: who.clone(), ino: file, change },
        M::Truncate { who: who.clone(), ino: file, size: 4097, by_handle: true, confirmed_seq: 5, kill_suid: true },
        M::ConfirmTruncate { ino: file, truncate_seq: 6, allocated_delta: -8192 },
        M::ReportWrite { ino: file, size: 1 << 40, truncate_seq: 3, mtime: Some(time(6)), allocated_delta: 4096, kill_suid: false, inline: None, sync: false },
        M::ReportWrite { ino: file, size: 7, truncate_seq: u64::MAX, mtime: None, allocated_delta: 0, kill_suid: true, inline: Some((5, Blob(vec![1, 2]))), sync: true },
        M::AppendBegin { ino: file, length: 100, limit: i64::MAX as u64 },
        M::AppendEnd { ino: file, offset: 200, reserved: 100, length: 99, mtime: time(7), allocated_delta: 0, kill_suid: true, inline: Some((200, Blob(vec![3; 4]))) },
        M::SetXattr { who: who.clone(), ino: file, name: Blob(b"user.a".to_vec()), value: Blob(vec![0, 255]), flags: 1 },
        M::RemoveXattr { who: who.clone(), ino: file, name: Blob(b"user.a".to_vec()) },
        M::Touch { reads: vec![(file, time(5)), (ino(20), time(6))] },
        M::SetPolicy { who: who.clone(), dir, policy: Some(policy) },
        M::DisownBehind { ino: file, reserves: true },
        M::TakePrivileges { who: who.clone(), ino: file },
        M::MarkStale { ino: file, targets: vec![TargetId(7), TargetId(9)] },
        M::BeginRestripe { who: who.clone(), ino: file, dir },
        M::SwapBytes { who: who.clone(), ino: file, copy: ino(20), change: 5, boot: 1 << 40 },
        M::GiveUpPlace { ino: file, target: TargetId(8) },
        M::Lock { ino: file, range: lock(), wait: true, waiter: 3, settled: 70 },
        M::Unlock { ino: file, range: lock() },
        M::CancelLock { ino: file, range: lock(), waiter: 3, before: vec![lock()] },
        M::ReleaseLocks { ino: file, owner: 0xabcd, whole_file: true, handle: Some(0x300), number: 78 },
        M::GiveUpAppends { appends: vec![(file, 200), (ino(20), 0)] },
        M::LendEnd { ino: file },
        M::AppendAt { ino: file, offset: 1 << 40, length: 1 << 20 },
        M::ReturnEnds { inos: vec![file, ino(20)] },
        M::ReportTraffic { number: 3, traffic: vec![(DataId(0x99), traffic())] },
        M::TakeLease { ino: file, kind: LeaseKind::Write, start: 4096, end: u64::MAX },
        M::RenewLeases { leases: vec![(file, 7), (ino(20), 8)] },
        M::ReturnLease { ino: file, lease: 7, size: Some(1 << 40), mtime: Some(time(9)) },
        M::MakeDetachedDir { uid: 1, gid: 2, mode: 0o755, default_acl: Some(Blob(vec![2, 0, 0, 0])), token: 0x55 },
        M::AttachDir { ino: dir },
        M::DetachDir { ino: dir },
        M::DropDir { ino: dir },
        M::HasEntry { ino: dir },
        M::OpenSets { zone: ZoneId(2) },
        M::FirstLevel { name: Name::new(b"data").unwrap() },
        M::ReportShardLoad { shard: ShardId(7), inodes: 24_000, requests: 1 << 33 },
        M::MorePartitions { shard: ShardId(7) },
        M::MovePartition { partition: PartitionId(300), to: ShardId(7) },
        M::GetMoves,
        M::CancelMove { partition: PartitionId(300) },
        M::MoveBegin { partition: PartitionId(300), from: ShardId(7), number: 1 << 60 },
        M::MoveEntries {
            partition: PartitionId(300),
            number: 1 << 60,
            page: 3,
            entries: vec![
                MovedEntry { key: Blob(vec![0, 0, 1, 44, 16]), value: Some(Blob(vec![5; 9])) },
                MovedEntry { key: Blob(vec![0, 0, 1, 44, 32]), value: None },
            ],
        },
        M::MoveEnd { partition: PartitionId(300), number: 1 << 60, pages: 3, has_remote_data: true },
        M::MoveDropped { partition: PartitionId(300), number: 1 << 60 },
        M::GivePartition { partition: PartitionId(300), from: ShardId(7), to: ShardId(8) },
        M::GetShardLoads,
        M::MirroredRoot { who: who.clone(), mask: 5 },
        M::MirroredName { who: who.clone(), name: Name::new(b"data").unwrap() },
        M::MirroredNames { who: who.clone(), cookie: 1 << 40, entries: 512 },
        M::SettleDir { ino: dir, since: time(8), has_entry: true },
        M::HasOpen { subject: "zonal://cell/client/a".into(), data_id: DataId(0x99), for_use: FileUse::Write },
        M::FencesOf { target: TargetId(0x41), after: ClientId(0x42), holder: HolderNumber(0x43) },
        M::StaleFiles { target: TargetId(0x44), after: Ino(0x45) },
        M::CopiesOf { data_id: DataId(0x4b) },
        M::MendCopy { ino: Ino(0x46), target: TargetId(0x47), as_of: MapVersion(0x48), allocated_delta: -4096, relocated: vec![(DataId(0x4c), Column(0x4d))], full: true },
        M::RelocateObjects {
            target: TargetId(0x4e),
            after: Ino(0x4f),
            unfinished: true,
            settled: MapVersion(0x51),
            plan: RelocationPlan { share: 0x52, room: vec![TargetRoom { target: TargetId(0x53), bytes: 0x54 }] },
        },
    ]
}

#[rustfmt::skip]
pub fn meta_replies() -> Vec<MetaReply> {
    use MetaReply as R;
    let elsewhere = Entry { attr: None, kind: FileKind::Directory, ..entry() };
    let listed = DirEntry { name: name("a"), cookie: 0x1234_5678_9abc, entry: entry() };
    vec![
        R::Failed { code: ErrorNumber(ErrorCode::NotOwner) },
        R::Done,
        R::Session { session: SessionId(8), boot: 2, epoch: Epoch(1), term_ms: 60_000, now: time(8), resumed: true },
        R::Events { boot: 2, lease_ms: 5000, events: events().into_iter().enumerate().map(|(index, event)| (index as u64 + 5, event)).collect() },
        R::StaleShard { shard: ShardId(1), node: NodeId(4), epoch: Epoch(3), map_version: MapVersion(9) },
        R::Reclaimed { lost: vec![Ino(0x11)] },
        R::NotLeader { leader: NodeId(4) },
        R::Synced { boot: 5 },
        R::Entry { entry: entry() },
        R::Entry { entry: elsewhere },
        R::NoEntry { entry_ms: 5000 },
        R::Attr { attr: attr(), data: Some(file_data()), attr_ms: 100 },
        R::Text { text: Blob(b"../target".to_vec()) },
        R::Dir { entries: vec![listed.clone()], end: true },
        R::Dirs { listings: vec![Listing { dir: Ino(0x99), entries: vec![listed.clone()], end: false, term_ms: 5000 }] },
        R::Names { names: vec![Blob(b"user.a".to_vec()), Blob(b"user.b".to_vec())] },
        R::Locked { holder: Some(lock()) },
        R::StatFs { inodes: 24_000, names_left: 7_000_000 },
        R::Parent { parent: Ino::ROOT },
        R::File { ino: Ino(0x55) },
        R::Inline { bytes: Blob(vec![0, 1, 255]) },
        R::Opened { entry: entry(), data: file_data(), push: true },
        R::OpenedSmall { entry: entry(), data: file_data(), bytes: Blob(vec![0, 1, 255]) },
        R::Made { entry: entry(), dir: dir_after() },
        R::MadeOpen { entry: entry(), data: file_data(), dir: dir_after() },
        R::Removed { attr: None, dir: dir_after() },
        R::Removed { attr: Some(attr()), dir: dir_after() },
        R::Truncated { attr: attr(), data: file_data(), push: false },
        R::Appending { offset: 200, data: file_data() },
        R::Leased { grant: LeaseGrant { lease: 7, kind: LeaseKind::Size, start: 0, end: u64::MAX, term_ms: 5000, epoch: Epoch(2), size_limit: 1 << 30 } },
        R::Detached { ino: ino(19) },
        R::Yes { yes: true },
        R::Sets { map_version: MapVersion(9), sets: vec![(StripeSetId(2), 64), (StripeSetId(3), 44)] },
        R::Child { ino: None },
        R::Child { ino: Some(ino(16)) },
        R::TrafficDirs { dirs: vec![(DataId(0x99), ino(16)), (DataId(0x9a), Ino::ROOT)] },
        R::Moves {
            moves: vec![MoveStatus {
                partition: PartitionId(300),
                number: 1 << 60,
                to: ShardId(7),
                stage: MoveStage::Copying,
                sent: 500,
                inodes: 24_000,
                attempts: 2,
                failure: Some(28),
            }],
        },
        R::Joined { partitions: vec![PartitionId(301), PartitionId(400)] },
        R::Relocations {
            begun: 1,
            filling: 2,
            unfenced: 3,
            stuck: 4,
            no_room: 5,
            placed: vec![TargetRoom { target: TargetId(6), bytes: 7 }],
            next: Some(Ino(0x50)),
        },
        R::Files { files: vec![(Ino(0x49), copied_file_data())], next: Some(Ino(0x49)) },
        R::ShardLoads { loads: vec![ShardLoad { shard: ShardId(7), directories: 3, inodes: Some(24_000), requests_per_second: None }] },
        R::MirroredRoot { attr: attr(), acl: Some(Blob(vec![2, 0, 0, 0])), age_ms: 1_500 },
        R::MirroredNames { entries: vec![listed.clone()], end: false, age_ms: 1_500 },
        R::Fences { fences: vec![Fence { client: ClientId(0x51), holder: HolderNumber(0x52), lowest: Incarnation(0x53) }], end: true },
        R::MayUse { place: None },
        R::MayUse { place: file_data().layout.components.pop().map(|component| BytesPlace { component, truncate_seq: 7 }) },
    ]
}

#[rustfmt::skip]
pub fn events() -> Vec<Event> {
    vec![
        Event::Invalidate { entries: ino(16), inodes: vec![ino(17), ino(18)], data: true },
        Event::LockGranted { ino: ino(17), waiter: 3 },
        Event::RecallLease { ino: ino(17), lease: 7, keep: Some(LeaseKind::Read) },
        Event::FileTruncated { ino: ino(17) },
        Event::EndRecalled { ino: ino(17) },
    ]
}

#[rustfmt::skip]
pub fn storage_requests() -> Vec<StorageRequest> {
    use StorageRequest as S;
    let (object, target) = (object(), TargetId(6));
    vec![
        S::Read { object, offset: 1 << 33, length: 1 << 20 },
        S::Write { object, offset: 4096, sync: true, expected_version: 0, txn: 0, snap_epoch: 0 },
        S::Truncate { object },
        S::Punch { object, offset: 1, length: 2 },
        S::Allocate { object, offset: 3, length: 4, zero: true },
        S::Map { object, offset: 5, end: 6, limit: 7 },
        S::Stat { object },
        S::Sync { target },
        S::Fence { target, fences: vec![Fence { client: ClientId(0x77), holder: HolderNumber(0xabcd), lowest: Incarnation(4) }] },
        S::Delete { target, objects: vec![(DataId(0x99), Column(0)), (DataId(0x9a), Column(1))] },
        S::StatFs { target },
        S::WriteRanges { object, ranges: vec![(1, 256), (4097, 512), (1 << 33, 1)] },
        S::Prepare { object, txn: 1 },
        S::Commit { object, txn: 2 },
        S::Abort { object, txn: 3 },
        S::Resolve { object, txn: 4 },
        S::MapExtents { object, offset: 8, length: 9 },
        S::CommitExtents { object, txn: 5 },
    ]
}

#[rustfmt::skip]
pub fn storage_replies() -> Vec<StorageReply> {
    use StorageReply as R;
    vec![
        R::Failed { code: ErrorNumber(ErrorCode::Corrupt), detail: "block 3".into() },
        R::Read { object_bytes: 1 << 20, order: 9 },
        R::Written { allocated_delta: -4096, object_bytes: 9, verifier: 77 },
        R::Map { ranges: vec![(0, 4096), (8192, 1)], object_bytes: 8193 },
        R::Stat { object_bytes: 1, allocated: 4096, truncate_seq: 6 },
        R::Done,
        R::Synced { verifier: 78 },
        R::StatFs { total: 1 << 40, free: 1 << 39, objects: 12 },
        R::Stale { map_version: MapVersion(7), set: StripeSetId(2), slot: 5, target: TargetId(6), epoch: Epoch(4) },
        R::Overtaken { order: 1_800_000_000_000_000 },
    ]
}

#[rustfmt::skip]
pub fn manager_requests() -> Vec<ManagerRequest> {
    use ManagerRequest as M;
    let mark = |number| StartMark { number, tag: number << 32 };
    let store = StoreStart { kind: 2, id: 6, uuid: *b"fedcba9876543210", mark: mark(5), taken: mark(3), proposed: vec![mark(4), mark(5)] };
    let target = JoinTarget { target: TargetId(6), uuid: *b"fedcba9876543210", capacity: 1 << 40 };
    vec![
        M::GetMap { have: MapVersion(7) },
        M::Join { node: NodeId(3), zone: ZoneId(1), zone_name: "zone1".into(), address: "127.0.0.1:7100".into(), meta: true, meta_zone: ZoneId(3), targets: vec![target], starts: vec![store] },
        M::Edit { expected: MapVersion(7), edits: Blob(vec![1, 2, 3]) },
        M::Junction { ino: ino(16) },
        M::Junctions { after: None, entries: 512 },
        M::Junctions { after: Some(("/data".into(), ino(16))), entries: 512 },
        M::JunctionsAt { path: "/data".into() },
        M::GetMapPart { version: MapVersion(7), offset: 262_144 },
        M::GetRevoked { have: 3 },
        M::Revoke { serials: vec![1, u64::MAX] },
        M::GetSubnets,
        M::ReportLoad { node: NodeId(3), cpu_per_mille: 417 },
        M::Digest { zone: ZoneId(2), reporter: NodeId(3), suspicions: vec![Suspicion { node: NodeId(5), state: NodeState::Down, cause: StateCause::NoProcess, by: vec![NodeId(4), NodeId(6)] }], unknown: vec![NodeId(9)] },
        M::NodeStates { after: NodeId(4) },
        M::Events { after: 77, limit: 512 },
        M::ClientLost { shard: ShardId(2), zone: ZoneId(1), client: ClientId(0xabcd), name: "mount /x".into() },
        M::AddJoinToken { terms: token_terms(), proof: *b"0123456789abcdef0123456789abcdef", sealed: Blob(vec![1, 2]) },
        M::JoinTokens,
        M::RemoveJoinToken { id: *b"token-01" },
        M::WantShards { zone: ZoneId(2), shards: 3 },
        M::CheckClock { node: NodeId(3), clock_ms: 1_800_000_000_123 },
        M::TakeOut { target: TargetId(9) },
        M::PutBack { target: TargetId(9) },
        M::GetDrains,
        M::RenewEpochs { target: TargetId(9), known: MapVersion(8) },
        M::RenewLease { node: NodeId(3) },
    ]
}

#[rustfmt::skip]
pub fn manager_replies() -> Vec<ManagerReply> {
    use ManagerReply as R;
    vec![
        R::Failed { code: ErrorNumber(ErrorCode::Busy), detail: "try again".into() },
        R::At { version: MapVersion(8) },
        R::MapPart { version: MapVersion(8), newest: MapVersion(9), bytes: 600_000, offset: 262_144, part: Blob(vec![1, 0]) },
        R::MapChanges { from: MapVersion(6), to: MapVersion(8), newest: MapVersion(9), changes: vec![Blob(vec![1]), Blob(vec![2, 3])] },
        R::Junctions { version: 5, count: 3, junctions: vec![Junction { ino: ino(16), path: "/data".into(), zone: ZoneId(2) }], end: false },
        R::Revoked { version: 2, serials: vec![7, 9] },
        R::NodeStates { states: vec![KnownState { node: NodeId(5), state: NodeState::Suspect, since: time(1000), cause: StateCause::Disagreement, by: vec![NodeId(4)] }], end: true },
        R::Events { first: 1, last: 9, events: cell_events() },
        R::DigestTaken { next_ms: 1_000 },
        R::ShardCount { wanted: 3, present: 2 },
        R::Subnets { subnets: vec![SubnetZone { subnet: "10.1.0.0/16".into(), zone: ZoneId(1), zone_name: "row".into() }] },
        R::Drains { drains: vec![DrainStatus { target: TargetId(1), filling: 2, most: 3, stuck: 4, no_room: 6, ms: 5 }] },
        R::JoinTokens { tokens: vec![JoinTokenStatus { terms: token_terms(), is_used: true }] },
    ]
}

fn token_terms() -> JoinTokenTerms {
    JoinTokenTerms {
        id: *b"token-01",
        expires: 1_800_000_000,
        node: NodeId(9),
        target: TargetId(8),
        roles: "meta,storage".into(),
    }
}

#[rustfmt::skip]
fn cell_events() -> Vec<CellEvent> {
    let event = |number, change| CellEvent { number, at: time(1000), change };
    vec![
        event(7, CellChange::NodeState { node: NodeId(5), zone: ZoneId(2), was: NodeState::Up, state: NodeState::Draining, cause: StateCause::Ordered, by: vec![] }),
        event(8, CellChange::ZoneReports { zone: ZoneId(2), reports: false }),
        event(9, CellChange::ClientLost { shard: ShardId(2), zone: ZoneId(1), client: ClientId(0xabcd), name: "mount /x".into() }),
    ]
}

#[rustfmt::skip]
pub fn admin_requests() -> Vec<AdminRequest> {
    use AdminRequest as A;
    let target = TargetId(6);
    vec![
        A::Health,
        A::ScrubStart { of: ScrubOf::Target { target }, rate: 64 << 20, anew: true },
        A::ScrubStop { of: ScrubOf::Shard { shard: ShardId(2) } },
        A::ScrubStatus { of: ScrubOf::Target { target } },
        A::ListObjects { target, after: Some((DataId(77), Column(2))), limit: 1000, digests: true },
        A::SnapshotBegin { shard: ShardId(2) },
        A::SnapshotRead { snapshot: 5, after: Blob(b"key".to_vec()) },
        A::SnapshotEnd { snapshot: 5 },
        A::ListSessions { shard: ShardId(1), after: SessionId(9), limit: 1000 },
        A::Activity,
        A::NumberClaimed { node: NodeId(3), claimed_by: "127.0.0.1:7100".into() },
        A::Heartbeat,
        A::Sightings { zone: ZoneId(2), sightings: vec![Sighting { node: NodeId(5), result: StateCause::Hung, silent_ms: 3_000 }] },
    ]
}

#[rustfmt::skip]
pub fn admin_replies() -> Vec<AdminReply> {
    use AdminReply as R;
    let damaged = Damaged { data_id: DataId(78), column: Column(1), offset: 8192, detail: "sums to 1 instead of 2".into() };
    let report = ScrubReport {
        state: ScrubState::Running, rate: 1 << 20, started: time(1000), ended: time(0), objects: 3, bytes: 4 << 20,
        objects_now: 9, bytes_now: 12 << 20, data_id: DataId(79), column: Column(4), damaged_blocks: 1, damaged: vec![damaged],
    };
    let object = ObjectEntry { data_id: DataId(80), column: Column(3), object_bytes: 5000, allocated: 8192, truncate_seq: 2, order: 3, digest: Some(4) };
    vec![
        R::Failed { code: ErrorNumber(ErrorCode::Busy), detail: "a snapshot is being read".into() },
        R::Done,
        R::Health { roles: vec![RoleHealth { role: "target 6".into(), serves: false, trouble: "flush failed".into() }] },
        R::Scrub { report },
        R::Objects { objects: vec![object], end: true },
        R::Snapshot { snapshot: 5, shard: ShardId(2), epoch: Epoch(3), position: 65_536, map_version: MapVersion(9) },
        R::Entries { entries: vec![(Blob(b"key".to_vec()), Blob(b"value".to_vec()))], end: false },
        R::Sessions { sessions: vec![SessionEntry { session: SessionId(10), identity: ClientIdentity { client: ClientId(0xabcd), incarnation: Incarnation(3) }, zone: ZoneId(2), name: "mount /x".into(), idle_ms: 99, open_files: 3, locked_files: 1 }], end: true },
        R::Activity { activity: NodeActivity {
            clients: vec![ClientZoneTraffic { target: TargetId(6), zone: ZoneId(2), read: 1 << 34, written: 9 }],
            directories: vec![DirectoryTraffic { dir: ino(16), traffic: traffic() }],
            operations: vec![OperationTimes { service: "storage".into(), operation: "Read".into(), sum_us: 1234, buckets: vec![0, 3, 1] }],
            cpu_per_mille: Some(417),
        } },
        R::Heartbeat { serves: false },
    ]
}
