//! Node admission: checks that a joining node is the one it claims to be, then writes its starts
//! and the map in one record.
//!
//! The identity of a node is that of its stores: each has a random number from its formatting
//! (`zonal-disk::identity`). The manager knows the numbers of a node's targets from the map, and
//! that of its shard from the record of its starts.
//!
//! 1. A known node joins only with a store that is known to be its own. A copied `node.toml` over
//!    other stores is another node, whatever its address. A node without a known store (a backup
//!    was restored) is believed.
//! 2. A node with another address than in the map joins only where no server answers at the old
//!    address as that node. A copied store has the right identity, and the manager might take its
//!    start.
//! 3. A refused join changes nothing: neither the map nor a start record.
//! 4. The only manager's own node is joined only by its own process. One of several managers has a
//!    start record as a zone's shard has, and joins at the manager that leads.
//! 5. A node that names no zone gets one by its address, from the table of subnets, or is refused.
//!
//! The manager probes the old address before it takes `ManagerRole::joining`, because probing a
//! machine that is off takes seconds. A join in between makes it probe again. So under the lock the
//! decision rests on a probe of the address that the map has.

use super::{ManagerError, ManagerRole, new_shard};
use crate::node_probe::ProbeResult;
use crate::store_starts::{self, StartRecord, StoreStartError};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use zonal_types::{Codec, KvChange, KvRead, NodeId, ShardId, TargetId, ZoneId, is_title};
use zonal_wire::{JoinTarget, ManagerRequest, StoreStart};
use zonal_zonemap::subnets::zone_named;
use zonal_zonemap::{EditError, MapEdit, SubnetTable, ZoneMap, ZoneReference};

/// How often the address of a node may change while it is probed.
const TRIES: usize = 4;

/// A join request, taken apart.
struct Newcomer {
    node: NodeId,
    zone: ZoneId,
    zone_name: String,
    address: SocketAddr,
    meta: bool,
    /// The zone whose shard it has a replica of; 0: its own.
    meta_zone: ZoneId,
    targets: Vec<JoinTarget>,
    starts: Vec<StoreStart>,
}

impl Newcomer {
    fn of(request: ManagerRequest, is_manager: bool) -> Result<Self, ManagerError> {
        let ManagerRequest::Join {
            node,
            zone,
            zone_name,
            address,
            meta,
            meta_zone,
            targets,
            starts,
        } = request
        else {
            return Err(ManagerError::Claim("no join"));
        };
        if !is_title(&address) {
            return Err(EditError::Title.into());
        }
        let address = match address.parse() {
            Ok(address) => address,
            Err(_error) => return Err(ManagerError::Address(address)),
        };
        let newcomer = Self {
            node,
            zone,
            zone_name,
            address,
            meta,
            meta_zone,
            targets,
            starts,
        };
        newcomer.check(is_manager)?;
        Ok(newcomer)
    }

    /// Checks that each store in the request has its start, and that each start has its store.
    fn check(&self, is_manager: bool) -> Result<(), ManagerError> {
        let mut stores: Vec<(u8, u32)> = self
            .targets
            .iter()
            .map(|target| (store_starts::TARGET, target.target.0))
            .collect();
        if self.meta && !is_manager {
            stores.push((store_starts::SHARD, self.node.0));
        }
        if self.is_manager() {
            stores.push((store_starts::ROOT, self.node.0));
        }
        let mut started: Vec<(u8, u32)> = self
            .starts
            .iter()
            .map(|start| (start.kind, start.id))
            .collect();
        stores.sort_unstable();
        started.sort_unstable();
        if stores != started || stores.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(ManagerError::Claim(
                "its stores and their starts do not belong together",
            ));
        }
        let differs = self.targets.iter().any(|target| {
            self.starts.iter().any(|start| {
                (start.kind, start.id) == (store_starts::TARGET, target.target.0)
                    && start.uuid != target.uuid
            })
        });
        if differs {
            return Err(ManagerError::Claim("a target has two identities"));
        }
        Ok(())
    }

    /// True for one of several managers.
    fn is_manager(&self) -> bool {
        self.starts
            .iter()
            .any(|start| start.kind == store_starts::ROOT)
    }

    fn has(&self, kind: u8, id: u32, uuid: [u8; 16]) -> bool {
        self.starts
            .iter()
            .any(|start| (start.kind, start.id, start.uuid) == (kind, id, uuid))
    }

    fn taken(&self, known: String, why: &'static str) -> ManagerError {
        ManagerError::NodeTaken {
            node: self.node,
            known,
            claimed: self.address,
            why,
        }
    }
}

impl Newcomer {
    /// Adds the addresses to the error of a refused start.
    fn beside(&self, map: &ZoneMap, error: ManagerError) -> ManagerError {
        match (error, map.node(self.node)) {
            (ManagerError::Start(error), Some(node)) => ManagerError::StoreTaken {
                error,
                node: self.node,
                known: node.address.clone(),
                claimed: self.address,
            },
            (error, _) => error,
        }
    }
}

/// The address of a node in the map, where it differs from `address`.
fn left(map: &ZoneMap, node: NodeId, address: SocketAddr) -> Option<SocketAddr> {
    let known = map.node(node)?.address.parse().ok()?;
    (known != address).then_some(known)
}

impl ManagerRole {
    /// Joins a node and takes the starts of its stores; durable when this returns. `root`: it is
    /// the manager's own node, which brings the root's shard.
    ///
    /// # Errors
    /// In these cases nothing is changed:
    /// * the map does not agree, or the node is not the one it claims to be;
    /// * a store is another one, an older image or a copy;
    /// * the log fails.
    pub fn join(&self, request: ManagerRequest, root: bool) -> Result<Arc<ZoneMap>, ManagerError> {
        let newcomer = Newcomer::of(request, root)?;
        for _try in 0..TRIES {
            let to_ask = |map: &ZoneMap| {
                let is_asked = !root && !self.is_only_managers(map, newcomer.node);
                left(map, newcomer.node, newcomer.address).filter(|_| is_asked)
            };
            let asked = to_ask(&self.newest_map());
            let ask = |address| {
                self.parts
                    .probe
                    .probe(newcomer.node, address, newcomer.address)
            };
            let found = asked.map(ask);
            let _joining = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
            let map = self.newest_map();
            if to_ask(&map) == asked {
                return self.join_asked(&map, newcomer, root, found);
            }
        }
        Err(ManagerError::Moving)
    }

    fn join_asked(
        &self,
        known: &ZoneMap,
        mut newcomer: Newcomer,
        root: bool,
        found: Option<ProbeResult>,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        if !root {
            self.check_identity(known, &newcomer)?;
        }
        check_targets(known, &newcomer)?;
        if newcomer.zone == ZoneId(0) {
            find_zone(known, &self.parts.subnets, &mut newcomer)?;
        }
        let mut changes = Vec::new();
        for start in &newcomer.starts {
            let taken = self.take_start(start);
            changes.extend(taken.map_err(|error| newcomer.beside(known, error))?);
        }
        if let Some(node) = known.node(newcomer.node)
            && found == Some(ProbeResult::Holder)
        {
            let why = "it is still there: one of the two is a copy, or was not stopped";
            return Err(newcomer.taken(node.address.clone(), why));
        }
        let wanted = self.shard_counts.wanted(newcomer.zone);
        let shard = shard_of(known, &newcomer, root, (wanted, self.parts.replicas))?;
        tracing::info!(
            node = newcomer.node.0,
            zone = newcomer.zone.0,
            address = %newcomer.address,
            "a node joins"
        );
        let join = MapEdit::Join {
            node: newcomer.node,
            zone: newcomer.zone,
            zone_name: newcomer.zone_name,
            address: newcomer.address.to_string(),
            shard: shard.owned(),
            targets: newcomer.targets,
        };
        let mut edits = vec![join];
        edits.extend(shard.joins());
        let map = self.append(changes, &edits, None)?;
        // Also where nothing changed: this may be the repetition of a request that did not get so
        // far.
        self.settle(Arc::clone(&map))?;
        Ok(map)
    }

    /// Checks that the newcomer is the node with its number.
    fn check_identity(&self, map: &ZoneMap, newcomer: &Newcomer) -> Result<(), ManagerError> {
        let Some(node) = map.node(newcomer.node) else {
            return Ok(());
        };
        let taken = |why| Err(newcomer.taken(node.address.clone(), why));
        if self.is_only_managers(map, node.id) {
            return taken("it is the only manager's own");
        }
        let targets = map.targets.iter().filter(|target| target.node == node.id);
        let mut own: Vec<(u8, u32, [u8; 16])> = targets
            .map(|target| (store_starts::TARGET, target.id.0, target.uuid))
            .collect();
        for kind in [store_starts::SHARD, store_starts::ROOT] {
            let shard = self.known_start(kind, node.id.0)?;
            own.extend(shard.map(|known| (kind, node.id.0, known.uuid)));
        }
        let is_own = |(kind, id, uuid): &(u8, u32, [u8; 16])| newcomer.has(*kind, *id, *uuid);
        if !own.is_empty() && !own.iter().any(is_own) {
            return taken("it is known with another store, formatted apart from this one");
        }
        Ok(())
    }

    /// True for the node of the only manager.
    fn is_only_managers(&self, map: &ZoneMap, node: NodeId) -> bool {
        let root = map.shard(ShardId(0));
        !self.log.is_of_group() && root.is_some_and(|root| root.node == node)
    }

    pub(super) fn known_start(
        &self,
        kind: u8,
        id: u32,
    ) -> Result<Option<StartRecord>, ManagerError> {
        let stored = self.log.engine().get(&store_starts::key(kind, id));
        let stored = stored.map_err(ManagerError::Stored)?;
        let known = stored
            .map(|bytes| StartRecord::from_bytes(&bytes))
            .transpose();
        known.map_err(|_error| ManagerError::Stored(zonal_types::ErrorCode::Corrupt))
    }

    /// The change that takes a start; `None` where it is taken already.
    fn take_start(&self, store: &StoreStart) -> Result<Option<KvChange>, ManagerError> {
        let removed = self
            .log
            .engine()
            .get(&store_starts::removed_key(store.uuid));
        if removed.map_err(ManagerError::Stored)?.is_some() {
            let what = store_starts::what_of(store.kind)?;
            return Err(StoreStartError::Removed { what, id: store.id }.into());
        }
        let known = self.known_start(store.kind, store.id)?;
        store_starts::judge(known.as_ref(), store)?;
        let next = StartRecord {
            uuid: store.uuid,
            mark: store.mark,
        };
        let is_new = known.as_ref() != Some(&next);
        Ok(is_new.then(|| KvChange::put(store_starts::key(store.kind, store.id), next.to_bytes())))
    }
}

/// Checks that each target is on the node and in the store that the map has.
fn check_targets(map: &ZoneMap, newcomer: &Newcomer) -> Result<(), ManagerError> {
    let address = |node| {
        map.node(node).map_or_else(
            || "an unknown address".to_owned(),
            |node| node.address.clone(),
        )
    };
    let differs = |join: &&JoinTarget| {
        map.target(join.target)
            .is_some_and(|known| known.node != newcomer.node || known.uuid != join.uuid)
    };
    let Some(join) = newcomer.targets.iter().find(differs) else {
        return Ok(());
    };
    let holder = map
        .target(join.target)
        .map_or(NodeId(0), |target| target.node);
    Err(ManagerError::TargetTaken {
        target: TargetId(join.target.0),
        holder,
        known: address(holder),
        node: newcomer.node,
        claimed: newcomer.address,
    })
}

/// Finds the zone of a newcomer by the zone's name, or by the subnet of its address. A name without
/// a zone gets a new one.
fn find_zone(
    map: &ZoneMap,
    subnets: &SubnetTable,
    newcomer: &mut Newcomer,
) -> Result<(), ManagerError> {
    if newcomer.zone_name.is_empty() {
        let address = newcomer.address;
        let entry = subnets.entry_of(address.ip());
        let entry = entry.ok_or_else(|| ManagerError::NoSubnet {
            node: newcomer.node,
            address,
            subnets: subnets.entries().len(),
        })?;
        match &entry.zone {
            ZoneReference::Number(zone) => {
                newcomer.zone = *zone;
                return Ok(());
            }
            ZoneReference::Name(name) => newcomer.zone_name.clone_from(name),
        }
    }
    let known = map.node(newcomer.node);
    newcomer.zone = match (zone_named(map, &newcomer.zone_name)?, known) {
        (Some(zone), _) => zone,
        // Its zone was renamed, and the node's config still has the old name. A node does not
        // change its zone, so the name can mean no other.
        (None, Some(known)) => known.zone,
        (None, None) => {
            let free = subnets.free_zone(map, &newcomer.zone_name);
            free.ok_or(ManagerError::ZonesFull)?
        }
    };
    Ok(())
}

/// The shard that a newcomer brings.
enum NewcomersShard {
    /// None.
    None,
    /// A shard that it owns.
    Owned(ShardId),
    /// A replica of a shard, with the replicas as they are to be.
    Replica(ShardId, Vec<NodeId>),
}

impl NewcomersShard {
    fn owned(&self) -> Option<ShardId> {
        match self {
            Self::Owned(shard) => Some(*shard),
            Self::None | Self::Replica(..) => None,
        }
    }

    fn joins(self) -> Option<MapEdit> {
        match self {
            Self::Replica(shard, replicas) => Some(MapEdit::SetReplicas { shard, replicas }),
            Self::None | Self::Owned(_) => None,
        }
    }
}

/// The root's shard, of which one of several managers brings a replica.
fn root_of(known: &ZoneMap, node: NodeId, replicas: usize) -> Result<NewcomersShard, ManagerError> {
    let Some(root) = known.shard(ShardId(0)) else {
        // The manager that leads before anybody has joined is the first.
        return Ok(NewcomersShard::Owned(ShardId(0)));
    };
    if root.replicas.contains(&node) {
        return Ok(NewcomersShard::None);
    }
    if root.replicas.len() >= replicas {
        return Err(ManagerError::ManagersFull { replicas });
    }
    let mut all = root.replicas.clone();
    all.push(node);
    Ok(NewcomersShard::Replica(root.id, all))
}

/// The shard that the newcomer brings. A zone has `wanted` shards at least, each with up to
/// `replicas` replicas. A shard that lacks replicas goes before a new one.
fn shard_of(
    known: &ZoneMap,
    newcomer: &Newcomer,
    root: bool,
    (wanted, replicas): (usize, usize),
) -> Result<NewcomersShard, ManagerError> {
    if root {
        return Ok(NewcomersShard::Owned(ShardId(0)));
    }
    if newcomer.is_manager() {
        return root_of(known, newcomer.node, replicas);
    }
    if !newcomer.meta {
        return Ok(NewcomersShard::None);
    }
    if let Some(own) = known.shard_at(newcomer.node) {
        return Ok(NewcomersShard::Owned(own.id));
    }
    if known.replica_at(newcomer.node).is_some() {
        return Ok(NewcomersShard::None);
    }
    let is_foreign =
        !matches!(newcomer.meta_zone, ZoneId(0)) && newcomer.meta_zone != newcomer.zone;
    let zone = match is_foreign {
        true => newcomer.meta_zone,
        false => newcomer.zone,
    };
    let of_zone = || known.shards_of_zone(zone);
    if let Some(shard) = of_zone().find(|shard| shard.replicas.len() < replicas) {
        let mut all = shard.replicas.clone();
        all.push(newcomer.node);
        return Ok(NewcomersShard::Replica(shard.id, all));
    }
    if is_foreign {
        return Err(ManagerError::NoReplicaWanted { zone });
    }
    match of_zone().next() {
        // To detect a server with the wrong zone in its configuration.
        Some(other) if of_zone().count() >= wanted => Err(ManagerError::ShardTaken {
            zone: newcomer.zone,
            node: other.node,
        }),
        _ => Ok(NewcomersShard::Owned(new_shard(known, newcomer.zone))),
    }
}
