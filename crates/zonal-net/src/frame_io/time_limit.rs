//! Time limits for steps of several system calls.
//!
//! A limit counts from its start. That of a long frame counts from the last progress of the frame:
//! behind a slow link its bytes may take longer than the limit.
//!
//! | kind | counts from |
//! | --- | --- |
//! | [`TimeLimit::start`] | the start |
//! | [`TimeLimit::of_call`] | the last time that bytes of the request left or the reply arrived |
//! | [`TimeLimit::of_request`] | the last time that bytes of the request arrived |
//! | [`TimeLimit::of_reply`] | the last time that bytes of the reply left |
//!
//! All of it takes at most [`SLOW_LIMITS_MAX`] limits, so that a peer that drips does not stretch
//! it for ever.

use super::IoFail;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Longest time limit.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Limits that a frame may take whose bytes move all the time.
const SLOW_LIMITS_MAX: u32 = 12;
/// Looks at the unsent bytes of a call within one limit.
const LOOKS: u32 = 4;

/// Bytes of a reply that arrive at once and count as progress; fewer come from a server that drips.
const REPLY_STEP: usize = 4096;

/// The movement of bytes that starts a limit anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// Bytes that leave, and so many or more that arrive at once.
    Sending {
        arrived: usize,
    },
    Receiving,
}

/// A time limit for a whole step (several system calls).
#[derive(Debug, Clone)]
pub struct TimeLimit {
    start: Instant,
    limit: Option<Duration>,
    /// The limit to set on the socket instead, so that steps with different limits set it once.
    step: Option<Duration>,
    progress: Progress,
    /// Time of the last progress; the start where there was none.
    moved: Cell<Instant>,
}

impl TimeLimit {
    /// A limit that starts now.
    #[must_use]
    pub fn start(limit: Duration) -> Self {
        // The kernel refuses absurd values.
        Self::new(Some(limit.min(LIMIT_MAX)))
    }

    /// A limit that is checked every `step`; it may end that much late.
    #[must_use]
    pub(crate) fn in_steps(limit: Duration, step: Duration) -> Self {
        Self {
            step: Some(step),
            ..Self::start(limit)
        }
    }

    /// The limit of a call: starts anew while bytes of the request leave, or of the reply arrive.
    #[must_use]
    pub(crate) fn of_call(limit: Duration) -> Self {
        Self::sending(limit, REPLY_STEP)
    }

    /// The limit of sending a reply: starts anew while its bytes leave.
    #[must_use]
    pub(crate) fn of_reply(limit: Duration) -> Self {
        Self::sending(limit, usize::MAX)
    }

    fn sending(limit: Duration, arrived: usize) -> Self {
        let limit = limit.min(LIMIT_MAX);
        Self {
            step: Some((limit / LOOKS).max(Duration::from_millis(1))),
            progress: Progress::Sending { arrived },
            ..Self::start(limit)
        }
    }

    /// The limit of receiving a request, checked every `step`: starts anew with its bytes.
    #[must_use]
    pub(crate) fn of_request(limit: Duration, step: Duration) -> Self {
        Self {
            progress: Progress::Receiving,
            ..Self::in_steps(limit, step)
        }
    }

    /// No limit.
    #[must_use]
    pub fn endless() -> Self {
        Self::new(None)
    }

    fn new(limit: Option<Duration>) -> Self {
        let start = Instant::now();
        Self {
            start,
            limit,
            step: None,
            progress: Progress::Nothing,
            moved: Cell::new(start),
        }
    }

    /// The whole limit in ms; 0: none.
    #[must_use]
    pub fn limit_ms(&self) -> u64 {
        self.limit
            .map_or(0, |limit| u64::try_from(limit.as_millis()).unwrap_or(0))
    }

    /// Whether at least so much is left.
    pub(crate) fn has_left(&self, least: Duration) -> bool {
        self.left_at(Instant::now())
            .is_none_or(|left| left >= least)
    }

    /// Counts from this time on, if it is later than the last progress.
    pub(crate) fn counts_from(&self, progress: Instant) {
        self.moved.set(self.moved.get().max(progress));
    }

    /// Extends the limit where less than `least` is left.
    pub(crate) fn leave_at_least(&mut self, least: Duration) {
        if let Some(limit) = &mut self.limit {
            *limit = (*limit).max(self.moved.get().elapsed() + least);
        }
    }

    /// Whether the limit starts anew while bytes leave.
    pub(super) fn follows_sending(&self) -> bool {
        matches!(self.progress, Progress::Sending { .. })
    }

    /// Notes that bytes of the frame are leaving.
    pub(super) fn sent(&self) {
        if self.follows_sending() {
            self.moved.set(Instant::now());
        }
    }

    /// Notes that bytes of the frame arrived.
    pub(super) fn received(&self, bytes: usize) {
        let counts = match self.progress {
            Progress::Nothing => false,
            Progress::Sending { arrived } => bytes >= arrived,
            Progress::Receiving => true,
        };
        if counts {
            self.moved.set(Instant::now());
        }
    }

    /// Time left, at least 1 ms.
    pub(crate) fn left(&self) -> Result<Option<Duration>, IoFail> {
        let Some(left) = self.left_at(Instant::now()) else {
            return Ok(None);
        };
        if left.is_zero() {
            return Err(IoFail::TimedOut);
        }
        Ok(Some(left.max(Duration::from_millis(1))))
    }

    fn left_at(&self, now: Instant) -> Option<Duration> {
        let limit = self.limit?;
        let most = limit.saturating_mul(SLOW_LIMITS_MAX);
        let of_all = most.saturating_sub(now.saturating_duration_since(self.start));
        let since = now.saturating_duration_since(self.moved.get());
        Some(limit.saturating_sub(since).min(of_all))
    }

    /// The limit to set on the socket; later the time left. While most of the time is left, all
    /// calls with one limit get the same, so that they need not set it again.
    pub(super) fn socket_limit(&self) -> Result<Option<Duration>, IoFail> {
        let left = self.left()?;
        Ok(match (left, self.limit, self.step) {
            (Some(left), _, Some(step)) if self.follows_sending() => Some(left.min(step)),
            (_, _, Some(step)) => Some(step),
            (Some(left), Some(limit), None) if left < limit / 4 * 3 => Some(left),
            _ => self.limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn progress_starts_the_limit_anew_and_a_peer_that_drips_does_not_stretch_it_for_ever() {
        let limit = TimeLimit::of_call(LIMIT);
        let begun = limit.start;
        assert_eq!(limit.left_at(begun + 4 * SECOND), Some(6 * SECOND));
        limit.moved.set(begun + 8 * SECOND);
        assert_eq!(limit.left_at(begun + 9 * SECOND), Some(9 * SECOND));
        assert_eq!(limit.left_at(begun + 18 * SECOND), Some(Duration::ZERO));
        limit.moved.set(begun + 119 * SECOND);
        assert_eq!(limit.left_at(begun + 119 * SECOND), Some(SECOND));
        assert_eq!(limit.left_at(begun + 120 * SECOND), Some(Duration::ZERO));
    }

    #[test]
    fn each_kind_follows_its_own_bytes() {
        let kinds = [
            (TimeLimit::start(LIMIT), [false, false, false]),
            (TimeLimit::of_call(LIMIT), [true, true, false]),
            (TimeLimit::of_reply(LIMIT), [true, false, false]),
            (TimeLimit::of_request(LIMIT, SECOND), [false, true, true]),
        ];
        for (limit, follows) in kinds {
            let notes: [fn(&TimeLimit); 3] = [
                TimeLimit::sent,
                |limit| limit.received(REPLY_STEP),
                |limit| limit.received(REPLY_STEP - 1),
            ];
            let moves = notes.map(|note| {
                limit.moved.set(limit.start - SECOND);
                note(&limit);
                limit.moved.get() >= limit.start
            });
            assert_eq!(moves, follows, "{limit:?}");
        }
    }

    #[test]
    fn calls_with_one_limit_set_it_once_on_their_socket() {
        let limit = TimeLimit::of_call(LIMIT);
        assert_eq!(limit.socket_limit().unwrap(), Some(LIMIT / LOOKS));
        limit.moved.set(limit.start - 9 * SECOND);
        assert!(limit.socket_limit().unwrap() <= Some(SECOND));
    }
}
