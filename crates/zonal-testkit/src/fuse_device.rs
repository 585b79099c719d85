//! The FUSE device in tests: whether this machine must be able to mount, and how a test reports
//! that it cannot.

use std::fmt::Display;
use std::fs;
use std::io::Write;

/// Whether a test must not be skipped: the process is root and `/dev/fuse` exists, as on a machine
/// made for these tests.
fn must_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let is_root = uid.is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"));
    is_root && fs::metadata("/dev/fuse").is_ok()
}

/// Reports that a test cannot mount. The message appears in the output of the tests even if all of
/// them pass, which hides the prints of tests.
///
/// # Panics
/// As root with `/dev/fuse`: the test should have run there.
pub fn skip_mount(why: &dyn Display) {
    assert!(!must_mount(), "root with /dev/fuse cannot mount: {why}");
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    // Not by a macro: the test harness shows the output of macros only for failed tests.
    let line = format!("skipped {test}: this machine cannot mount: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
