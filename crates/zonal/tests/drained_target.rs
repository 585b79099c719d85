//! A target is drained while a program writes and reads. Its server and its folder may go then, and
//! nothing is missing; the same holds for objects that move a second time.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, kill, said};
use copied_files::{NODES, SHAPE, connect, make_dir, pattern};
use native_files::{read, write};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zonal_native::Native;

/// Time for a drain beside a program, on a busy machine.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);
const SIZES: [usize; 9] = [
    0, 1, 4_096, 60_000, 65_536, 65_537, 200_000, 1_048_576, 2_100_000,
];
const DIRS: [(&str, &str); 2] = [("/once", "none"), ("/twice", "copies:2")];

/// Contents by path.
type Files = BTreeMap<String, Vec<u8>>;

/// Blocks of zeros lie between others: they are written, not holes.
fn content(size: usize, seed: usize) -> Vec<u8> {
    let mut bytes = pattern(seed);
    bytes.truncate(size);
    for block in bytes.chunks_mut(4096).skip(3).step_by(5) {
        block.fill(0);
    }
    bytes
}

fn target_state(cell: &Cell, target: u64) -> Option<String> {
    let map: Value = serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap();
    let targets = map["targets"].as_array().unwrap().iter();
    let mut found = targets.filter(|entry| entry["id"] == target);
    Some(found.next()?["state"].as_str().unwrap().to_owned())
}

/// The target of a storage server.
fn target_of(cell: &Cell, name: &str) -> u64 {
    let address = cell.address(name, false).to_string();
    let map: Value = serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap();
    let find = |list: &str, key: &str, wanted: &Value| {
        let entries = map[list].as_array().unwrap().iter();
        let mut found = entries.filter(|entry| entry[key] == *wanted);
        found.next().unwrap()["id"].clone()
    };
    let node = find("nodes", "address", &Value::from(address));
    find("targets", "node", &node).as_u64().unwrap()
}

/// Writes and reads until told to end. Returns the files as they are then.
fn work(native: &Native, begin: &Files, is_over: &AtomicBool, round: usize) -> Files {
    let mut files = begin.clone();
    let mut seed = round * 1_000;
    while !is_over.load(Ordering::Relaxed) {
        seed += 1;
        let size = SIZES[seed % SIZES.len()];
        let (dir, _) = DIRS[seed % DIRS.len()];
        // Half of them are new; the other half are files that move.
        let name = match seed % 4 {
            0 | 1 => format!("{dir}/new-{}", seed % 40),
            _ => format!("{dir}/{size}"),
        };
        let before = files.get(&name).map_or(0, Vec::len);
        let bytes = content(size.max(before), seed);
        write(native, &name, &bytes);
        files.insert(name, bytes);
        let (path, bytes) = files.iter().nth(seed % files.len()).unwrap();
        assert!(read(native, path).unwrap() == *bytes, "{path}");
        std::thread::sleep(Duration::from_millis(20));
    }
    files
}

fn all_is_right(cell: &Cell, files: &Files, when: &str) {
    let native = connect(cell);
    for (path, bytes) in files {
        assert!(read(&native, path).unwrap() == *bytes, "{path} {when}");
    }
}

/// Runs a command that has to find nothing.
fn finds_nothing(cell: &Cell, words: &[&str]) {
    let output = cell.command(words).output().unwrap();
    assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
}

/// All files have all their copies.
fn survives(cell: &Cell) {
    finds_nothing(cell, &["files", "--lost"]);
    finds_nothing(cell, &["files", "--endangered"]);
}

/// Drains a target beside a program.
fn drain(cell: &Cell, target: u64, files: &Files, round: usize) -> Files {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let native = connect(cell);
        let is_over = &is_over;
        let program = scope.spawn(move || work(&native, files, is_over, round));
        cell.runs(&["target", "drain", "--target", &target.to_string()]);
        let drained_by = Instant::now() + DRAINED_WITHIN;
        let mut state = None;
        while state.as_deref() != Some("Drained") && Instant::now() < drained_by {
            if program.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
            state = target_state(cell, target);
        }
        let shown = said(&cell.command(&["recovery"]).output().unwrap());
        is_over.store(true, Ordering::Relaxed);
        let files = program.join().unwrap();
        assert_eq!(state.as_deref(), Some("Drained"), "{shown}");
        files
    })
}

#[test]
fn nothing_is_missing_without_a_drained_target() {
    // One node more than copies and drained targets need.
    let shape = (SHAPE.0, SHAPE.1 + 1);
    let cell = Cell::with_shape("drained", shape, &["--no-key"]);
    let native = connect(&cell);
    let mut files = Files::new();
    for (dir, redundancy) in DIRS {
        make_dir(&native, dir, redundancy);
        for size in SIZES {
            let path = format!("{dir}/{size}");
            let bytes = content(size, size);
            write(&native, &path, &bytes);
            files.insert(path, bytes);
        }
    }
    drop(native);
    for (round, name) in NODES.into_iter().skip(1).enumerate() {
        let target = target_of(&cell, name);
        files = drain(&cell, target, &files, round);
        all_is_right(&cell, &files, "with the drained target");
        finds_nothing(&cell, &["fsck"]);
        kill(cell.pid(name), "KILL");
        std::fs::remove_dir_all(cell.dir().join(name).join("target")).unwrap();
        all_is_right(&cell, &files, "without the drained target");
        finds_nothing(&cell, &["fsck"]);
        survives(&cell);
        cell.runs(&["target", "remove", "--target", &target.to_string()]);
        assert_eq!(target_state(&cell, target), None);
        all_is_right(&cell, &files, "without the removed target");
        finds_nothing(&cell, &["fsck"]);
        survives(&cell);
    }
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    finds_nothing(&cell, &["fsck", "--data"]);
}
