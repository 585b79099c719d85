//! Directories choose their servers: the zone's targets, the cell's, or the node's that creates the
//! file.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod native_files;

use cell::{Cell, code, said, zonal};
use native_files::{read, write};
use std::collections::BTreeSet;
use std::process::Output;
use zonal_native::{
    CellId, ConnectOptions, ErrorCode, Identity, Native, NodeId, Role, User, ZoneId,
};
use zonal_testkit::Scratch;

const MIB: usize = 1 << 20;

/// Brings up a cell of two zones with three targets each: 1 to 3 and 4 to 6.
fn bring_up(cell: &Cell) {
    let mut up = zonal();
    up.args(["up", "--zones", "2", "--storage-nodes", "3", "--no-key"]);
    up.args(["--capacity", "1 GiB", "--dir"]).arg(cell.dir());
    let output = up.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
}

fn connect(cell: &Cell, zone: u16, node: u32) -> Native {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(zone)).at_node(NodeId(node));
    Native::connect(&manager, identity, options).unwrap()
}

fn run(cell: &Cell, args: &[&str]) -> Output {
    zonal()
        .args(args)
        .arg("--cell")
        .arg(cell.dir())
        .output()
        .unwrap()
}

/// The node of a target.
fn node_of(cell: &Cell, target: u64) -> u32 {
    let output = run(cell, &["zone-map", "show", "--json"]);
    let map: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut targets = map["targets"].as_array().unwrap().iter();
    let found = targets.find(|of| of["id"] == target).unwrap();
    u32::try_from(found["node"].as_u64().unwrap()).unwrap()
}

fn make_dir(native: &Native, path: &str, placement: &str) {
    native.mkdir(&User::root(), path, 0o755).unwrap();
    let value = format!("unit=65536 placement={placement}");
    native
        .set_xattr(&User::root(), path, b"zonal.layout", value.as_bytes())
        .unwrap();
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..2 * MIB)
        .map(|at| u8::try_from(((at >> 12) * 7 + seed) % 251).unwrap())
        .collect()
}

/// Targets of a file, and bytes by zone.
fn located(native: &Native, path: &str) -> (BTreeSet<u32>, Vec<(u16, u64)>) {
    let found = native.locate(&User::root(), path).unwrap();
    let targets = found.targets.keys().map(|target| target.0).collect();
    let zones = found.zones.iter().map(|(zone, bytes)| (zone.0, *bytes));
    assert_eq!(found.home, ZoneId(1), "names stay in the directory's zone");
    (targets, zones.collect())
}

#[test]
fn files_lie_where_their_directory_says_and_everybody_reads_them() {
    let cell = Cell {
        scratch: Scratch::new("placement"),
    };
    bring_up(&cell);
    let on_target_5 = node_of(&cell, 5);
    let here = connect(&cell, 1, 0);
    let there = connect(&cell, 2, on_target_5);
    here.mkdir(&User::root(), "/top", 0o755).unwrap();
    for placement in ["zone", "cell", "node"] {
        make_dir(&here, &format!("/top/{placement}"), placement);
        write(&there, &format!("/top/{placement}/f"), &pattern(1));
        assert_eq!(
            read(&here, &format!("/top/{placement}/f")).unwrap(),
            pattern(1)
        );
    }
    let all = 2 * MIB as u64;
    let (targets, zones) = located(&here, "/top/zone/f");
    assert_eq!(
        (targets, zones),
        (BTreeSet::from([1, 2, 3]), vec![(1, all)])
    );
    let (targets, zones) = located(&here, "/top/cell/f");
    assert_eq!(targets, BTreeSet::from([1, 2, 3, 4, 5, 6]));
    let remote = zones.iter().find(|(zone, _)| *zone == 2).unwrap().1;
    assert!((all * 4 / 10..=all * 6 / 10).contains(&remote), "{zones:?}");
    let (targets, _zones) = located(&here, "/top/node/f");
    assert_eq!(targets, BTreeSet::from([5]));

    // A client that is no node of the cell keeps each file whole on a target of the zone.
    for number in 0..6 {
        write(&here, &format!("/top/node/{number}"), &pattern(number));
        let (targets, _zones) = located(&here, &format!("/top/node/{number}"));
        assert!(
            targets.len() == 1 && targets.iter().all(|of| *of <= 3),
            "{targets:?}"
        );
    }
    // A node that the cell does not know is as none.
    write(&connect(&cell, 1, 4711), "/top/node/unknown", &pattern(3));
    let (targets, _zones) = located(&here, "/top/node/unknown");
    assert!(targets.iter().all(|of| *of <= 3));

    let bad = here.set_xattr(&User::root(), "/top", b"zonal.layout", b"placement=moon");
    assert_eq!(bad.unwrap_err().code(), Some(ErrorCode::Invalid));
    for native in [here, there] {
        native.close().unwrap();
    }
    let output = run(&cell, &["fsck"]);
    assert_eq!(code(&output), 0, "{}", said(&output));

    // Layouts and the mark of remote data survive a restart.
    assert_eq!(code(&cell.down()), 0);
    bring_up(&cell);
    let again = connect(&cell, 1, 0);
    for placement in ["zone", "cell", "node"] {
        assert_eq!(
            read(&again, &format!("/top/{placement}/f")).unwrap(),
            pattern(1)
        );
    }
}
