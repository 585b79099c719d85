//! Nodes and a client that name no zone, in a cell of real processes: the manager's table of
//! subnets and names of zones place them.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test ends where something is not as it should be, and says what it leaves out"
)]

mod cell;

use cell::{code, said, zonal};
use std::fs;
use std::net::{IpAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketAddrUnix, UnixDatagram};
use std::path::PathBuf;
use std::process::{Child, Output};
use std::time::{Duration, Instant};
use zonal_net::address::own_addresses;
use zonal_testkit::Scratch;

const PATIENCE: Duration = Duration::from_secs(20);

/// Finds a free port on loopback; the socket reserves it for its life, as in `one_config_file.rs`.
fn free_port() -> (u16, UnixDatagram) {
    let first = 10_000 + (std::process::id() % 20_000) as u16;
    let reserve = |port: u16| {
        let name = SocketAddrUnix::from_abstract_name(format!("zonal-port-{port}")).unwrap();
        let reserved = UnixDatagram::bind_addr(&name).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok()?;
        Some((port, reserved))
    };
    (first..32_000).find_map(reserve).unwrap()
}

/// A cell of one process with four nodes: none has `zone` in its config.
struct Subnets {
    scratch: Scratch,
    manager: String,
    ports: Vec<u16>,
    server: Option<Child>,
    _reserved: Vec<UnixDatagram>,
}

impl Subnets {
    fn up(own: &[IpAddr]) -> Self {
        let (ports, reserved): (Vec<u16>, Vec<UnixDatagram>) = (0..5).map(|_| free_port()).unzip();
        let mut cell = Self {
            scratch: Scratch::new("subnets"),
            manager: format!("127.0.0.1:{}", ports[0]),
            ports,
            server: None,
            _reserved: reserved,
        };
        let mut table = "[[manager.subnets]]\ncidr = \"127.0.0.1/32\"\nzone = 1\n\
             [[manager.subnets]]\ncidr = \"127.0.0.2/32\"\nrack = \"row b\"\n"
            .to_owned();
        for ip in own {
            let bits = if ip.is_ipv4() { 32 } else { 128 };
            table += &format!("[[manager.subnets]]\ncidr = \"{ip}/{bits}\"\nrack = \"row b\"\n");
        }
        let [_, second, ..] = cell.ports[..] else {
            panic!("no ports");
        };
        let roles = format!(
            "[manager]\n{table}[meta]\nnode = 2\nlisten = \"127.0.0.1:{second}\"\n{}",
            storage(1)
        );
        let files = [
            cell.config("manager", (1, "127.0.0.1", 0), "", &roles),
            cell.config(
                "by-subnet",
                (3, "127.0.0.2", 2),
                "",
                &format!("[meta]\n{}", storage(3)),
            ),
            cell.config(
                "by-name",
                (4, "127.0.0.1", 3),
                "rack = \"row b\"",
                &storage(4),
            ),
        ];
        let mut command = zonal();
        command.args(["server", "--format"]);
        for file in files {
            command.arg("--config").arg(file);
        }
        let log = fs::File::create(cell.scratch.join("log")).unwrap();
        cell.server = Some(command.stderr(log).spawn().unwrap());
        cell.wait();
        cell
    }

    /// Writes the config of a node: its number, address, and index of its port.
    fn config(&self, name: &str, of: (u32, &str, usize), keys: &str, roles: &str) -> PathBuf {
        let (node, ip, port) = of;
        let folder = self.scratch.join(name);
        fs::create_dir(&folder).unwrap();
        let text = format!(
            "cell = \"{:032x}\"\nnode = {node}\nlisten = \"{ip}:{}\"\nmanager_address = \"{}\"\n{keys}\n{roles}",
            self.ports[0], self.ports[port], self.manager
        );
        let file = folder.join("node.toml");
        fs::write(&file, text).unwrap();
        file
    }

    fn asking(&self, command: &[&str]) -> Output {
        let mut line = zonal();
        line.args(command).args(["--cell", &self.manager]);
        line.output().unwrap()
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let map = said(&self.asking(&["zone-map", "show", "--json"]));
            if map.contains("\"id\": 4") || map.contains("\"id\":4") {
                return;
            }
            let log = fs::read_to_string(self.scratch.join("log")).unwrap();
            let ended = self.server.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "the server has ended: {log}");
            assert!(Instant::now() < deadline, "{map}\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Subnets {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn storage(target: u32) -> String {
    format!("[storage]\ntarget = {target}\ncapacity = \"1 GiB\"\n")
}

/// The zone of a node in `zonal zone-map show --json`.
fn zone_of(map: &serde_json::Value, node: u64) -> u64 {
    let nodes = map["nodes"].as_array().unwrap();
    let known = nodes.iter().find(|known| known["id"] == node);
    known.unwrap()["zone"].as_u64().unwrap()
}

#[test]
fn nodes_and_clients_without_a_zone_find_theirs() {
    let own = own_addresses("127.0.0.1:1".parse().unwrap());
    let cell = Subnets::up(&own);
    let shown = cell.asking(&["zone-map", "show", "--json"]);
    let map: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let zones: Vec<u64> = (1..=4).map(|node| zone_of(&map, node)).collect();
    assert_eq!(zones, [1, 1, 2, 2], "{map}");
    assert_eq!(map["zones"][1]["name"], "row b", "{map}");

    let lost = cell.config("lost", (5, "127.0.0.9", 4), "", &storage(5));
    let mut command = zonal();
    command.args(["server", "--format", "--config"]).arg(lost);
    let refused = command.output().unwrap();
    let text = said(&refused);
    assert_eq!(code(&refused), 5, "{text}");
    assert!(text.contains("is in none of the manager's"), "{text}");
    assert!(text.contains("[[manager.subnets]]"), "{text}");

    if own.is_empty() {
        eprintln!("SKIPPED: no address of this machine outside of loopback");
        return;
    }
    // By the other rules the first zone would be that of a machine that has all nodes.
    let made = cell.asking(&["fs", "mkdir", "/d"]);
    assert_eq!(code(&made), 0, "{}", said(&made));
    let shown = said(&cell.asking(&["zone-map", "show"]));
    let line = shown.lines().find(|line| line.contains("/d"));
    assert!(line.is_some_and(|line| line.contains("zone 2")), "{shown}");
}
