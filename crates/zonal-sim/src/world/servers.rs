//! The cell's servers: starts, kills, pauses and losses of power. Disks outlive their servers.

use super::World;
use crate::clock::Group;
use crate::coverage::FaultKind;
use crate::disk::VirtualDisk;
use crate::member_disk::MemberDisk;
use crate::meta_node::{MetaNode, MetaParts};
use crate::net::SimServer;
use crate::planted_bugs::Plant;
use crate::replica_node::{ReplicaNode, ReplicaParts};
use crate::rng::SimRng;
use crate::storage_node::{self, StorageNode};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_consensus::ReplicaId;
use zonal_meta::ShardConfig;
use zonal_types::{ErrorCode, KvChange, KvRead, NodeId, ShardId, TargetId, ZoneId, boot_of};
use zonal_wire::JoinTarget;
use zonal_zonemap::{MapEdit, TargetState, ZoneMap, map_records};

/// Bytes at a file's beginning that shards keep, for each life of a shard in turn.
const INLINE_BYTES: [u32; 3] = [4_096, 0, 65_536];

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Meta(ShardId, ZoneId),
    Replica(ShardId, ZoneId),
    Storage(TargetId),
}

pub(super) struct Server {
    pub(super) node: NodeId,
    pub(super) address: String,
    kind: Kind,
    pub(super) disk: Rc<VirtualDisk>,
    group: Cell<Option<Group>>,
    meta: RefCell<Option<Rc<MetaNode>>>,
    storage: RefCell<Option<Rc<StorageNode>>>,
    /// The disk of a replica, over `disk`.
    pub(super) member: Option<Rc<MemberDisk>>,
    pub(super) replica: RefCell<Option<Rc<ReplicaNode>>>,
}

impl World {
    /// Starts a server that is down.
    pub fn start(&self, index: usize) {
        let Some(server) = self.servers.get(index) else {
            return;
        };
        if server.group.get().is_some() || self.losses.servers.borrow().contains(&index) {
            return;
        }
        let group = self.next_group.get();
        self.next_group.set(group + 1);
        self.network.trace.say(self.clock.now(), &|| {
            format!("start {} as {group}", server.address)
        });
        let rng = self.rng.borrow_mut().fork(group);
        let started: Result<Rc<dyn SimServer>, ErrorCode> = match server.kind {
            Kind::Meta(shard, zone) => {
                // Like in a real cell, this is never the number that means no boot at all.
                let kept = server.disk.power_losses() as u32 + 1;
                let mut config = ShardConfig::new(shard, zone, boot_of(kept, group as u32));
                // Later lives of the shard keep another length for new files; old files keep
                // theirs.
                let life = (group as usize - 1) / self.servers.len();
                config.inline_bytes = INLINE_BYTES[life % INLINE_BYTES.len()];
                let parts = MetaParts {
                    address: server.address.clone(),
                    group,
                    network: self.network.clone(),
                    disk: server.disk.clone(),
                    map: self.map.clone(),
                    reply_deadlines: self.reply_deadlines.clone(),
                    plant: self.plant,
                    log: None,
                };
                MetaNode::start(parts, config).map(|node| {
                    if self.size.drains && shard == ShardId(0) {
                        node.keep_drains();
                    }
                    *server.meta.borrow_mut() = Some(node.clone());
                    let role: Rc<dyn SimServer> = node;
                    role
                })
            }
            Kind::Replica(shard, zone) => self.start_replica(server, group, (shard, zone), rng),
            Kind::Storage(target) => {
                let parts = storage_node::StorageParts {
                    id: target,
                    group,
                    config: self.size.target,
                    network: self.network.clone(),
                    map: self.map.clone(),
                    executed_requests: self.executed_requests.clone(),
                    disk: server.disk.clone(),
                    has_leases: self.size.has_copies() || self.size.drains,
                    plant: self.plant,
                };
                StorageNode::start(parts, rng).map(|node| {
                    let node = Rc::new(node);
                    node.keep_resync();
                    *server.storage.borrow_mut() = Some(node.clone());
                    let role: Rc<dyn SimServer> = node;
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

    fn start_replica(
        &self,
        server: &Server,
        group: Group,
        shard: (ShardId, ZoneId),
        rng: SimRng,
    ) -> Result<Rc<dyn SimServer>, ErrorCode> {
        let parts = ReplicaParts {
            node: server.node,
            address: server.address.clone(),
            group,
            shard,
            network: self.network.clone(),
            disk: server.member.clone().ok_or(ErrorCode::Invalid)?,
            map: self.map.clone(),
            history: self.history.clone(),
            reply_deadlines: self.reply_deadlines.clone(),
            plant: self.plant,
            inline_bytes: INLINE_BYTES,
        };
        let node = ReplicaNode::start(parts, rng);
        *server.replica.borrow_mut() = Some(node.clone());
        Ok(node)
    }

    /// Kills a server; state that is not on its disk is lost.
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
            server.replica.take();
        }
    }

    fn index_of(&self, target: TargetId) -> Option<usize> {
        let is_its = |of: &Server| matches!(of.kind, Kind::Storage(id) if id == target);
        self.servers.iter().position(is_its)
    }

    /// Kills the server of a target, which never starts again.
    pub fn lose_target(&self, target: TargetId) {
        if let Some(index) = self.index_of(target) {
            self.losses.servers.borrow_mut().insert(index);
            self.kill(index);
        }
    }

    /// Counts a fault of a storage server that begins (1) or ends (-1).
    pub fn count_storage_fault(&self, change: i64) {
        let faults = &self.losses.faults;
        faults.set(faults.get() + change);
    }

    /// Whether a fault of a storage server is under way.
    #[must_use]
    pub fn has_storage_fault(&self) -> bool {
        self.losses.faults.get() > 0
    }

    /// Whether a target was lost.
    #[must_use]
    pub fn is_lost(&self, target: TargetId) -> bool {
        let index = self.index_of(target);
        index.is_some_and(|index| self.losses.servers.borrow().contains(&index))
    }

    /// Kills the storage servers of a zone, or starts them again.
    pub fn take_zone_away(&self, zone: ZoneId, is_away: bool) {
        self.losses.zone_is_away.set(is_away);
        let map = self.map.borrow().clone();
        for target in &map.targets {
            let is_near = map.node(target.node).is_some_and(|node| node.zone == zone);
            let index = self.index_of(target.id).filter(|_| is_near);
            match (index, is_away) {
                (Some(index), true) => self.kill(index),
                (Some(index), false) => self.start(index),
                (None, _) => {}
            }
        }
    }

    /// Whether one more failure of a storage server may be one too many.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.losses.zone_is_away.get() || self.is_rebuilding()
    }

    /// Whether any target was lost.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        !self.losses.servers.borrow().is_empty()
    }

    /// Whether a lost target is not rebuilt yet.
    #[must_use]
    pub fn is_rebuilding(&self) -> bool {
        let map = self.map.borrow();
        let mut targets = map.targets.iter();
        targets.any(|of| of.state != TargetState::Drained && self.is_lost(of.id))
    }

    /// Edits the map, where the manager runs and takes the edit.
    pub fn edit_map(&self, edits: &[MapEdit]) -> bool {
        let root = self.servers.first();
        let root = root.and_then(|root| root.meta.borrow().clone());
        root.is_some_and(|root| root.edit(edits).is_ok())
    }

    /// Gives slots of a target a new epoch: one slot, or all its slots in one version of the map.
    /// Some targets learn of it at once.
    pub fn renew_slots(&self, rng: &mut SimRng) {
        self.network.count(FaultKind::SlotsRenewed);
        let map = self.map.borrow().clone();
        let Some(target) = rng.pick(&map.targets).map(|target| target.id) else {
            return;
        };
        let slots = map.sets.iter().flat_map(|set| {
            let numbered = set.slots.iter().zip(0_u16..);
            numbered.map(|(slot, number)| (set.id, number, slot.target))
        });
        let mut edits: Vec<MapEdit> = slots
            .filter(|(_, _, of)| *of == target)
            .map(|(set, slot, target)| MapEdit::SetSlot { set, slot, target })
            .collect();
        if rng.chance(500)
            && let Some(one) = rng.pick(&edits).cloned()
        {
            edits = vec![one];
        }
        let root = self.servers.first();
        let root = root.and_then(|root| root.meta.borrow().clone());
        if let Some(Err(error)) = root.map(|root| root.edit(&edits)) {
            self.report(format!("invariant 1: slots cannot be renewed: {error}"));
        }
        for node in self.storage_nodes() {
            if rng.chance(500) {
                node.hear_of_map();
            }
        }
    }

    /// Gives the manager another map, perhaps an older one, as after a restore from a backup.
    pub fn restore_map(&self, map: &ZoneMap) {
        let Some(root) = self.servers.first() else {
            return;
        };
        let mut changes = Vec::new();
        let mut see = |key: &[u8], _value: &[u8]| {
            if map_records::is_of_map(key) {
                changes.push(KvChange::remove(key.to_vec()));
            }
            true
        };
        let read = root.disk.scan(&map_records::MAP_KEY, &[0xff; 64], &mut see);
        changes.extend(map.to_store());
        root.disk.append_changes(changes);
        let node = root.meta.borrow().clone();
        let again = node.map(|node| node.read_map_again());
        if read.is_err() || again != Some(Ok(())) {
            self.report("the map cannot be restored");
        }
    }

    /// Takes unsynced writes from the disk of a server that is down.
    pub fn lose_power(&self, index: usize, rng: &mut SimRng) {
        let Some(server) = self.servers.get(index) else {
            return;
        };
        self.network.count(FaultKind::PowerLoss);
        let torn = match server.kind {
            Kind::Meta(..) => server.disk.lose_power(rng, |_disk, _record| true),
            Kind::Replica(..) => {
                if !self.is_strong_without(index) {
                    self.history.majority_lost_power();
                }
                if let Some(member) = &server.member {
                    member.lose_power(rng);
                }
                0
            }
            Kind::Storage(_) => server.disk.lose_power(rng, |disk, record| {
                StorageNode::is_whole(&self.size.target, disk, record)
            }),
        };
        (0..torn).for_each(|_| self.network.count(FaultKind::TornWrite));
    }

    /// How often servers lost power.
    #[must_use]
    pub fn power_losses(&self) -> u64 {
        let losses = self.servers.iter().map(|server| server.disk.power_losses());
        losses.sum()
    }

    /// Pauses a server's process, or resumes it.
    pub fn pause(&self, index: usize, is_paused: bool) {
        if let Some(group) = self.servers.get(index).and_then(|of| of.group.get()) {
            self.pause_group(group, is_paused);
        }
    }

    /// The disk of a server.
    #[must_use]
    pub fn disk_of(&self, index: usize) -> Option<&VirtualDisk> {
        self.servers.get(index).map(|server| server.disk.as_ref())
    }

    /// Indices of the servers that store data.
    #[must_use]
    pub fn storage_indices(&self) -> Vec<usize> {
        let is_storage = |server: &Server| matches!(server.kind, Kind::Storage(_));
        let numbered = self.servers.iter().enumerate();
        numbered
            .filter(|(_, server)| is_storage(server))
            .map(|(index, _)| index)
            .collect()
    }

    /// Number of servers.
    #[must_use]
    pub fn server_count(&self) -> usize {
        self.servers.len()
    }

    /// Network address of a server.
    #[must_use]
    pub fn address_of(&self, index: usize) -> String {
        self.servers
            .get(index)
            .map_or_else(String::new, |server| server.address.clone())
    }

    /// Running metadata processes.
    #[must_use]
    pub fn meta_nodes(&self) -> Vec<Rc<MetaNode>> {
        self.servers
            .iter()
            .filter_map(|server| {
                let replica = server.replica.borrow();
                let serving = replica.as_ref().and_then(|replica| replica.serving());
                serving.or_else(|| server.meta.borrow().clone())
            })
            .collect()
    }

    /// Running storage processes.
    #[must_use]
    pub fn storage_nodes(&self) -> Vec<Rc<StorageNode>> {
        self.servers
            .iter()
            .filter_map(|server| server.storage.borrow().clone())
            .collect()
    }
}

impl Server {
    pub(super) fn new(node: u32, kind: Kind) -> Self {
        Self {
            node: NodeId(node),
            address: address(node),
            kind,
            disk: Rc::default(),
            member: None,
            replica: RefCell::default(),
            group: Cell::new(None),
            meta: RefCell::default(),
            storage: RefCell::default(),
        }
    }
}

/// A server with a replica on an empty disk. The first one founds the group.
pub(super) fn replica_server(
    node: u32,
    (shard, zone): (ShardId, ZoneId),
    is_first: bool,
    plant: Plant,
) -> Server {
    let mut server = Server::new(node, Kind::Replica(shard, zone));
    let is_late = plant == Plant::EntriesAreWrittenLate;
    let disk = MemberDisk::new(server.disk.clone(), is_late);
    if is_first {
        disk.found(ReplicaId(node.into()));
    }
    server.member = Some(Rc::new(disk));
    server
}

fn address(node: u32) -> String {
    format!("node{node}")
}

pub(super) fn join(
    node: u32,
    zone: ZoneId,
    shard: Option<ShardId>,
    target: Option<TargetId>,
) -> MapEdit {
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
