//! Time limits for steps of several system calls.

use super::IoFail;
use std::time::{Duration, Instant};

/// Longest time limit.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// A time limit for a whole step (several system calls).
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    start: Instant,
    limit: Option<Duration>,
    /// The limit to set on the socket instead, so that steps with different limits set it once.
    step: Option<Duration>,
}

impl TimeLimit {
    /// A limit that starts now.
    #[must_use]
    pub fn start(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            // The kernel refuses absurd values.
            limit: Some(limit.min(LIMIT_MAX)),
            step: None,
        }
    }

    /// A limit that is checked every `step`; it may end that much late.
    #[must_use]
    pub(crate) fn in_steps(limit: Duration, step: Duration) -> Self {
        Self {
            step: Some(step),
            ..Self::start(limit)
        }
    }

    /// No limit.
    #[must_use]
    pub fn endless() -> Self {
        Self {
            start: Instant::now(),
            limit: None,
            step: None,
        }
    }

    /// The whole limit in ms; 0: none.
    #[must_use]
    pub fn limit_ms(&self) -> u64 {
        self.limit
            .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(0))
    }

    /// Extends the limit where less than `least` is left.
    pub(crate) fn leave_at_least(&mut self, least: Duration) {
        if let Some(limit) = &mut self.limit {
            *limit = (*limit).max(self.start.elapsed() + least);
        }
    }

    /// Time left, at least 1 ms.
    pub(crate) fn left(&self) -> Result<Option<Duration>, IoFail> {
        let Some(limit) = self.limit else {
            return Ok(None);
        };
        let left = limit.saturating_sub(self.start.elapsed());
        if left.is_zero() {
            return Err(IoFail::TimedOut);
        }
        Ok(Some(left.max(Duration::from_millis(1))))
    }

    /// The limit to set on the socket. While most of the time is left it is the whole limit, so
    /// that calls need not set it again; later the time left.
    pub(super) fn socket_limit(&self) -> Result<Option<Duration>, IoFail> {
        let left = self.left()?;
        if self.step.is_some() {
            return Ok(self.step);
        }
        Ok(match (left, self.limit) {
            (Some(left), Some(limit)) if left < limit / 4 * 3 => Some(left),
            _ => self.limit,
        })
    }
}
