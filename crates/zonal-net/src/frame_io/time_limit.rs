//! Limits of time for steps of several system calls.

use super::IoFail;
use std::time::{Duration, Instant};

/// Longest limit of time.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// A limit of time for a whole step (several system calls).
#[derive(Debug, Clone, Copy)]
pub struct TimeLimit {
    start: Instant,
    limit: Option<Duration>,
    /// What is set on the socket instead, so that clocks with different limits set it once.
    step: Option<Duration>,
}

impl TimeLimit {
    /// A clock that starts now.
    #[must_use]
    pub fn start(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            // The kernel refuses absurd values.
            limit: Some(limit.min(LIMIT_MAX)),
            step: None,
        }
    }

    /// A clock that looks whether it has ended every `step`; it may end so much late.
    #[must_use]
    pub(crate) fn in_steps(limit: Duration, step: Duration) -> Self {
        Self {
            step: Some(step),
            ..Self::start(limit)
        }
    }

    /// A clock that never ends.
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

    /// Goes on where less than this is left.
    pub(crate) fn leave_at_least(&mut self, least: Duration) {
        if let Some(limit) = &mut self.limit {
            *limit = (*limit).max(self.start.elapsed() + least);
        }
    }

    /// What is left, at least 1 ms.
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

    /// What to set on the socket: the whole limit while most of it is left (so that it need not be
    /// set again for each call), later what is left.
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
