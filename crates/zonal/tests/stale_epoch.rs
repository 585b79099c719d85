//! The map changes while a client uses an older one:
//!
//! * A slot's epoch rises: the target refuses the old epoch with the newer entry, and the write
//!   succeeds.
//! * A target joins: new files are on a stripe set that the client does not know.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod cell_file;

use cell::Cell;
use cell_file::{commands_pool, connect, create, pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zonal_client::{Client, ClientOptions};
use zonal_native::{RealNet, block_on};
use zonal_net::{Address, PayloadInto, Pool, Request};
use zonal_types::{Blob, ClientId, Codec, Column, DataId, Epoch, ErrorCode, ZoneId};
use zonal_wire::{
    Header, ManagerReply, ManagerRequest, ObjectRef, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::{Fetch, FetchError, MapEdit, ZoneMap};

const PIECE: usize = 64 << 10;

fn call(pool: &Pool, address: &str, header: Header, body: &[u8]) -> Vec<u8> {
    let request = Request {
        operation: "a test's request",
        header,
        body,
        payload: &[],
        room: 0,
    };
    let to = Address::any_node(address.parse().unwrap());
    pool.call(to, request, PayloadInto::Owned).unwrap().body
}

/// Sets every slot to its present target, which raises its epoch.
fn raise(pool: &Pool, manager: &str, map: &ZoneMap) -> ZoneMap {
    let mut edits = Vec::new();
    for set in &map.sets {
        for (slot, number) in set.slots.iter().zip(0..) {
            edits.push(MapEdit::SetSlot {
                set: set.id,
                slot: number,
                target: slot.target,
            });
        }
    }
    let request = ManagerRequest::Edit {
        expected: map.version,
        edits: Blob(edits.to_bytes()),
    };
    let header = Header::request(Service::Manager, map.cell);
    let reply = call(pool, manager, header, &request.to_bytes());
    let ManagerReply::At { version } = ManagerReply::from_bytes(&reply).unwrap() else {
        panic!("refused");
    };
    assert!(version > map.version);
    let raised = Fetch::newer(Arc::new(map.clone())).run(|request| {
        let header = Header::request(Service::Manager, map.cell);
        let reply = call(pool, manager, header, &request.to_bytes());
        Ok::<_, FetchError>(ManagerReply::from_bytes(&reply).unwrap())
    });
    Arc::unwrap_or_clone(raised.unwrap())
}

/// Sends each target a request with an epoch.
fn ask(pool: &Pool, map: &ZoneMap, epoch_of: &ZoneMap) -> Vec<StorageReply> {
    let target = &map.targets[0];
    let node = map.node(target.node).unwrap();
    let mut header = Header::request(Service::Storage, map.cell);
    header.map_version = epoch_of.version;
    let slots = epoch_of.sets.iter().flat_map(|set| {
        let numbered = set.slots.iter().zip(0_u16..);
        numbered.map(|(slot, number)| (set.id, number, slot))
    });
    slots
        .filter(|(_, _, slot)| slot.target == target.id)
        .map(|(set, number, slot)| {
            header.epoch = slot.slot_epoch;
            // An object of no file.
            let object = ObjectRef {
                target: target.id,
                set,
                slot: number,
                data_id: DataId(u64::MAX),
                column: Column(0),
                layout_gen: 0,
                truncate_seq: 0,
                truncate_bytes: 0,
            };
            let request = StorageRequest::Stat { object };
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                let reply = call(pool, &node.address, header, &request.to_bytes());
                match StorageReply::from_bytes(&reply).unwrap() {
                    // A server fetches a newer map at most every 50 ms.
                    StorageReply::Failed { code, .. } if code.0 == ErrorCode::NotReady => {
                        assert!(Instant::now() < deadline, "no newer map at the target");
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    reply => return reply,
                }
            }
        })
        .collect()
}

/// Ends the writer even if an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_write_goes_on_when_a_slots_epoch_rises_under_it() {
    let cell = Cell::up("epoch");
    let manager = cell.address("manager", false).to_string();
    let client = connect(&manager);
    let opened = create(&client, "grows");
    // Making the first file opened its stripe set.
    block_on(client.begin().refresh_map()).unwrap();
    let old = client.map();
    let file = &opened.file;

    let written = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let edits = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let step = written.load(Ordering::Relaxed);
                let bytes = vec![step as u8; PIECE];
                // Writes repeat at one place: space does not run out, and each write is one for the
                // target.
                let offset = step % 64 * PIECE as u64;
                block_on(client.begin().write_through(file, offset, &bytes, false)).unwrap();
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let over = Over(&is_over);
        let tools = commands_pool();
        let mut map = old.as_ref().clone();
        for _ in 0..3 {
            let before = map;
            map = raise(&tools, &manager, &before);
            assert!(map.version > before.version);
            // The target learns of the newer map, then refuses the epoch that it accepted before.
            assert!(matches!(
                ask(&tools, &map, &map)[..],
                [StorageReply::Stat { .. }]
            ));
            let set = &map.sets[0];
            let slot = &set.slots[0];
            assert_eq!(
                ask(&tools, &map, &before),
                [StorageReply::Stale {
                    map_version: map.version,
                    set: set.id,
                    slot: 0,
                    target: slot.target,
                    epoch: slot.slot_epoch,
                }]
            );
            let deadline = Instant::now() + Duration::from_secs(20);
            let start = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) < start + 3 {
                assert!(
                    !writer.is_finished() && Instant::now() < deadline,
                    "no write goes on"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        drop(over);
        writer.join().unwrap();
        map
    });
    let epoch = |map: &ZoneMap| map.sets[0].slots[0].slot_epoch;
    assert_eq!(epoch(&edits), Epoch(edits.version.0));
    assert!(edits.version.0 >= old.version.0 + 3);
    assert_eq!(epoch(&client.map()), epoch(&edits));
    let count = written.load(Ordering::Relaxed);
    for place in 0..count.min(64) {
        let last = place + (count - 1 - place) / 64 * 64;
        let mut bytes = vec![0; PIECE];
        let read = block_on(client.begin().read(file, place * PIECE as u64, &mut bytes)).unwrap();
        assert!(read == PIECE && bytes.iter().all(|byte| *byte == last as u8));
    }
    block_on(client.begin().close()).unwrap();
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// A process that is killed at the end of the test.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_file_made_after_a_target_joined_is_written_by_a_client_from_before() {
    let cell = Cell::up("joins");
    let manager = cell.address("manager", false).to_string();
    let client = connect(&manager);
    let old = client.map();
    // The config of the existing target, with other ids and another port.
    let port = free_port();
    let dir = cell.dir().join("joining");
    std::fs::create_dir(&dir).unwrap();
    let config = dir.join("node.toml");
    let text = format!(
        "cell = \"{}\"\nnode = 77\nlisten = \"127.0.0.1:{port}\"\nmanager_address = \"{manager}\"\ndir = \"{}\"\n\
         [zone]\nid = 1\n[storage]\ntarget = 77\ncapacity = \"1 GiB\"\n",
        old.cell,
        dir.display(),
    );
    std::fs::write(&config, text).unwrap();
    let mut command = cell::zonal();
    command
        .args(["server", "--format", "--config"])
        .arg(&config);
    let _server = Server(command.spawn().unwrap());
    let later = connect(&manager);
    let deadline = Instant::now() + Duration::from_secs(20);
    while later.map().targets.len() == old.targets.len() {
        assert!(Instant::now() < deadline, "the target does not join");
        std::thread::sleep(Duration::from_millis(5));
        block_on(later.begin().refresh_map()).unwrap();
    }
    // The shard learns of the newer map by itself; the client learns of the new set from a file on
    // it.
    let deadline = Instant::now() + Duration::from_secs(20);
    let bytes = vec![7; 3 << 20];
    let mut number = 0;
    while client.map().version == old.version {
        assert!(Instant::now() < deadline, "no file on the new set");
        number += 1;
        let opened = create(&client, &format!("f{number}"));
        block_on(client.begin().write_through(&opened.file, 0, &bytes, false)).unwrap();
        block_on(client.begin().fsync(&opened.file)).unwrap();
        let mut read = vec![0; bytes.len()];
        let count = block_on(client.begin().read(&opened.file, 0, &mut read));
        assert_eq!(count, Ok(bytes.len()));
        assert!(read == bytes);
        block_on(client.begin().release(opened.found.attr.ino)).unwrap();
    }
    block_on(client.begin().close()).unwrap();
    block_on(later.begin().close()).unwrap();
}

#[test]
fn the_manager_that_answered_last_is_asked_first() {
    let cell = Cell::up("managers");
    // It closes every connection.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let deaf = listener.local_addr().unwrap().to_string();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    std::thread::spawn(move || {
        for _call in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut options = ClientOptions::new(&deaf, ZoneId(1), ClientId(7));
    let manager = cell.address("manager", false).to_string();
    options.managers.push(manager);
    let net = RealNet::new(Arc::new(pool()));
    let client = block_on(Client::connect(net, options)).unwrap();
    let tried = calls.load(Ordering::Relaxed);
    assert!(tried > 0, "the first of the list is asked first");
    for _again in 0..3 {
        block_on(client.begin().refresh_map()).unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), tried);
    block_on(client.begin().close()).unwrap();
}
