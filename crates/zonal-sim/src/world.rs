//! The cell: its processes with their disks, which outlive them.

mod clients;

pub use clients::{DEADLINE_MS, Running};

use crate::clock::{Clock, Group};
use crate::coverage::Fault;
use crate::disk::Disk;
use crate::meta_node::{MapCell, MetaNode};
use crate::net::{Network, Role};
use crate::plant::Plant;
use crate::rng::Rng;
use crate::skew::ProcessClock;
use crate::storage_node::{self, StorageNode};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use zonal_meta::ShardConfig;
use zonal_object::TargetConfig;
use zonal_types::{CellId, ErrorCode, NodeId, ShardId, TargetId, ZoneId, boot_of};
use zonal_wire::JoinTarget;
use zonal_zonemap::{MapEdit, ZoneMap};

/// First bytes of new files that shards keep, life by life.
const INLINE_BYTES: [u32; 3] = [4_096, 0, 65_536];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Meta(ShardId, ZoneId),
    Storage(TargetId),
}

struct Server {
    address: String,
    kind: Kind,
    disk: Rc<Disk>,
    group: Cell<Option<Group>>,
    meta: RefCell<Option<Rc<MetaNode>>>,
    storage: RefCell<Option<Rc<StorageNode>>>,
}

/// How large the cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Zones, each with a shard.
    pub zones: u16,
    /// Storage processes of each zone.
    pub targets: u32,
    /// Clients.
    pub clients: u64,
    /// Each target.
    pub target: TargetConfig,
}

impl Size {
    /// A cell whose targets are large.
    #[must_use]
    pub fn new(zones: u16, targets: u32, clients: u64) -> Self {
        Self {
            zones,
            targets,
            clients,
            target: storage_node::LARGE,
        }
    }
}

/// A cell.
pub struct World {
    /// Time and tasks.
    pub clock: Clock,
    /// What connects the processes.
    pub network: Rc<Network>,
    /// The zone map.
    pub map: MapCell,
    servers: Vec<Server>,
    size: Size,
    plant: Plant,
    rng: RefCell<Rng>,
    next_group: Cell<Group>,
    /// Faults are wanted.
    is_safety_phase: Cell<bool>,
    operations: Cell<u64>,
    running: Cell<u64>,
    broken: RefCell<Vec<String>>,
}

impl World {
    /// A cell with all its servers up.
    ///
    /// # Errors
    /// A map or a store that does not come up.
    pub fn build(
        size: Size,
        plant: Plant,
        has_drift: bool,
        mut rng: Rng,
    ) -> Result<Rc<Self>, ErrorCode> {
        let clock = Clock::new();
        let network = Rc::new(Network::new(clock.clone(), rng.fork(1)));
        let mut edits = vec![join(1, ZoneId(1), Some(ShardId(0)), None)];
        let mut servers = vec![Server::new(1, Kind::Meta(ShardId(0), ZoneId(1)))];
        let mut node = 2;
        let mut target = 0;
        for zone in 1..=size.zones {
            let shard = ShardId(u32::from(zone));
            edits.push(join(node, ZoneId(zone), Some(shard), None));
            servers.push(Server::new(node, Kind::Meta(shard, ZoneId(zone))));
            node += 1;
            for _ in 0..size.targets {
                target += 1;
                edits.push(join(node, ZoneId(zone), None, Some(TargetId(target))));
                servers.push(Server::new(node, Kind::Storage(TargetId(target))));
                node += 1;
            }
        }
        let map = ZoneMap::new(CellId([7; 16])).edited(&edits);
        let map = map.ok().flatten().ok_or(ErrorCode::Invalid)?;
        let world = Rc::new(Self {
            clock,
            network,
            map: Rc::new(RefCell::new(Arc::new(map))),
            servers,
            size,
            plant,
            rng: RefCell::new(rng),
            next_group: Cell::new(1),
            is_safety_phase: Cell::new(true),
            operations: Cell::new(0),
            running: Cell::new(0),
            broken: RefCell::default(),
        });
        world.set_clocks(has_drift);
        for index in 0..world.servers.len() {
            world.start(index);
        }
        Ok(world)
    }

    /// Starts a server that is down.
    pub fn start(&self, index: usize) {
        let Some(server) = self.servers.get(index) else {
            return;
        };
        if server.group.get().is_some() {
            return;
        }
        let group = self.next_group.get();
        self.next_group.set(group + 1);
        self.network.trace.say(self.clock.now(), &|| {
            format!("start {} as {group}", server.address)
        });
        let rng = self.rng.borrow_mut().fork(group);
        let started: Result<Rc<dyn Role>, ErrorCode> = match server.kind {
            Kind::Meta(shard, zone) => {
                // As in a real cell, never the number of no boot at all.
                let kept = server.disk.power_losses() as u32 + 1;
                let mut config = ShardConfig::new(shard, zone, boot_of(kept, group as u32));
                // A later life gives new files something else; old ones keep what they have.
                let life = (group as usize - 1) / self.servers.len();
                config.inline_bytes = INLINE_BYTES[life % INLINE_BYTES.len()];
                let (net, disk) = (self.network.clone(), server.disk.clone());
                let map = self.map.clone();
                MetaNode::start(&server.address, group, &net, disk, config, map, self.plant).map(
                    |node| {
                        *server.meta.borrow_mut() = Some(node.clone());
                        let role: Rc<dyn Role> = node;
                        role
                    },
                )
            }
            Kind::Storage(target) => {
                let parts = storage_node::Parts {
                    id: target,
                    config: self.size.target,
                    network: self.network.clone(),
                    disk: server.disk.clone(),
                    plant: self.plant,
                };
                StorageNode::start(parts, rng).map(|node| {
                    let node = Rc::new(node);
                    *server.storage.borrow_mut() = Some(node.clone());
                    let role: Rc<dyn Role> = node;
                    role
                })
            }
        };
        match started {
            Ok(role) => {
                server.group.set(Some(group));
                self.network.serve(&server.address, group, Some(role));
            }
            Err(code) => self.report(format!(
                "invariant 9: {:?} at {} does not start: {code}",
                server.kind, server.address
            )),
        }
    }

    /// Kills a server: what is not on its disk is gone.
    pub fn kill(&self, index: usize) {
        let Some(server) = self.servers.get(index) else {
            return;
        };
        if let Some(group) = server.group.take() {
            self.network
                .trace
                .say(self.clock.now(), &|| format!("kill {}", server.address));
            self.network.serve(&server.address, group, None);
            self.clock.kill(group);
            server.meta.take();
            server.storage.take();
        }
    }

    /// A server that is down loses what was not synced.
    pub fn lose_power(&self, index: usize, rng: &mut Rng) {
        let Some(server) = self.servers.get(index) else {
            return;
        };
        self.network.count(Fault::PowerLoss);
        let torn = match server.kind {
            Kind::Meta(..) => server.disk.lose_power(rng, |_disk, _record| true),
            Kind::Storage(_) => server.disk.lose_power(rng, |disk, record| {
                StorageNode::is_whole(&self.size.target, disk, record)
            }),
        };
        (0..torn).for_each(|_| self.network.count(Fault::TornWrite));
    }

    /// How often servers lost their power.
    #[must_use]
    pub fn power_losses(&self) -> u64 {
        let losses = self.servers.iter().map(|server| server.disk.power_losses());
        losses.sum()
    }

    /// A server's process stands still, or goes on.
    pub fn pause(&self, index: usize, is_paused: bool) {
        if let Some(group) = self.servers.get(index).and_then(|of| of.group.get()) {
            self.pause_group(group, is_paused);
        }
    }

    fn pause_group(&self, group: Group, is_paused: bool) {
        if is_paused {
            self.clock.pause(group);
        } else {
            self.clock.resume(group);
        }
    }

    /// Gives all processes clocks of their own, which are off where `has_drift`.
    fn set_clocks(&self, has_drift: bool) {
        let mut rng = self.rng.borrow_mut().fork(0);
        let clients = (0..self.client_count() as usize).map(|index| self.client_name(index));
        let servers = self.servers.iter().map(|server| server.address.clone());
        for name in servers.chain(clients) {
            let clock = if has_drift {
                self.network.count(Fault::Drift);
                ProcessClock::random(&mut rng)
            } else {
                ProcessClock::default()
            };
            self.network.set_clock(&name, clock);
        }
    }

    /// The disk of a server.
    #[must_use]
    pub fn disk_of(&self, index: usize) -> Option<&Disk> {
        self.servers.get(index).map(|server| server.disk.as_ref())
    }

    /// Servers that store data.
    #[must_use]
    pub fn storage_indices(&self) -> Vec<usize> {
        let is_storage = |server: &Server| matches!(server.kind, Kind::Storage(_));
        let numbered = self.servers.iter().enumerate();
        numbered
            .filter(|(_, server)| is_storage(server))
            .map(|(index, _)| index)
            .collect()
    }

    /// How large the cell is.
    #[must_use]
    pub fn size(&self) -> Size {
        self.size
    }

    /// Frees everything: tasks and servers hold the world, and it holds them.
    pub fn end(&self) {
        for index in 0..self.servers.len() {
            self.kill(index);
        }
        self.clock.clear();
    }

    /// All faults end: every server is up, the network is good, disks do as they are told.
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

    /// Whether faults are still to be injected.
    #[must_use]
    pub fn faults_wanted(&self) -> bool {
        self.running.get() > 0 && self.is_safety_phase.get()
    }

    /// Counts one operation of a program.
    pub fn count_operation(&self) {
        self.operations.set(self.operations.get() + 1);
    }

    /// Operations so far.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.operations.get()
    }

    /// Something is wrong.
    pub fn report(&self, what: impl std::fmt::Display) {
        let mut broken = self.broken.borrow_mut();
        if broken.len() < 20 {
            let at = self.clock.now().0 / 1_000_000;
            broken.push(format!("at {at} ms: {what}"));
        }
    }

    /// What was found wrong so far.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        self.broken.borrow().clone()
    }

    /// Number of servers.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Where a server listens.
    #[must_use]
    pub fn address_of(&self, index: usize) -> String {
        self.servers
            .get(index)
            .map_or_else(String::new, |server| server.address.clone())
    }

    /// Metadata processes that are up.
    #[must_use]
    pub fn meta_nodes(&self) -> Vec<Rc<MetaNode>> {
        self.servers
            .iter()
            .filter_map(|server| server.meta.borrow().clone())
            .collect()
    }

    /// Storage processes that are up.
    #[must_use]
    pub fn storage_nodes(&self) -> Vec<Rc<StorageNode>> {
        self.servers
            .iter()
            .filter_map(|server| server.storage.borrow().clone())
            .collect()
    }
}

impl Server {
    fn new(node: u32, kind: Kind) -> Self {
        Self {
            address: address(node),
            kind,
            disk: Rc::default(),
            group: Cell::new(None),
            meta: RefCell::default(),
            storage: RefCell::default(),
        }
    }
}

fn address(node: u32) -> String {
    format!("node{node}")
}

fn join(node: u32, zone: ZoneId, shard: Option<ShardId>, target: Option<TargetId>) -> MapEdit {
    let targets = target.map(|target| JoinTarget {
        target,
        uuid: [target.0 as u8; 16],
        capacity: 1 << 26,
    });
    MapEdit::Join {
        node: NodeId(node),
        zone,
        zone_name: String::new(),
        address: address(node),
        shard,
        targets: targets.into_iter().collect(),
    }
}
