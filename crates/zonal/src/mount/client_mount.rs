//! The mount itself: client core and kernel protocol joined.

use super::command::{Options, Ready};
use crate::cell::Cell;
use crate::exit::{FAILED, Failure};

/// Mounts `cell` as `options` say, calls [`Ready::mounted`] when the mount answers, and returns when it is unmounted
/// or the process is told to end (SIGTERM, SIGINT), with everything written flushed.
#[expect(clippy::needless_pass_by_value, reason = "the mount owns what it runs with")]
pub fn run(options: &Options, cell: Cell, ready: Ready) -> anyhow::Result<()> {
    let _ = (options, cell.id, cell.manager, &cell.key, ready);
    Err(Failure::new(FAILED, "this build cannot mount cells").into())
}
