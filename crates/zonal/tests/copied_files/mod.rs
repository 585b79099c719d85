//! Files with copies in a cell of one zone with three storage nodes.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::cell::Cell;
use serde_json::Value;
use std::time::{Duration, Instant};
use zonal_native::{CellId, ConnectOptions, Identity, Native, NodeId, Role, User, ZoneId};

const MIB: usize = 1 << 20;
/// Zones, and storage nodes of each.
pub const SHAPE: (u16, u16) = (1, 3);
pub const NODES: [&str; 3] = ["storage1-1", "storage1-2", "storage1-3"];
/// Time for a shard to learn of nodes that have just joined.
const JOINED_WITHIN: Duration = Duration::from_secs(8);

/// A client of the cell.
pub fn connect(cell: &Cell) -> Native {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    Native::connect(&manager, identity, ConnectOptions::new(ZoneId(1))).unwrap()
}

/// Makes a directory with this redundancy.
pub fn make_dir(native: &Native, path: &str, redundancy: &str) {
    native.mkdir(&User::root(), path, 0o755).unwrap();
    let value = format!("unit=65536 redundancy={redundancy}");
    let set = || native.set_xattr(&User::root(), path, b"zonal.layout", value.as_bytes());
    // The shard may not know of all nodes yet, which have just joined.
    let known_by = Instant::now() + JOINED_WITHIN;
    while set().is_err() && Instant::now() < known_by {
        std::thread::sleep(Duration::from_millis(200));
    }
    set().unwrap();
}

/// Contents of a file.
pub fn pattern(seed: usize) -> Vec<u8> {
    (0..2 * MIB + 777)
        .map(|at| u8::try_from(((at >> 12) * 7 + seed) % 251).unwrap())
        .collect()
}

pub fn map(cell: &Cell) -> Value {
    serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap()
}

/// The number of a server's target.
pub fn target_of(cell: &Cell, name: &str) -> String {
    let address = Value::from(cell.address(name, false).to_string());
    let map = map(cell);
    let find = |list: &str, key: &str, wanted: &Value| {
        let mut entries = map[list].as_array().unwrap().iter();
        entries.find(|entry| entry[key] == *wanted).unwrap()["id"].clone()
    };
    let node = find("nodes", "address", &address);
    find("targets", "node", &node).to_string()
}
