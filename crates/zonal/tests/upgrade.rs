//! Stores of every released version still open; stores of a newer version are refused and left
//! alone.
//!
//! `crates/zonal-disk/testdata/VERSION/cell.pack` is a small cell whose servers were killed. Some
//! of its content is in indexes and segments, some only in logs; with it are a backup and exported
//! objects. Each release adds one, made by `cargo xtask fixture vX.Y.Z` (`examples/fixture.rs`);
//! existing ones never change.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod fixture;
#[path = "../../zonal-disk/tests/common/pack.rs"]
mod pack;

use cell::{Cell, NODES, code, said, zonal};
use fixture::{User, bytes, check, check_names, contents, is_late, name, packed_in, who};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use zonal_native::block_on;
use zonal_testkit::Scratch;

const VERSIONS: &[&str] = &["v0.1.0"];

/// Unpacks a fixture into a cell with free ports.
fn unpacked(version: &str) -> Cell {
    let scratch = Scratch::new(version);
    pack::unpack(&fs::read(packed_in(version)).unwrap(), &scratch);
    let mut files: Vec<PathBuf> = NODES
        .iter()
        .map(|node| scratch.join(node).join("node.toml"))
        .collect();
    files.push(scratch.join("cell.toml"));
    let mut ports = BTreeMap::new();
    let mut held = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let mut parts = text.split("127.0.0.1:");
        let mut out = parts.next().unwrap().to_owned();
        for part in parts {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap();
            let (port, rest) = part.split_at(digits);
            let free = ports.entry(port.to_owned()).or_insert_with(|| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let port = listener.local_addr().unwrap().port();
                held.push(listener);
                port
            });
            out.push_str(&format!("127.0.0.1:{free}{rest}"));
        }
        fs::write(&file, out).unwrap();
    }
    drop(held);
    Cell { scratch }
}

#[test]
fn the_cell_of_every_version_comes_up_with_all_that_it_held() {
    for version in VERSIONS {
        let cell = unpacked(version);
        let up = cell.up_again();
        assert_eq!(code(&up), 0, "{version}: {}", said(&up));
        let user = User::of(&cell);
        check(&user);
        // The cell is usable, even after a restart.
        let dir = user.find("dir").ino;
        user.write(dir, "new", &[(0, bytes(8, 100_000))]);
        block_on(user.0.begin().close()).unwrap();
        assert_eq!(code(&cell.down()), 0);
        let up = cell.up_again();
        assert_eq!(code(&up), 0, "{version}: {}", said(&up));
        let user = User::of(&cell);
        assert!(user.read("dir/new") == bytes(8, 100_000));
        block_on(user.0.begin().unlink(&who(), dir, name("new"))).unwrap();
        check(&user);
        block_on(user.0.begin().close()).unwrap();
        scrubbed(&cell);
        let status = cell.status();
        assert_eq!(code(&status), 0, "{version}: {}", said(&status));
    }
}

/// Checks every checksum of the target.
fn scrubbed(cell: &Cell) {
    let scrub = |arguments: &[&str]| {
        let mut command = zonal();
        command.arg("scrub").args(arguments);
        command.arg("--cell").arg(cell.dir()).output().unwrap()
    };
    assert_eq!(code(&scrub(&["start", "--anew", "--rate", "10 GiB"])), 0);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status = scrub(&["status", "--target", "1", "--json"]);
        if said(&status).contains("\"state\": \"done\"") {
            assert_eq!(code(&status), 0, "{}", said(&status));
            return;
        }
        assert!(Instant::now() < deadline, "{}", said(&status));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn streams_of_every_version_are_read() {
    for version in VERSIONS {
        let cell = unpacked(version);
        let (backup, objects) = (cell.dir().join("backup"), cell.dir().join("objects"));
        for (stream, wanted) in [
            (&backup, "name=\"holes\""),
            (&objects, "object_bytes=203000"),
        ] {
            let shown = zonal().arg("dump").arg(stream).output().unwrap();
            assert_eq!(code(&shown), 0, "{version}: {}", said(&shown));
            assert!(said(&shown).contains(wanted), "{version}: {}", said(&shown));
        }
        let mut command = zonal();
        command
            .args(["meta", "restore", "--force", "--from"])
            .arg(&backup);
        let restored = command.arg("--cell").arg(cell.dir()).output().unwrap();
        assert_eq!(code(&restored), 0, "{version}: {}", said(&restored));
        let up = cell.up_again();
        assert_eq!(code(&up), 0, "{version}: {}", said(&up));
        let user = User::of(&cell);
        // Changes after the backup are not there.
        check_names(&user, 7);
        for (path, expected) in contents() {
            assert!(is_late(path) || user.read(path) == expected, "{path}");
        }
        let mut command = zonal();
        command.args(["target", "import", "--target", "1", "--force", "--from"]);
        let imported = command.arg(&objects).arg("--cell").arg(cell.dir()).output();
        let imported = imported.unwrap();
        assert_eq!(code(&imported), 0, "{version}: {}", said(&imported));
        for (path, expected) in contents() {
            assert!(is_late(path) || user.read(path) == expected, "{path}");
        }
        block_on(user.0.begin().close()).unwrap();
    }
}

/// Every file of the stores, by name.
fn stored(cell: &Cell) -> BTreeMap<PathBuf, Vec<u8>> {
    let stores = ["manager/manager", "meta1/shard", "storage1-1/target"];
    let files = stores.iter().flat_map(|store| {
        let dir = cell.dir().join(store);
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
    });
    files
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let stores = [
        ("manager", "manager"),
        ("meta1", "shard"),
        ("storage1-1", "target"),
    ];
    for (node, store) in stores {
        let cell = unpacked(VERSIONS[0]);
        let identity = cell.dir().join(node).join(store).join("identity");
        let mut bytes = fs::read(&identity).unwrap();
        bytes[8] += 1;
        // With its checksum right, as the newer program would have written it.
        let crc = crc_fast::crc32_iscsi(&bytes[..76]);
        bytes[76..80].copy_from_slice(&crc.to_le_bytes());
        fs::write(&identity, bytes).unwrap();
        let before = stored(&cell);
        let mut command = zonal();
        command.args(["server", "--format", "--config"]);
        let output = command.arg(cell.config(node)).output().unwrap();
        assert_eq!(code(&output), 5, "{}", said(&output));
        let wanted = [
            "the store has format version 2, this program knows 1",
            "Hint: a newer zonal",
        ];
        for text in wanted {
            assert!(said(&output).contains(text), "{node}: {}", said(&output));
        }
        assert!(stored(&cell) == before, "{node}: the store was touched");
    }
}
