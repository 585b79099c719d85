//! One direction of a TCP connection: the bytes that it may have under way, by Reno's rules.
//!
//! A connection hands buffers to its port: up to [`BUFFER_BYTES`], as a segment offload does. The
//! values are those of Linux and of RFC 5681 and 6928. None is fitted.
//!
//! Simplified: a lost buffer is noticed a round trip later, at the end of a message after a
//! timeout. The window falls once a round trip at most.

use crate::ports::FRAME_PAYLOAD;

/// Most bytes of one buffer: full frames within 64 KiB.
const BUFFER_BYTES: f64 = 45.0 * FRAME_PAYLOAD;
/// Most bytes of one connection in its own port's queue: two buffers (TCP small queues).
const LOCAL_BYTES_MAX: f64 = 131_072.0;
/// Window at the start and after a pause.
const FIRST_WINDOW: f64 = 10.0 * FRAME_PAYLOAD;
const SMALLEST_WINDOW: f64 = 2.0 * FRAME_PAYLOAD;
/// A timeout is this much longer than a round trip.
const TIMEOUT: f64 = 0.2;
/// A round trip before one was measured.
const FIRST_ROUND_TRIP: f64 = 0.02;

/// The sender's state.
#[derive(Debug)]
pub(crate) struct Sender {
    window: f64,
    /// Below it the window doubles in a round trip.
    threshold: f64,
    /// Not yet acknowledged.
    under_way: f64,
    /// Of those, in the queue of the own port.
    local: f64,
    /// Of the message, not yet sent.
    unsent: f64,
    /// Of the message, not yet with the receiver.
    missing: f64,
    /// Most that was under way within a round trip: a window that is not used does not grow.
    used: f64,
    used_since: f64,
    round_trip: f64,
    last_sent: f64,
    /// Further losses before this time are of the same round trip.
    reduced_until: f64,
}

impl Sender {
    pub(crate) fn new() -> Self {
        Self {
            window: FIRST_WINDOW,
            threshold: f64::INFINITY,
            under_way: 0.0,
            local: 0.0,
            unsent: 0.0,
            missing: 0.0,
            used: 0.0,
            used_since: 0.0,
            round_trip: FIRST_ROUND_TRIP,
            last_sent: 0.0,
            reduced_until: f64::NEG_INFINITY,
        }
    }

    /// Begins a message. After a pause the window is halved for each timeout that passed.
    pub(crate) fn begin(&mut self, now: f64, bytes: f64) {
        let timeout = TIMEOUT + self.round_trip;
        let mut pause = now - self.last_sent;
        if pause > timeout && self.window > FIRST_WINDOW {
            self.threshold = self.threshold.max(0.75 * self.window);
            while pause > timeout && self.window > FIRST_WINDOW {
                self.window /= 2.0;
                pause -= timeout;
            }
            self.window = self.window.max(FIRST_WINDOW);
        }
        self.unsent = bytes;
        self.missing = bytes;
    }

    /// The next buffer's bytes, if one may be sent now.
    pub(crate) fn next_buffer(&mut self, now: f64) -> Option<f64> {
        let most = (self.window / 3.0).clamp(SMALLEST_WINDOW, BUFFER_BYTES);
        let most = most.min(self.unsent);
        let room = (self.window - self.under_way).min(LOCAL_BYTES_MAX - self.local);
        if most <= 0.0 || room < most.min(SMALLEST_WINDOW) {
            return None;
        }
        let bytes = most.min(room);
        self.unsent -= bytes;
        self.under_way += bytes;
        self.local += bytes;
        if now > self.used_since + self.round_trip {
            self.used = 0.0;
            self.used_since = now;
        }
        self.used = self.used.max(self.under_way);
        self.last_sent = now;
        Some(bytes)
    }

    /// A buffer has left the own port, or was dropped there.
    pub(crate) fn has_left(&mut self, bytes: f64) {
        self.local -= bytes;
    }

    /// A buffer is with the receiver; true where the message is complete.
    pub(crate) fn has_arrived(&mut self, bytes: f64) -> bool {
        self.missing -= bytes;
        self.missing < 0.5
    }

    /// A buffer is acknowledged.
    pub(crate) fn is_acknowledged(&mut self, now: f64, sent: f64, bytes: f64) {
        self.under_way -= bytes;
        self.round_trip += (now - sent - self.round_trip) / 8.0;
        if self.window < self.threshold {
            if self.window < 2.0 * self.used {
                self.window += bytes;
            }
        } else if self.used + BUFFER_BYTES >= self.window {
            self.window += FRAME_PAYLOAD * bytes / self.window;
        }
    }

    /// Seconds until the sender notices a loss that happens now.
    pub(crate) fn notices_in(&self) -> f64 {
        let is_last = self.unsent <= 0.0 && self.under_way <= 3.0 * FRAME_PAYLOAD;
        self.round_trip + if is_last { TIMEOUT } else { 0.0 }
    }

    /// Notices a loss: the bytes will be sent again.
    pub(crate) fn has_lost(&mut self, now: f64, bytes: f64) {
        self.under_way -= bytes;
        self.unsent += bytes;
        if now > self.reduced_until {
            self.threshold = (self.window / 2.0).max(SMALLEST_WINDOW);
            self.window = self.threshold;
            self.reduced_until = now + self.round_trip;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }

    /// Sends what may be sent, and has it leave the port.
    fn sent(sender: &mut Sender, now: f64) -> Vec<f64> {
        let mut buffers = Vec::new();
        while let Some(bytes) = sender.next_buffer(now) {
            sender.has_left(bytes);
            buffers.push(bytes);
        }
        buffers
    }

    fn round_trip(sender: &mut Sender, now: f64) -> f64 {
        let buffers = sent(sender, now);
        let sum = buffers.iter().sum();
        for bytes in buffers {
            sender.has_arrived(bytes);
            sender.is_acknowledged(now + 0.02, now, bytes);
        }
        sum
    }

    #[test]
    fn the_window_doubles_each_round_trip_until_a_loss_halves_it() {
        let mut sender = Sender::new();
        sender.begin(0.0, 1e6);
        are_near(round_trip(&mut sender, 0.0), FIRST_WINDOW);
        are_near(round_trip(&mut sender, 0.02), 2.0 * FIRST_WINDOW);
        let buffers = sent(&mut sender, 0.04);
        are_near(buffers.iter().sum::<f64>(), 4.0 * FIRST_WINDOW);
        sender.has_lost(0.06, buffers[0]);
        // A second loss of that round trip changes nothing more.
        sender.has_lost(0.07, buffers[1]);
        are_near(sender.window, 2.0 * FIRST_WINDOW);
        for bytes in &buffers[2..] {
            sender.is_acknowledged(0.06, 0.04, *bytes);
        }
        // From here on a frame a round trip.
        let before = sender.window;
        round_trip(&mut sender, 0.08);
        let grown = sender.window - before;
        assert!((0.5..1.1).contains(&(grown / FRAME_PAYLOAD)), "{grown}");
    }

    #[test]
    fn a_pause_takes_the_window_back_to_the_first() {
        let mut sender = Sender::new();
        sender.begin(0.0, 1e6);
        for trip in 0..3 {
            round_trip(&mut sender, 0.02 * f64::from(trip));
        }
        are_near(sender.window, 8.0 * FIRST_WINDOW);
        sender.begin(0.1, 1e6);
        are_near(sender.window, 8.0 * FIRST_WINDOW);
        sender.begin(9.0, 1e6);
        are_near(sender.window, FIRST_WINDOW);
        assert_eq!(sender.threshold, f64::INFINITY);
    }

    #[test]
    fn the_own_queue_has_two_buffers_of_a_connection() {
        let mut sender = Sender::new();
        sender.window = 1e9;
        sender.begin(0.0, 1e6);
        let first = [(); 3].map(|()| sender.next_buffer(0.0));
        assert_eq!(first[..2], [Some(BUFFER_BYTES); 2]);
        assert_eq!(first[2], None);
        sender.has_left(BUFFER_BYTES);
        assert!(sender.next_buffer(0.0).is_some());
    }

    #[test]
    fn a_message_is_complete_with_its_last_byte() {
        let mut sender = Sender::new();
        sender.begin(0.0, 5_000.0);
        let first = sender.next_buffer(0.0).unwrap_or_default();
        assert!(!sender.has_arrived(first));
        let second = sender.next_buffer(0.0).unwrap_or_default();
        are_near(first + second, 5_000.0);
        assert_eq!(sender.next_buffer(0.0), None);
        assert!(sender.has_arrived(second));
    }
}
