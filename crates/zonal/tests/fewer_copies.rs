//! Files get more copies, fewer and more again while programs change them. The test sets
//! `zonal.layout` of each file, as `zonal layout apply` does.
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
use native_files::write;
use std::time::{Duration, Instant};
use verified_files::{Files, Programs, compare};
use zonal_native::{Native, User};

const DIR: &str = "/files";
/// Files that nobody changes.
const AT_REST: usize = 6;
/// Bytes of a file that its shard stores.
const INLINE: u64 = 4096;
const WITHIN: Duration = Duration::from_secs(120);

/// Without a block of zeros: a target that fills an object makes a hole of it, which counts less.
fn content(seed: usize) -> Vec<u8> {
    let mut bytes = pattern(seed);
    bytes.iter_mut().for_each(|byte| *byte = (*byte).max(1));
    bytes
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WITHIN, "not {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("{what} after {:.1} s", begun.elapsed().as_secs_f64());
}

fn at_rest(file: usize) -> String {
    format!("{DIR}/rest-{file}")
}

/// Gives all files so many copies, those of the programs, too.
fn apply(native: &Native, copies: &str) {
    let value = format!("redundancy={copies} also_zone=none");
    let set = |path: &str| native.set_xattr(&User::root(), path, b"zonal.layout", value.as_bytes());
    for file in 0..AT_REST {
        let path = at_rest(file);
        wait_until(&format!("{path} {copies}"), || set(&path).is_ok());
    }
    for program in 1..=2 {
        for file in 0..12 {
            // It may not be there, or be about to get other copies.
            set(&format!("{DIR}/{program}-{file}")).ok();
        }
    }
}

fn allocated(native: &Native) -> u64 {
    let stat = |file| native.stat(&User::root(), at_rest(file)).unwrap().allocated;
    (0..AT_REST).map(stat).sum()
}

#[test]
fn files_get_more_and_fewer_copies_while_programs_change_them() {
    let cell = Cell::with_shape("fewer-copies", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, DIR, "none");
    let mut files = Files::new();
    for file in 0..AT_REST {
        write(&native, &at_rest(file), &content(file));
        files.insert(at_rest(file), content(file));
    }
    let one = allocated(&native);
    // The shard has the first bytes of each file, once.
    let of_shard = INLINE * AT_REST as u64;
    let has = |copies: u64| allocated(&connect(&cell)) == copies * (one - of_shard) + of_shard;
    let programs = Programs::start(&cell, &[DIR], 2);
    apply(&native, "copies:3");
    wait_until("three copies", || has(3));
    apply(&native, "none");
    let text = native.get_xattr(&User::root(), at_rest(0), b"zonal.layout");
    let text = String::from_utf8(text.unwrap()).unwrap();
    assert!(text.contains("redundancy=none"), "{text}");
    wait_until("one copy", || has(1));
    apply(&native, "copies:2");
    wait_until("two copies", || has(2));
    apply(&native, "copies:2");
    files.extend(programs.end());

    // Each file at rest has a copy on another node.
    let up = || cell.up_as(zonal(), SHAPE, &["--no-key"]);
    for node in NODES {
        kill(cell.pid(node), "KILL");
        let rest = files.iter().filter(|(path, _)| path.contains("rest-"));
        let rest: Files = rest
            .map(|(path, known)| (path.clone(), known.clone()))
            .collect();
        compare(&cell, &rest, 2);
        let up = up();
        assert_eq!(code(&up), 0, "{}", said(&up));
        wait_until("back", || {
            !said(&cell.status()).contains("\"is_out\": true")
        });
    }
    compare(&cell, &files, 2);
    // One copy of each file at rest is gone, and its space is free.
    let native = connect(&cell);
    let doubled = native.statfs(&User::root(), "/").unwrap();
    apply(&native, "none");
    wait_until("one copy", || has(1));
    wait_until("free", || {
        let now = native.statfs(&User::root(), "/").unwrap();
        now.free > doubled.free + one / 2
    });
    compare(&cell, &files, 1);
    drop(native);
    let fsck = cell.runs(&["fsck"]);
    assert!(fsck.contains("0 findings, 0 notes"), "{fsck}");
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
