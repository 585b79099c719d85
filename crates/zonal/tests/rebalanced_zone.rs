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
use copied_files::{connect, make_dir, map, pattern, target_of};
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

/// Prints how long a step took.
fn timed<T>(what: &str, step: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = step();
    println!("{what}: {:.1} s", begun.elapsed().as_secs_f64());
    result
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

fn is_shedding(map: &Value) -> bool {
    let mut targets = map["targets"].as_array().unwrap().iter();
    targets.any(|target| target["state"] != "Serving")
}

/// Number of files with objects that new targets are filling.
fn files_on_their_way(cell: &Cell) -> u64 {
    let text = cell.runs(&["recovery", "--json"]);
    let value: Value = serde_json::from_str(&text).unwrap();
    value["files"].as_u64().unwrap()
}

/// As [`files_on_their_way`], as soon as there are some. The rebalance must not be over before.
fn wait_until_objects_move(cell: &Cell) -> u64 {
    let begun = Instant::now();
    loop {
        let files = files_on_their_way(cell);
        if files > 0 {
            return files;
        }
        assert!(is_shedding(&map(cell)), "the rebalance is over");
        assert!(begun.elapsed() < WITHIN, "nothing moves");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the new targets have filled what was on its way.
fn wait_until_filled(cell: &Cell) {
    let begun = Instant::now();
    while files_on_their_way(cell) > 0 {
        assert!(
            begun.elapsed() < WITHIN,
            "objects do not come to their targets"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a rebalance would find nothing to do.
fn wait_until_even(cell: &Cell) {
    let begun = Instant::now();
    loop {
        let preview = cell.runs(&["rebalance", "--zone", "1", "--preview"]);
        if preview.contains("which is even") {
            return;
        }
        assert!(begun.elapsed() < WITHIN, "{preview}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// `zonal status` tells of the rebalance.
fn assert_in_status(cell: &Cell) {
    let status: Value = serde_json::from_str(&cell.runs(&["status", "--json"])).unwrap();
    let rebalance = &status["rebalances"][0];
    assert_eq!(rebalance["zone"], 1, "{status:#}");
    assert_eq!(
        rebalance["targets"].as_array().unwrap().len(),
        3,
        "{status:#}"
    );
    let lines = cell.runs(&["status"]);
    assert!(lines.contains("zone 1 is rebalanced"), "{lines}");
}

fn wait_until_over(cell: &Cell) {
    wait_until(cell, "no target gives objects away", |map| {
        !is_shedding(map)
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
    let (cell, mut files) = timed("the files are made", || uneven_cell("rebalanced"));
    let programs = Programs::start(&cell, &["/once", "/twice"], 1);
    // The first files of the programs change the map: the command plans again.
    let said_first = timed("rebalance", || cell.runs(&["rebalance", "--zone", "1"]));
    assert!(said_first.contains("3 of them give"), "{said_first}");
    assert_in_status(&cell);
    // Each server is killed while objects are on their way: the shards have records of them.
    let left = wait_until_objects_move(&cell);
    kill(cell.pid("manager"), "KILL");
    timed("the manager is back", || up(&cell));
    let still = wait_until_objects_move(&cell);
    kill(cell.pid("storage1-2"), "KILL");
    println!("killed with {left} and {still} files with objects on their way");
    timed("the storage server is back", || up(&cell));
    assert!(
        is_shedding(&map(&cell)),
        "the rebalance ended before the last kill"
    );
    timed("filled", || wait_until_filled(&cell));
    files.extend(programs.end());
    timed("even", || wait_until_even(&cell));
    // It would go on to 0.5 %, in steps of a lease each.
    cell.runs(&["rebalance", "--cancel"]);
    wait_until_over(&cell);
    timed("comparison", || compare(&cell, &files, 2));
    let even = cell.runs(&["rebalance"]);
    println!("{even}");
    assert!(even.contains("which is even"), "{even}");
    // The second one moves nothing.
    assert!(!is_shedding(&map(&cell)), "{even}");
    let fsck = timed("fsck", || cell.runs(&["fsck"]));
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
