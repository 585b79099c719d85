//! Bytes that this client read from targets and wrote to them, by whether a target is in the
//! client's own zone.
//!
//! *Units*: bytes of payloads of requests that succeeded, since the client began.

use super::traffic_reports::TrafficReports;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::{DataId, ZoneId};
use zonal_wire::ClientTraffic;

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
    /// The same bytes by file, for reports to shards.
    pub(crate) reports: TrafficReports,
}

impl ZoneTraffic {
    pub(crate) fn new(own: ZoneId) -> Self {
        Self {
            own,
            read: Default::default(),
            written: Default::default(),
            reports: TrafficReports::default(),
        }
    }

    /// Counts the payload of a request to a target of `zone`, about an object of a file.
    pub(crate) fn count(
        &self,
        zone: ZoneId,
        data_id: DataId,
        direction: TrafficDirection,
        bytes: usize,
    ) {
        let is_cross_zone = zone != self.own;
        let mut traffic = ClientTraffic::default();
        *match (direction, is_cross_zone) {
            (TrafficDirection::Read, false) => &mut traffic.read_in_zone,
            (TrafficDirection::Read, true) => &mut traffic.read_cross_zone,
            (TrafficDirection::Write, false) => &mut traffic.written_in_zone,
            (TrafficDirection::Write, true) => &mut traffic.written_cross_zone,
        } = bytes as u64;
        self.reports.count(data_id, &traffic);
        let counters = match direction {
            TrafficDirection::Read => &self.read,
            TrafficDirection::Write => &self.written,
        };
        counters[usize::from(is_cross_zone)].fetch_add(bytes as u64, Ordering::Relaxed);
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
        traffic.count(ZoneId(1), DataId(7), TrafficDirection::Read, 1);
        traffic.count(ZoneId(2), DataId(7), TrafficDirection::Read, 20);
        traffic.count(ZoneId(3), DataId(7), TrafficDirection::Read, 1);
        traffic.count(ZoneId(1), DataId(7), TrafficDirection::Write, 300);
        traffic.count(ZoneId(2), DataId(7), TrafficDirection::Write, 4000);
        let counts = traffic.totals().map(|(_name, count)| count);
        assert_eq!(counts, [1, 21, 300, 4000]);
        assert_eq!(traffic.reports.waiting_files(), 1);
    }
}
