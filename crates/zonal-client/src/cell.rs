//! The cell as a client reaches it: the zone map, sessions at shards, requests to shards and
//! targets.
//!
//! This layer knows neither files nor caches. Sessions ask the client about them through
//! [`SessionOwner`].

pub(crate) mod call;
pub(crate) mod known_capacities;
pub(crate) mod map;
pub(crate) mod options;
pub(crate) mod order_clock;
pub(crate) mod outages;
pub(crate) mod owner;
pub(crate) mod placement;
pub(crate) mod session;
pub(crate) mod storage;
pub(crate) mod traffic_reports;
pub(crate) mod unsynced_changes;
pub(crate) mod zone_traffic;

pub use call::Call;
pub use options::ClientOptions;
pub use owner::SessionOwner;
pub use session::Link;

use crate::transport::in_flight::WritesInFlight;
use crate::transport::net::Net;
use crate::transport::silent_servers::SilentServers;
use map::CachedMap;
use outages::ReportedOutages;
use session::Links;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use zonal_types::{Incarnation, TraceId};
use zonal_wire::DirectoryTraffic;
use zone_traffic::ZoneTraffic;

/// A cell with a client's way to its servers.
pub struct Cell<N: Net> {
    pub(crate) net: N,
    pub(crate) options: ClientOptions,
    pub(crate) map: CachedMap,
    pub(crate) outages: ReportedOutages,
    pub(crate) links: Links,
    /// Writes in flight by target.
    pub(crate) writes_in_flight: WritesInFlight,
    pub(crate) silent_servers: SilentServers,
    pub(crate) known_capacities: known_capacities::KnownCapacities,
    /// Number of this client's incarnation.
    pub(crate) incarnation: AtomicU32,
    pub(crate) order_clock: order_clock::OrderClock,
    pub(crate) traffic: ZoneTraffic,
    traces: AtomicU64,
    caches: AtomicBool,
}

impl<N: Net> Cell<N> {
    /// A cell of which nothing is known yet.
    pub(crate) fn new(net: N, options: ClientOptions) -> Self {
        let first_trace = net.random();
        Self {
            net,
            map: CachedMap::new(options.cell),
            outages: ReportedOutages::default(),
            caches: AtomicBool::new(options.cache),
            order_clock: order_clock::OrderClock::default(),
            traffic: ZoneTraffic::new(options.zone),
            options,
            links: Mutex::new(BTreeMap::new()),
            writes_in_flight: WritesInFlight::default(),
            silent_servers: SilentServers::default(),
            known_capacities: known_capacities::KnownCapacities::default(),
            incarnation: AtomicU32::new(Incarnation::FIRST.0),
            traces: AtomicU64::new(first_trace),
        }
    }

    /// The options of this client.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Forbids caching: this kernel cannot drop cached entries on request.
    pub fn stop_caching(&self) {
        self.caches.store(false, Ordering::Relaxed);
    }

    /// Whether the kernel may cache.
    pub fn caches(&self) -> bool {
        self.caches.load(Ordering::Relaxed)
    }

    /// Bytes read from targets and written to them, in this client's zone and across: names of
    /// gauges and counts since the start.
    #[must_use]
    pub fn traffic_totals(&self) -> [(&'static str, u64); 4] {
        self.traffic.totals()
    }

    /// The same bytes by first-level directory, as far as shards have named it: 0 stands for other
    /// directories, the root for files in it.
    #[must_use]
    pub fn directory_traffic(&self) -> Vec<DirectoryTraffic> {
        self.traffic.reports.list()
    }

    /// True where bytes wait to be reported by the next round of housekeeping.
    #[must_use]
    pub fn has_traffic_to_report(&self) -> bool {
        self.traffic.reports.is_due()
    }

    /// The transport.
    #[must_use]
    pub fn net(&self) -> &N {
        &self.net
    }

    /// The trace of the next operation.
    pub(crate) fn next_trace(&self) -> TraceId {
        TraceId(self.traces.fetch_add(1, Ordering::Relaxed))
    }
}
