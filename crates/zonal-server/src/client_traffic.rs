//! Bytes that clients read from a target and write to it, by whether the client's zone is the
//! target's own.
//!
//! The zone of a client is the claim of its hello. It serves statistics alone. Peers without a zone
//! (commands) are not counted.
//!
//! *Units*: bytes of payloads of requests that succeeded, since the server's start.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_types::ZoneId;
use zonal_wire::{ClientTraffic, StorageRequest};

/// Counters of one target.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    /// The target's zone, once its node has joined the cell.
    zone: OnceLock<ZoneId>,
    /// In-zone, cross-zone.
    read: [AtomicU64; 2],
    written: [AtomicU64; 2],
}

impl TrafficCounters {
    /// Sets the target's zone, before requests are served.
    pub(crate) fn set_zone(&self, zone: ZoneId) {
        let _ = self.zone.set(zone);
    }

    /// Counts a request that succeeded. `sent`: bytes of its payload; `replied`: of the reply's.
    pub(crate) fn count(
        &self,
        client: ZoneId,
        request: &StorageRequest,
        (sent, replied): (usize, usize),
    ) {
        let (counters, bytes) = match request {
            StorageRequest::Read { .. } => (&self.read, replied),
            StorageRequest::Write { .. } | StorageRequest::WriteRanges { .. } => {
                (&self.written, sent)
            }
            _ => return,
        };
        if client != ZoneId::default()
            && let Some(own) = self.zone.get()
        {
            let counter = &counters[usize::from(client != *own)];
            counter.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// The counts up to now.
    pub(crate) fn totals(&self) -> ClientTraffic {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientTraffic {
            read_in_zone: of(&self.read[0]),
            read_cross_zone: of(&self.read[1]),
            written_in_zone: of(&self.written[0]),
            written_cross_zone: of(&self.written[1]),
        }
    }

    /// The counts as metrics.
    pub(crate) fn gauges(&self, target: zonal_types::TargetId) -> Vec<(String, u64)> {
        let totals = self.totals();
        let counts = [
            ("read", "in_zone", totals.read_in_zone),
            ("read", "cross_zone", totals.read_cross_zone),
            ("write", "in_zone", totals.written_in_zone),
            ("write", "cross_zone", totals.written_cross_zone),
        ];
        let named = counts.map(|(direction, path, bytes)| {
            let labels = format!("target=\"{target}\",direction=\"{direction}\",path=\"{path}\"");
            (format!("storage_client_bytes_total{{{labels}}}"), bytes)
        });
        named.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId, StripeSetId, TargetId};
    use zonal_wire::ObjectRef;

    #[test]
    fn bytes_count_by_direction_and_by_the_zone_of_the_client() {
        let object = ObjectRef {
            target: TargetId(4),
            set: StripeSetId(1),
            slot: 0,
            data_id: DataId(1),
            column: Column(0),
            layout_gen: 0,
            truncate_seq: 0,
            truncate_bytes: 0,
        };
        let read = StorageRequest::Read {
            object,
            offset: 0,
            length: 4096,
        };
        let write = StorageRequest::WriteRanges {
            object,
            ranges: vec![(0, 10)],
        };
        let counters = TrafficCounters::default();
        counters.set_zone(ZoneId(2));
        counters.count(ZoneId(2), &read, (0, 100));
        counters.count(ZoneId(1), &read, (0, 7));
        counters.count(ZoneId(2), &write, (10, 0));
        counters.count(ZoneId(3), &write, (20, 0));
        // A command has no zone; a change without bytes counts none.
        counters.count(ZoneId(0), &read, (0, 1000));
        counters.count(ZoneId(2), &StorageRequest::Stat { object }, (50, 50));
        let totals = counters.totals();
        let expected = ClientTraffic {
            read_in_zone: 100,
            read_cross_zone: 7,
            written_in_zone: 10,
            written_cross_zone: 20,
        };
        assert_eq!(totals, expected);
        let gauges = counters.gauges(TargetId(4));
        let name =
            "storage_client_bytes_total{target=\"4\",direction=\"write\",path=\"cross_zone\"}";
        assert!(gauges.contains(&(name.to_owned(), 20)), "{gauges:?}");
    }
}
