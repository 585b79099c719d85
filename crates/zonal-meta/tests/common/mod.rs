//! A cell of one root shard and one zone shard over maps in memory, on one thread.
#![allow(dead_code, unused_imports, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod cell;
mod client;
mod setup;

pub use cell::{Cell, MemKv, Store, apply, map};
pub use client::{Client, Reply, entry_of};
pub use setup::Setup;

use zonal_meta::{Caller, Outcome};
use zonal_types::{ClientIdentity, Ino, Name, SessionId, Timestamp};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::{LockKind, LockRange, MetaRequest};

pub fn seconds(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

pub fn none() -> Caller {
    Caller {
        identity: ClientIdentity::default(),
        session: SessionId(0),
        slot: NO_SLOT,
        sequence: 0,
    }
}

/// An exclusive lock as flock takes it.
pub fn whole_file() -> LockRange {
    LockRange {
        whole_file: true,
        owner: 1,
        handle: 0,
        number: 0,
        pid: 1,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A cell, a client, and its directory "home" in the first zone.
pub fn start() -> (Cell, Client, Ino) {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    (cell, client, home)
}

/// As [`start`], with a second client, in a cell whose replies may be cached.
pub fn start_two() -> (Cell, Client, Client, Ino) {
    let mut cell = Cell::with(55, true);
    let mut one = cell.client(1);
    let two = cell.client(2);
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    (cell, one, two, home)
}

/// Polls the zone's shard, with the boot and the acknowledgement given.
pub fn poll_as(cell: &mut Cell, client: &Client, boot: u64, acked: u64, wait_ms: u32) -> Outcome {
    let store = &mut cell.stores[1];
    let request = MetaRequest::PollEvents {
        boot,
        acked,
        wait_ms,
    };
    store
        .shard
        .handle(&store.kv, cell.now, client.caller(1), &request, None)
}
