//! `zonal scrub` and `zonal status` on a cell of real processes whose disk corrupts a byte.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod cell_file;

use cell::{Cell, code, said, zonal};
use std::os::unix::fs::FileExt;
use std::process::Output;
use std::time::{Duration, Instant};

const MARK: [u8; 4096] = [0xa7; 4096];

fn scrub(cell: &Cell, arguments: &[&str]) -> Output {
    let mut command = zonal();
    command.arg("scrub").args(arguments);
    command.arg("--cell").arg(cell.dir()).output().unwrap()
}

/// 2 MiB with one marked block.
fn content() -> Vec<u8> {
    let mut bytes = vec![0x11; 2 << 20];
    bytes[40_960..45_056].copy_from_slice(&MARK);
    bytes
}

fn flip(cell: &Cell) {
    let segments = cell.dir().join("storage1-1/target/segments");
    let mut found = 0;
    for entry in std::fs::read_dir(segments).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        for (block, _) in bytes
            .chunks_exact(4096)
            .enumerate()
            .filter(|(_, block)| *block == MARK)
        {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[MARK[0] ^ 1], block as u64 * 4096 + 9)
                .unwrap();
            file.sync_all().unwrap();
            found += 1;
        }
    }
    assert_eq!(found, 1);
}

fn until_done(cell: &Cell) -> Output {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status = scrub(cell, &["status", "--target", "1", "--json"]);
        if said(&status).contains("\"state\": \"done\"") {
            return status;
        }
        assert!(Instant::now() < deadline, "{}", said(&status));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn scrub_finds_a_damaged_block_and_status_reports_it() {
    let cell = Cell::up("scrub");
    cell_file::write(&cell, &content());
    let never = scrub(&cell, &["status"]);
    assert_eq!(code(&never), 0, "{}", said(&never));
    assert!(said(&never).contains("never"), "{}", said(&never));
    let begin = ["start", "--anew", "--rate", "10 GiB"];
    assert_eq!(code(&scrub(&cell, &begin)), 0);
    let clean = until_done(&cell);
    assert_eq!(code(&clean), 0, "{}", said(&clean));
    assert!(
        said(&clean).contains("\"damaged_blocks\": 0"),
        "{}",
        said(&clean)
    );
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));

    flip(&cell);
    assert_eq!(code(&scrub(&cell, &begin)), 0);
    let damaged = until_done(&cell);
    assert_eq!(code(&damaged), 1, "{}", said(&damaged));
    assert!(
        said(&damaged).contains("\"offset\": 40960"),
        "{}",
        said(&damaged)
    );
    let log = cell.log("storage1-1");
    assert!(log.contains("scrub: stored data is damaged"), "{log}");
    let status = cell.status();
    assert_eq!(code(&status), 1);
    assert!(
        said(&status).contains("target 1: stored data is damaged"),
        "{}",
        said(&status)
    );

    let elsewhere = scrub(&cell, &["status", "--target", "9"]);
    assert_eq!(code(&elsewhere), 7, "{}", said(&elsewhere));
}

#[test]
fn scrub_of_a_shard_is_remembered_over_a_restart() {
    let cell = Cell::up("scrub-shard");
    let names: Vec<String> = (0..300).map(|index| format!("{index:0200}")).collect();
    cell_file::write_all(&cell, &names, b"a file");
    let of_root = |arguments: &[&str]| scrub(&cell, &[arguments, &["--shard", "0"]].concat());
    let until = |state: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let status = of_root(&["status", "--json"]);
            if said(&status).contains(&format!("\"state\": \"{state}\"")) {
                return status;
            }
            assert!(Instant::now() < deadline, "{}", said(&status));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!(code(&of_root(&["start", "--anew"])), 0);
    let clean = until("done");
    assert_eq!(code(&clean), 0, "{}", said(&clean));
    assert!(
        !said(&clean).contains("\"objects\": 0,"),
        "{}",
        said(&clean)
    );
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));

    assert_eq!(code(&cell.down()), 0);
    let up = cell.up_again();
    assert_eq!(code(&up), 0, "{}", said(&up));
    // Work done before the restart is remembered.
    let again = until("done");
    assert_eq!(said(&again), said(&clean));
    assert_eq!(code(&of_root(&["status", "--shard", "7"])), 2);
    let elsewhere = scrub(&cell, &["status", "--shard", "7"]);
    assert_eq!(code(&elsewhere), 7, "{}", said(&elsewhere));
}
