//! Clocks: the server reads them only here; cores get the values.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zonal_types::{Instant, Timestamp};

fn start() -> std::time::Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    *START.get_or_init(std::time::Instant::now)
}

/// Time since this process started, for deadlines.
#[must_use]
pub fn instant() -> Instant {
    Instant(u64::try_from(start().elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Calendar time.
#[must_use]
pub fn wall() -> Timestamp {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        // A clock before 1970 is wrong anyway.
        Err(_) => Timestamp::default(),
    }
}

/// The time left until `instant`.
#[must_use]
pub fn until(instant: Instant) -> Duration {
    Duration::from_nanos(instant.0.saturating_sub(self::instant().0))
}

/// Boot number of a process: nanoseconds of calendar time, which differ at each start.
#[must_use]
pub fn boot_number() -> u64 {
    let wall = wall();
    u64::try_from(wall.seconds)
        .unwrap_or(0)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(u64::from(wall.nanos))
}
