//! Ports that send at their link's rate: a token bucket before a bounded queue, as the testbed's
//! (docs/testbed.md). A full queue drops.

/// Payload of a full frame of TCP, and its bytes on the wire.
pub(crate) const FRAME_PAYLOAD: f64 = 1_448.0;
pub(crate) const FRAME_BYTES: f64 = 1_514.0;

const BUCKET_SECONDS: f64 = 0.01;
const BUCKET_MIN: f64 = 4_096.0;
const QUEUE_SECONDS: f64 = 0.2;
const QUEUE_MIN: f64 = 131_072.0;
const QUEUE_MAX: f64 = 1_048_576.0;

/// Bytes of the bucket and of the queue of a port that sends so many bytes a second.
#[must_use]
pub fn port_bounds(rate: f64) -> (f64, f64) {
    let bucket = (rate * BUCKET_SECONDS).max(BUCKET_MIN);
    let queue = (rate * QUEUE_SECONDS).clamp(QUEUE_MIN, QUEUE_MAX);
    (bucket, queue)
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct Port {
    /// Bytes on the wire a second.
    rate: f64,
    bucket_seconds: f64,
    queue: f64,
    /// Time at which all taken so far has left, had it begun with an empty bucket. Before now:
    /// tokens are left.
    drained: f64,
}

impl Port {
    /// A port at rest. `payload_rate`: of full frames.
    pub(crate) fn new(payload_rate: f64) -> Self {
        let rate = payload_rate * FRAME_BYTES / FRAME_PAYLOAD;
        let (bucket, queue) = port_bounds(rate);
        Self {
            rate,
            bucket_seconds: bucket / rate,
            queue,
            drained: f64::NEG_INFINITY,
        }
    }

    /// Takes bytes of the wire; returns the time at which they have left. `None`: dropped.
    pub(crate) fn send(&mut self, now: f64, bytes: f64) -> Option<f64> {
        let begins = self.drained.max(now - self.bucket_seconds);
        let waiting = (begins - now) * self.rate;
        if waiting + bytes > self.queue {
            return None;
        }
        self.drained = begins + bytes / self.rate;
        Some(self.drained.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A port of 1 MB/s on the wire: a bucket of 10,000 bytes, a queue of 200,000.
    fn port() -> Port {
        Port::new(1e6 * FRAME_PAYLOAD / FRAME_BYTES)
    }

    fn is_near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() < 1e-9)
    }

    #[test]
    fn a_bucket_goes_at_once_and_the_rest_at_the_rate() {
        let mut port = port();
        assert!(is_near(port.send(5.0, 10_000.0), 5.0));
        assert!(is_near(port.send(5.0, 50_000.0), 5.05));
        assert!(is_near(port.send(5.05, 1_000.0), 5.051));
        // 5 ms later there are tokens for 5,000 bytes.
        assert!(is_near(port.send(5.056, 6_000.0), 5.057));
    }

    #[test]
    fn a_full_queue_drops_and_takes_again_when_it_has_drained() {
        let mut port = port();
        assert!(is_near(port.send(0.0, 10_000.0), 0.0));
        assert!(is_near(port.send(0.0, 150_000.0), 0.15));
        assert_eq!(port.send(0.0, 60_000.0), None);
        assert!(is_near(port.send(0.0, 50_000.0), 0.2));
        assert!(is_near(port.send(0.1, 60_000.0), 0.26));
    }

    #[test]
    fn bounds_follow_the_rate() {
        assert_eq!(port_bounds(12.5e6), (125_000.0, 1_048_576.0));
        assert_eq!(port_bounds(125e3), (4_096.0, 131_072.0));
    }
}
