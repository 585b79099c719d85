//! What is said again and again, such as that a disk is full, is said once in [`EVERY`], so that a
//! log does not fill the disk that it tells about.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// One thing to say.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Option<Instant>>);

impl RateLimit {
    /// Whether it is time to say it; if so, the next time is later.
    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_of_two_is_not_said() {
        let seldom = RateLimit::default();
        assert!(seldom.is_due());
        assert!(!seldom.is_due());
    }
}
