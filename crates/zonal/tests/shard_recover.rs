//! A group that has lost its majority for good goes on with one replica, once somebody accepts the
//! loss.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, said, signal, zonal};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

fn run(words: &[&str]) -> Output {
    zonal().args(words).output().unwrap()
}

/// A server that ends with the test.
struct Server(Child);

impl Server {
    fn start(config: &str) -> Self {
        let mut server = zonal();
        server.args(["server", "--config", config]);
        server.stdout(Stdio::null()).stderr(Stdio::null());
        Self(server.spawn().unwrap())
    }

    /// The same with its log in a file.
    fn start_with_log(config: &str, log: fs::File) -> Self {
        let mut server = zonal();
        server.args(["server", "--config", config]);
        server.stdout(Stdio::null()).stderr(log);
        Self(server.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The replicas of a shard, as `zonal shard ls` shows them.
fn replicas(cell: &str, shard: u32) -> Vec<Value> {
    let output = run(&["shard", "ls", "--cell", cell, "--json"]);
    let shards: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let shards = shards["shards"].as_array().cloned().unwrap_or_default();
    let known = shards.iter().find(|known| known["shard"] == shard);
    known
        .and_then(|known| known["replicas"].as_array().cloned())
        .unwrap_or_default()
}

/// The config of a node, with other ports.
fn at_free_ports(config: &str) -> String {
    let line = |line: &str| match line.strip_prefix("listen = \"127.0.0.1:") {
        Some(port) => {
            let port: u16 = port.trim_end_matches('"').parse().unwrap();
            let mut ports = port + 100..port + 1_000;
            let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
            format!("listen = \"127.0.0.1:{}\"\n", free.unwrap())
        }
        None => format!("{line}\n"),
    };
    config.lines().map(line).collect()
}

/// True where a node's replica leads its shard.
fn leads_by(cell: &str, shard: u32, node: u32) -> bool {
    let replicas = replicas(cell, shard);
    let mut leading = replicas.iter().filter(|one| one["part"] == "leads");
    leading.any(|one| one["node"] == node)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Makes the replica of a stopped server the only one.
fn recover(config: &str) {
    let shown = run(&["shard", "recover", "--config", config]);
    assert_eq!(code(&shown), 5, "{}", said(&shown));
    assert!(said(&shown).contains("lost may be"), "{}", said(&shown));
    let asked = run(&["shard", "recover", "--config", config, "--json"]);
    assert_eq!(code(&asked), 5, "{}", said(&asked));
    let asked: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert!(
        asked["record"].is_null() && asked["lost"][1].is_u64(),
        "{asked}"
    );
    let done = run(&[
        "shard",
        "recover",
        "--config",
        config,
        "--accept-loss",
        "--json",
    ]);
    assert_eq!(code(&done), 0, "{}", said(&done));
    let done: Value = serde_json::from_slice(&done.stdout).unwrap();
    let record = fs::read_to_string(done["record"].as_str().unwrap()).unwrap();
    assert!(record.contains("goes on alone"), "{record}");
    // Once is enough.
    let again = run(&[
        "shard",
        "recover",
        "--config",
        config,
        "--accept-loss",
        "--yes",
    ]);
    assert_eq!(code(&again), 5, "{}", said(&again));
}

#[test]
fn one_replica_goes_on_where_the_majority_is_gone_for_good() {
    let cell = Cell::with_shape("shard-recover", (1, 1), &["--replicas", "3"]);
    let dir = cell.dir().to_str().unwrap().to_owned();
    let all_vote = |shard| {
        let replicas = replicas(&dir, shard);
        let voting = replicas
            .iter()
            .filter(|one| one["part"] == "leads" || one["votes"] == true);
        voting.count() == 3
    };
    until("all vote", || all_vote(0) && all_vote(1));
    let put = |path: &str| {
        let text = cell.dir().join("text");
        fs::write(&text, "kept").unwrap();
        let text = text.to_str().unwrap();
        run(&["fs", "put", "--cell", &dir, text, path])
    };
    let made = run(&["fs", "mkdir", "--cell", &dir, "/kept"]);
    assert_eq!(code(&made), 0, "{}", said(&made));
    let written = put("/kept/file");
    assert_eq!(code(&written), 0, "{}", said(&written));
    // Followers have it within a heartbeat.
    std::thread::sleep(Duration::from_secs(1));

    for lost in ["manager2", "manager3", "meta1-2", "meta1-3"] {
        kill(cell.pid(lost), "KILL");
    }
    let mut configs = Vec::new();
    for survivor in ["manager", "meta1"] {
        kill(cell.pid(survivor), "KILL");
        configs.push(cell.config(survivor).to_str().unwrap().to_owned());
    }
    until("the servers are gone", || {
        let mut pids = ["manager", "meta1"].iter().map(|name| cell.pid(name));
        pids.all(|pid| !cell::lives(pid))
    });

    configs.iter().for_each(|config| recover(config));
    let _servers: Vec<Server> = configs.iter().map(|config| Server::start(config)).collect();
    let leads_by = |shard, node| leads_by(&dir, shard, node);
    let leads = |shard| leads_by(shard, if shard == 0 { 1 } else { 4 });
    until("both lead", || leads(0) && leads(1));
    for (shard, node) in [("0", "2"), ("0", "3"), ("1", "5"), ("1", "6")] {
        let removed = run(&["shard", "remove", shard, node, "--cell", &dir]);
        assert_eq!(code(&removed), 0, "{shard} {node}: {}", said(&removed));
    }
    let kept = run(&["fs", "cat", "--cell", &dir, "/kept/file"]);
    assert_eq!(
        String::from_utf8_lossy(&kept.stdout),
        "kept",
        "{}",
        said(&kept)
    );
    let more = put("/kept/more");
    assert_eq!(code(&more), 0, "{}", said(&more));

    // The lost replicas come back on their old stores, and were a majority.
    let lost = ["manager2", "manager3", "meta1-2", "meta1-3"];
    let start = |name: &str| {
        let log = fs::File::create(cell.dir().join(name).join("log")).unwrap();
        Server::start_with_log(cell.config(name).to_str().unwrap(), log)
    };
    let _back: Vec<Server> = lost.iter().map(|name| start(name)).collect();
    for name in lost {
        until(&format!("{name} is refused"), || {
            let log = cell.log(name);
            log.contains("its group went on without it") && log.contains("Hint: take the node out")
        });
        assert!(!cell.log(name).contains("this replica leads"), "{name}");
    }
    assert!(leads_by(0, 1) && leads_by(1, 4), "the survivors lead on");
    let more = put("/kept/last");
    assert_eq!(code(&more), 0, "{}", said(&more));
}

/// A new node with an empty store takes the place of one that died, by one command.
#[test]
fn a_dead_replica_is_replaced_by_a_new_node() {
    let shape = (1, 1);
    let cell = Cell::with_shape("shard-replace", shape, &["--replicas", "3", "--no-key"]);
    let dir = cell.dir().to_str().unwrap().to_owned();
    let voting = || {
        let replicas = replicas(&dir, 1);
        let votes = replicas
            .iter()
            .filter(|one| one["part"] == "leads" || one["votes"] == true);
        votes
            .filter_map(|one| one["node"].as_u64())
            .collect::<Vec<_>>()
    };
    until("all vote", || voting().len() == 3);
    let replace = |more: &[&str]| run(&[&["shard", "replace", "--cell", &dir, "1"], more].concat());
    let own_place = replace(&["6", "6"]);
    assert_eq!(code(&own_place), 5, "{}", said(&own_place));
    let unknown = replace(&["99"]);
    assert_eq!(code(&unknown), 7, "{}", said(&unknown));
    let is_replica = replace(&["6", "5"]);
    assert_eq!(code(&is_replica), 5, "{}", said(&is_replica));

    kill(cell.pid("meta1-3"), "KILL");
    signal(cell.pid("meta1-2"), "STOP");
    let last = replace(&["4", "26", "--wait", "1"]);
    assert_eq!(code(&last), 5, "no majority would remain: {}", said(&last));
    signal(cell.pid("meta1-2"), "CONT");
    until("two are up", || {
        let replicas = replicas(&dir, 1);
        let up = replicas
            .iter()
            .filter(|one| one["part"] == "leads" || one["part"] == "follows");
        up.count() == 2
    });

    let late = replace(&["6", "26", "--wait", "0"]);
    assert_eq!(code(&late), 1, "{}", said(&late));
    assert!(said(&late).contains("no node has taken"), "{}", said(&late));
    let folder = cell.dir().join("new");
    fs::create_dir(&folder).unwrap();
    let text = fs::read_to_string(cell.config("meta1-3")).unwrap();
    let config = folder.join("node.toml");
    fs::write(
        &config,
        at_free_ports(&text.replace("node = 6", "node = 26")),
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let formatted = run(&["server", "--config", config, "--format-only"]);
    assert_eq!(code(&formatted), 0, "{}", said(&formatted));
    let _server = Server::start(config);
    until("the new node has a place", || {
        replicas(&dir, 1).iter().any(|one| one["node"] == 26)
    });
    let done = replace(&["6", "26", "--json"]);
    assert_eq!(code(&done), 0, "{}", said(&done));
    let done: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(done, serde_json::json!({ "shard": 1, "old": 6, "new": 26 }));
    let mut votes = voting();
    votes.sort_unstable();
    assert_eq!(votes, [4, 5, 26]);
}
