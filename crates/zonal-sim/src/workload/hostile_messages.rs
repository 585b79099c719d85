//! Messages that no client should send, to every server: random bytes, and requests with changed
//! fields. Invariant 6: no process ends by them. They damage at most what the sender's session may
//! change anyway.

use super::{SimClient, create, lookup, name, open, who};
use crate::coverage::FaultKind;
use crate::net::{SimRequest, spoil};
use crate::rng::SimRng;
use crate::world::World;
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_client::Reserve;
use zonal_client::names::ListingPage;
use zonal_types::{
    Blob, ClientId, ClientIdentity, Codec, Column, Credentials, DataId, Ino, SessionId,
    StripeSetId, TargetId, ZoneId,
};
use zonal_wire::{
    Header, LockKind, LockRange, ManagerRequest, MetaReply, MetaRequest, ObjectRef, Service,
    StorageRequest,
};

/// A number near some limit.
fn odd(rng: &mut SimRng) -> u64 {
    let base = [
        0,
        1,
        4096,
        1 << 20,
        u64::from(u32::MAX),
        1 << 43,
        i64::MAX as u64,
        u64::MAX,
    ];
    let near = rng.pick(&base).copied().unwrap_or(0);
    near.wrapping_add(rng.below(3)).wrapping_sub(1)
}

fn odd_listing(dir: Ino, who: Credentials, rng: &mut SimRng) -> MetaRequest {
    let (cookie, entries) = (odd(rng), odd(rng) as u32);
    if entries.is_multiple_of(2) {
        let dirs = vec![dir, Ino(cookie), dir];
        return MetaRequest::ReadDirs { who, dirs, entries };
    }
    MetaRequest::ReadDir {
        who,
        dir,
        cookie,
        entries,
        plus: true,
    }
}

#[expect(clippy::too_many_lines, reason = "a table of requests")]
fn odd_meta(ino: Ino, rng: &mut SimRng) -> MetaRequest {
    let range = LockRange {
        whole_file: rng.chance(300),
        owner: odd(rng),
        handle: odd(rng),
        number: odd(rng),
        pid: 1,
        kind: LockKind::Exclusive,
        start: odd(rng),
        end: odd(rng),
    };
    let who = who();
    match rng.below(16) {
        0 => MetaRequest::Lock {
            ino,
            range,
            wait: rng.chance(500),
            waiter: odd(rng),
            settled: odd(rng),
        },
        1 => MetaRequest::Unlock { ino, range },
        2 => MetaRequest::Reclaim {
            opens: vec![ino, Ino(odd(rng))],
            locks: vec![(ino, range), (Ino(odd(rng)), range)],
        },
        3 => MetaRequest::AppendBegin {
            ino,
            length: odd(rng) as u32,
            limit: odd(rng),
        },
        4 => MetaRequest::AppendEnd {
            ino,
            offset: odd(rng),
            reserved: odd(rng) as u32,
            length: odd(rng) as u32,
            mtime: zonal_types::Timestamp::default(),
            allocated_delta: odd(rng) as i64,
            kill_suid: true,
            inline: Some((odd(rng) as u32, Blob(vec![7; 9]))),
        },
        5 => MetaRequest::Truncate {
            who,
            ino,
            size: odd(rng),
            by_handle: true,
            confirmed_seq: odd(rng),
            kill_suid: false,
        },
        6 => MetaRequest::ReportWrite {
            ino,
            size: odd(rng),
            truncate_seq: odd(rng),
            mtime: None,
            allocated_delta: odd(rng) as i64,
            kill_suid: false,
            inline: Some((odd(rng) as u32, Blob(vec![8; 5]))),
            sync: false,
        },
        7 => MetaRequest::ConfirmTruncate {
            ino,
            truncate_seq: odd(rng),
            allocated_delta: odd(rng) as i64,
        },
        8 => odd_listing(ino, who, rng),
        9 => MetaRequest::Close {
            inos: vec![ino, ino, Ino(odd(rng))],
        },
        10 => MetaRequest::PollEvents {
            boot: odd(rng),
            acked: odd(rng),
            wait_ms: 0,
        },
        11 => MetaRequest::GetAttr {
            ino: Ino(odd(rng)),
            data: true,
        },
        12 => MetaRequest::CancelLock {
            ino,
            range,
            waiter: odd(rng),
            before: vec![range; rng.below(3) as usize],
        },
        13 => MetaRequest::ReleaseLocks {
            ino,
            owner: odd(rng),
            whole_file: rng.chance(500),
            handle: rng.chance(500).then_some(range.handle),
            number: odd(rng),
        },
        14 => MetaRequest::Parent { ino: Ino(odd(rng)) },
        _ => MetaRequest::Open {
            who,
            ino,
            open_flags: odd(rng) as u32,
        },
    }
}

fn odd_storage(rng: &mut SimRng) -> StorageRequest {
    // No file has these data ids: real ones begin far below.
    let object = ObjectRef {
        target: TargetId(1),
        set: StripeSetId(0),
        slot: 0,
        data_id: DataId(u64::MAX - rng.below(3)),
        column: Column(odd(rng) as u16),
        layout_gen: odd(rng) as u32,
        truncate_seq: odd(rng),
        truncate_bytes: odd(rng),
    };
    let (offset, length) = (odd(rng), odd(rng));
    match rng.below(8) {
        0 => StorageRequest::Read {
            object,
            offset,
            length: length as u32,
        },
        1 => StorageRequest::Write {
            object,
            offset,
            sync: true,
            expected_version: 0,
            txn: 0,
            snap_epoch: 0,
        },
        2 => StorageRequest::Truncate { object },
        3 => StorageRequest::Punch {
            object,
            offset,
            length,
        },
        4 => StorageRequest::Map {
            object,
            offset,
            end: length,
            limit: odd(rng) as u32,
        },
        5 => StorageRequest::Stat { object },
        6 => StorageRequest::WriteRanges {
            object,
            ranges: (0..rng.below(5))
                .map(|_| (odd(rng), odd(rng) as u32))
                .collect(),
        },
        _ => StorageRequest::Delete {
            target: TargetId(1),
            objects: vec![(object.data_id, object.column); 3],
        },
    }
}

/// Sends hostile messages to all servers, with an own session and an own file.
pub async fn send_odd(world: Rc<World>, name: String, ino: Ino, mut rng: SimRng, messages: u64) {
    let identity = ClientIdentity::first(ClientId(rng.bits() | 1));
    let mut sessions = BTreeMap::new();
    for _ in 0..messages {
        let server = world.address_of(rng.below(world.server_count() as u64) as usize);
        let (service, mut body) = match rng.below(10) {
            0..5 => (Service::Meta, odd_meta(ino, &mut rng).to_bytes()),
            5..8 => (Service::Storage, odd_storage(&mut rng).to_bytes()),
            8 => {
                let have = zonal_types::MapVersion(odd(&mut rng));
                (Service::Manager, ManagerRequest::GetMap { have }.to_bytes())
            }
            _ => {
                let count = rng.below(200);
                let bytes = (0..count).map(|_| rng.bits() as u8).collect();
                (Service::Meta, bytes)
            }
        };
        // Fields are changed only in requests that cannot name another client's file.
        if service != Service::Meta && rng.chance(300) {
            spoil(&mut body, &mut rng);
        }
        if service == Service::Meta && rng.chance(100) {
            body.truncate(rng.below(body.len() as u64) as usize);
        }
        let mut header = Header::request(service, world.map.borrow().cell);
        header.deadline_ms = 200;
        header.identity = identity;
        header.session = match sessions.get(&server) {
            Some(own) if rng.chance(900) => *own,
            _ => SessionId(rng.below(5)),
        };
        if service == Service::Meta && !sessions.contains_key(&server) {
            let (zone, name) = (ZoneId(1), name.clone());
            body = MetaRequest::OpenSession { zone, name }.to_bytes();
        }
        if rng.chance(400) {
            header.slot = odd(&mut rng) as u32;
            header.sequence = odd(&mut rng) as u32;
        }
        let payload = vec![7; rng.below(9_000) as usize];
        let request = SimRequest {
            header,
            body,
            payload,
            lent: Vec::new(),
        };
        world.network.count(FaultKind::HostileRequest);
        let answer = world
            .network
            .start(&name, &server, &request)
            .receive()
            .await;
        if let Ok((_, answer)) = &answer
            && let Ok(MetaReply::Session { session, .. }) = MetaReply::from_bytes(&answer.body)
        {
            sessions.insert(server, session);
        }
        world.count_operation();
    }
}

/// Uses the cell while replies arrive changed. Operations may fail.
pub async fn use_garbled(
    world: Rc<World>,
    client: Rc<SimClient>,
    dir: Ino,
    mut rng: SimRng,
    steps: u64,
) {
    for _ in 0..steps {
        let at = format!("g{}", rng.below(4));
        if let Ok(opened) = create(&client, dir, &at, false).await {
            let ino = opened.file.ino;
            client
                .begin()
                .append(&opened.file, &[1; 100], false)
                .await
                .ok();
            client
                .begin()
                .truncate(&who(), ino, rng.below(9_000), true, false)
                .await
                .ok();
            client
                .begin()
                .reserve(&opened.file, 0, 5_000, Reserve::Punch, true)
                .await
                .ok();
            client.begin().seek(&opened.file, 0, true).await.ok();
            client
                .begin()
                .write(&opened.file, rng.below(70_000), &[2; 7_000], false)
                .await
                .ok();
            client.begin().fsync(&opened.file).await.ok();
            read_all_bounded(&client, &opened.file).await;
            client.begin().release(ino).await.ok();
            open(&client, ino).await.ok();
        }
        list_bounded(&client, dir).await;
        lookup(&client, dir, &at).await.ok();
        if let Ok(checked) = name(&at) {
            client.begin().unlink(&who(), dir, checked).await.ok();
        }
        world.count_operation();
    }
}

async fn read_all_bounded(client: &SimClient, file: &zonal_client::File<crate::net::SimNet>) {
    let mut buffer = vec![0; 100_000];
    client.begin().read(file, 0, &mut buffer).await.ok();
}

async fn list_bounded(client: &SimClient, dir: Ino) {
    client
        .begin()
        .readdir(&who(), dir, ListingPage::new(0, 10, true))
        .await
        .ok();
}
