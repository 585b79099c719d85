//! Copies of a column that differ, though none is marked as stale, are named by `zonal fsck`, and
//! filled again from the right ones after `--repair`. Programs that write meanwhile do not disturb
//! it.
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
use copied_files::{NODES, SHAPE, connect, make_dir, pattern};
use native_files::{read, write};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use verified_files::{Programs, compare};
use zonal_native::{Native, OpenOptions, User};
use zonal_testkit::Rng;

const TWICE: &str = "/twice/file";
const THRICE: &str = "/thrice/file";
const NAME: &str = "copies-differ";
/// Time for the targets to fill their copies.
const FILLED_WITHIN: Duration = Duration::from_secs(60);
/// Checks beside programs; `ZONAL_CHECKS` sets more.
const CHECKS: u64 = 2;

fn up(cell: &Cell) {
    let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
}

fn down(cell: &Cell) {
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
}

/// The findings of a check that are about copies that differ, and the last line.
fn check(cell: &Cell, options: &[&str]) -> (Vec<Value>, Value) {
    let mut command = cell.command(&["fsck", "--json"]);
    let output = command.args(options).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let mut lines: Vec<Value> = values.map(Result::unwrap).collect();
    let last = lines.pop().unwrap();
    lines.retain(|line| line["name"] == NAME);
    (lines, last)
}

/// A cell whose second target has old bytes of both files, with right checksums.
fn cell_with_old_copies(name: &str) -> (Cell, String) {
    let cell = Cell::with_shape(name, SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    make_dir(&native, "/thrice", "copies:3");
    let map: Value = serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap();
    let target = map["targets"][1]["id"].to_string();
    for path in [TWICE, THRICE] {
        write(&native, path, &pattern(1));
    }
    let old = cell.dir().join("old-objects");
    let old = old.to_str().unwrap();
    cell.runs(&["target", "export", "--target", &target, "--to", old]);
    for path in [TWICE, THRICE] {
        write(&native, path, &pattern(2));
    }
    cell.runs(&[
        "target", "import", "--target", &target, "--from", old, "--force",
    ]);
    (cell, target)
}

/// Number of files with copies that targets are yet to fill.
fn files_to_fill(cell: &Cell) -> u64 {
    let text = cell.runs(&["recovery", "--json"]);
    let value: Value = serde_json::from_str(&text).unwrap();
    value["files"].as_u64().unwrap()
}

/// The file without a node, or with one node alone.
fn read_without(cell: &Cell, away: &[&str], path: &str) -> Vec<u8> {
    for node in away {
        kill(cell.pid(node), "KILL");
    }
    let bytes = read(&connect(cell), path).unwrap();
    up(cell);
    bytes
}

#[test]
fn copies_that_differ_are_named_and_filled_from_the_right_ones() {
    let (cell, target) = cell_with_old_copies("differing");
    let target: u64 = target.parse().unwrap();
    let (running, last) = check(&cell, &[]);
    assert!(!running.is_empty(), "{last}");
    down(&cell);
    let (named, last) = check(&cell, &["--data"]);
    assert_eq!(named.len(), running.len(), "{named:?} {running:?} {last}");
    for finding in &named {
        // The majority of three is right.
        if finding["path"] == THRICE {
            assert_eq!(finding["wrong"], serde_json::json!([target]), "{finding}");
        } else {
            assert_eq!(finding["path"], TWICE, "{finding}");
        }
    }
    let of = |path: &str| named.iter().filter(|of| of["path"] == path).count();
    assert!(of(TWICE) > 0 && of(THRICE) > 0, "{named:?}");

    let (repaired, last) = check(&cell, &["--data", "--repair"]);
    assert_eq!(repaired.len(), named.len());
    assert_eq!(last["left"], 0, "{last}");
    let (again, last) = check(&cell, &["--data"]);
    assert_eq!(
        (again.len(), &last["found"]),
        (0, &Value::from(0)),
        "{last}"
    );

    up(&cell);
    let begun = Instant::now();
    while files_to_fill(&cell) > 0 {
        let shown = || cell.runs(&["recovery"]);
        assert!(begun.elapsed() < FILLED_WITHIN, "{}", shown());
        std::thread::sleep(Duration::from_millis(200));
    }
    down(&cell);
    let (after, last) = check(&cell, &["--data"]);
    assert_eq!(
        (after.len(), &last["found"]),
        (0, &Value::from(0)),
        "{last}"
    );
    up(&cell);
    for left in NODES {
        let away: Vec<&str> = NODES.into_iter().filter(|node| *node != left).collect();
        assert!(read_without(&cell, &away, THRICE) == pattern(2), "{left}");
    }
    let all = NODES.map(|away| read_without(&cell, &[away], TWICE));
    assert!(all.iter().all(|bytes| *bytes == all[0]));
}

/// Overwrites ranges of both files without a pause, until it is told to end. Returns how many.
fn overwrite(native: &Native, seed: u64, is_over: &AtomicBool) -> u64 {
    let (user, mut rng) = (User::root(), Rng(seed));
    let options = || OpenOptions::new().write(true);
    let files = [TWICE, THRICE].map(|path| native.open(&user, path, options()).unwrap());
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        for file in &files {
            let length = usize::try_from(rng.below(80_000) + 1).unwrap();
            let last = u64::try_from(pattern(0).len() - length).unwrap();
            file.pwrite(rng.below(last + 1), &rng.bytes(length))
                .unwrap();
            file.flush().unwrap();
            count += 1;
        }
    }
    for file in files {
        file.close().unwrap();
    }
    count
}

#[test]
fn writers_give_no_difference() {
    let cell = Cell::with_shape("written", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    make_dir(&native, "/thrice", "copies:3");
    for path in [TWICE, THRICE] {
        write(&native, path, &pattern(1));
    }
    let programs = Programs::start(&cell, &["/twice", "/thrice"], 1);
    let is_over = Arc::new(AtomicBool::new(false));
    let writers = [1, 2].map(|seed| {
        let (native, is_over) = (connect(&cell), Arc::clone(&is_over));
        std::thread::spawn(move || overwrite(&native, seed, &is_over))
    });
    let checks = std::env::var("ZONAL_CHECKS").ok();
    let checks = checks.and_then(|text| text.parse().ok()).unwrap_or(CHECKS);
    for number in 1..=checks {
        let (named, last) = check(&cell, &[]);
        println!("check {number}: {last}");
        assert!(named.is_empty(), "{named:?}");
        assert_eq!(last["found"], 0, "{last}");
    }
    is_over.store(true, Ordering::Relaxed);
    let counts = writers.map(|writer| writer.join().unwrap());
    println!("{counts:?} ranges were overwritten");
    let files = programs.end();
    compare(&cell, &files, 2);
    down(&cell);
    let (named, last) = check(&cell, &["--data"]);
    assert!(named.is_empty(), "{named:?}");
    assert_eq!(last["found"], 0, "{last}");
}
