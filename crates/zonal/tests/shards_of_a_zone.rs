//! Zones with several shards, in a cell of real processes: directories are spread, commands work,
//! and a zone takes one shard more.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, said, zonal};
use serde_json::Value;
use std::fs;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Of each shard of a zone: its id, its first-level directories, its inodes.
fn loads(cell: &Cell, zone: u64) -> Vec<(u64, u64, Option<u64>)> {
    let text = cell.runs(&["shard", "ls", "--json"]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    let shards = shown["shards"].as_array().unwrap().iter();
    let of_zone = shards.filter(|shard| shard["zone"] == zone && shard["shard"] != 0);
    of_zone
        .map(|shard| {
            let number = |key: &str| shard[key].as_u64();
            (
                number("shard").unwrap(),
                number("directories").unwrap(),
                number("inodes"),
            )
        })
        .collect()
}

/// Waits until the loads of zone 1 are as they should be.
fn wait_for(cell: &Cell, is_right: impl Fn(&[(u64, u64, Option<u64>)]) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = loads(cell, 1);
        if is_right(&found) {
            return;
        }
        assert!(Instant::now() < until, "{found:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that a test started.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command that formats and runs one node more with `[meta]`, in zone 1.
fn another_node(cell: &Cell) -> Command {
    let folder = cell.dir().join("another");
    fs::create_dir_all(&folder).unwrap();
    let known = fs::read_to_string(cell.dir().join("meta1/node.toml")).unwrap();
    let listen = known.lines().find(|line| line.starts_with("listen"));
    let manager = known
        .lines()
        .find(|line| line.starts_with("manager_address"));
    let port: u16 = listen
        .unwrap()
        .rsplit(':')
        .next()
        .unwrap()
        .trim_end_matches('"')
        .parse()
        .unwrap();
    // Servers of one cell have ports beside one another, below 32,000.
    let free = (port + 40..).find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok());
    let lines = known
        .lines()
        .take_while(|line| !line.starts_with("[admin]"));
    let text: Vec<String> = lines
        .map(|line| match line {
            line if Some(line) == listen => format!("listen = \"127.0.0.1:{}\"", free.unwrap()),
            line if line.starts_with("node =") => "node = 900".to_owned(),
            line => line.to_owned(),
        })
        .collect();
    assert!(manager.is_some());
    let file = folder.join("node.toml");
    fs::write(&file, text.join("\n")).unwrap();
    let mut command = zonal();
    command.args(["server", "--format", "--config"]).arg(file);
    command
}

fn text_of(output: &Output) -> String {
    format!("{}: {}", code(output), said(output))
}

#[test]
fn directories_are_spread_over_a_zones_shards_and_commands_see_all_of_them() {
    let cell = Cell::with_shape("shards", (2, 1), &["--shards", "2", "--no-key"]);
    assert_eq!(loads(&cell, 1).len(), 2);
    assert_eq!(loads(&cell, 2).len(), 2);
    let bytes = cell.dir().join("bytes");
    fs::write(&bytes, vec![7; 300_000]).unwrap();
    for number in 0..8 {
        let dir = format!("/d{number}");
        cell.runs(&["fs", "mkdir", "--zone", "1", &dir]);
        let mut put = cell.command(&["fs", "put"]);
        let output = put.arg(&bytes).arg(format!("{dir}/f")).output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
    // Each shard has a directory and a file for each of its directories.
    wait_for(&cell, |found| {
        let counts = found.iter().map(|(_, dirs, inodes)| (*dirs, *inodes));
        let mut sums = (0, 0);
        let agree = counts.into_iter().all(|(dirs, inodes)| {
            sums = (sums.0 + dirs, sums.1 + inodes.unwrap_or(0));
            dirs > 0 && inodes == Some(2 * dirs)
        });
        agree && sums == (8, 16)
    });
    assert!(loads(&cell, 2).iter().all(|(_, dirs, _)| *dirs == 0));
    // More than a shard has partitions for at first: each has one of its own all the same.
    let many: Vec<String> = (0..60).map(|number| format!("/many{number}")).collect();
    let mut mkdir = cell.command(&["fs", "mkdir", "--zone", "2"]);
    let output = mkdir.args(&many).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(loads(&cell, 2).iter().all(|(_, dirs, _)| *dirs == 30));
    // Renames inside of the root change no shard.
    cell.runs(&["fs", "mv", "/d0", "/moved"]);
    assert_eq!(cell.runs(&["fs", "cat", "/moved/f"]).len(), 300_000);
    let listed = cell.runs(&["fs", "find", "/"]);
    assert_eq!(
        listed.lines().filter(|line| line.ends_with("/f")).count(),
        8,
        "{listed}"
    );
    let status: Value = serde_json::from_str(&cell.runs(&["status", "--json"])).unwrap();
    assert!(status["ok"].as_bool().unwrap_or(true), "{status}");
    cell.runs(&["fsck"]);
    let backup = cell.dir().join("backup");
    let mut saved = cell.command(&["meta", "backup"]);
    let output = saved.arg("--to").arg(&backup).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    cell.runs(&["fs", "rm", "-r", "/moved"]);
    wait_for(&cell, |found| {
        found.iter().map(|(_, dirs, _)| dirs).sum::<u64>() == 7
    });
    assert_eq!(code(&cell.down()), 0);
    cell.runs(&["fsck"]);
    let mut restored = cell.command(&["meta", "restore", "--force"]);
    let output = restored.arg("--from").arg(&backup).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let mut up = zonal();
    let output = up.arg("up").arg("--dir").arg(cell.dir()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(cell.runs(&["fs", "cat", "/d1/f"]).len(), 300_000);
    let listed = cell.runs(&["fs", "ls", "/"]);
    assert!(listed.contains("moved"), "{listed}");
}

#[test]
fn a_zone_takes_one_shard_more_once_it_is_told_to() {
    let cell = Cell::up("shard-add");
    cell.runs(&["fs", "mkdir", "/old"]);
    let refused = another_node(&cell).output().unwrap();
    let text = text_of(&refused);
    assert!(text.contains("Hint: `zonal shard add 1`"), "{text}");
    cell.runs(&["shard", "add", "1"]);
    let again = cell.command(&["shard", "add", "1"]).output().unwrap();
    assert_eq!(code(&again), 5, "{}", text_of(&again));
    let unknown = cell.command(&["shard", "add", "7"]).output().unwrap();
    assert_eq!(code(&unknown), 7, "{}", text_of(&unknown));
    let server = another_node(&cell).spawn().unwrap();
    let _server = Server(server);
    wait_for(&cell, |found| {
        found.len() == 2 && found.iter().all(|(_, _, inodes)| inodes.is_some())
    });
    cell.runs(&["fs", "mkdir", "/new"]);
    let dirs: Vec<u64> = loads(&cell, 1)
        .into_iter()
        .map(|(_, dirs, _)| dirs)
        .collect();
    assert_eq!(dirs, [1, 1]);
}
