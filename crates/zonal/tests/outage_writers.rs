//! Writers of files with two copies, beside a storage server that ends: they go on without it, and
//! nobody reads what it missed.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, kill, said, zonal};
use copied_files::{NODES, SHAPE, connect, make_dir, pattern};
use native_files::{read, write};
use std::time::{Duration, Instant};

/// A target that is out, in the status.
const IS_OUT: &str = "\"is_out\": true";

/// A target has filled the copies that missed changes.
const IS_FILLED: &str = "stale copies are filled";

/// Waits until the log of a server says so.
fn wait_until_filled(cell: &Cell, node: &str) {
    let filled_by = Instant::now() + Duration::from_secs(30);
    while !cell.log(node).contains(IS_FILLED) {
        assert!(Instant::now() < filled_by, "{}", cell.log(node));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the map has every target in service.
fn wait_until_back(cell: &Cell) {
    let known_by = Instant::now() + Duration::from_secs(30);
    while said(&cell.status()).contains(IS_OUT) {
        assert!(Instant::now() < known_by, "a target stays out");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn writers_go_on_without_a_node_that_ends() {
    let cell = Cell::with_shape("outage", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    write(&native, "/twice/old", &pattern(1));

    kill(cell.pid(NODES[1]), "KILL");
    // Neither a changed file nor a new one waits for the node.
    write(&native, "/twice/old", &pattern(2));
    write(&native, "/twice/new", &pattern(3));
    let status = said(&cell.status());
    assert!(status.contains(IS_OUT), "it is in service: {status}");
    let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
    wait_until_back(&cell);

    let written = [("/twice/old", 2), ("/twice/new", 3)];
    // Each client has another copy that it asks first.
    for _client in 0..4 {
        let native = connect(&cell);
        for (path, seed) in written {
            assert!(read(&native, path).unwrap() == pattern(seed), "{path}");
        }
    }
    // Copies that miss changes stay out of use when others are written.
    write(&native, "/twice/new", &pattern(5));
    assert!(read(&connect(&cell), "/twice/new").unwrap() == pattern(5));
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}

#[test]
fn copies_that_missed_changes_are_filled_while_they_are_written() {
    let cell = Cell::with_shape("resync", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    write(&native, "/twice/busy", &pattern(1));
    kill(cell.pid(NODES[1]), "KILL");
    for file in 0..20 {
        write(&native, &format!("/twice/{file}"), &pattern(file));
    }
    write(&native, "/twice/busy", &pattern(100));
    let recovery = |arguments: &[&str]| {
        let mut asked = cell.command(arguments);
        said(&asked.output().unwrap())
    };
    let shown = recovery(&["recovery"]);
    assert!(
        shown.contains("21 files have copies to be filled"),
        "{shown}"
    );
    let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
    let mut last = 100;
    while last < 110 || !cell.log(NODES[1]).contains(IS_FILLED) {
        last += 1;
        assert!(last < 2_000, "{}", cell.log(NODES[1]));
        write(&native, "/twice/busy", &pattern(last));
    }
    wait_until_back(&cell);
    wait_until_filled(&cell, NODES[1]);
    let shown = recovery(&["recovery", "--follow"]);
    assert!(
        shown.contains("no files have copies to be filled"),
        "{shown}"
    );

    // The changes that the node missed are read from it where the other copy is away.
    for other in [NODES[0], NODES[2]] {
        kill(cell.pid(other), "KILL");
        let native = connect(&cell);
        for file in 0..20 {
            let bytes = read(&native, &format!("/twice/{file}")).unwrap();
            assert!(bytes == pattern(file), "{file} without {other}");
        }
        assert!(read(&native, "/twice/busy").unwrap() == pattern(last));
        let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
        assert_eq!(code(&up), 0, "{}", said(&up));
        wait_until_back(&cell);
    }
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
