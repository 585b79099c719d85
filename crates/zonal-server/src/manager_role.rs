//! The manager role: keeps the zone map and the junctions, around the core in `zonal-zonemap`.
//!
//! It shares one engine with the root shard. So making, renaming or removing a first-level
//! directory changes its junction and the root in one log record.
//!
//! Invariants: versions have no gaps; a version is durable before any other process sees it
//! ([`MapCache::publish`] comes after the sync). Lock order: the root shard's mutex, then
//! `ManagerRole::core`, then the engine's own.

mod node_admission;
mod revocation_list;

use crate::map_cache::MapCache;
use crate::node_probe::NodeProbe;
use crate::store_starts::{self, StoreStartError};
use revocation_list::RevocationList;
pub use revocation_list::describe as describe_revoked;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zonal_disk::LogRoom;
use zonal_disk::{DiskError, Engine};
use zonal_types::{
    CellId, Codec, ErrorCode, KvChange, MapVersion, NodeId, ShardId, TargetId, ZoneId,
};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{ManagerReply, ManagerRequest, MetaReply};
use zonal_zonemap::subnets::ZoneNameError;
use zonal_zonemap::{EditError, JunctionChange, Manager as Core, MapEdit, SubnetTable, ZoneMap};

/// The manager role.
pub struct ManagerRole {
    engine: Arc<Engine>,
    core: Mutex<Core>,
    /// Held during a join, from reading the map to changing it. Taken before `core`.
    joining: Mutex<()>,
    published: Arc<MapCache>,
    probe: Box<dyn NodeProbe>,
    revoked: RevocationList,
    /// From the config.
    subnets: SubnetTable,
}

/// Why the map did not change.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The edit was refused.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The stored map is damaged.
    #[error("the stored zone map cannot be used: {0}")]
    Stored(ErrorCode),
    /// The zone already has a metadata server.
    #[error("zone {zone} has its metadata on node {node} already")]
    ShardTaken {
        /// The zone.
        zone: ZoneId,
        /// Node of that server.
        node: NodeId,
    },
    /// The number belongs to another node.
    #[error("node {node} is at {known}, another server at {claimed} claims its number: {why}")]
    NodeTaken {
        /// The number.
        node: NodeId,
        /// Address of the node in the map.
        known: String,
        /// Address of the newcomer.
        claimed: SocketAddr,
        /// The difference between the two.
        why: &'static str,
    },
    /// The target's number belongs to another node.
    #[error(
        "target {target} is on node {holder} at {known}; node {node} at {claimed} claims it, which is another node, or it is known with another store"
    )]
    TargetTaken {
        /// The target.
        target: TargetId,
        /// Its node in the map.
        holder: NodeId,
        /// That node's address.
        known: String,
        /// The node that joins.
        node: NodeId,
        /// That node's address.
        claimed: SocketAddr,
    },
    /// A node's store is not the store that was used last.
    #[error("{error} (node {node} is known at {known}, this server is at {claimed})")]
    StoreTaken {
        /// The difference.
        error: StoreStartError,
        /// The node.
        node: NodeId,
        /// Its address.
        known: String,
        /// Address of the newcomer.
        claimed: SocketAddr,
    },
    /// The node names no zone and is in no subnet.
    #[error(
        "node {node} names no zone, and its address {address} is in none of the manager's {subnets} subnets; set `zone` or `rack` in its node.toml, or add its subnet to [[manager.subnets]]"
    )]
    NoSubnet {
        /// The node.
        node: NodeId,
        /// Its address.
        address: SocketAddr,
        /// Entries of the table.
        subnets: usize,
    },
    /// The node's zone is given by a name that tells no zone.
    #[error("{0}; give the zone by its number")]
    ZoneName(#[from] ZoneNameError),
    /// Every number of a zone is in use.
    #[error("no number is free for a new zone")]
    ZonesFull,
    /// The join contradicts itself.
    #[error("the join cannot be used: {0}")]
    Claim(&'static str),
    /// Several servers join as the same node at once.
    #[error("the node's address changed while it was probed")]
    Moving,
    /// A store is not the store that was used last.
    #[error(transparent)]
    Start(#[from] StoreStartError),
    /// Joins have a request and checks of their own; junctions change only together with the root
    /// shard.
    #[error("only slots and states of targets are changed by edits from outside")]
    Foreign,
    /// The list of revoked certificates is full.
    #[error(
        "no more than 65,536 credentials can be revoked. Hint: a new authority (zonal key init) ends all of the old one"
    )]
    TooManyRevoked,
    /// An address that cannot be dialled.
    #[error("\"{0}\" is not an address")]
    Address(String),
}

impl ManagerError {
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Edit(EditError::VersionMoved { .. }) => ErrorCode::StaleEpoch,
            Self::Edit(EditError::TooLarge { .. }) | Self::TooManyRevoked | Self::ZonesFull => {
                ErrorCode::NoSpace
            }
            Self::Edit(EditError::Store(code)) | Self::Stored(code) => *code,
            Self::Edit(EditError::TargetDiffers { .. })
            | Self::NodeTaken { .. }
            | Self::TargetTaken { .. } => ErrorCode::WrongTarget,
            Self::Edit(_)
            | Self::ShardTaken { .. }
            | Self::NoSubnet { .. }
            | Self::ZoneName(_)
            | Self::Address(_)
            | Self::Claim(_) => ErrorCode::Invalid,
            Self::Moving => ErrorCode::NotReady,
            Self::Foreign => ErrorCode::NotPermitted,
            Self::Start(error) | Self::StoreTaken { error, .. } => error.code(),
            Self::Disk(error) => error.code(),
        }
    }
}

impl ManagerRole {
    /// Loads the map, or makes the first one.
    ///
    /// # Errors
    /// Where the stored map cannot be read or belongs to another cell.
    pub fn open(
        engine: Arc<Engine>,
        cell: CellId,
        published: Arc<MapCache>,
        probe: Box<dyn NodeProbe>,
    ) -> Result<Self, ManagerError> {
        let core = Core::load(&*engine, cell).map_err(ManagerError::Stored)?;
        published.publish(Arc::clone(core.durable()));
        let revoked = RevocationList::open(&engine)?;
        Ok(Self {
            engine,
            revoked,
            core: Mutex::new(core),
            joining: Mutex::new(()),
            published,
            probe,
            subnets: SubnetTable::default(),
        })
    }

    /// Sets the table of subnets.
    #[must_use]
    pub fn with_subnets(mut self, subnets: SubnetTable) -> Self {
        self.subnets = subnets;
        self
    }

    /// The engine of its store.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest_map(&self) -> Arc<ZoneMap> {
        Arc::clone(self.core().newest())
    }

    /// Makes the edits, with `changes` of other keys in the same record, if the map still has
    /// version `expected`. The caller then calls [`Self::settle`] outside of its locks and before
    /// it answers.
    ///
    /// # Errors
    /// Where the edit is refused (nothing was logged) or the log fails.
    pub fn append(
        &self,
        changes: Vec<KvChange>,
        edits: &[MapEdit],
        expected: Option<MapVersion>,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        self.log(changes, (edits, Vec::new()), expected)
    }

    /// As [`Self::append`], for changes of junctions with the root shard's changes.
    ///
    /// # Errors
    /// Where the log fails, or the store cannot be read.
    pub fn append_junctions(
        &self,
        changes: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        self.log(changes, (&[], junctions), None)
    }

    fn log(
        &self,
        mut changes: Vec<KvChange>,
        (edits, junctions): (&[MapEdit], Vec<JunctionChange>),
        expected: Option<MapVersion>,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        let mut core = self.core();
        let mut planned = core.plan(&*self.engine, edits, junctions, expected)?;
        changes.append(&mut planned.changes);
        if !changes.is_empty() {
            self.engine.append_with(changes, &[], LogRoom::Normal)?;
        }
        core.logged(planned);
        Ok(Arc::clone(core.newest()))
    }

    /// Makes the records up to `map` durable, and publishes the map.
    ///
    /// # Errors
    /// Where the log fails.
    pub fn settle(&self, map: Arc<ZoneMap>) -> Result<(), ManagerError> {
        self.engine.sync_all()?;
        self.core().flushed(&map);
        self.published.publish(map);
        Ok(())
    }

    /// Sets the width of new stripe sets.
    ///
    /// # Errors
    /// Where the log fails.
    pub fn set_width(&self, slots: u16) -> Result<(), ManagerError> {
        self.edit(&[MapEdit::SetWidth { slots }], None).map(drop)
    }

    /// Opens the default sets of a zone durably: shards may give them to files.
    ///
    /// # Errors
    /// Where the zone does not exist or the log fails.
    pub fn open_sets(&self, zone: ZoneId) -> Result<MetaReply, ManagerError> {
        let map = self.append(Vec::new(), &[MapEdit::OpenSets { zone }], None)?;
        self.settle(Arc::clone(&map))?;
        Ok(map.opened(zone))
    }

    /// Changes of start records for removed stores: deletes the start and records the removal.
    fn records_of_removed(&self, edits: &[MapEdit]) -> Result<Vec<KvChange>, ManagerError> {
        let mut changes = Vec::new();
        for edit in edits {
            let MapEdit::RemoveTarget { target } = edit else {
                continue;
            };
            if let Some(known) = self.known_start(store_starts::TARGET, target.0)? {
                changes.push(KvChange::remove(store_starts::key(
                    store_starts::TARGET,
                    target.0,
                )));
                let gone = store_starts::removed_key(known.uuid);
                changes.push(KvChange::put(gone, known.to_bytes()));
            }
        }
        Ok(changes)
    }

    fn edit(
        &self,
        edits: &[MapEdit],
        expected: Option<MapVersion>,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        let _joining = self.joining.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.records_of_removed(edits)?;
        let map = self.append(changes, edits, expected)?;
        self.settle(Arc::clone(&map))?;
        Ok(map)
    }

    fn answer(&self, request: ManagerRequest) -> Result<ManagerReply, ManagerError> {
        Ok(match request {
            ManagerRequest::GetMap { .. }
            | ManagerRequest::GetMapPart { .. }
            | ManagerRequest::Junction { .. }
            | ManagerRequest::Junctions { .. }
            | ManagerRequest::JunctionsAt { .. } => {
                let answered = self.core().answer(&*self.engine, &request);
                let answered = answered.map_err(ManagerError::Stored)?;
                answered.ok_or(ManagerError::Stored(ErrorCode::Protocol))?
            }
            ManagerRequest::Join { .. } => reply_of(&*self.join(request, false)?),
            ManagerRequest::Edit { expected, edits } => {
                let edits = Vec::<MapEdit>::from_bytes(&edits.0)
                    .map_err(|_error| ManagerError::Stored(ErrorCode::Protocol))?;
                if !edits.iter().all(is_for_tools) {
                    return Err(ManagerError::Foreign);
                }
                reply_of(&*self.edit(&edits, Some(expected))?)
            }
            ManagerRequest::GetSubnets => ManagerReply::Subnets {
                subnets: self.subnets.message(self.core().durable()),
            },
            ManagerRequest::GetRevoked { have } => self.revoked.newer(have),
            ManagerRequest::Revoke { serials } => self.revoked.add(&self.engine, &serials)?,
        })
    }

    /// Answers a request.
    #[must_use]
    pub fn handle(&self, request: ManagerRequest) -> ManagerReply {
        self.answer(request).unwrap_or_else(|error| {
            tracing::warn!(%error, "a request to the manager is refused");
            ManagerReply::Failed {
                code: ErrorNumber(error.code()),
                detail: error.to_string(),
            }
        })
    }
}

/// True for edits that commands may make.
fn is_for_tools(edit: &MapEdit) -> bool {
    matches!(
        edit,
        MapEdit::SetSlot { .. }
            | MapEdit::SetTargetState { .. }
            | MapEdit::UseTarget { .. }
            | MapEdit::RemoveTarget { .. }
    )
}

/// The id of a new shard: the zone's number where it is free, for readability.
fn new_shard(map: &ZoneMap, zone: ZoneId) -> ShardId {
    let same = ShardId(u32::from(zone.0));
    if map.shard(same).is_none() {
        return same;
    }
    let beyond = u32::from(u16::MAX) + 1;
    let last = map.shards.last().map_or(0, |shard| shard.id.0 + 1);
    ShardId(last.max(beyond))
}

fn reply_of(map: &ZoneMap) -> ManagerReply {
    ManagerReply::At {
        version: map.version,
    }
}
