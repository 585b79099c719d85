//! Bytes that clients read from a target and write to it, by the client's zone.
//!
//! The zone of a client is the claim of its hello. It serves statistics alone. Peers without a zone
//! (commands) are not counted. Zones beyond [`ZONES_COUNTED_MAX`] count together, as zone 0.
//!
//! *Units*: bytes of payloads of requests that succeeded, since the server's start.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};
use zonal_types::limits::ZONES_COUNTED_MAX;
use zonal_types::{TargetId, ZoneId};
use zonal_wire::{ClientTraffic, ClientZoneTraffic, StorageRequest};

/// Bytes of clients of one zone: read, written.
type ZoneCounters = [AtomicU64; 2];

/// Counters of one target.
#[derive(Debug, Default)]
pub(crate) struct TrafficCounters {
    /// The target's zone, once its node has joined the cell.
    zone: OnceLock<ZoneId>,
    by_zone: RwLock<BTreeMap<ZoneId, ZoneCounters>>,
}

impl TrafficCounters {
    /// Sets the target's zone, before requests are served.
    pub(crate) fn set_zone(&self, zone: ZoneId) {
        let _ = self.zone.set(zone);
        // It always has counters of its own.
        self.add(zone, 0, 0);
    }

    /// Counts a request that succeeded. `sent`: bytes of its payload; `replied`: of the reply's.
    pub(crate) fn count(
        &self,
        client: ZoneId,
        request: &StorageRequest,
        (sent, replied): (usize, usize),
    ) {
        let (kind, bytes) = match request {
            StorageRequest::Read { .. } => (0, replied),
            StorageRequest::Write { .. } | StorageRequest::WriteRanges { .. } => (1, sent),
            _ => return,
        };
        if client != ZoneId::default() && self.zone.get().is_some() {
            self.add(client, kind, bytes as u64);
        }
    }

    fn counters(&self) -> RwLockReadGuard<'_, BTreeMap<ZoneId, ZoneCounters>> {
        self.by_zone.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, zone: ZoneId, kind: usize, bytes: u64) {
        if let Some(known) = self.counters().get(&zone) {
            known[kind].fetch_add(bytes, Ordering::Relaxed);
            return;
        }
        let by_zone = self.by_zone.write();
        let mut by_zone = by_zone.unwrap_or_else(PoisonError::into_inner);
        let is_full = by_zone.len() >= ZONES_COUNTED_MAX && !by_zone.contains_key(&zone);
        let zone = if is_full { ZoneId(0) } else { zone };
        by_zone.entry(zone).or_default()[kind].fetch_add(bytes, Ordering::Relaxed);
    }

    /// The counts up to now, by zone.
    pub(crate) fn by_zone(&self, target: TargetId) -> Vec<ClientZoneTraffic> {
        let counters = self.counters();
        let zones = counters.iter().map(|(zone, counts)| ClientZoneTraffic {
            target,
            zone: *zone,
            read: counts[0].load(Ordering::Relaxed),
            written: counts[1].load(Ordering::Relaxed),
        });
        zones.collect()
    }

    /// The counts up to now, of the target's own zone and of all others.
    pub(crate) fn totals(&self) -> ClientTraffic {
        let mut totals = ClientTraffic::default();
        for counts in self.by_zone(TargetId(0)) {
            let (read, written) = match self.zone.get() == Some(&counts.zone) {
                true => (&mut totals.read_in_zone, &mut totals.written_in_zone),
                false => (&mut totals.read_cross_zone, &mut totals.written_cross_zone),
            };
            *read += counts.read;
            *written += counts.written;
        }
        totals
    }

    /// The counts as metrics.
    pub(crate) fn gauges(&self, target: TargetId) -> Vec<(String, u64)> {
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
        let mut gauges = named.to_vec();
        for counts in self.by_zone(target) {
            let zone = counts.zone;
            for (direction, bytes) in [("read", counts.read), ("write", counts.written)] {
                let labels =
                    format!("target=\"{target}\",direction=\"{direction}\",zone=\"{zone}\"");
                gauges.push((format!("storage_zone_bytes_total{{{labels}}}"), bytes));
            }
        }
        gauges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId, StripeSetId};
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
        let name = "storage_zone_bytes_total{target=\"4\",direction=\"write\",zone=\"3\"}";
        assert!(gauges.contains(&(name.to_owned(), 20)), "{gauges:?}");
    }

    #[test]
    fn zones_beyond_the_bound_count_together() {
        let counters = TrafficCounters::default();
        counters.set_zone(ZoneId(9));
        for zone in 1..200 {
            counters.add(ZoneId(zone), 1, 5);
        }
        let counts = counters.by_zone(TargetId(4));
        assert_eq!(counts.len(), ZONES_COUNTED_MAX + 1);
        assert_eq!(counts[0].zone, ZoneId(0));
        let written: u64 = counts.iter().map(|counts| counts.written).sum();
        assert_eq!(written, 199 * 5);
        assert_eq!(counters.totals().written_in_zone, 5);
    }
}
