//! `zonal shard move` in a cell of real processes: a directory moves while programs use it, through
//! kills of both servers; what cannot move is refused.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, said, zonal};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

/// Exit code where a name or a number is unknown.
const NOT_FOUND: i32 = 7;
/// Moves of the directory while it is used.
const MOVES: u64 = 4;
/// Time between two moves: calls wait for seconds after a kill, and two kills are not to add up to
/// the deadline of a call.
const BETWEEN: Duration = Duration::from_millis(1_500);
/// Names the folder and the stop file to the helper process.
const FOLDER: &str = "ZONAL_MOVE_FOLDER";
const STOP: &str = "ZONAL_MOVE_STOP";

/// Shards of zone 1, with the number of their first-level directories.
fn shards(cell: &Cell) -> Vec<(u64, u64)> {
    let shown: Value = serde_json::from_str(&cell.runs(&["shard", "ls", "--json"])).unwrap();
    let all = shown["shards"].as_array().unwrap().iter();
    let of_zone = all.filter(|shard| shard["zone"] == 1 && shard["shard"] != 0);
    let numbers = of_zone.map(|shard| {
        let number = |key: &str| shard[key].as_u64().unwrap_or(0);
        (number("shard"), number("directories"))
    });
    numbers.collect()
}

fn order(cell: &Cell, path: &str, to: u64, more: &[&str]) -> Output {
    let to = to.to_string();
    let mut command = cell.command(&["shard", "move", path, "--to", &to]);
    command.args(more).output().unwrap()
}

#[test]
fn what_cannot_move_is_refused() {
    let cell = Cell::with_shape("move-no", (2, 1), &["--shards", "2", "--no-key"]);
    for dir in ["/a", "/b", "/c", "/d"] {
        cell.runs(&["fs", "mkdir", "--zone", "1", dir]);
    }
    let all: Vec<u64> = shards(&cell).into_iter().map(|(shard, _)| shard).collect();
    let outcome = |path: &str, to: u64| code(&order(&cell, path, to, &[]));
    assert_eq!(outcome("/a/b", all[0]), 2, "no first-level directory");
    assert_eq!(outcome("/", all[0]), 2);
    assert_eq!(outcome("/none", all[0]), NOT_FOUND);
    assert_eq!(outcome("/a", 77), NOT_FOUND, "no such shard");
    assert_eq!(outcome("/a", 0), 5, "the root's shard");
    assert_eq!(outcome("/a", 2), 5, "another zone's shard");
    // One of the two is where it is.
    let there: Vec<i32> = all.iter().map(|shard| outcome("/a", *shard)).collect();
    assert!(there.contains(&0) && there.contains(&5), "{there:?}");
    let idle = cell.command(&["shard", "move", "/a", "--cancel"]).output();
    assert_eq!(code(&idle.unwrap()), NOT_FOUND, "nothing to cancel");
    assert_eq!(code(&cell.down()), 0);
}

/// A program that appends numbered lines and makes files until the stop file is there. It keeps a
/// lock and an open file without a name, and prints the number of lines.
///
/// It is a process of its own: a process that starts others closes its files in them, and waits for
/// the shard.
#[test]
#[ignore = "run by the test of moves"]
fn helper_that_uses_the_directory() {
    let dir = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let stop = PathBuf::from(std::env::var_os(STOP).unwrap());
    let locked = File::create(dir.join("locked")).unwrap();
    locked.try_lock().unwrap();
    let nameless = dir.join("nameless");
    let mut open = OpenOptions::new();
    let mut kept = open
        .read(true)
        .write(true)
        .create_new(true)
        .open(&nameless)
        .unwrap();
    kept.write_all(&[7; 100_000]).unwrap();
    fs::remove_file(&nameless).unwrap();
    let mut log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.join("log"))
        .unwrap();
    let mut lines = 0;
    while !stop.exists() {
        let began = Instant::now();
        // One write a line.
        let written = log.write_all(format!("{lines:015}\n").as_bytes());
        assert!(written.is_ok(), "{written:?} after {:?}", began.elapsed());
        let file = dir.join(format!("f{}", lines % 50));
        fs::write(&file, lines.to_string()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), lines.to_string());
        lines += 1;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
    log.sync_all().unwrap();
    let mut bytes = Vec::new();
    kept.seek(SeekFrom::Start(0)).unwrap();
    kept.read_to_end(&mut bytes).unwrap();
    assert!(bytes == [7; 100_000], "{} bytes", bytes.len());
    println!("\nlines {lines}");
}

/// Moves the directory there and back, and kills a server of the zone at each other move. No other
/// mount ever gets the lock.
fn move_it(cell: &Cell, second: &Path) {
    let all: Vec<u64> = shards(cell).into_iter().map(|(shard, _)| shard).collect();
    let mut moved = 0;
    for round in 0..2 * MOVES {
        let to = all[usize::try_from(round % 2).unwrap()];
        let ordered = order(cell, "/used", to, &["--no-wait"]);
        if code(&ordered) == 5 {
            // It begins in one of the two.
            assert_eq!(round, 0, "{}", said(&ordered));
            continue;
        }
        assert_eq!(code(&ordered), 0, "{}", said(&ordered));
        if round % 4 == 1 {
            let victim = ["meta1", "meta1-2"][usize::try_from(round / 4 % 2).unwrap()];
            std::thread::sleep(Duration::from_millis(20 * round));
            let pid = cell.pid(victim);
            cell::kill(pid, "KILL");
            while cell::lives(pid) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let up = zonal()
                .args(["up", "--dir"])
                .arg(cell.dir())
                .output()
                .unwrap();
            assert_eq!(code(&up), 0, "{}", said(&up));
        }
        let done = order(cell, "/used", to, &["--wait", "120"]);
        assert!([0, 5].contains(&code(&done)), "{}", said(&done));
        moved += 1;
        let other = File::open(second.join("used/locked")).unwrap();
        assert!(other.try_lock().is_err(), "two have the lock");
        std::thread::sleep(BETWEEN);
    }
    assert!(moved >= MOVES, "{moved} moves");
}

#[test]
fn a_directory_moves_while_it_is_used_and_servers_are_killed() {
    let cell = Cell::with_shape("move", (1, 2), &["--shards", "2", "--no-key"]);
    let points = Scratch::new("move-points");
    let mounts = [points.join("m1"), points.join("m2")];
    for mount in &mounts {
        fs::create_dir(mount).unwrap();
        let path = mount.to_str().unwrap();
        cell.runs(&["mount", path]);
    }
    let used = mounts[0].join("used");
    fs::create_dir(&used).unwrap();
    let stop = points.join("stop");
    let program = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--nocapture", "helper_that_uses_the_directory"])
        .envs([(FOLDER, &used), (STOP, &stop)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while !used.join("f9").exists() {
        assert!(Instant::now() < until, "the program does nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    let moved = std::panic::catch_unwind(|| move_it(&cell, &mounts[1]));
    fs::write(&stop, "").unwrap();
    let program = program.wait_with_output().unwrap();
    assert_eq!(code(&program), 0, "{}", said(&program));
    moved.unwrap();
    let printed = String::from_utf8(program.stdout).unwrap();
    let lines = printed.lines().find_map(|line| line.strip_prefix("lines "));
    let lines: u64 = lines.unwrap().parse().unwrap();
    for mount in &mounts {
        let log = fs::read_to_string(mount.join("used/log")).unwrap();
        let found: Vec<&str> = log
            .split('\n')
            .filter(|line| !line.trim_matches('\0').is_empty())
            .collect();
        assert_eq!(found.len() as u64, lines);
        for (number, line) in found.iter().enumerate() {
            assert_eq!(line.trim_matches('\0'), format!("{number:015}"));
        }
    }
    let check = cell.command(&["fsck"]).output().unwrap();
    assert_eq!(code(&check), 0, "{}", said(&check));
    for mount in &mounts {
        let output = zonal().arg("umount").arg(mount).output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
    assert_eq!(code(&cell.down()), 0);
}
