//! Time as values: [`Instant`] for deadlines, [`Timestamp`] for times that inodes store.

use crate::codec_struct;

/// Nanoseconds since a fixed start that the shell chose; only differences have a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// This instant, later by `ms` milliseconds.
    #[must_use]
    pub fn plus_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms.saturating_mul(1_000_000)))
    }

    /// Whole milliseconds from `earlier` to this instant; 0 where `earlier` is later.
    #[must_use]
    pub fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0) / 1_000_000
    }
}

codec_struct! {
    /// A point in calendar time: seconds since 1970-01-01 UTC and nanoseconds (0 to 999,999,999).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct Timestamp {
        /// Seconds since 1970-01-01 UTC; negative before.
        seconds: i64,
        /// Nanoseconds within the second.
        nanos: u32,
    }
}

impl Timestamp {
    /// Whole microseconds since 1970; 0 before.
    #[must_use]
    pub fn micros(self) -> u64 {
        let seconds = u64::try_from(self.seconds).unwrap_or(0);
        let micros = seconds.saturating_mul(1_000_000);
        micros.saturating_add(u64::from(self.nanos / 1_000))
    }
}
