//! A zone that got an empty target is evened out while programs change its files, and servers are
//! killed. A rebalance that is cancelled leaves nothing behind.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stdout, reason = "figures")]

mod cell;
mod copied_files;
mod native_files;
mod verified_files;

use cell::{Cell, code, kill, said, zonal};
use copied_files::{connect, make_dir, pattern};
use native_files::write;
use serde_json::Value;
use std::time::{Duration, Instant};
use verified_files::{Files, Programs, compare};

const SHAPE: (u16, u16) = (1, 4);
const OPTIONS: [&str; 5] = ["--no-key", "--capacity", "192 MiB", "--segment", "16 MiB"];
const EMPTY: &str = "storage1-4";
const DIRS: [(&str, &str, usize); 2] = [("/once", "none", 24), ("/twice", "copies:2", 24)];
const WITHIN: Duration = Duration::from_secs(150);

/// Without a block of zeros: a target that fills an object makes a hole of it, which counts less.
fn content(seed: usize) -> Vec<u8> {
    let mut bytes = pattern(seed);
    bytes.iter_mut().for_each(|byte| *byte = (*byte).max(1));
    bytes
}

fn map(cell: &Cell) -> Value {
    serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap()
}

fn target_of(cell: &Cell, name: &str) -> String {
    let address = Value::from(cell.address(name, false).to_string());
    let map = map(cell);
    let find = |list: &str, key: &str, wanted: &Value| {
        let mut entries = map[list].as_array().unwrap().iter();
        entries.find(|entry| entry[key] == *wanted).unwrap()["id"].clone()
    };
    let node = find("nodes", "address", &address);
    find("targets", "node", &node).to_string()
}

/// A cell whose files lie on three of four targets, all of which take files then.
fn uneven_cell(name: &str) -> (Cell, Files) {
    let cell = Cell::with_shape(name, SHAPE, &OPTIONS);
    let empty = target_of(&cell, EMPTY);
    cell.runs(&["target", "disuse", "--target", &empty]);
    let native = connect(&cell);
    let mut files = Files::new();
    for (dir, redundancy, count) in DIRS {
        make_dir(&native, dir, redundancy);
        for file in 0..count {
            let path = format!("{dir}/rest-{file}");
            write(&native, &path, &content(file));
            files.insert(path, content(file));
        }
    }
    cell.runs(&["target", "use", "--target", &empty]);
    (cell, files)
}

fn up(cell: &Cell) {
    let up = cell.up_as(zonal(), SHAPE, &OPTIONS);
    assert_eq!(code(&up), 0, "{}", said(&up));
}

/// Waits until the rebalance does or does not go on.
fn wait_until(cell: &Cell, what: &str, is_so: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    while !is_so(&map(cell)) {
        let shown = || said(&cell.command(&["recovery"]).output().unwrap());
        let log = || cell.log("manager");
        assert!(begun.elapsed() < WITHIN, "{what}: {} {}", shown(), log());
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("{what} after {:.1} s", begun.elapsed().as_secs_f64());
}

fn wait_until_over(cell: &Cell) {
    wait_until(cell, "no target gives objects away", |map| {
        let mut targets = map["targets"].as_array().unwrap().iter();
        targets.all(|target| target["state"] == "Serving")
    });
}

/// Number of objects that the targets of a running cell have.
fn objects(cell: &Cell) -> u64 {
    let text = cell.runs(&["fsck", "--json"]);
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let last = values.map(Result::unwrap).last().unwrap();
    last["objects"].as_u64().unwrap()
}

fn check_stopped(cell: &Cell) {
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}

#[test]
fn a_zone_is_evened_out_beside_programs_and_kills() {
    let (cell, mut files) = uneven_cell("rebalanced");
    let programs = Programs::start(&cell, &["/once", "/twice"], 1);
    // The first files of the programs change the map, which refuses a plan made before.
    std::thread::sleep(Duration::from_secs(2));
    let said_first = cell.runs(&["rebalance", "--zone", "1"]);
    assert!(said_first.contains("3 of them give"), "{said_first}");
    let before = objects(&cell);
    let begun = Instant::now();
    while objects(&cell) < before + 6 {
        assert!(begun.elapsed() < WITHIN, "nothing moves");
    }
    kill(cell.pid("manager"), "KILL");
    up(&cell);
    kill(cell.pid("storage1-2"), "KILL");
    std::thread::sleep(Duration::from_secs(1));
    up(&cell);
    wait_until_over(&cell);
    files.extend(programs.end());
    compare(&cell, &files, 2);
    let even = cell.runs(&["rebalance"]);
    println!("{even}");
    assert!(even.contains("which is even"), "{even}");
    // The second one moves nothing.
    wait_until_over(&cell);
    let fsck = cell.runs(&["fsck"]);
    assert!(fsck.contains("0 findings"), "{fsck}");
    kill(cell.pid(EMPTY), "KILL");
    let twice = |path: &str| path.starts_with("/twice");
    let copied = files.iter().filter(|(path, _)| twice(path));
    let copied: Files = copied
        .map(|(path, bytes)| (path.clone(), bytes.clone()))
        .collect();
    compare(&cell, &copied, 1);
    up(&cell);
    check_stopped(&cell);
}

#[test]
fn a_cancelled_rebalance_leaves_nothing_behind() {
    let (cell, files) = uneven_cell("cancelled-rebalance");
    let before = objects(&cell);
    cell.runs(&["rebalance"]);
    let begun = Instant::now();
    while objects(&cell) < before + 3 {
        assert!(begun.elapsed() < WITHIN, "nothing moves");
    }
    cell.runs(&["rebalance", "--cancel"]);
    wait_until_over(&cell);
    let fsck = cell.runs(&["fsck"]);
    assert!(fsck.contains("0 findings, 0 notes"), "{fsck}");
    assert_eq!(objects(&cell), before);
    compare(&cell, &files, 1);
    let none = cell.command(&["rebalance", "--cancel"]).output().unwrap();
    assert_ne!(code(&none), 0, "{}", said(&none));
    check_stopped(&cell);
}
