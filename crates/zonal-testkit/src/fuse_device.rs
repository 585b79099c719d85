//! Where tests mount, and what they do where nothing can be mounted.

use std::fmt::Display;
use std::fs;
use std::io::Write;

/// Whether a test may not go without its mount: root, and `/dev/fuse` is there. Such a machine has
/// what the tests are for.
fn must_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_root = uid.is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"));
    is_root && fs::metadata("/dev/fuse").is_ok()
}

/// A test cannot mount: says so in the output of the tests, also where they pass, which shows
/// nothing of a test that printed.
///
/// # Panics
/// As root with `/dev/fuse`: the test was to show something, and did not.
pub fn skip_mount(why: &dyn Display) {
    assert!(!must_mount(), "root with /dev/fuse cannot mount: {why}");
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    // Not by a macro: what those print is shown of failed tests only.
    let line = format!("skipped {test}: this machine cannot mount: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
