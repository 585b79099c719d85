//! Files with two copies on servers that are killed: any one node may be away from a reader, also
//! where it hangs.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod native_files;

use cell::{Cell, code, kill, said, signal, zonal};
use native_files::{read, write};
use std::time::{Duration, Instant};
use zonal_native::{CellId, ConnectOptions, Identity, Native, NodeId, Role, User, ZoneId};

const MIB: usize = 1 << 20;
/// Zones, and storage nodes of each.
const SHAPE: (u16, u16) = (1, 3);
const NODES: [&str; 3] = ["storage1-1", "storage1-2", "storage1-3"];
/// A read passes over a silent copy long before the deadline of a request, 10 s.
const SOON: Duration = Duration::from_secs(8);

fn connect(cell: &Cell) -> Native {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    Native::connect(&manager, identity, ConnectOptions::new(ZoneId(1))).unwrap()
}

fn make_dir(native: &Native, path: &str, redundancy: &str) {
    native.mkdir(&User::root(), path, 0o755).unwrap();
    let value = format!("unit=65536 redundancy={redundancy}");
    let set = || native.set_xattr(&User::root(), path, b"zonal.layout", value.as_bytes());
    // The shard may not know of all nodes yet, which have just joined.
    let known_by = Instant::now() + SOON;
    while set().is_err() && Instant::now() < known_by {
        std::thread::sleep(Duration::from_millis(200));
    }
    set().unwrap();
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..2 * MIB + 777)
        .map(|at| u8::try_from(((at >> 12) * 7 + seed) % 251).unwrap())
        .collect()
}

#[test]
fn any_one_node_may_be_away_from_readers_of_two_copies() {
    let cell = Cell::with_shape("copies", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    make_dir(&native, "/once", "none");
    write(&native, "/twice/file", &pattern(1));
    write(&native, "/once/file", &pattern(2));

    for (turn, node) in NODES.into_iter().enumerate() {
        let pid = cell.pid(node);
        // A hung server takes a reader's time once, a dead one none.
        let native = connect(&cell);
        signal(pid, "STOP");
        let since = Instant::now();
        let hung = read(&native, "/twice/file");
        let took = since.elapsed();
        signal(pid, "CONT");
        assert!(hung.unwrap() == pattern(1 + turn), "{node} hangs");
        assert!(took < SOON, "{node} hangs: {took:?}");

        kill(pid, "KILL");
        let left = read(&native, "/twice/file").unwrap();
        assert!(left == pattern(1 + turn), "{node} is dead");
        if turn == 0 {
            let lone = read(&native, "/once/file");
            assert!(lone.is_err(), "a file with one copy is striped over {node}");
        }
        let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
        assert_eq!(code(&up), 0, "{}", said(&up));
        // The other nodes take what is written next, and so does this one.
        write(&native, "/twice/file", &pattern(2 + turn));
        let written = read(&native, "/twice/file").unwrap();
        assert!(written == pattern(2 + turn), "{node} is back");
    }
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
