//! Nodes, zones and targets of a running cell are listed, added, renamed, taken out of use and
//! removed by commands.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, said, zonal};
use serde_json::{Value, json};
use std::fs;
use std::process::Output;

const REFUSED: i32 = 5;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 7;

fn run(cell: &Cell, words: &[&str]) -> Output {
    cell.command(words).output().unwrap()
}

fn done(cell: &Cell, words: &[&str]) -> String {
    let output = run(cell, words);
    assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
    said(&output)
}

fn refused(cell: &Cell, words: &[&str], with: i32) -> String {
    let output = run(cell, words);
    assert_eq!(code(&output), with, "{words:?}: {}", said(&output));
    said(&output)
}

fn document(cell: &Cell, words: &[&str]) -> Value {
    let output = cell.command(words).arg("--json").output().unwrap();
    assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The number of the node whose config is in this folder.
fn number(cell: &Cell, node: &str) -> String {
    let text = fs::read_to_string(cell.config(node)).unwrap();
    let mut lines = text.lines();
    let found = lines.find_map(|line| line.strip_prefix("node = "));
    found.unwrap().to_owned()
}

fn put(cell: &Cell, path: &str) {
    let from = cell.dir().join("bytes");
    fs::write(&from, vec![7; 9_000_000]).unwrap();
    let mut put = cell.command(&["fs", "put"]);
    let output = put.arg(&from).arg(path).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn zones_are_added_renamed_and_listed_under_the_version_that_is_expected() {
    let cell = Cell::with_key("nodes-zones");
    done(&cell, &["zone", "add", "row b"]);
    done(&cell, &["zone", "add", "7"]);
    let before = document(&cell, &["zone", "ls"]);
    let name = |listed: &Value, index: usize| listed["zones"][index]["name"].clone();
    assert_eq!(name(&before, 1), "row b");
    assert_eq!(name(&before, 2), "zone7");
    assert_eq!(before["zones"][0]["targets"].as_array().unwrap().len(), 1);
    assert!(refused(&cell, &["zone", "add", "row b"], REFUSED).contains("already"));
    refused(&cell, &["zone", "rename", "row x", "y"], NOT_FOUND);
    refused(&cell, &["zone", "add", ""], USAGE);
    let two = ["zone", "add", "5", "--id", "6"];
    assert!(refused(&cell, &two, USAGE).contains("5 or 6"));

    let version = before["map_version"].to_string();
    let rename = ["zone", "rename", "row b", "row c"];
    let preview = done(&cell, &[&rename[..], &["--preview"]].concat());
    assert!(
        preview.contains(&format!("--expect {version}")),
        "{preview}"
    );
    assert_eq!(document(&cell, &["zone", "ls"]), before);
    done(&cell, &["zone", "add", "row d"]);
    let late = refused(
        &cell,
        &[&rename[..], &["--expect", &version]].concat(),
        REFUSED,
    );
    assert!(late.contains("--preview"), "{late}");
    done(&cell, &rename);
    let after = document(&cell, &["zone", "ls"]);
    assert_eq!(name(&after, 1), "row c");
    // It is the same zone: directories in it stay where they are.
    assert_eq!(after["zones"][1]["id"], before["zones"][1]["id"]);
}

#[test]
fn a_node_is_removed_where_nothing_needs_it_and_its_store_is_refused_from_then_on() {
    let cell = Cell::with_shape("nodes-remove", (1, 2), &[]);
    let nodes = document(&cell, &["node", "ls"]);
    let roles = |index: usize| nodes["nodes"][index]["roles"][0].as_str().unwrap();
    assert_eq!(
        [roles(0), roles(1), roles(2)],
        ["manager", "meta", "storage"]
    );
    let of = |node: &str| number(&cell, node);

    for node in ["manager", "meta1"] {
        let why = refused(&cell, &["node", "remove", &of(node)], REFUSED);
        assert!(why.contains("shard"), "{why}");
    }
    refused(&cell, &["node", "remove", "99"], NOT_FOUND);
    // New files do without the target; it is the empty one then.
    done(&cell, &["target", "disuse", "--target", "2"]);
    done(&cell, &["target", "disuse", "--target", "2"]);
    let only = refused(&cell, &["target", "disuse", "--target", "1"], REFUSED);
    assert!(only.contains("only one"), "{only}");
    put(&cell, "/f");
    let listed = |target: &str| done(&cell, &["target", "ls", "--target", target]);
    assert!(listed("2").is_empty() && !listed("1").is_empty());

    let (full, empty) = (of("storage1-1"), of("storage1-2"));
    let preview = done(&cell, &["node", "remove", "--preview", &full]);
    assert!(preview.contains("would be refused: 1 files"), "{preview}");
    assert!(preview.contains("MiB used: to move"), "{preview}");
    let why = refused(&cell, &["node", "remove", &full], REFUSED);
    assert!(why.contains("target 1 holds objects"), "{why}");
    let preview = done(&cell, &["node", "remove", "--preview", &empty]);
    assert!(preview.contains("nothing moves"), "{preview}");
    done(&cell, &["node", "remove", &empty]);
    let left = document(&cell, &["node", "ls"]);
    assert_eq!(left["nodes"].as_array().unwrap().len(), 3);

    // Its server is stopped, and the cell comes up without it.
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let up = cell.up_as(zonal(), (1, 1), &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
    let mut server = zonal();
    let server = server.arg("server").arg("--config");
    let again = server.arg(cell.config("storage1-2")).output().unwrap();
    assert_eq!(code(&again), REFUSED, "{}", said(&again));
    assert!(said(&again).contains("taken out of the cell"));
}

#[test]
fn a_target_is_taken_out_of_use_and_put_back() {
    let cell = Cell::with_shape("nodes-use", (1, 2), &["--no-key"]);
    put(&cell, "/old");
    done(&cell, &["target", "disuse", "--target", "1"]);
    put(&cell, "/without");
    let before = done(&cell, &["target", "ls", "--target", "1", "--paths"]);
    assert!(
        before.contains("/old") && !before.contains("/without"),
        "{before}"
    );
    // Its files are read all the same.
    let got = cell.dir().join("got");
    let mut get = cell.command(&["fs", "get"]);
    let got = get.arg("/old").arg(&got).output().unwrap();
    assert_eq!(code(&got), 0, "{}", said(&got));
    done(&cell, &["target", "use", "--target", "1"]);
    put(&cell, "/with");
    let after = done(&cell, &["target", "ls", "--target", "1", "--paths"]);
    assert!(after.contains("/with\n"), "{after}");
}

#[test]
fn a_node_changes_its_roles() {
    let cell = Cell::up("roles");
    let zone = "1";
    let config = |name: &str| fs::read_to_string(cell.config(name)).unwrap();
    let started_with = |name: &str, text: &str| {
        kill(cell.pid(name), "TERM");
        fs::write(cell.config(name), text).unwrap();
        let mut format = zonal();
        let format = format.arg("server").arg("--config").arg(cell.config(name));
        let formatted = format.arg("--format-only").output().unwrap();
        assert_eq!(code(&formatted), 0, "{}", said(&formatted));
        let again = zonal().args(["up", "--dir"]).arg(cell.dir()).output();
        let again = again.unwrap();
        assert_eq!(code(&again), 0, "{}", said(&again));
    };
    let roles = |name: &str| {
        let node: u64 = number(&cell, name).parse().unwrap();
        let document = document(&cell, &["node", "ls"]);
        let nodes = document["nodes"].as_array().unwrap();
        nodes.iter().find(|one| one["id"] == node).unwrap()["roles"].clone()
    };
    put(&cell, "/before");
    // A storage server takes a second shard of its zone, which has to be wanted.
    done(&cell, &["shard", "add", zone]);
    let storage = config("storage1-1");
    started_with("storage1-1", &format!("{storage}\n[meta]\n"));
    assert_eq!(roles("storage1-1"), json!(["meta", "storage"]));
    // A metadata server stores, too, and stops to.
    let meta = config("meta1");
    let target = "[storage]\ntarget = 9\ncapacity = \"1 GiB\"\nsegment = \"64 MiB\"\n";
    started_with("meta1", &format!("{meta}\n{target}"));
    assert_eq!(roles("meta1"), json!(["meta", "storage"]));
    done(&cell, &["target", "remove", "--target", "9"]);
    started_with("meta1", &meta);
    assert_eq!(roles("meta1"), json!(["meta"]));
    put(&cell, "/after");
    let listed = done(&cell, &["fs", "ls", "/"]);
    assert!(
        listed.contains("before") && listed.contains("after"),
        "{listed}"
    );
}
