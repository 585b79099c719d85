//! A drain for which the other targets have too little room says so, loses nothing, and goes on
//! once there is room.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stdout, reason = "figures")]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, said};
use copied_files::{connect, make_dir, pattern};
use native_files::{read, write};
use serde_json::Value;
use std::time::{Duration, Instant};
use zonal_native::User;

const SHAPE: (u16, u16) = (1, 3);
const OPTIONS: [&str; 5] = ["--no-key", "--capacity", "96 MiB", "--segment", "16 MiB"];
const FILES: usize = 100;
const REMOVED: usize = 70;
const WITHIN: Duration = Duration::from_secs(120);

/// Without a block of zeros: a target that fills an object makes a hole of it, which counts less.
fn content(seed: usize) -> Vec<u8> {
    let mut bytes = pattern(seed);
    bytes.iter_mut().for_each(|byte| *byte = (*byte).max(1));
    bytes
}

/// Objects of a target for which no other has room.
fn without_room(cell: &Cell, target: u64) -> u64 {
    let shown: Value = serde_json::from_str(&cell.runs(&["recovery", "--json"])).unwrap();
    let mut targets = shown["targets"].as_array().unwrap().iter();
    let found = targets.find(|entry| entry["target"] == target).unwrap();
    found["objects_without_room"].as_u64().unwrap_or(0)
}

fn state(cell: &Cell, target: u64) -> Value {
    let map: Value = serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap();
    let mut targets = map["targets"].as_array().unwrap().iter();
    targets.find(|entry| entry["id"] == target).unwrap()["state"].clone()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WITHIN, "not {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("{what} after {:.1} s", begun.elapsed().as_secs_f64());
}

#[test]
fn a_drain_without_room_says_so_and_goes_on_when_there_is_some() {
    let cell = Cell::with_shape("full-targets", SHAPE, &OPTIONS);
    let native = connect(&cell);
    make_dir(&native, "/once", "none");
    let path = |file: usize| format!("/once/{file}");
    for file in 0..FILES {
        write(&native, &path(file), &content(file));
    }
    let all_is_right = |from: usize| {
        let native = connect(&cell);
        for file in from..FILES {
            assert!(
                read(&native, &path(file)).unwrap() == content(file),
                "{file}"
            );
        }
    };
    let target = 2;
    cell.runs(&["target", "drain", "--target", "2"]);
    wait_until("without room", || without_room(&cell, target) > 0);
    let shown = cell.runs(&["recovery"]);
    assert!(shown.contains("no target has room for"), "{shown}");
    all_is_right(0);
    // Others have room for new files still.
    write(&native, "/once/new", &content(7));
    for file in 0..REMOVED {
        native.unlink(&User::root(), path(file)).unwrap();
    }
    wait_until("drained", || state(&cell, target) == "Drained");
    all_is_right(REMOVED);
    assert!(read(&native, "/once/new").unwrap() == content(7));
    let fsck = cell.runs(&["fsck"]);
    assert!(fsck.contains("0 findings, 0 notes"), "{fsck}");
    drop(native);
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
