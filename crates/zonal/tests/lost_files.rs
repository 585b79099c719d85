//! `zonal files` names the files that a server takes away with it, and those with too few copies:
//! before, while and after it is gone.
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
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zonal_native::User;

/// Exit code where files are listed.
const FOUND: i32 = 9;
/// Time for the cell to notice that a server is gone, or to fill the copies of one that is back.
const NOTICED_WITHIN: Duration = Duration::from_secs(60);
/// A file of one column, which is not kept by its shard.
const ONE_COLUMN: usize = 60_000;

/// Files that the command lists: state, whole copies and copies, by path. And its summary.
type Listed = (BTreeMap<String, (String, u64, u64)>, Value);

/// Runs `zonal files`, and compares its exit code with what it lists.
fn files(cell: &Cell, words: &[&str]) -> Listed {
    let words = [&["files", "--json"], words].concat();
    let output = cell.command(&words).output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let mut values: Vec<Value> = values.map(Result::unwrap).collect();
    let summary = values.pop().unwrap_or_default();
    let listed: BTreeMap<_, _> = values
        .iter()
        .map(|file| {
            let number = |key: &str| file[key].as_u64().unwrap();
            let state = file["state"].as_str().unwrap().to_owned();
            let path = file["path"].as_str().unwrap().to_owned();
            (path, (state, number("whole_copies"), number("copies")))
        })
        .collect();
    let expected = if listed.is_empty() { 0 } else { FOUND };
    assert_eq!(code(&output), expected, "{words:?}: {}", said(&output));
    assert_eq!(summary["name"], "summary", "{words:?}: {text}");
    (listed, summary)
}

/// The paths of a listing, with their states.
fn states(listed: &Listed) -> Vec<(&str, &str)> {
    let files = listed.0.iter();
    files
        .map(|(path, (state, ..))| (path.as_str(), state.as_str()))
        .collect()
}

/// Repeats a question until the answer is as expected.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + NOTICED_WITHIN;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The node and the target of a storage server, as `--if-lost` takes them.
fn scopes(cell: &Cell, name: &str) -> (String, String) {
    let address = cell.address(name, false).to_string();
    let map: Value = serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap();
    let find = |list: &str, key: &str, wanted: &Value| {
        let entries = map[list].as_array().unwrap().iter();
        let mut found = entries.filter(|entry| entry[key] == *wanted);
        found.next().unwrap()["id"].clone()
    };
    let node = find("nodes", "address", &Value::from(address));
    let target = find("targets", "node", &node);
    (format!("node:{node}"), format!("target:{target}"))
}

#[test]
fn files_that_a_server_takes_away_are_named() {
    let cell = Cell::with_shape("lost-files", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/once", "none");
    make_dir(&native, "/twice", "copies:2");
    write(&native, "/once/file", &pattern(1));
    write(&native, "/once/small", &pattern(2)[..ONE_COLUMN]);
    write(&native, "/once/empty", b"");
    write(&native, "/twice/file", &pattern(3));
    write(&native, "/twice/changed", &pattern(4));
    let (gone, _) = scopes(&cell, NODES[1]);
    let (other, other_target) = scopes(&cell, NODES[2]);

    // All is well, and the failures that may come are told.
    for kind in ["--lost", "--endangered"] {
        let listed = files(&cell, &[kind]);
        assert_eq!(states(&listed), []);
        assert_eq!(listed.1["files"], 5, "{}", listed.1);
    }
    let mut losing = Vec::new();
    for name in NODES {
        let (node, target) = scopes(&cell, name);
        let listed = files(&cell, &["--if-lost", &node]);
        assert_eq!(listed, files(&cell, &["--lost", "--if-lost", &target]));
        assert_eq!(listed.0["/once/file"], ("lost".to_owned(), 0, 1));
        losing.extend(listed.0.into_keys().filter(|path| path != "/once/file"));
    }
    assert_eq!(losing, ["/once/small"], "on one target");
    let listed = files(&cell, &["--endangered", "--if-lost", &gone]);
    let whole = ("endangered".to_owned(), 1, 2);
    assert_eq!(listed.0["/twice/changed"], whole);
    assert_eq!(listed.0["/twice/file"], whole);
    assert_eq!(listed.0.len(), 2);
    let listed = files(&cell, &["--if-lost", &gone, "--if-lost", &other]);
    assert_eq!(listed.1["lost"], 4, "{}", listed.1);
    assert_eq!(files(&cell, &["--if-lost", "zone:1"]).1["lost"], 4);

    kill(cell.pid(NODES[1]), "KILL");
    write(&native, "/twice/changed", &pattern(5));
    until("nothing is unavailable", || {
        states(&files(&cell, &["--lost"])).contains(&("/once/file", "unavailable"))
    });
    let listed = files(&cell, &["--lost"]);
    let twice = |path: &&String| path.starts_with("/twice");
    assert_eq!(listed.0.keys().find(twice), None, "{listed:?}");
    let listed = files(&cell, &["--endangered"]);
    assert_eq!(listed.0["/twice/changed"], whole);
    assert_eq!(listed.0["/twice/file"], whole);
    assert_eq!(listed.0.len(), 2);
    assert!(read(&connect(&cell), "/twice/changed").unwrap() == pattern(5));
    // The copies of the changed file that the server has are old.
    let listed = files(&cell, &["--if-lost", &other_target]);
    assert_eq!(listed.0["/twice/changed"].0, "lost");
    assert_eq!(listed.0["/twice/file"].0, "unavailable");
    let shown = said(&cell.command(&["status"]).output().unwrap());
    assert!(shown.contains("targets that are out or down: "), "{shown}");
    assert!(shown.contains("files with stale copies: 1"), "{shown}");
    assert!(shown.contains("`zonal files --if-lost node:"), "{shown}");
    let shown = cell.command(&["files", "--endangered"]).output().unwrap();
    let shown = said(&shown);
    assert!(shown.contains("1/2"), "{shown}");
    assert!(shown.contains("Hint: start servers"), "{shown}");

    let up = cell.up_as(zonal(), SHAPE, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
    until("copies stay endangered", || {
        let of = |kind| states(&files(&cell, &[kind])).is_empty();
        of("--endangered") && of("--lost")
    });
    let shown = said(&cell.command(&["status"]).output().unwrap());
    assert!(!shown.contains("stale copies"), "{shown}");
    let unknown = cell.command(&["files", "--if-lost", "node:77"]).output();
    let unknown = unknown.unwrap();
    assert_eq!(code(&unknown), 7, "{}", said(&unknown));
}

#[test]
fn files_in_the_root_and_of_shards_that_answer_are_judged_without_the_others() {
    let cell = Cell::with_shape("silent-files", SHAPE, &["--no-key"]);
    let native = connect(&cell);
    make_dir(&native, "/twice", "copies:2");
    let value = b"unit=65536 redundancy=copies:2";
    let set = native.set_xattr(&User::root(), "/", b"zonal.layout", value);
    set.unwrap();
    write(&native, "/in-root", &pattern(1));
    write(&native, "/twice/file", &pattern(1));
    kill(cell.pid(NODES[1]), "KILL");
    write(&native, "/in-root", &pattern(2));
    let shown = said(&cell.command(&["recovery"]).output().unwrap());
    assert!(
        shown.contains("1 files have copies to be filled"),
        "{shown}"
    );
    let listed = files(&cell, &["--endangered"]);
    assert_eq!(listed.0["/in-root"], ("endangered".to_owned(), 1, 2));
    assert!(listed.0.contains_key("/twice/file"));

    kill(cell.pid("meta1"), "KILL");
    let output = cell.command(&["files", "--endangered"]).output().unwrap();
    let shown = said(&output);
    assert_eq!(code(&output), 4, "{shown}");
    assert!(shown.contains("/in-root"), "{shown}");
    assert!(!shown.contains("/twice/file"), "{shown}");
    assert!(shown.contains("no answer of shards 1"), "{shown}");
}
