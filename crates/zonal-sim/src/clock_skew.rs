//! Clock skew of simulated processes: each clock has its own start and runs a little fast or slow;
//! a calendar may jump.

use crate::rng::SimRng;
use std::cell::Cell;
use zonal_types::{Instant, Timestamp};

/// Calendar time at the beginning of a run, in seconds.
const WALL_START: i64 = 1_800_000_000;
/// Largest drift of a clock, in millionths: far less than the margin that shards add to terms.
pub const DRIFT_PPM_MAX: u64 = 20_000;
/// Largest error of a calendar, ms.
const WALL_MS_MAX: u64 = 3_600_000;

/// The clocks of one process.
#[derive(Debug, Default)]
pub struct ProcessClock {
    offset: u64,
    drift_ppm: i64,
    wall_ms: Cell<i64>,
}

fn either_sign(rng: &mut SimRng, largest: u64) -> i64 {
    rng.below(2 * largest + 1) as i64 - largest as i64
}

impl ProcessClock {
    /// Makes clocks with random errors.
    #[must_use]
    pub fn random(rng: &mut SimRng) -> Self {
        Self {
            offset: rng.below(1_000_000_000_000),
            drift_ppm: either_sign(rng, DRIFT_PPM_MAX),
            wall_ms: Cell::new(either_sign(rng, 5_000)),
        }
    }

    /// Makes the calendar jump.
    pub fn jump(&self, rng: &mut SimRng) {
        self.wall_ms.set(either_sign(rng, WALL_MS_MAX));
    }

    /// The process's time at the true time `now`.
    #[must_use]
    pub fn local(&self, now: Instant) -> Instant {
        let drift = i128::from(now.0) * i128::from(self.drift_ppm) / 1_000_000;
        let local = i128::from(now.0) + drift + i128::from(self.offset);
        Instant(u64::try_from(local).unwrap_or(u64::MAX))
    }

    /// The true time at which the process's clock shows `local`, or a moment later.
    #[must_use]
    pub fn world(&self, local: Instant) -> Instant {
        let since = i128::from(local.0.saturating_sub(self.offset));
        let world = since * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 2;
        Instant(u64::try_from(world).unwrap_or(u64::MAX))
    }

    /// The process's calendar at the true time `now`.
    #[must_use]
    pub fn wall(&self, now: Instant) -> Timestamp {
        let nanos = i128::from(now.0) + i128::from(self.wall_ms.get()) * 1_000_000;
        Timestamp {
            seconds: WALL_START + nanos.div_euclid(1_000_000_000) as i64,
            nanos: nanos.rem_euclid(1_000_000_000) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_goes_there_and_back() {
        let mut rng = SimRng::new(3);
        for _ in 0..1000 {
            let clock = ProcessClock::random(&mut rng);
            let at = Instant(rng.below(1 << 50));
            let local = clock.local(at);
            let back = clock.world(local);
            assert!(clock.local(back) >= local && back.0.abs_diff(at.0) < 10);
        }
        let exact = ProcessClock::default();
        assert_eq!(exact.local(Instant(77)), Instant(77));
    }
}
