//! A server that ends or hangs is down for the manager within seconds, and up after its return. The
//! log of events says both, also after a restart of the manager. A busy server is no false alarm.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, said, signal, zonal};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A state is known within 5 s; a busy machine gets more.
const KNOWN: Duration = Duration::from_secs(30);

/// The node of the first zone's metadata server.
const META_1: u64 = 2;

struct Watched {
    cell: Cell,
    shape: (u16, u16),
}

impl Watched {
    fn up(name: &str, shape: (u16, u16)) -> Self {
        let cell = Self {
            cell: Cell::with_shape(name, shape, &["--no-key"]),
            shape,
        };
        cell.until("all nodes are up", |states| {
            states.iter().all(|(_, state, _)| state == "up")
        });
        cell
    }

    /// (node, state, cause) by `zonal status`; none where the manager does not answer.
    fn states(&self) -> Vec<(u64, String, String)> {
        let status = self.cell.status();
        let Ok(status) = serde_json::from_slice::<Value>(&status.stdout) else {
            return Vec::new();
        };
        let zones = status["zones"].as_array().unwrap().iter();
        let nodes = zones.flat_map(|zone| zone["nodes"].as_array().unwrap());
        let told = nodes.map(|node| {
            let text = |of: &str| node["state"][of].as_str().unwrap_or_default().to_owned();
            (node["id"].as_u64().unwrap(), text("name"), text("why"))
        });
        told.collect()
    }

    fn until(&self, what: &str, is_so: impl Fn(&[(u64, String, String)]) -> bool) {
        let end = Instant::now() + KNOWN;
        loop {
            let states = self.states();
            if !states.is_empty() && is_so(&states) {
                return;
            }
            let events = self.events();
            assert!(Instant::now() < end, "{what}: {states:?} {events:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn until_state(&self, node: u64, state: &str, why: &str) {
        self.until(&format!("node {node} is {state}"), |states| {
            states
                .iter()
                .any(|(id, now, cause)| *id == node && now == state && cause.contains(why))
        });
    }

    /// Waits until the last event of a node says this.
    fn until_told(&self, node: u64, state: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while self.told_of(node).last().is_none_or(|last| last != state) {
            assert!(Instant::now() < end, "{node}: {:?}", self.told_of(node));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Events as (number, node, state); other events have node 0 and their name.
    fn events(&self) -> Vec<(u64, u64, String)> {
        let mut events = zonal();
        events.args(["events", "--json", "--cell"]);
        let output = events.arg(self.cell.dir()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| {
            let event: Value = serde_json::from_str(line).unwrap();
            let node = event["node"].as_u64().unwrap_or_default();
            let what = event["state"].as_str().or(event["event"].as_str());
            (
                event["number"].as_u64().unwrap(),
                node,
                what.unwrap().to_owned(),
            )
        });
        lines.collect()
    }

    /// The states that events tell of a node, in order.
    fn told_of(&self, node: u64) -> Vec<String> {
        let events = self.events().into_iter();
        events
            .filter(|(_, of, _)| *of == node)
            .map(|(_, _, state)| state)
            .collect()
    }

    fn node_of(&self, name: &str) -> u64 {
        let config = std::fs::read_to_string(self.cell.config(name)).unwrap();
        let line = config.lines().find_map(|line| line.strip_prefix("node = "));
        line.unwrap().trim().parse().unwrap()
    }

    fn health(&self) -> String {
        self.page("/health")
    }

    /// A page of the manager.
    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.cell.address("manager", true)).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.page("/metrics");
        let mut lines = page.lines().filter_map(|line| line.strip_prefix(name));
        lines.find_map(|rest| rest.trim().parse().ok()).unwrap_or(0)
    }

    fn up_again(&self) {
        let (zones, storage_nodes) = self.shape;
        let mut up = zonal();
        up.args(["up", "--no-key", "--zones", &zones.to_string()]);
        up.args(["--storage-nodes", &storage_nodes.to_string()]);
        let up = up.arg("--dir").arg(self.cell.dir()).output().unwrap();
        assert_eq!(code(&up), 0, "{}", said(&up));
    }
}

#[test]
fn servers_that_end_or_hang_are_down_and_come_back() {
    let cell = Watched::up("node-states", (2, 2));
    let target = cell.node_of("storage1-1");
    // The reporter of the second zone.
    let reporter = cell.node_of("meta2");
    assert_eq!(cell.node_of("meta1"), META_1);

    let hung = cell.cell.pid("storage1-1");
    signal(hung, "STOP");
    kill(cell.cell.pid("meta2"), "KILL");
    cell.until_state(target, "down", "does not answer");
    assert!(cell.health().starts_with("HTTP/1.0 200"));
    let degraded = format!("degraded: node {target} in zone 1 is down");
    assert!(cell.health().contains(&degraded), "{}", cell.health());
    cell.until_state(reporter, "down", "no process");
    signal(hung, "CONT");
    cell.until_state(target, "up", "");

    // Of the second zone one server is left; of the first one the second to report.
    let second = cell.node_of("storage2-1");
    kill(cell.cell.pid("storage2-1"), "KILL");
    kill(cell.cell.pid("meta1"), "KILL");
    cell.until_state(second, "down", "no process");
    cell.until_state(META_1, "down", "no process");
    // The restarted manager knows from its log that nodes were down: else it would tell nothing.
    kill(cell.cell.pid("manager"), "KILL");
    cell.up_again();
    for node in [target, reporter, second, META_1] {
        cell.until_state(node, "up", "");
    }
    for node in [target, reporter, second, META_1] {
        // A server that has just started may be suspect for a moment.
        cell.until_told(node, "up");
        let told = cell.told_of(node);
        assert!(told.contains(&"down".to_owned()), "{node}: {told:?}");
    }
    let numbers: Vec<u64> = cell.events().iter().map(|(number, ..)| *number).collect();
    let all: Vec<u64> = (1..=numbers.len() as u64).collect();
    assert_eq!(numbers, all);
}

#[test]
fn a_zone_that_is_gone_as_a_whole_is_known() {
    let cell = Watched::up("node-states-zone", (2, 1));
    let nodes = ["meta2", "storage2-1"].map(|name| (name, cell.node_of(name)));
    for (name, _) in nodes {
        kill(cell.cell.pid(name), "KILL");
    }
    for (_, node) in nodes {
        cell.until_state(node, "down", "no process");
    }
    cell.up_again();
    for (_, node) in nodes {
        cell.until_state(node, "up", "");
    }
}

/// Processes that use all of the machine, and end with this.
struct Load(Vec<Child>);

impl Load {
    fn of(processes: usize) -> Self {
        let spin = || {
            let mut spin = Command::new("sh");
            spin.args(["-c", "while :; do :; done"]).spawn().unwrap()
        };
        Self((0..processes).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have been ended by the system.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a cell under load for a while; no node may be down or suspect.
fn no_false_alarm(name: &str, (processes, time): (usize, Duration)) {
    let cell = Watched::up(name, (2, 2));
    // Nodes that had just started may have been late.
    let end = Instant::now() + KNOWN;
    while cell.metric("zonal_digests_total") < 10 {
        assert!(Instant::now() < end, "no digests");
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = cell.events();
    let load = Load::of(processes);
    let end = Instant::now() + time;
    let file = cell.cell.dir().join("bytes");
    std::fs::write(&file, vec![7; 8 << 20]).unwrap();
    let mut round = 0;
    while Instant::now() < end {
        round += 1;
        let mut put = zonal();
        put.args(["fs", "put", "--cell"]).arg(cell.cell.dir());
        let put = put.arg(&file).arg(format!("/f{round}")).output().unwrap();
        assert_eq!(code(&put), 0, "{}", said(&put));
    }
    drop(load);
    let events = cell.events();
    let alarms: Vec<_> = events
        .iter()
        .filter(|event| !before.contains(event) && event.1 != 0)
        .collect();
    assert!(alarms.is_empty(), "{alarms:?}");
}

/// Processes and time of load: few in the daily tests, `ZONAL_LOAD_SECONDS` in the long ones.
fn load() -> (usize, Duration) {
    match std::env::var("ZONAL_LOAD_SECONDS") {
        Ok(text) => (20, Duration::from_secs(text.parse().unwrap())),
        Err(_) => (8, Duration::from_secs(5)),
    }
}

#[test]
fn a_busy_machine_is_no_alarm() {
    no_false_alarm("node-states-busy", load());
}
