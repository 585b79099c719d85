//! Progress of a long command on standard error, at most once a second; silent unless requested.

use crate::console;
use std::time::{Duration, Instant};
use zonal_basics::byte_size;

const EVERY: Duration = Duration::from_secs(1);

/// Counts and prints the progress of one command.
pub struct ProgressMeter {
    what: Option<&'static str>,
    started: Instant,
    shown: Instant,
}

impl ProgressMeter {
    /// Counts `what` (a plural noun); prints only if `wanted`.
    pub fn new(what: &'static str, wanted: bool) -> Self {
        let now = Instant::now();
        Self {
            what: wanted.then_some(what),
            started: now,
            shown: now,
        }
    }

    /// Reports the totals so far.
    pub fn at(&mut self, count: u64, bytes: u64) {
        let Some(what) = self.what else {
            return;
        };
        if self.shown.elapsed() < EVERY {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64().max(0.001);
        let rate = count as f64 / seconds;
        console::note(format_args!(
            "{count} {what}, {}, {rate:.0} {what}/s",
            byte_size::rounded(bytes)
        ));
    }
}
