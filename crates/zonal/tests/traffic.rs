//! Targets count what clients of their own zone and of others move; `/metrics` and `zonal status`
//! show it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, said, zonal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use zonal_native::{CellId, ConnectOptions, Identity, Native, NodeId, OpenOptions, Role};
use zonal_native::{User, ZoneId};

const MIB: usize = 1 << 20;

fn connect(cell: &Cell, zone: u16) -> Native {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    Native::connect(&manager, identity, ConnectOptions::new(ZoneId(zone))).unwrap()
}

fn write(native: &Native, path: &str, length: usize) {
    let options = OpenOptions::new().write(true).create(0o644);
    let file = native.open(&User::root(), path, options).unwrap();
    file.write(&vec![7; length]).unwrap();
    file.fsync().unwrap();
    file.close().unwrap();
}

fn read(native: &Native, path: &str) -> usize {
    let file = native.open(&User::root(), path, OpenOptions::new());
    let file = file.unwrap();
    let (mut buffer, mut length) = (vec![0; MIB], 0);
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return length,
            got => length += got,
        }
    }
}

/// `what` is within 2 % of the bytes that were moved.
fn near(what: u64, moved: usize) -> bool {
    what.abs_diff(moved as u64) <= moved as u64 / 50
}

/// Sums of `zonal_storage_client_bytes_total` of the targets' nodes by direction and path.
fn scraped(cell: &Cell) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for node in ["storage1-1", "storage2-1"] {
        let mut stream = TcpStream::connect(cell.address(node, true)).unwrap();
        write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let lines = text.lines();
        for line in lines.filter(|line| line.starts_with("zonal_storage_client_bytes_total{")) {
            let (labels, value) = line.split_once("} ").unwrap();
            let (_target, kind) = labels.split_once(',').unwrap();
            *sums.entry(kind.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
    }
    sums
}

#[test]
fn bytes_are_counted_by_the_zone_of_the_client() {
    let cell = Cell::with_shape("traffic", (2, 1), &["--no-key"]);

    let (here, there) = (connect(&cell, 1), connect(&cell, 2));
    here.mkdir(&User::root(), "/top", 0o755).unwrap();
    write(&here, "/top/a", 16 * MIB);
    write(&there, "/top/b", 8 * MIB);
    assert_eq!(read(&here, "/top/b"), 8 * MIB);
    assert_eq!(read(&there, "/top/a"), 16 * MIB);
    assert_eq!(read(&there, "/top/a"), 16 * MIB);
    let own = [
        (&here, [8 * MIB, 0, 16 * MIB, 0]),
        (&there, [0, 32 * MIB, 0, 8 * MIB]),
    ];
    for (native, expected) in own {
        let totals = native.client().traffic_totals();
        for ((name, counted), moved) in totals.into_iter().zip(expected) {
            assert!(near(counted, moved), "{name}: {counted} of {moved}");
        }
    }
    for native in [here, there] {
        native.close().unwrap();
    }

    let output = cell.status();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [one, two] = [0, 1].map(|index| &status["zones"][index]["traffic"]);
    for traffic in [one, &status["traffic"]] {
        for (name, moved) in [
            ("written_in_zone_bytes", 16 * MIB),
            ("written_cross_zone_bytes", 8 * MIB),
            ("read_in_zone_bytes", 8 * MIB),
            ("read_cross_zone_bytes", 32 * MIB),
        ] {
            let counted = traffic[name].as_u64().unwrap();
            assert!(near(counted, moved), "{name}: {traffic}");
        }
        let ratio = traffic["in_zone_ratio"].as_f64().unwrap();
        assert!((ratio - 24.0 / 64.0).abs() < 0.01, "{ratio}");
    }
    assert_eq!(two["read_in_zone_bytes"], 0);
    assert_eq!(two["written_cross_zone_bytes"], 0);
    assert!(two["in_zone_ratio"].is_null(), "{two}");

    let scraped = scraped(&cell);
    for (kind, moved) in [
        ("direction=\"write\",path=\"in_zone\"", 16 * MIB),
        ("direction=\"write\",path=\"cross_zone\"", 8 * MIB),
        ("direction=\"read\",path=\"in_zone\"", 8 * MIB),
        ("direction=\"read\",path=\"cross_zone\"", 32 * MIB),
    ] {
        assert!(near(scraped[kind], moved), "{kind}: {scraped:?}");
    }

    let mut text = zonal();
    let text = text.args(["status", "--cell"]).arg(cell.dir());
    let output = text.output().unwrap();
    assert!(said(&output).contains("37.5 %"), "{}", said(&output));
}

/// `zonal status --json` once the condition holds: reports come a moment after the bytes.
fn status_with(cell: &Cell, holds: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = cell.status();
        assert_eq!(code(&output), 0, "{}", said(&output));
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        if holds(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{status:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes of a directory, by its path, as the status tells them: written and read, in-zone and
/// cross-zone.
fn of_directory(status: &Value, path: &str) -> [u64; 4] {
    let directories = status["directories"].as_array().unwrap();
    let named = directories.iter().find(|entry| entry["path"] == path);
    let names = [
        "written_in_zone",
        "written_cross_zone",
        "read_in_zone",
        "read_cross_zone",
    ];
    names.map(|name| {
        let bytes = named.map(|entry| entry["traffic"][format!("{name}_bytes")].as_u64().unwrap());
        bytes.unwrap_or(0)
    })
}

#[test]
fn bytes_are_counted_by_first_level_directory() {
    let cell = Cell::with_shape("traffic-by-directory", (2, 1), &["--no-key"]);

    let (here, there) = (connect(&cell, 1), connect(&cell, 2));
    for path in ["/one", "/two", "/two/sub"] {
        here.mkdir(&User::root(), path, 0o755).unwrap();
    }
    write(&here, "/one/a", 2 * MIB);
    write(&here, "/two/sub/b", 3 * MIB);
    // Gone when it is reported, or nearly so: it was open until then.
    write(&here, "/one/gone", MIB);
    here.unlink(&User::root(), "/one/gone").unwrap();
    assert_eq!(read(&there, "/two/sub/b"), 3 * MIB);
    let expected = [
        ("/one", [3 * MIB, 0, 0, 0]),
        ("/two", [3 * MIB, 0, 0, 3 * MIB]),
    ];
    let are_near = |counted: [u64; 4], moved: [usize; 4]| {
        let mut pairs = counted.into_iter().zip(moved);
        pairs.all(|(counted, moved)| near(counted, moved))
    };
    let status = status_with(&cell, |status| {
        let mut all = expected.iter();
        all.all(|(path, moved)| are_near(of_directory(status, path), *moved))
    });

    // The clients know the same of their own bytes, by inode number.
    for (native, path, moved) in [
        (&here, "/one", [3 * MIB, 0, 0, 0]),
        (&here, "/two", [3 * MIB, 0, 0, 0]),
        (&there, "/two", [0, 0, 0, 3 * MIB]),
    ] {
        let directories = status["directories"].as_array().unwrap();
        let named = directories.iter().find(|entry| entry["path"] == path);
        let list = native.client().directory_traffic();
        let own = list
            .iter()
            .find(|entry| named.unwrap()["inode"] == entry.dir.0);
        let own = own.unwrap().traffic;
        let counted = [
            own.written_in_zone,
            own.written_cross_zone,
            own.read_in_zone,
            own.read_cross_zone,
        ];
        assert!(are_near(counted, moved), "{path}: {own:?}");
    }
    for native in [here, there] {
        native.close().unwrap();
    }

    let mut text = zonal();
    let text = text.args(["status", "--cell"]).arg(cell.dir());
    let said = said(&text.output().unwrap());
    for shown in ["DIRECTORY BYTES", "/one", "/two"] {
        assert!(said.contains(shown), "{said}");
    }
}
