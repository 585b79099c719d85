//! A target that is lost for good is made anew on the others while programs change its files; one
//! that comes back meanwhile serves again.
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
use copied_files::{connect, make_dir, pattern};
use native_files::write;
use serde_json::Value;
use std::time::{Duration, Instant};
use verified_files::{Files, Programs, compare};

const SHAPE: (u16, u16) = (1, 4);
const LOST: &str = "storage1-4";
const KEPT: [&str; 3] = ["storage1-1", "storage1-2", "storage1-3"];
const FOLDERS: [&str; 2] = ["/twice", "/thrice"];
const WITHIN: Duration = Duration::from_secs(60);
/// Files that nobody changes.
const AT_REST: usize = 6;

/// A cell that rebuilds a target soon, and its files at rest.
fn rebuilding_cell(name: &str, rebuild_after: &str) -> (Cell, Files) {
    let cell = Cell::with_shape(name, SHAPE, &["--no-key"]);
    let config = std::fs::read_to_string(cell.config("manager")).unwrap();
    let with = format!("[manager]\nrebuild_after = \"{rebuild_after}\"\n");
    let config = config.replacen("[manager]\n", &with, 1);
    assert!(config.contains("rebuild_after"), "{config}");
    std::fs::write(cell.config("manager"), config).unwrap();
    kill(cell.pid("manager"), "TERM");
    up(&cell, SHAPE);

    let native = connect(&cell);
    let mut files = Files::new();
    for (folder, copies) in FOLDERS.into_iter().zip(["copies:2", "copies:3"]) {
        make_dir(&native, folder, copies);
        for file in 0..AT_REST {
            let path = format!("{folder}/rest-{file}");
            write(&native, &path, &pattern(file));
            files.insert(path, pattern(file));
        }
    }
    (cell, files)
}

fn up(cell: &Cell, shape: (u16, u16)) {
    let up = cell.up_as(zonal(), shape, &["--no-key"]);
    assert_eq!(code(&up), 0, "{}", said(&up));
}

fn map(cell: &Cell) -> Value {
    serde_json::from_str(&cell.runs(&["zone-map", "show", "--json"])).unwrap()
}

/// Takes the lost server from the list of those that `zonal up` starts.
fn forget_lost(cell: &Cell) {
    let path = cell.dir().join("cell.toml");
    let listed = std::fs::read_to_string(&path).unwrap();
    let kept = listed.replace(&format!("    \"{LOST}\",\n"), "");
    assert!(kept != listed, "{listed}");
    std::fs::write(path, kept).unwrap();
}

/// The number of a server's target.
fn target_of(cell: &Cell, name: &str) -> u64 {
    let address = cell.address(name, false).to_string();
    let map = map(cell);
    let find = |list: &str, key: &str, wanted: &Value| {
        let mut entries = map[list].as_array().unwrap().iter();
        entries.find(|entry| entry[key] == *wanted).unwrap()["id"].clone()
    };
    let node = find("nodes", "address", &Value::from(address));
    find("targets", "node", &node).as_u64().unwrap()
}

fn wait_for_state(cell: &Cell, target: u64, wanted: &str) {
    let begun = Instant::now();
    loop {
        let map = map(cell);
        let mut targets = map["targets"].as_array().unwrap().iter();
        let found = targets.find(|entry| entry["id"] == target).unwrap();
        if found["state"] == wanted {
            println!("{wanted} after {:.1} s", begun.elapsed().as_secs_f64());
            return;
        }
        let log = || cell.log("manager");
        assert!(begun.elapsed() < WITHIN, "not {wanted}: {found}, {}", log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until no file has a stale copy, and none is lost or endangered.
fn wait_until_whole(cell: &Cell) {
    let begun = Instant::now();
    loop {
        let shown = [
            cell.command(&["recovery"]).output().unwrap(),
            cell.command(&["files", "--lost"]).output().unwrap(),
            cell.command(&["files", "--endangered"]).output().unwrap(),
        ];
        let is_filled = said(&shown[0]).contains("no files have copies to be filled");
        let has_out = said(&cell.status()).contains("\"is_out\": true");
        if is_filled && !has_out && shown.iter().all(|output| code(output) == 0) {
            return;
        }
        let said = || shown.each_ref().map(said).concat();
        assert!(begun.elapsed() < WITHIN, "{}", said());
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Stops the cell and checks its stores.
fn check_stopped(cell: &Cell) {
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let checked = cell.command(&["fsck", "--data"]).output().unwrap();
    assert_eq!(code(&checked), 0, "{}", said(&checked));
}

#[test]
fn a_lost_target_is_made_anew_on_the_others_while_its_files_change() {
    let (cell, mut files) = rebuilding_cell("rebuilt", "2s");
    let lost = target_of(&cell, LOST);
    let programs = Programs::start(&cell, &FOLDERS, 2);
    std::thread::sleep(Duration::from_secs(2));
    kill(cell.pid(LOST), "KILL");
    std::fs::remove_dir_all(cell.dir().join(LOST)).unwrap();
    wait_for_state(&cell, lost, "Rebuilding");
    wait_for_state(&cell, lost, "Drained");
    std::thread::sleep(Duration::from_secs(1));
    // Files go on to change whose layouts name the removed target.
    cell.runs(&["target", "remove", "--target", &lost.to_string()]);
    std::thread::sleep(Duration::from_secs(3));
    files.extend(programs.end());
    compare(&cell, &files, 2);
    forget_lost(&cell);
    wait_until_whole(&cell);
    cell.runs(&["fsck"]);
    // Each server in turn is away: the files have the other copies only.
    for away in KEPT {
        kill(cell.pid(away), "KILL");
        compare(&cell, &files, 1);
        up(&cell, (1, 3));
        wait_until_whole(&cell);
    }
    compare(&cell, &files, 1);
    check_stopped(&cell);
}

#[test]
fn a_target_that_comes_back_while_it_is_rebuilt_serves_again() {
    let (cell, mut files) = rebuilding_cell("returned", "2s");
    let back = target_of(&cell, LOST);
    let programs = Programs::start(&cell, &FOLDERS, 2);
    std::thread::sleep(Duration::from_secs(2));
    kill(cell.pid(LOST), "KILL");
    wait_for_state(&cell, back, "Rebuilding");
    std::thread::sleep(Duration::from_millis(1_500));
    up(&cell, SHAPE);
    wait_for_state(&cell, back, "Serving");
    std::thread::sleep(Duration::from_secs(1));
    files.extend(programs.end());
    wait_until_whole(&cell);
    compare(&cell, &files, 2);
    cell.runs(&["fsck"]);
    for away in [LOST, KEPT[0], KEPT[1]] {
        kill(cell.pid(away), "KILL");
        compare(&cell, &files, 1);
        up(&cell, SHAPE);
        wait_until_whole(&cell);
    }
    check_stopped(&cell);
}
