//! A server that comes up at another address is found soon by its clients, without an error.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test ends where something is not as it should be, and says what it measured"
)]

mod cell;

use cell::{Cell, kill, zonal};
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zonal_native::{
    CellId, ConnectOptions, Identity, Native, NodeId, OpenOptions, Role, User, ZoneId,
};

const NODE: &str = "storage1-1";
/// A hang is a failure; the bound of the protocol is printed, not asserted.
const PATIENCE: Duration = Duration::from_secs(9);

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The address of the node in the zone map.
fn known_address(cell: &Cell, node: u64) -> String {
    let mut shown = zonal();
    shown.args(["node", "ls", "--json", "--cell"]);
    let shown = shown.arg(cell.dir()).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let nodes = value["nodes"].as_array().unwrap();
    let found = nodes.iter().find(|one| one["id"] == node).unwrap();
    found["address"].as_str().unwrap().to_owned()
}

/// Ends a server and gives it another address: its node, the address, and its start.
fn moved(cell: &Cell, name: &str) -> (u64, String, Command) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let text = fs::read_to_string(cell.config(name)).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let listens = |line: &&mut String| line.starts_with("listen = ");
    *lines.iter_mut().find(listens).unwrap() = format!("listen = \"{address}\"");
    let node = lines.iter().find_map(|line| line.strip_prefix("node = "));
    let node: u64 = node.unwrap().parse().unwrap();
    kill(cell.pid(name), "KILL");
    fs::write(cell.config(name), lines.join("\n")).unwrap();
    let mut server = zonal();
    server.arg("server").arg("--config").arg(cell.config(name));
    (node, address, server)
}

/// Moves a server while something works with it, which must go on soon after the server's join.
fn goes_on(cell: &Cell, name: &str, work: impl FnOnce() + Send) {
    let (node, address, mut server) = moved(cell, name);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            work();
            Instant::now()
        });
        let _server = Server(server.stderr(Stdio::null()).spawn().unwrap());
        let begun = Instant::now();
        while known_address(cell, node) != address {
            assert!(begun.elapsed() < PATIENCE, "the server does not join");
            std::thread::sleep(Duration::from_millis(10));
        }
        let joined = Instant::now();
        let ended = work.join().unwrap();
        let took = ended.saturating_duration_since(joined);
        eprintln!("{name}: work goes on {took:?} after the join");
        assert!(took < PATIENCE, "{took:?}");
    });
}

#[test]
fn a_metadata_server_at_a_new_address_is_found_soon_by_those_who_make_names() {
    let cell = Cell::up("moved-shard");
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(1)).named("moved");
    let native = Native::connect(&manager, identity, options).unwrap();
    native.mkdir(&User::root(), "/one", 0o755).unwrap();
    native.mkdir(&User::root(), "/one/before", 0o755).unwrap();
    goes_on(&cell, "meta1", || {
        native.mkdir(&User::root(), "/one/after", 0o755).unwrap();
    });
    native.close().unwrap();
}

#[test]
fn a_storage_server_at_a_new_address_is_found_soon_under_reads_and_writes() {
    let cell = Cell::up("moved-server");
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(1)).named("moved");
    let native = Native::connect(&manager, identity, options).unwrap();
    let options = OpenOptions::new().read(true).write(true).create(0o644);
    let file = native.open(&User::root(), "/file", options).unwrap();
    let bytes = vec![7; 1 << 20];
    file.pwrite(0, &bytes).unwrap();
    file.fsync().unwrap();

    // Reads and writes see no error: they wait.
    goes_on(&cell, NODE, || {
        file.pwrite(1 << 20, &bytes).unwrap();
        file.fsync().unwrap();
        let mut read = vec![0; 1 << 20];
        assert_eq!(file.pread(0, &mut read).unwrap(), 1 << 20);
        assert_eq!(read, bytes);
    });
    native.close().unwrap();
}
