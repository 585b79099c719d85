//! Rate-limited log: a message that repeats (a full disk, say) is logged once in [`EVERY`], so that
//! the log does not fill the disk itself.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Rate limit of one message.
#[derive(Debug, Default)]
pub(crate) struct RateLimit(Mutex<Option<Instant>>);

impl RateLimit {
    /// True where the message may be logged now; the next time is then [`EVERY`] later.
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
    fn a_repeated_message_is_suppressed() {
        let limit = RateLimit::default();
        assert!(limit.is_due());
        assert!(!limit.is_due());
    }
}
