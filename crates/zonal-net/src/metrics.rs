//! Counters of a server's and a client's connections, and a rate limit for warnings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$fdoc])* pub $field: AtomicU64,)* }

        impl $name {
            /// Name and value of every counter.
            #[must_use]
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Counters of a server; `connections` is a gauge.
    ServerMetrics {
        /// Connections accepted.
        accepted,
        /// Connections open now.
        connections,
        /// Refused: too many connections.
        refused_overloaded,
        /// Refused: credential missing or wrong.
        refused_unauthenticated,
        /// Refused: another cell.
        refused_wrong_cell,
        /// Refused: no common version.
        refused_wrong_version,
        /// Refused: broke the protocol.
        refused_protocol,
        /// Ended: handshake or frame not completed in time.
        refused_slow,
        /// Strangers (handshake not done) displaced by newer ones.
        strangers_ended,
        /// Ended by a panic of the handler.
        handler_panics,
        /// Requests received.
        frames_in,
        /// Replies sent.
        frames_out,
        /// Bytes received.
        bytes_in,
        /// Bytes sent.
        bytes_out,
    }
}

counters! {
    /// Counters of a client's pool.
    PoolMetrics {
        /// Calls begun.
        calls,
        /// Connections made by TCP.
        connected_tcp,
        /// Connections made by Unix socket.
        connected_unix,
        /// Connections that could not be made.
        connect_failures,
        /// Requests sent again because an idle connection had died.
        resent,
        /// Calls that ended at their deadline.
        timed_out,
        /// Calls that waited for a connection because the server's quota for this client was used
        /// up.
        waited_for_share,
        /// Bytes received.
        bytes_in,
        /// Bytes sent.
        bytes_out,
    }
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Rate limit for warnings: lets ten a second pass and counts the others.
#[derive(Debug)]
pub(crate) struct WarnLimit {
    start: Instant,
    second: AtomicU64,
    passed: AtomicU64,
    held: AtomicU64,
}

impl WarnLimit {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            second: AtomicU64::new(0),
            passed: AtomicU64::new(0),
            held: AtomicU64::new(0),
        }
    }

    /// `Some(number of warnings suppressed before)` where a warning may be logged. Racing threads
    /// may let a few more pass.
    pub(crate) fn pass(&self) -> Option<u64> {
        let now = self.start.elapsed().as_secs();
        if self.second.swap(now, Ordering::Relaxed) != now {
            self.passed.store(0, Ordering::Relaxed);
        }
        if self.passed.fetch_add(1, Ordering::Relaxed) < 10 {
            return Some(self.held.swap(0, Ordering::Relaxed));
        }
        add(&self.held, 1);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_bounded() {
        let limit = WarnLimit::new();
        let passed = (0..1000).filter(|_| limit.pass().is_some()).count();
        assert!((10..=20).contains(&passed), "{passed}");
    }
}
