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
use zonal_native::{Native, User};

/// Time for a drain beside a program, on a busy machine.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);
const SIZES: [usize; 9] = [
    0, 1, 4_096, 60_000, 65_536, 65_537, 200_000, 1_048_576, 2_100_000,
];
const DIRS: [(&str, &str); 2] = [("/once", "none"), ("/twice", "copies:2")];

/// Contents by path.
type Files = BTreeMap<String, Vec<u8>>;

/// Without a block of zeros: a target that fills an object makes a hole of it, which counts less.
fn content(size: usize, seed: usize) -> Vec<u8> {
    let mut bytes = pattern(seed);
    bytes.truncate(size);
    bytes.iter_mut().for_each(|byte| *byte = (*byte).max(1));
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
    let shown = said(&output);
    assert_eq!(code(&output), 0, "{words:?}: {shown}");
    let is_clean = words[0] != "fsck" || shown.contains("0 findings, 0 notes");
    assert!(is_clean, "{words:?}: {shown}");
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

/// Makes files of many sizes, with one copy and with two.
fn make_files(cell: &Cell) -> Files {
    let native = connect(cell);
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
    files
}

#[test]
fn nothing_is_missing_without_a_drained_target() {
    // One node more than copies and drained targets need.
    let shape = (SHAPE.0, SHAPE.1 + 1);
    let cell = Cell::with_shape("drained", shape, &["--no-key"]);
    let mut files = make_files(&cell);
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

/// Waits until a target is in one of these states.
fn until_state(cell: &Cell, target: u64, states: &[&str]) -> String {
    let end = Instant::now() + DRAINED_WITHIN;
    loop {
        let state = target_state(cell, target).unwrap_or_default();
        if states.contains(&state.as_str()) {
            return state;
        }
        assert!(Instant::now() < end, "target {target}: {state}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Number of objects that the targets of a running cell have.
fn objects(cell: &Cell) -> u64 {
    let text = cell.runs(&["fsck", "--json"]);
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let last = values.map(Result::unwrap).last().unwrap();
    last["objects"].as_u64().unwrap()
}

#[test]
fn a_cancelled_drain_leaves_nothing_behind() {
    let shape = (SHAPE.0, SHAPE.1 + 1);
    let cell = Cell::with_shape("cancelled-drain", shape, &["--no-key"]);
    let files = make_files(&cell);
    let before = objects(&cell);
    let target = target_of(&cell, NODES[1]);
    let number = target.to_string();
    let drain = ["target", "drain", "--target", &number];
    // The manager ends a drain only a lease after the last object has moved.
    let end = Instant::now() + DRAINED_WITHIN;
    cell.runs(&drain);
    while objects(&cell) == before {
        assert!(Instant::now() < end, "nothing moves");
    }
    cell.runs(&[&drain[..], &["--cancel"]].concat());
    until_state(&cell, target, &["Serving"]);
    all_is_right(&cell, &files, "after a cancelled drain");
    finds_nothing(&cell, &["fsck"]);
    let native = connect(&cell);
    for path in files.keys() {
        native.unlink(&User::root(), path).unwrap();
    }
    drop(native);
    while objects(&cell) > 0 {
        assert!(Instant::now() < end, "objects are left");
        std::thread::sleep(Duration::from_secs(1));
    }
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    finds_nothing(&cell, &["fsck", "--data"]);
}
