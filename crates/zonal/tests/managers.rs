//! Several managers: commands find the one that leads, and none makes a second group.

#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, said, zonal};
use serde_json::Value;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use zonal_native::{CellId, ConnectOptions, Identity, Native, NodeId, Role, User, ZoneId};

fn run(words: &[&str]) -> Output {
    zonal().args(words).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let output = run(words);
    assert_eq!(code(&output), 0, "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The root's shard, as `zonal shard ls` shows it; null while no manager leads.
fn root(cell: &str) -> Value {
    let output = run(&["shard", "ls", "--cell", cell, "--json"]);
    let shards: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let shards = shards["shards"].as_array().into_iter().flatten();
    let mut shards = shards.filter(|shard| shard["shard"] == 0);
    shards.next().cloned().unwrap_or_default()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn has_followers(cell: &str, wanted: usize) -> bool {
    let root = root(cell);
    let replicas = root["replicas"].as_array().into_iter().flatten();
    let follow = replicas.filter(|one| one["part"] == "follows" && one["votes"] == true);
    root["leader"].is_u64() && follow.count() == wanted
}

/// Addresses of the managers, by their names.
fn address(cell: &Cell, name: &str) -> String {
    let text = fs::read_to_string(cell.dir().join(name).join("node.toml")).unwrap();
    let config: toml::Table = text.parse().unwrap();
    config["listen"].as_str().unwrap().to_owned()
}

#[test]
fn any_manager_is_enough_to_find_the_one_that_leads() {
    let cell = Cell::with_shape("managers-found", (2, 1), &["--replicas", "3"]);
    let dir = cell.dir().to_str().unwrap().to_owned();
    until("two managers follow", || has_followers(&dir, 2));
    let key = cell.dir().join("cell.key");
    let key = key.to_str().unwrap();
    for name in ["manager", "manager2", "manager3"] {
        let place = address(&cell, name);
        let named = ["--cell", &place, "--key-file", key];
        // Managers that do not lead give the map, too.
        let mut words = vec!["zone-map", "show", "--json"];
        words.extend(named);
        let map = json(&words);
        assert_eq!(map["managers"].as_array().unwrap().len(), 3, "{map}");
    }
    let nobody = "127.0.0.1:1";
    let two = format!("{nobody},{}", address(&cell, "manager3"));
    let map = json(&[
        "zone-map",
        "show",
        "--json",
        "--cell",
        &two,
        "--key-file",
        key,
    ]);
    assert_eq!(map["managers"].as_array().unwrap().len(), 3);
    // A change goes to the one that leads, whichever is named.
    let leader = root(&dir)["leader"].as_u64().unwrap();
    let named = ["manager", "manager2"].map(|name| address(&cell, name));
    let follower = if leader == 1 { &named[1] } else { &named[0] };
    let words = [
        "shard",
        "remove",
        "0",
        "3",
        "--cell",
        follower,
        "--key-file",
        key,
    ];
    let output = run(&words);
    assert_eq!(code(&output), 0, "{}", said(&output));
    until("one follows", || has_followers(&dir, 1));
    // The placement service is where the leader is.
    let answered = run(&["jobs", "--cell", &dir]);
    assert_eq!(code(&answered), 0, "{}", said(&answered));
}

#[test]
fn a_first_manager_with_a_new_disk_makes_no_second_group() {
    let cell = Cell::with_shape("managers-disk", (1, 1), &["--replicas", "3"]);
    let dir = cell.dir().to_str().unwrap().to_owned();
    until("two managers follow", || has_followers(&dir, 2));
    kill(cell.pid("manager"), "KILL");
    until("another one leads", || has_followers(&dir, 1));
    let folder = cell.dir().join("manager");
    fs::remove_dir_all(folder.join("manager")).unwrap();
    let config = folder.join("node.toml");
    let config = config.to_str().unwrap();
    let formatted = run(&["server", "--config", config, "--format-only"]);
    assert_eq!(code(&formatted), 0, "{}", said(&formatted));
    let refused = run(&["server", "--config", config]);
    let text = said(&refused);
    assert_eq!(code(&refused), 5, "{text}");
    assert!(text.contains("formatted apart"), "{text}");
    assert!(has_followers(&dir, 1), "{}", root(&dir));
    assert!(Path::new(config).exists());
}

/// A server that the test started by itself.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_manager_at_a_new_address_is_found_by_all_who_knew_the_old_one() {
    let cell = Cell::with_shape("managers-moved", (1, 1), &["--replicas", "3", "--no-key"]);
    let others = ["manager2", "manager3"].map(|name| address(&cell, name));
    let others = others.join(",");
    let told = |words: &[&str]| run(&[words, &["--cell", &others]].concat());
    let dir = cell.dir().to_str().unwrap().to_owned();
    until("two managers follow", || has_followers(&dir, 2));
    // A client that knows all three.
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(1)).named("moved");
    let native = Native::connect(&manager, identity, options).unwrap();
    native.mkdir(&User::root(), "/before", 0o755).unwrap();

    kill(cell.pid("manager"), "KILL");
    let config = cell.config("manager");
    let text = fs::read_to_string(&config).unwrap();
    let old = address(&cell, "manager");
    let place = free_place_beside(&old);
    fs::write(&config, text.replace(&old, &place)).unwrap();
    let mut server = zonal();
    let server = server.arg("server").arg("--config").arg(&config);
    let _server = Server(server.stderr(Stdio::null()).spawn().unwrap());
    until("it leads at its new address", || {
        code(&told(&["shard", "lead", "0", "1"])) == 0
            && json_of(&told(&["shard", "ls", "--json"]))["shards"][0]["leader"] == 1
    });
    native.mkdir(&User::root(), "/after", 0o755).unwrap();
    let listed = told(&["fs", "ls", "/"]);
    assert!(said(&listed).contains("after"), "{}", said(&listed));
    native.close().unwrap();
}

/// Copies a folder with all that is in it.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

#[test]
fn an_older_image_of_a_manager_elects_no_leader() {
    let cell = Cell::with_shape("managers-image", (1, 1), &["--replicas", "3"]);
    let dir = cell.dir().to_str().unwrap().to_owned();
    until("two managers follow", || has_followers(&dir, 2));
    let folder = cell.dir().join("manager2");
    let (old, new) = (cell.dir().join("old2"), cell.dir().join("new2"));
    let again = || {
        let again = run(&["up", "--dir", &dir]);
        assert_eq!(code(&again), 0, "{}", said(&again));
    };
    kill(cell.pid("manager2"), "TERM");
    copy(&folder, &old);
    again();
    until("two managers follow", || has_followers(&dir, 2));
    // The third has the record of the second's start, too: it joins once it follows.
    std::thread::sleep(Duration::from_secs(2));
    // Managers 1 and 2 alone take changes, which the third has not.
    kill(cell.pid("manager3"), "TERM");
    until("one follows", || has_followers(&dir, 1));
    let added = run(&["zone", "add", "acknowledged", "--cell", &dir]);
    assert_eq!(code(&added), 0, "{}", said(&added));
    kill(cell.pid("manager2"), "TERM");
    kill(cell.pid("manager"), "KILL");
    fs::rename(&folder, &new).unwrap();
    copy(&old, &folder);
    let starts = ["manager2", "manager3"].map(|name| {
        let mut server = zonal();
        let server = server.arg("server").arg("--config").arg(cell.config(name));
        Server(server.stderr(Stdio::null()).spawn().unwrap())
    });
    let end = Instant::now() + Duration::from_secs(8);
    while Instant::now() < end {
        assert!(root(&dir)["leader"].is_null(), "{}", root(&dir));
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(starts);
    // With its newest store everything is there.
    fs::remove_dir_all(&folder).unwrap();
    fs::rename(&new, &folder).unwrap();
    again();
    until("two managers follow", || has_followers(&dir, 2));
    let zones = run(&["zone", "ls", "--cell", &dir]);
    assert!(said(&zones).contains("acknowledged"), "{}", said(&zones));
}

/// An address near another one, where no connection of this machine begins.
fn free_place_beside(place: &str) -> String {
    let place: SocketAddr = place.parse().unwrap();
    let mut ports = place.port() + 100..place.port() + 1_000;
    let port = ports.find(|port| TcpListener::bind((place.ip(), *port)).is_ok());
    format!("{}:{}", place.ip(), port.unwrap())
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}
