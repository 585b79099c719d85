//! The clock from which changes of files with copies get their orders
//! (docs/rfcs/2026-11-27-write-order.md).
//!
//! It begins with the calendar, us since 1970, and goes on with the monotonic time. A target that
//! knows a higher order tells it; then the clock goes on from there. So clients whose calendars
//! differ are refused about once, and not with each change.
//!
//! *Invariant*: each order is above the one before, unless the clock was set back. It is set back
//! only where targets refuse it as too far ahead.

use crate::cell::Cell;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::sync::Mutex;
use zonal_types::limits::ORDER_AHEAD_US_MAX;
use zonal_types::{Instant, Timestamp};

/// The longest random jump ahead, as a power of two ms.
const JUMP_DOUBLINGS: u32 = 12;
/// Rounds of a change without a jump.
const ROUNDS_WITHOUT_JUMP: u32 = 2;

/// The clock.
#[derive(Debug, Default)]
pub(crate) struct OrderClock(Mutex<Reading>);

#[derive(Debug, Default)]
struct Reading {
    /// The clock less the monotonic time, us; none before its first use.
    ahead: Option<u64>,
    last: u64,
}

impl Reading {
    fn now(&mut self, (instant, wall): (Instant, Timestamp)) -> u64 {
        let since = instant.0 / 1_000;
        let ahead = self.ahead;
        let ahead = *self
            .ahead
            .insert(ahead.unwrap_or_else(|| wall.micros().saturating_sub(since)));
        since.saturating_add(ahead)
    }

    fn set(&mut self, instant: Instant, to: u64) {
        self.ahead = Some(to.saturating_sub(instant.0 / 1_000));
    }
}

impl OrderClock {
    /// The next order, `jump` ahead of the clock.
    fn next(&self, at: (Instant, Timestamp), jump_us: u64) -> u64 {
        let mut reading = lock(&self.0);
        let now = reading.now(at).saturating_add(jump_us);
        reading.last = now.max(reading.last.saturating_add(1));
        reading.last
    }

    /// Goes on above an order that a target told.
    fn follow(&self, at: (Instant, Timestamp), order: u64) {
        let mut reading = lock(&self.0);
        let own = reading.now(at).max(reading.last);
        let is_too_high = own.saturating_sub(order) > ORDER_AHEAD_US_MAX / 2;
        if order >= own || is_too_high {
            reading.set(at.0, order.saturating_add(1));
            reading.last = order;
        }
    }
}

impl<N: Net> Cell<N> {
    /// The order of a change that begins, or is sent again for the `rounds`th time. After some
    /// rounds it jumps ahead, so that changes begun meanwhile do not overtake it, too.
    pub(crate) fn next_order(&self, rounds: u32) -> u64 {
        let jump_us = match rounds.checked_sub(ROUNDS_WITHOUT_JUMP) {
            Some(doublings) => self.net.random() % (1_000 << doublings.min(JUMP_DOUBLINGS)),
            None => 0,
        };
        let at = (self.net.now(), self.net.wall());
        self.order_clock.next(at, jump_us)
    }

    /// Notes an order that a target told with a refusal.
    pub(crate) fn note_order(&self, order: u64) {
        let at = (self.net.now(), self.net.wall());
        self.order_clock.follow(at, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64, wall: i64) -> (Instant, Timestamp) {
        let wall = Timestamp {
            seconds: wall,
            nanos: 0,
        };
        (Instant(us * 1_000), wall)
    }

    #[test]
    fn it_begins_with_the_calendar_and_goes_on_with_monotonic_time() {
        let clock = OrderClock::default();
        assert_eq!(clock.next(at(70, 5), 0), 5_000_000);
        assert_eq!(clock.next(at(70, 5), 0), 5_000_001);
        assert_eq!(
            clock.next(at(170, 1), 0),
            5_000_100,
            "a calendar that jumps"
        );
        assert_eq!(clock.next(at(171, 1), 1_000), 5_001_101);
        assert_eq!(clock.next(at(172, 1), 0), 5_001_102);
    }

    #[test]
    fn it_goes_on_above_what_a_target_tells() {
        let clock = OrderClock::default();
        let first = clock.next(at(0, 5), 0);
        clock.follow(at(0, 5), first - 1);
        assert_eq!(clock.next(at(1, 5), 0), first + 1);
        clock.follow(at(10, 5), first + 500);
        assert_eq!(clock.next(at(10, 5), 0), first + 501);
        assert_eq!(clock.next(at(110, 5), 0), first + 601, "it keeps its lead");
    }

    #[test]
    fn a_clock_that_targets_refuse_is_set_back() {
        let clock = OrderClock::default();
        let years = 3 * ORDER_AHEAD_US_MAX / 1_000_000;
        clock.next(at(0, years.cast_signed()), 0);
        clock.follow(at(0, 0), 9_000_000);
        assert_eq!(clock.next(at(0, 0), 0), 9_000_001);
    }
}
