//! The part of `zonal status` about first-level directories.

use super::traffic_header;
use crate::cell::CellHandle;
use crate::cell::node_status::{NodeStatus, directory_paths, directory_sums};
use crate::cli::traffic_sum::TrafficSum;
use crate::console;
use serde_json::{Value, json};
use zonal_types::Ino;
use zonal_wire::DirectoryTraffic;

/// Number of directories in the table for people.
const DIRECTORIES_SHOWN: usize = 10;

/// Prints the directories with most bytes.
pub fn print_directories(cell: &CellHandle, seen: &[NodeStatus]) {
    let mut sums = directory_sums(seen);
    if sums.is_empty() {
        return;
    }
    sums.sort_by_key(|entry| std::cmp::Reverse(entry.traffic.total()));
    sums.truncate(DIRECTORIES_SHOWN);
    let paths = directory_paths(cell, sums.iter().map(|entry| entry.dir));
    let mut rows = vec![traffic_header("DIRECTORY BYTES")];
    for DirectoryTraffic { dir, traffic } in sums {
        let title = match paths.get(&dir) {
            Some(path) => path.clone(),
            None if dir == Ino(0) => "others".into(),
            None => format!("inode {dir}"),
        };
        rows.push(TrafficSum(traffic).row(title));
    }
    console::table(&rows);
}

/// All directories, for `--json`.
pub fn directories_json(cell: &CellHandle, seen: &[NodeStatus]) -> Vec<Value> {
    let sums = directory_sums(seen);
    let paths = directory_paths(cell, sums.iter().map(|entry| entry.dir));
    let shown = sums.into_iter().map(|DirectoryTraffic { dir, traffic }| {
        let traffic = TrafficSum(traffic).json();
        json!({"inode": dir.0, "path": paths.get(&dir), "traffic": traffic})
    });
    shown.collect()
}
