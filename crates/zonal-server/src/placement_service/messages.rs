//! Requests to the placement service, and its answers. Their form as JSON is that of the pages
//! below `/v1/`; gRPC carries the same fields.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zonal_placement::JobPolicy;
use zonal_types::{NodeId, ZoneId};

/// A request for nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlaceRequest {
    /// How many nodes the job runs on; 0 is refused.
    pub nodes: usize,
    /// How its zone is chosen.
    pub policy: JobPolicy,
    /// Bytes that the job uses, by zone.
    pub bytes: BTreeMap<ZoneId, u64>,
    /// Paths in the cell, which count by their homes where no bytes are given.
    pub paths: Vec<String>,
    /// Time of the reservation; 0: none.
    pub reserve_ms: u64,
}

/// A request for homes and costs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocateRequest {
    /// Paths in the cell; their first name may be a pattern.
    pub paths: Vec<String>,
    /// Bytes that a job uses, by zone.
    pub bytes: BTreeMap<ZoneId, u64>,
}

/// A job that begins, as its starter reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobStart {
    /// Its name.
    pub name: String,
    /// Name of its user.
    pub user: String,
    /// The zone of its nodes.
    pub zone: ZoneId,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// The reservation that it uses: it ends, and gives zone and nodes where none are named.
    pub reservation: Option<u64>,
    /// The start in milliseconds since 1970; 0: now.
    pub started_ms: u64,
}

/// All zones with nodes for jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZonesAnswer {
    /// Version of the zone map.
    pub map_version: u64,
    /// Version for `watch`.
    pub version: u64,
    /// The zones.
    pub zones: Vec<JobZone>,
}

/// A zone with nodes for jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobZone {
    /// Its number.
    pub zone: u16,
    /// Its name.
    pub name: String,
    /// Nodes for jobs.
    pub nodes: usize,
    /// Jobs on them, with reservations.
    pub jobs: u64,
    /// Mean of the CPU that they use, in thousandths.
    pub cpu_per_mille: u64,
    /// Weight of its uplink, in thousandths.
    pub uplink_weight: u32,
}

/// The nodes for a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceAnswer {
    /// The zone.
    pub zone: u16,
    /// The nodes, least loaded first.
    pub nodes: Vec<PlacementNode>,
    /// Cost of running there.
    pub cost: u64,
    /// Costs of the other zones.
    pub elsewhere: Vec<CostEntry>,
    /// The reason in words.
    pub explanation: String,
    /// The reservation, if one was asked for.
    pub reservation: Option<u64>,
    /// Time until it ends.
    pub reserved_ms: u64,
    /// Version of the zone map.
    pub map_version: u64,
}

/// A node of a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementNode {
    /// Its number.
    pub id: u32,
    /// Its address.
    pub address: String,
}

/// Cost of running in a zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostEntry {
    /// The zone.
    pub zone: u16,
    /// Weighted bytes over uplinks.
    pub cost: u64,
}

/// Homes of paths, and costs of running in each zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocateAnswer {
    /// Paths with their homes. A pattern gives one entry for each first-level directory.
    pub paths: Vec<HomedPath>,
    /// `bytes`, or `paths` where no bytes were given: the unit of the costs.
    pub unit: String,
    /// A row for each zone with bytes.
    pub matrix: Vec<CostRow>,
    /// The sum of the rows.
    pub costs: Vec<CostEntry>,
    /// Version of the zone map.
    pub map_version: u64,
}

/// A path with its home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomedPath {
    /// The path.
    pub path: String,
    /// Home zone of everything below it.
    pub home: u16,
}

/// Costs of the bytes of one zone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostRow {
    /// The zone that holds the bytes.
    pub zone: u16,
    /// How many it holds.
    pub bytes: u64,
    /// Costs of running in each zone.
    pub costs: Vec<CostEntry>,
}

/// An ended reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationAnswer {
    /// Its number.
    pub released: u64,
}

/// Changes behind a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesAnswer {
    /// The newest version, for the next request.
    pub version: u64,
    /// Whether these are all changes; if not, read everything anew.
    pub is_complete: bool,
    /// The changes, the oldest first.
    pub changes: Vec<WatchedChange>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedChange {
    /// Its version.
    pub version: u64,
    /// `zone`, `node`, `junctions`, `reservation` or `job`.
    pub kind: String,
    /// `added`, `removed` or `changed`.
    pub change: String,
    /// The zone; 0 where the change is of none.
    pub zone: u16,
    /// Number of the node, reservation or job; 0: none.
    pub id: u64,
}

/// A job that was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAnswer {
    /// Its number.
    pub job: u64,
    /// Silence after which it counts as lost.
    pub silence_ms: u64,
}

/// Recorded jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobsAnswer {
    /// How many jobs run.
    pub running: usize,
    /// Jobs, the oldest first.
    pub jobs: Vec<JobEntry>,
}

/// One recorded job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// Its number.
    pub job: u64,
    /// Its name.
    pub name: String,
    /// Name of its user, as its starter reports it.
    pub user: String,
    /// The zone.
    pub zone: u16,
    /// How many nodes it has or had.
    pub nodes: usize,
    /// `running`, `done`, `failed` or `lost`.
    pub state: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// Milliseconds since 1970; 0 while it runs.
    pub ended_ms: u64,
    /// Bytes read and written in its zone.
    pub in_zone_bytes: u64,
    /// Bytes read from and written to other zones.
    pub cross_zone_bytes: u64,
    /// The part of its traffic in its zone, in thousandths; absent without traffic.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub in_zone_per_mille: Option<u64>,
}
