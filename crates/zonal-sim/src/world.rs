//! The simulated cell: its processes and their disks, which outlive the processes.

mod clients;
mod replicas;
mod servers;

pub use clients::{DEADLINE_MS, RunningProgram};

use crate::checker::group_history::GroupHistory;
use crate::checker::map_history::MapHistory;
use crate::checker::reply_deadlines::ReplyDeadlines;
use crate::checker::slot_epochs::ExecutedRequests;
use crate::clock::{Group, VirtualClock};
use crate::clock_skew::ProcessClock;
use crate::coverage::FaultKind;
use crate::meta_node::MapCell;
use crate::net::Network;
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use crate::storage_node;
use servers::{Kind, Server, join, replica_server};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use zonal_object::TargetConfig;
use zonal_types::limits::COPIES_MAX;
use zonal_types::{CellId, ErrorCode, NodeId, ShardId, TargetId, ZoneId};
use zonal_zonemap::{MapEdit, ZoneMap};

/// Distance between the ids of two shards of one zone.
const SHARDS_APART: u32 = 1_000;

/// Size of the cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellSize {
    /// Zones.
    pub zones: u16,
    /// Shards of each zone.
    pub shards: u16,
    /// Storage processes of each zone.
    pub targets: u32,
    /// Clients.
    pub clients: u64,
    /// Size of each target.
    pub target: TargetConfig,
    /// Replicas of each zone's shard; 1: it has a log of its own.
    pub replicas: u32,
    /// Copies of the files' columns.
    pub copies: u16,
    /// Files have one more copy in another zone.
    pub also_zone: bool,
    /// Targets are drained.
    pub drains: bool,
}

impl CellSize {
    /// A cell with large targets.
    #[must_use]
    pub fn new(zones: u16, targets: u32, clients: u64) -> Self {
        Self {
            zones,
            shards: 1,
            targets,
            clients,
            target: storage_node::LARGE,
            replicas: 1,
            copies: 1,
            also_zone: false,
            drains: false,
        }
    }

    /// The most copies that a run gives a file later, in its own zone.
    #[must_use]
    pub fn copies_max(&self) -> u16 {
        (self.copies + 2).min(COPIES_MAX)
    }

    /// True where files have copies from the start.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.copies > 1 || self.also_zone
    }
}

/// Writes the first map to the root's disk.
fn store_map(root: Option<&Server>, map: &ZoneMap) {
    if let Some(root) = root {
        root.disk.append_changes(map.to_store());
        root.disk.sync();
    }
}

/// Storage servers that are gone, or about to.
#[derive(Default)]
struct Losses {
    /// Indices of servers that never start again.
    servers: RefCell<BTreeSet<usize>>,
    /// Faults of storage servers under way.
    faults: Cell<i64>,
    /// All storage servers of a zone are away.
    zone_is_away: Cell<bool>,
}

/// A cell.
pub struct World {
    /// Time and tasks.
    pub clock: VirtualClock,
    /// The network between the processes.
    pub network: Rc<Network>,
    /// The zone map.
    pub map: MapCell,
    /// Checks the slots by which targets execute requests.
    pub executed_requests: Rc<ExecutedRequests>,
    /// Checks how soon shards reply.
    pub reply_deadlines: Rc<ReplyDeadlines>,
    /// Checks the log of the replicated shard.
    pub history: Rc<GroupHistory>,
    /// Checks the map of the group.
    pub map_history: Rc<MapHistory>,
    servers: Vec<Server>,
    losses: Losses,
    size: CellSize,
    plant: Plant,
    rng: RefCell<SimRng>,
    next_group: Cell<Group>,
    /// Faults are still injected.
    is_safety_phase: Cell<bool>,
    operations: Cell<u64>,
    running: Cell<u64>,
    broken: RefCell<Vec<String>>,
}

impl World {
    /// Returns what the checks of servers found since the last call.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.executed_requests.take();
        all.extend(self.reply_deadlines.take());
        all.extend(self.history.take());
        all.extend(self.map_history.take());
        all
    }

    /// Makes a cell with all its servers running.
    ///
    /// # Errors
    /// A map or a store is invalid.
    pub fn build(
        size: CellSize,
        plant: Plant,
        has_drift: bool,
        mut rng: SimRng,
    ) -> Result<Rc<Self>, ErrorCode> {
        let clock = VirtualClock::new();
        let network = Rc::new(Network::new(clock.clone(), rng.fork(1)));
        network.lent_is_reused.set(plant == Plant::LentIsReused);
        let mut edits = vec![join(1, ZoneId(1), Some(ShardId(0)), None)];
        let mut servers = vec![Server::new(1, Kind::Meta(ShardId(0), ZoneId(1)))];
        let mut node = 2;
        let mut target = 0;
        for zone in 1..=size.zones {
            for turn in 0..size.shards {
                let shard = ShardId(u32::from(zone) + u32::from(turn) * SHARDS_APART);
                edits.push(join(node, ZoneId(zone), Some(shard), None));
                if size.replicas > 1 {
                    let replicas: Vec<u32> = (node..node + size.replicas).collect();
                    for other in &replicas[1..] {
                        edits.push(join(*other, ZoneId(zone), None, None));
                    }
                    edits.push(MapEdit::SetReplicas {
                        shard,
                        replicas: replicas.iter().copied().map(NodeId).collect(),
                    });
                    let first = node;
                    let made = replicas.into_iter().map(|node| {
                        replica_server(node, (shard, ZoneId(zone)), node == first, plant)
                    });
                    servers.extend(made);
                    node += size.replicas;
                    continue;
                }
                servers.push(Server::new(node, Kind::Meta(shard, ZoneId(zone))));
                node += 1;
            }
            for _ in 0..size.targets {
                // The targets of a zone are in several sets, as in a cell that grew. The first file
                // opens the last set.
                let zone = ZoneId(zone);
                edits.push(MapEdit::OpenSets { zone });
                target += 1;
                edits.push(join(node, zone, None, Some(TargetId(target))));
                servers.push(Server::new(node, Kind::Storage(TargetId(target))));
                node += 1;
            }
        }
        let map = ZoneMap::new(CellId([7; 16])).edited(&edits);
        let map = map.ok().flatten().ok_or(ErrorCode::Invalid)?;
        store_map(servers.first(), &map);
        let world = Rc::new(Self {
            clock,
            network,
            map: Rc::new(RefCell::new(Arc::new(map))),
            executed_requests: Rc::default(),
            reply_deadlines: Rc::default(),
            history: Rc::default(),
            map_history: Rc::default(),
            servers,
            losses: Losses::default(),
            size,
            plant,
            rng: RefCell::new(rng),
            next_group: Cell::new(1),
            is_safety_phase: Cell::new(true),
            operations: Cell::new(0),
            running: Cell::new(0),
            broken: RefCell::default(),
        });
        world.show_disks();
        world.set_clocks(has_drift);
        for index in 0..world.servers.len() {
            world.start(index);
        }
        Ok(world)
    }

    fn pause_group(&self, group: Group, is_paused: bool) {
        if is_paused {
            self.clock.pause(group);
        } else {
            self.clock.resume(group);
        }
    }

    /// Gives each process clocks of its own, with errors where `has_drift`.
    fn set_clocks(&self, has_drift: bool) {
        let mut rng = self.rng.borrow_mut().fork(0);
        let clients = (0..self.client_count() as usize).map(|index| self.client_name(index));
        let servers = self.servers.iter().map(|server| server.address.clone());
        for name in servers.chain(clients) {
            let clock = if has_drift {
                self.network.count(FaultKind::Drift);
                ProcessClock::random(&mut rng)
            } else {
                ProcessClock::default()
            };
            self.network.set_clock(&name, clock);
        }
    }

    /// The size of the cell.
    #[must_use]
    pub fn size(&self) -> CellSize {
        self.size
    }

    /// Frees everything: tasks and servers refer to the world, and it refers to them.
    pub fn end(&self) {
        for index in 0..self.servers.len() {
            self.kill(index);
        }
        self.clock.clear();
    }

    /// Ends all faults: every server runs, the network is good, disks work.
    pub fn heal(&self) {
        self.is_safety_phase.set(false);
        self.network.heal();
        for index in 0..self.servers.len() {
            self.pause(index, false);
        }
        for index in 0..self.size.clients as usize {
            self.pause_client(index, false);
        }
        self.servers.iter().for_each(|of| of.disk.end_tricks());
        for index in 0..self.servers.len() {
            self.start(index);
        }
    }

    /// Whether faults are still injected.
    #[must_use]
    pub fn faults_wanted(&self) -> bool {
        self.running.get() > 0 && self.is_safety_phase.get()
    }

    /// Counts an operation of a program.
    pub fn count_operation(&self) {
        self.operations.set(self.operations.get() + 1);
    }

    /// Number of operations so far.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.operations.get()
    }

    /// Records that something is broken.
    pub fn report(&self, what: impl std::fmt::Display) {
        let mut broken = self.broken.borrow_mut();
        if broken.len() < 20 {
            let at = self.clock.now().0 / 1_000_000;
            broken.push(format!("at {at} ms: {what}"));
        }
    }

    /// Everything that was broken so far.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        self.broken.borrow().clone()
    }
}
