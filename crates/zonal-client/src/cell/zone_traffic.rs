//! Bytes that this client read from targets and wrote to them, by whether a target is in the
//! client's own zone.
//!
//! *Units*: bytes of payloads of requests that succeeded, since the client began.

use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::ZoneId;

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrafficDirection {
    Read,
    Write,
}

/// The counters.
#[derive(Debug)]
pub(crate) struct ZoneTraffic {
    /// The client's zone.
    own: ZoneId,
    /// In-zone, cross-zone.
    read: [AtomicU64; 2],
    written: [AtomicU64; 2],
}

impl ZoneTraffic {
    pub(crate) fn new(own: ZoneId) -> Self {
        Self {
            own,
            read: Default::default(),
            written: Default::default(),
        }
    }

    /// Counts the payload of a request to a target of `zone`.
    pub(crate) fn count(&self, zone: ZoneId, direction: TrafficDirection, bytes: usize) {
        let counters = match direction {
            TrafficDirection::Read => &self.read,
            TrafficDirection::Write => &self.written,
        };
        counters[usize::from(zone != self.own)].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Names of gauges with the counts up to now.
    pub(crate) fn totals(&self) -> [(&'static str, u64); 4] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("read_in_zone_bytes_total", of(&self.read[0])),
            ("read_cross_zone_bytes_total", of(&self.read[1])),
            ("written_in_zone_bytes_total", of(&self.written[0])),
            ("written_cross_zone_bytes_total", of(&self.written[1])),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_by_direction_and_by_the_zone_of_the_target() {
        let traffic = ZoneTraffic::new(ZoneId(1));
        traffic.count(ZoneId(1), TrafficDirection::Read, 1);
        traffic.count(ZoneId(2), TrafficDirection::Read, 20);
        traffic.count(ZoneId(3), TrafficDirection::Read, 1);
        traffic.count(ZoneId(1), TrafficDirection::Write, 300);
        traffic.count(ZoneId(2), TrafficDirection::Write, 4000);
        let counts = traffic.totals().map(|(_name, count)| count);
        assert_eq!(counts, [1, 21, 300, 4000]);
    }
}
