//! A block of a copy that its disk damages is replaced from the other copy, once a scrub meets it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod copied_files;
mod native_files;

use cell::{Cell, code, said, zonal};
use copied_files::{NODES, SHAPE, connect, make_dir, pattern};
use native_files::{read, write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const MARK: [u8; 4096] = [0xa7; 4096];

/// Changes a byte of the marked block in a node's segments. False where it has none.
fn flip(cell: &Cell, node: &str) -> bool {
    let segments = cell.dir().join(node).join("target/segments");
    for entry in std::fs::read_dir(segments).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.chunks_exact(4096).position(|block| *block == MARK);
        if let Some(block) = found {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[MARK[0] ^ 1], block as u64 * 4096 + 9)
                .unwrap();
            file.sync_all().unwrap();
            return true;
        }
    }
    false
}

#[test]
fn a_damaged_block_is_replaced_from_the_other_copy() {
    let cell = Cell::with_shape("damaged", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    let mut content = pattern(1);
    content[40_960..45_056].copy_from_slice(&MARK);
    write(&native, "/twice/file", &content);
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let node = NODES.into_iter().find(|node| flip(&cell, node)).unwrap();
    let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));

    let mut scrub = cell.command(&["scrub", "start", "--anew", "--rate", "10 GiB"]);
    let scrub = scrub.output().unwrap();
    assert_eq!(code(&scrub), 0, "{}", said(&scrub));
    let repaired_by = Instant::now() + Duration::from_secs(30);
    while !cell.log(node).contains("damaged blocks are repaired") {
        assert!(Instant::now() < repaired_by, "{}", cell.log(node));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(read(&connect(&cell), "/twice/file").unwrap() == content);
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}
