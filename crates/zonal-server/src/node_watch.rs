//! The watch of a node: heartbeats to its neighbours, and sightings to the reporter of its zone.
//! The reporter's node sends digests to the manager.
//!
//! One thread decides, twice a second. Each call has a thread of its own that lives as long as
//! the call, so no silent server holds anything up. At most one call of sightings and one of a
//! digest are under way; heartbeats are bounded by the core. Connections are the watch's own, so a
//! busy node's other connections delay none.
//!
//! Lock order: `NodeWatch::state` is taken alone, and never during a call.

use crate::clock;
use crate::manager_link::{ManagerLink, ManagerService};
use crate::map_cache::MapCache;
use crate::peers::{PeerError, Peers};
use crate::periodic_thread::PeriodicThread;
use crate::shard_service::ShardService;
use crate::spare_threads::SpareThreads;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_net::{NetError, PoolConfig};
use zonal_types::limits::{HEARTBEAT_SILENT_MS, SIGHTINGS_MS};
use zonal_types::{ErrorCode, Instant, MapVersion, NodeId, ZoneId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{AdminReply, AdminRequest, ManagerReply, ManagerRequest, Sighting, StateCause};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::watch::{Neighbours, ZoneDigest, ZoneReport, differ, ring_of};

/// Period of the thread's decisions.
const STEP: Duration = Duration::from_millis(500);
/// Deadline of a call with sightings.
const SIGHTINGS_DEADLINE_MS: u32 = 2_000;
/// How long a node that did not take sightings is not tried again.
const RETRY_MS: u64 = 5_000;
/// Nodes that are tried for one message of sightings.
const ATTEMPTS: usize = 3;

/// The nodes of this node's zone, for one version of the map.
#[derive(Default)]
struct Ring {
    version: MapVersion,
    zone: ZoneId,
    nodes: Arc<[NodeId]>,
}

struct State {
    ring: Ring,
    neighbours: Neighbours,
    report: ZoneReport,
    /// Sightings that a reporter has taken, and when.
    told: Option<(Instant, Vec<Sighting>)>,
    is_telling: bool,
    is_digesting: bool,
    is_fetching: bool,
    /// Nodes that did not take sightings.
    failed: BTreeMap<NodeId, Instant>,
}

/// The watch of a node.
pub(crate) struct NodeWatch {
    me: NodeId,
    map: Arc<MapCache>,
    peers: Peers,
    manager: ManagerLink,
    shard: Option<ShardService>,
    state: Mutex<State>,
    heartbeats: AtomicU64,
    helpers: Arc<SpareThreads>,
    /// The newest map version in a heartbeat of others.
    heard_version: AtomicU64,
}

impl NodeWatch {
    /// Connections to the same servers for a watch.
    pub(crate) fn connections(peers: &Peers) -> Peers {
        let limit = Duration::from_millis(HEARTBEAT_SILENT_MS);
        peers.with_own_pool(PoolConfig {
            deadline: limit,
            connect_limit: limit,
            backoff: Duration::ZERO,
            idle_max: 2,
            buffer_bytes: 0,
            ..PoolConfig::default()
        })
    }

    pub(crate) fn new(
        me: NodeId,
        map: Arc<MapCache>,
        peers: Peers,
        (manager, shard): (ManagerLink, Option<ShardService>),
    ) -> Arc<Self> {
        Arc::new(Self {
            me,
            map,
            peers,
            manager,
            shard,
            state: Mutex::new(State {
                ring: Ring::default(),
                neighbours: Neighbours::new(me),
                report: ZoneReport::new(me),
                told: None,
                is_telling: false,
                is_digesting: false,
                is_fetching: false,
                failed: BTreeMap::new(),
            }),
            heartbeats: AtomicU64::new(0),
            helpers: SpareThreads::named("heartbeats"),
            heard_version: AtomicU64::new(0),
        })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// Where the system refuses it.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<PeriodicThread> {
        let watch = Arc::clone(self);
        PeriodicThread::start("node-watch", move |pauses| {
            while pauses.pause(STEP) {
                watch.step();
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on another thread; false where the system refuses one.
    fn apart(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) -> bool {
        let watch = Arc::clone(self);
        self.helpers.run(Box::new(move || work(&watch)))
    }

    fn step(self: &Arc<Self>) {
        let map = self.map.current();
        let now = clock::instant();
        let mut state = self.state();
        let Some(nodes) = state.ring.follow(&map, self.me) else {
            return;
        };
        for node in state.neighbours.due(&nodes, now) {
            if !self.apart(move |watch| watch.send_heartbeat(node, now)) {
                state.neighbours.unsent(node);
            }
        }
        let sightings = state.neighbours.sightings(now);
        if state.neighbours.is_reporter(&nodes, now) {
            state.told = None;
            state.report.take(self.me, sightings, now);
            self.digest(&mut state, &nodes, now);
        } else {
            state.report.reset();
            self.tell(&mut state, &nodes, (sightings, now));
        }
        self.fetch_map(&mut state, &map);
        drop(state);
        self.tell_lost_clients();
        let here = self.manager.here.as_ref();
        if let Some(manager) = here.and_then(ManagerService::serving) {
            for node in manager.watch_zones() {
                let role = Arc::clone(&manager);
                let is_sent = self.apart(move |watch| {
                    let result = watch.heartbeat(node);
                    role.heartbeat_answered(node, result);
                });
                if !is_sent {
                    manager.heartbeat_unsent(node);
                }
            }
        }
    }

    /// A node that joined sends heartbeats to neighbours that do not have it in their maps yet.
    pub(crate) fn hear_of_map(&self, version: MapVersion) {
        self.heard_version.fetch_max(version.0, Ordering::Relaxed);
    }

    /// Fetches the map where another node of the zone has a newer one.
    fn fetch_map(self: &Arc<Self>, state: &mut State, map: &ZoneMap) {
        let heard = MapVersion(self.heard_version.load(Ordering::Relaxed));
        if heard <= map.version || state.is_fetching {
            return;
        }
        state.is_fetching = self.apart(move |watch| {
            // A false version costs one fetch.
            watch.map.refresh();
            watch.heard_version.store(0, Ordering::Relaxed);
            watch.state().is_fetching = false;
        });
    }

    /// Tells the manager of clients that this node's shard has lost.
    fn tell_lost_clients(self: &Arc<Self>) {
        let Some(shard) = self.shard.as_ref().and_then(ShardService::serving) else {
            return;
        };
        let lost = shard.take_lost_clients();
        if lost.is_empty() {
            return;
        }
        let (id, _) = shard.identity();
        self.apart(move |watch| {
            for client in lost {
                watch.manager.ask(ManagerRequest::ClientLost {
                    shard: id,
                    zone: client.zone,
                    client: client.client,
                    name: client.name,
                });
            }
        });
    }

    /// One heartbeat to a neighbour.
    fn send_heartbeat(&self, node: NodeId, sent: Instant) {
        let result = self.heartbeat(node);
        self.state().neighbours.answered(node, sent, result);
    }

    fn heartbeat(&self, node: NodeId) -> StateCause {
        self.heartbeats.fetch_add(1, Ordering::Relaxed);
        let deadline = u32::try_from(HEARTBEAT_SILENT_MS).unwrap_or(u32::MAX);
        let answer = self
            .peers
            .admin(&self.map, node, &AdminRequest::Heartbeat, deadline);
        result_of(&answer)
    }

    /// Sends the zone's digest where it is due.
    fn digest(self: &Arc<Self>, state: &mut State, nodes: &[NodeId], now: Instant) {
        if state.is_digesting {
            return;
        }
        let Some(digest) = state.report.due(nodes, now) else {
            return;
        };
        let zone = state.ring.zone;
        state.is_digesting = self.apart(move |watch| watch.send_digest(zone, digest));
    }

    fn send_digest(&self, zone: ZoneId, digest: ZoneDigest) {
        let answer = self.manager.ask(ManagerRequest::Digest {
            zone,
            reporter: self.me,
            suspicions: digest.suspicions,
            unknown: digest.unknown,
        });
        let next = match answer {
            Some(ManagerReply::DigestTaken { next_ms }) => Some(next_ms),
            _ => None,
        };
        let mut state = self.state();
        state.report.taken(next);
        state.is_digesting = false;
    }

    /// Tells the reporter where something has changed, or is due.
    fn tell(
        self: &Arc<Self>,
        state: &mut State,
        nodes: &Arc<[NodeId]>,
        (sightings, now): (Vec<Sighting>, Instant),
    ) {
        let is_due = match &state.told {
            None => true,
            Some((at, told)) => now.ms_since(*at) >= SIGHTINGS_MS || differ(told, &sightings),
        };
        if state.is_telling || !is_due {
            return;
        }
        state
            .failed
            .retain(|_, failed| now.ms_since(*failed) < RETRY_MS);
        let mut candidates = nodes.iter().copied().filter(|node| {
            let is_silent = state.neighbours.is_silent(*node, now);
            *node != self.me && !is_silent && !state.failed.contains_key(node)
        });
        let candidates: Vec<NodeId> = candidates.by_ref().take(ATTEMPTS).collect();
        let zone = state.ring.zone;
        state.is_telling = self.apart(move |watch| {
            watch.send_sightings(&candidates, (zone, now), sightings);
        });
    }

    fn send_sightings(
        &self,
        candidates: &[NodeId],
        (zone, now): (ZoneId, Instant),
        sightings: Vec<Sighting>,
    ) {
        let request = AdminRequest::Sightings {
            zone,
            sightings: sightings.clone(),
        };
        let mut failed = Vec::new();
        let mut is_told = false;
        for node in candidates {
            let deadline = SIGHTINGS_DEADLINE_MS;
            match self.peers.admin(&self.map, *node, &request, deadline) {
                Ok(AdminReply::Done) => {
                    is_told = true;
                    break;
                }
                // It is not the reporter, for now.
                Ok(_) => {}
                Err(_) => failed.push(*node),
            }
        }
        let mut state = self.state();
        let at = clock::instant();
        state
            .failed
            .extend(failed.into_iter().map(|node| (node, at)));
        if is_told {
            state.told = Some((now, sightings));
        }
        state.is_telling = false;
    }

    /// Takes the sightings of another node of the zone, where this node is the reporter.
    pub(crate) fn take_sightings(
        &self,
        (by, zone): (NodeId, ZoneId),
        sightings: &[Sighting],
    ) -> AdminReply {
        let now = clock::instant();
        let map = self.map.current();
        let mut state = self.state();
        let nodes = state.ring.follow(&map, self.me);
        let is_member = |nodes: &Arc<[NodeId]>| nodes.binary_search(&by).is_ok();
        let nodes = nodes.filter(|nodes| zone == state.ring.zone && is_member(nodes));
        if nodes.is_some_and(|nodes| state.neighbours.is_reporter(&nodes, now)) {
            state.report.take(by, sightings.to_vec(), now);
            return AdminReply::Done;
        }
        AdminReply::Failed {
            code: ErrorNumber(ErrorCode::NotReady),
            detail: "another node reports for the zone".into(),
        }
    }

    /// Gauges of the watch.
    pub(crate) fn gauges(&self) -> Vec<(String, u64)> {
        let (watched, silent) = self.state().neighbours.counts(clock::instant());
        let mut gauges = vec![
            ("watched_nodes".to_owned(), watched as u64),
            ("watched_nodes_silent".to_owned(), silent as u64),
            (
                "heartbeats_total".to_owned(),
                self.heartbeats.load(Ordering::Relaxed),
            ),
        ];
        let here = self.manager.here.as_ref();
        if let Some(manager) = here.and_then(ManagerService::serving) {
            gauges.append(&mut manager.state_gauges());
        }
        gauges
    }
}

impl Ring {
    /// The nodes of the zone of `me` by this map; `None` where the map does not have it.
    fn follow(&mut self, map: &ZoneMap, me: NodeId) -> Option<Arc<[NodeId]>> {
        if map.version != self.version || self.nodes.is_empty() {
            self.zone = map.node(me)?.zone;
            self.nodes = ring_of(map, self.zone).into();
            self.version = map.version;
        }
        Some(Arc::clone(&self.nodes))
    }
}

/// The result of a heartbeat: any answer shows that the process works.
fn result_of(answer: &Result<AdminReply, PeerError>) -> StateCause {
    match answer {
        Ok(AdminReply::Heartbeat { serves: false }) => StateCause::RoleStopped,
        Ok(_) | Err(PeerError::Garbled { .. }) => StateCause::Serves,
        Err(PeerError::Net(error)) => result_of_failure(error),
        // The map has no address of it.
        Err(PeerError::Unknown { .. } | PeerError::NoLeader { .. }) => StateCause::Unreachable,
    }
}

fn result_of_failure(error: &NetError) -> StateCause {
    match error {
        NetError::TimedOut { operation, .. } if *operation == zonal_net::CONNECTING => {
            StateCause::Unreachable
        }
        NetError::TimedOut { .. } => StateCause::Hung,
        NetError::Unreachable { source, .. }
            if source.kind() == io::ErrorKind::ConnectionRefused =>
        {
            StateCause::NoProcess
        }
        NetError::Lost { .. } | NetError::WrongNode { .. } | NetError::WrongCell { .. } => {
            StateCause::NoProcess
        }
        NetError::Refused { .. }
        | NetError::Protocol { .. }
        | NetError::Unauthenticated { .. }
        | NetError::WrongVersion { .. } => StateCause::Serves,
        _ => StateCause::Unreachable,
    }
}
