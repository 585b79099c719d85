//! The placement service of the manager's node: zones, homes and costs, nodes for jobs, jobs, and
//! changes of all these. The computation is in zonal-placement; this is beside the path of data,
//! never in it.
//!
//! HTTP ([`crate::placement_pages`]) and gRPC are two forms of the same functions. The load of
//! nodes is reservations, running jobs, and the CPU use that the nodes report.
//!
//! Everything is in memory: a restart forgets reservations and jobs. Numbers and versions begin at
//! the calendar time, so that none comes again after a restart.
//!
//! One mutex guards the state; it is held for computation only.

mod homes;
mod messages;
mod reports;

use crate::clock;
use crate::config::UplinkRates;
use crate::manager_link::ManagerService;
use crate::map_cache::MapCache;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use zonal_placement::{
    ChangeLog, JobError, JobPlacement, JobPlacer, JobRequest, JobTable, NodeLoad, PlacementChange,
    Reservation, ReservationTable, ZoneCost, costs,
};
use zonal_types::{MapVersion, NodeId, ZoneId};
use zonal_zonemap::{NodeState, ZoneMap};

pub use messages::{
    ChangesAnswer, CostEntry, CostRow, HomedPath, JobAnswer, JobEntry, JobStart, JobZone,
    JobsAnswer, LocateAnswer, LocateRequest, PlaceAnswer, PlaceRequest, PlacementNode,
    ReservationAnswer, WatchedChange, ZonesAnswer,
};

/// Entries of a cost matrix: rows times zones.
pub const MATRIX_ENTRIES_MAX: usize = 65_536;

/// Time of a reservation where the request names none.
pub const RESERVE_MS: u64 = 30_000;

/// Longest wait of one request for changes.
pub const WATCH_MS_MAX: u64 = 30_000;

/// Kind of a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalKind {
    /// A parameter is wrong.
    Invalid,
    /// The caller may not ask for this.
    Forbidden,
    /// There is nothing of this name or number.
    Missing,
    /// The page does not have this method.
    WrongMethod,
    /// It cannot be done as things are.
    Conflict,
    /// A bound is reached, or the manager does not answer.
    Unavailable,
}

/// A refusal with its reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ServiceRefusal {
    /// Its kind.
    pub kind: RefusalKind,
    /// The reason.
    pub text: String,
}

impl ServiceRefusal {
    /// Makes a refusal.
    #[must_use]
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }
}

/// Woken at each change.
type Waker = Box<dyn Fn() + Send + Sync>;

/// The placement service.
pub struct PlacementService {
    map: Arc<MapCache>,
    manager: ManagerService,
    uplinks: UplinkRates,
    /// Whether every caller has sent a token, so that names may be told.
    tells_names: bool,
    state: Mutex<PlacementState>,
    waker: OnceLock<Waker>,
}

struct PlacementState {
    map_version: MapVersion,
    junctions_version: Option<u64>,
    nodes: BTreeSet<(ZoneId, NodeId)>,
    placer: JobPlacer,
    jobs: JobTable,
    log: ChangeLog,
}

impl PlacementState {
    /// Takes the nodes of a new map, and logs the differences.
    fn take_map(&mut self, map: &ZoneMap, uplinks: &UplinkRates) {
        let nodes: BTreeSet<(ZoneId, NodeId)> = job_nodes(map).into_iter().collect();
        let before = std::mem::replace(&mut self.nodes, nodes);
        self.placer.set_nodes(self.nodes.iter().copied());
        for (zone, weight) in uplinks.weights(map) {
            self.placer.set_uplink(zone, weight);
        }
        let is_first = self.map_version == MapVersion(0);
        self.map_version = map.version;
        if is_first {
            return;
        }
        let zones = |of: &BTreeSet<(ZoneId, NodeId)>| -> BTreeSet<ZoneId> {
            of.iter().map(|(zone, _)| *zone).collect()
        };
        let (zones_before, zones_now) = (zones(&before), zones(&self.nodes));
        for (zone, node) in before.difference(&self.nodes) {
            self.log.add(PlacementChange::NodeRemoved(*zone, *node));
        }
        for zone in zones_before.difference(&zones_now) {
            self.log.add(PlacementChange::ZoneRemoved(*zone));
        }
        for zone in zones_now.difference(&zones_before) {
            self.log.add(PlacementChange::ZoneAdded(*zone));
        }
        for (zone, node) in self.nodes.difference(&before) {
            self.log.add(PlacementChange::NodeAdded(*zone, *node));
        }
    }

    /// Ends reservations and jobs whose time is over.
    fn end_expired(&mut self) {
        let now = now_ms();
        for ended in self.placer.release_ended(now) {
            self.log
                .add(PlacementChange::Released(ended.zone, ended.id));
        }
        while let Some((job, nodes)) = self.jobs.pop_silent(now, calendar_ms()) {
            tracing::warn!(
                job,
                "the starter of a job is silent: the job counts as lost"
            );
            self.placer.count_job(&nodes, -1);
            self.log.add(PlacementChange::JobEnded(job));
        }
    }

    fn release(&mut self, id: u64) -> Option<Reservation> {
        let released = self.placer.release(id)?;
        self.log
            .add(PlacementChange::Released(released.zone, released.id));
        Some(released)
    }
}

impl PlacementService {
    /// Makes the service of a manager. With `tells_names` every caller may ask for names.
    #[must_use]
    pub fn new(
        map: Arc<MapCache>,
        manager: ManagerService,
        uplinks: UplinkRates,
        tells_names: bool,
    ) -> Self {
        // Exact in JSON (53 bits), and a thousand numbers a second are free for each start.
        let first = calendar_ms() / 1_000 * 1_024;
        let state = PlacementState {
            map_version: MapVersion(0),
            junctions_version: None,
            nodes: BTreeSet::new(),
            placer: JobPlacer::default().with_reservations(ReservationTable::new(first)),
            jobs: JobTable::new(first),
            log: ChangeLog::new(first),
        };
        Self {
            map,
            manager,
            uplinks,
            tells_names,
            state: Mutex::new(state),
            waker: OnceLock::new(),
        }
    }

    /// Sets the function that is called at each change.
    pub fn set_waker(&self, waker: Waker) {
        // There is one call, at the start.
        let _ = self.waker.set(waker);
    }

    /// Whether this node's manager leads; another one has the loads, reservations and jobs.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn check_leads(&self) -> Result<(), ServiceRefusal> {
        match self.manager.serving() {
            Some(_) => Ok(()),
            None => Err(ServiceRefusal::new(
                RefusalKind::Unavailable,
                "another manager leads: ask at its admin pages",
            )),
        }
    }

    /// Takes the loads that nodes report to the manager.
    pub fn take_loads(self: &Arc<Self>) {
        let service = Arc::downgrade(self);
        self.manager
            .set_load_sink(Box::new(move |node, cpu_per_mille| {
                if let Some(service) = service.upgrade() {
                    let load = NodeLoad {
                        cpu_per_mille,
                        ..NodeLoad::default()
                    };
                    service.with_state(|_, state| state.placer.set_load(node, load));
                }
            }));
    }

    /// Acts on the state as the newest map and the time have it.
    fn with_state<T>(&self, act: impl FnOnce(&ZoneMap, &mut PlacementState) -> T) -> T {
        let map = self.map.current();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = state.log.version();
        if state.map_version != map.version {
            state.take_map(&map, &self.uplinks);
        }
        state.end_expired();
        let done = act(&map, &mut state);
        let has_changed = state.log.version() != before;
        drop(state);
        if has_changed && let Some(waker) = self.waker.get() {
            waker();
        }
        done
    }

    /// Zones with their nodes for jobs, jobs and reservations.
    #[must_use]
    pub fn zones(&self) -> ZonesAnswer {
        self.with_state(|map, state| {
            let weights: BTreeMap<ZoneId, u32> = state.placer.weights().iter().copied().collect();
            let zones = state.placer.zones().map(|load| {
                let zone = map.zones.iter().find(|zone| zone.id == load.zone);
                JobZone {
                    zone: load.zone.0,
                    name: zone.map_or_else(String::new, |zone| zone.name.clone()),
                    nodes: load.nodes,
                    jobs: load.jobs,
                    cpu_per_mille: load.cpu_per_mille,
                    uplink_weight: weights.get(&load.zone).copied().unwrap_or_default(),
                }
            });
            ZonesAnswer {
                map_version: map.version.0,
                version: state.log.version(),
                zones: zones.collect(),
            }
        })
    }

    /// Chooses nodes for a job, and reserves them.
    ///
    /// # Errors
    /// Where no zone has so many nodes, or a path cannot be found.
    pub fn place(&self, query: &PlaceRequest) -> Result<PlaceAnswer, ServiceRefusal> {
        let mut request = JobRequest {
            bytes: query.bytes.clone(),
            nodes: query.nodes,
            policy: query.policy,
            reserve_ms: query.reserve_ms,
        };
        if !query.paths.is_empty() {
            let homes = self.homes(&query.paths)?;
            if request.bytes.values().all(|bytes| *bytes == 0) {
                request.bytes = paths_by_home(&homes);
            }
        }
        self.with_state(|map, state| {
            check_zones(map, query.bytes.keys())?;
            let now = now_ms();
            let placed = state.placer.place(&request, now);
            let placed = placed.map_err(|error| {
                let kind = match error {
                    JobError::NoNodes => RefusalKind::Invalid,
                    _ => RefusalKind::Conflict,
                };
                ServiceRefusal::new(kind, error.to_string())
            })?;
            if let Some(id) = placed.reservation {
                state.log.add(PlacementChange::Reserved(placed.zone, id));
            }
            Ok(PlaceAnswer::of(map, placed, now))
        })
    }

    /// Ends a reservation early.
    ///
    /// # Errors
    /// Where there is none of this number.
    pub fn release(&self, id: u64) -> Result<ReservationAnswer, ServiceRefusal> {
        match self.with_state(|_, state| state.release(id)) {
            Some(_) => Ok(ReservationAnswer { released: id }),
            None => {
                let text = format!("there is no reservation {id}: it has ended");
                Err(ServiceRefusal::new(RefusalKind::Missing, text))
            }
        }
    }

    /// Homes of paths, and costs of running in each zone.
    ///
    /// # Errors
    /// Where a path cannot be found, or the matrix would be too large.
    pub fn locate(&self, query: &LocateRequest) -> Result<LocateAnswer, ServiceRefusal> {
        let paths = match query.paths.is_empty() {
            true => Vec::new(),
            false => self.homes(&query.paths)?,
        };
        let has_bytes = query.bytes.values().any(|bytes| *bytes > 0);
        let (unit, bytes) = match has_bytes {
            true => ("bytes", query.bytes.clone()),
            false => ("paths", paths_by_home(&paths)),
        };
        self.with_state(|map, state| {
            check_zones(map, query.bytes.keys())?;
            let weights = state.placer.weights();
            let size = bytes.len().saturating_mul(weights.len());
            if size > MATRIX_ENTRIES_MAX {
                let text = format!(
                    "a matrix of {} rows and {} zones has more than {MATRIX_ENTRIES_MAX} entries",
                    bytes.len(),
                    weights.len()
                );
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
            let rows = bytes.iter().map(|(zone, held)| CostRow {
                zone: zone.0,
                bytes: *held,
                costs: entries(&costs(&BTreeMap::from([(*zone, *held)]), weights)),
            });
            Ok(LocateAnswer {
                unit: unit.to_owned(),
                matrix: rows.collect(),
                costs: entries(&costs(&bytes, weights)),
                map_version: map.version.0,
                paths,
            })
        })
    }
}

impl PlaceAnswer {
    /// The answer for a placement that was chosen at `now_ms`.
    #[must_use]
    pub fn of(map: &ZoneMap, placed: JobPlacement, now_ms: u64) -> Self {
        let nodes = placed.nodes.iter().map(|id| {
            let address = map.node(*id).map_or("", |node| node.address.as_str());
            PlacementNode {
                id: id.0,
                address: address.to_owned(),
            }
        });
        Self {
            zone: placed.zone.0,
            nodes: nodes.collect(),
            cost: placed.cost,
            elsewhere: entries(&placed.elsewhere),
            explanation: placed.explanation,
            reservation: placed.reservation,
            reserved_ms: placed.end_ms.saturating_sub(now_ms),
            map_version: map.version.0,
        }
    }
}

/// Refuses zones that the cell does not have.
fn check_zones<'a>(
    map: &ZoneMap,
    mut zones: impl Iterator<Item = &'a ZoneId>,
) -> Result<(), ServiceRefusal> {
    let is_known = |zone: &ZoneId| map.zones.iter().any(|known| known.id == *zone);
    match zones.find(|zone| !is_known(zone)) {
        Some(zone) => {
            let text = format!("there is no zone {zone}");
            Err(ServiceRefusal::new(RefusalKind::Invalid, text))
        }
        None => Ok(()),
    }
}

fn entries(costs: &[ZoneCost]) -> Vec<CostEntry> {
    let entries = costs.iter().map(|cost| CostEntry {
        zone: cost.zone.0,
        cost: cost.bytes,
    });
    entries.collect()
}

fn paths_by_home(paths: &[HomedPath]) -> BTreeMap<ZoneId, u64> {
    let mut sums = BTreeMap::new();
    for path in paths {
        *sums.entry(ZoneId(path.home)).or_default() += 1;
    }
    sums
}

/// The clock of deadlines, in milliseconds.
fn now_ms() -> u64 {
    clock::instant().0 / 1_000_000
}

/// Calendar time, in milliseconds since 1970.
fn calendar_ms() -> u64 {
    clock::boot_number() / 1_000_000
}

/// Nodes with a serving target.
#[must_use]
pub fn job_nodes(map: &ZoneMap) -> Vec<(ZoneId, NodeId)> {
    let targets = map.targets.iter();
    let serving: BTreeSet<NodeId> = targets
        .filter(|target| target.state.takes_files())
        .map(|target| target.node)
        .collect();
    let nodes = map.nodes.iter();
    nodes
        .filter(|node| node.state == NodeState::Up && serving.contains(&node.id))
        .map(|node| (node.zone, node.id))
        .collect()
}

#[cfg(test)]
impl PlacementService {
    pub(crate) fn manager_for_tests(&self) -> Arc<crate::manager_role::ManagerRole> {
        self.manager.serving().unwrap()
    }
}
