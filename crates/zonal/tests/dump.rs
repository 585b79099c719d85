//! `zonal dump` of every structure, intact and damaged in many ways: it ends, reports damage, and
//! never crashes.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod cell_file;

use cell::{Cell, code, said, zonal};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use zonal_testkit::Rng;

fn dump(path: &Path, more: &[&str]) -> Output {
    let mut command = zonal();
    command.arg("dump").arg(path).args(more).output().unwrap()
}

fn shows(path: &Path, more: &[&str], wanted: &[&str]) {
    let output = dump(path, more);
    assert_eq!(code(&output), 0, "{}", said(&output));
    for text in wanted {
        assert!(
            said(&output).contains(text),
            "{text} is not in\n{}",
            said(&output)
        );
    }
}

/// Damages a copy of `good`, in one of many ways, within the bytes that are in use.
fn damaged(good: &[u8], round: usize, random: &mut Rng) -> Vec<u8> {
    let mut bytes = good.to_vec();
    let used = good.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    match round % 5 {
        0 => bytes[random.index(used)] ^= 1 << random.below(8),
        1 => {
            for _ in 0..64 {
                bytes[random.index(used)] = random.byte();
            }
        }
        2 => bytes.truncate(random.index(used)),
        3 => {
            let start = random.index(used);
            let end = (start + 4096).min(used);
            bytes[start..end].fill(0);
        }
        _ => bytes
            .iter_mut()
            .take(256 << 10)
            .for_each(|byte| *byte = random.byte()),
    }
    bytes
}

#[test]
fn every_structure_can_be_dumped_despite_damage() {
    let cell = Cell::up("dump");
    cell_file::write(&cell, &vec![0x5a; 1 << 20]);
    let backup = cell.dir().join("backup");
    let mut command = zonal();
    command.args(["meta", "backup", "--to"]).arg(&backup);
    let taken = command.arg("--cell").arg(cell.dir()).output().unwrap();
    assert_eq!(code(&taken), 0, "{}", said(&taken));
    let target = cell.dir().join("storage1-1/target");
    // The log can be shown while the server runs; dumps of the whole store cannot.
    shows(&target.join("log"), &[], &["log @0 record"]);
    assert_eq!(code(&dump(&target, &[])), 6);
    assert_eq!(code(&cell.down()), 0);

    shows(
        &target,
        &["--part", "identity"],
        &["kind=target", "number=1"],
    );
    shows(
        &target,
        &["--json", "--part", "index"],
        &[
            "\"what\":\"object\"",
            "\"what\":\"chunk\"",
            "\"object_bytes\":1048576",
        ],
    );
    shows(&target, &["--part", "segments"], &["used_bytes=1044480"]);
    shows(
        &target.join("segments/seg.00000000"),
        &[],
        &["segments 0 units of an object", "column=0", "offset=4096"],
    );
    shows(
        &target.join("index.sums"),
        &[],
        &["checksums of the index", "bad=0"],
    );
    // The number of checkpoints at the server's end decides which of the two files has the object.
    let copies = ["copy.0", "copy.1"].map(|name| target.join(name));
    let kept: Vec<_> = copies.iter().filter(|path| path.exists()).collect();
    for copy in &kept {
        shows(copy, &[], &["record: cycle=", "ends_cycle=true"]);
    }
    let objects = kept.iter().map(|copy| said(&dump(copy, &[])));
    assert!(objects.collect::<String>().contains("object_bytes=1048576"));
    shows(
        &target,
        &["--part", "index", "--prefix", "80"],
        &["scrub", "state=idle"],
    );
    let manager = cell.dir().join("manager/manager");
    shows(
        &manager,
        &["--part", "map"],
        &["map shard", "map stripe set"],
    );
    shows(&manager, &["--prefix", "0000000020"], &["name=\"marked\""]);
    shows(
        &manager.join("index.redb"),
        &[],
        &["kind=File", "size=1048576"],
    );
    shows(
        &backup,
        &[],
        &[
            "a backup of metadata",
            "name=\"marked\"",
            "end of the shard",
        ],
    );
    let limited = said(&dump(&manager, &["--part", "index", "--limit", "2"]));
    assert_eq!(
        limited
            .lines()
            .filter(|line| line.starts_with("index"))
            .count(),
        2
    );
    assert_eq!(code(&dump(&cell.config("meta1"), &[])), 5);
    assert_eq!(code(&dump(&cell.dir().join("nothing"), &[])), 7);
    ends_whatever_is_damaged(&[target, manager], backup);
}

fn ends_whatever_is_damaged(stores: &[PathBuf], backup: PathBuf) {
    let mut random = Rng(42);
    let (mut told, mut runs) = (0, 0);
    let files: Vec<PathBuf> = stores
        .iter()
        .flat_map(|store| {
            [
                "identity",
                "starts",
                "power",
                "log",
                "index.redb",
                "index.sums",
                "copy.0",
                "copy.1",
            ]
            .map(|name| store.join(name))
        })
        .chain([backup])
        .filter(|path| path.exists())
        .collect();
    for path in files {
        let good = fs::read(&path).unwrap();
        for round in 0..5 {
            fs::write(&path, damaged(&good, round, &mut random)).unwrap();
            let alone = ["backup", "index.sums", "copy.0", "copy.1"];
            let whole = if alone.iter().any(|name| path.ends_with(name)) {
                path.clone()
            } else {
                path.parent().unwrap().to_owned()
            };
            let output = dump(&whole, if round % 2 == 0 { &["--json"] } else { &[] });
            let place = format!("{}, round {round}: {}", path.display(), said(&output));
            // A panic of the index's library is caught and reported as damage; an uncaught one
            // would give 101.
            assert!(
                [0, 1, 5, 7].contains(&code(&output)),
                "{}: {place}",
                code(&output)
            );
            told += usize::from(code(&output) != 0);
            runs += 1;
        }
        fs::write(&path, good).unwrap();
    }
    // Some flipped bits are no damage: in an unused page, or in a part of the log that is obsolete.
    assert!(told * 2 > runs, "{told} of {runs} damages were told");
}
