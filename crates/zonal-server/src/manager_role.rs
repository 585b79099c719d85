//! The manager role: keeps the zone map and the junctions, around the core in `zonal-zonemap`.
//!
//! It shares one engine with the root shard. So making, renaming or removing a first-level
//! directory changes its junction and the root in one log record.
//!
//! Invariants: versions have no gaps; a version is durable before any other process sees it
//! ([`MapCache::publish`] comes after the sync). Lock order: the root shard's mutex, then
//! `ManagerRole::core`, then the engine's own.

mod event_log;
mod join_tokens;
mod node_admission;
mod node_states;
mod outages;
mod revocation_list;
mod shard_counts;

use crate::clock;
use crate::config::NodeConfig;
use crate::map_cache::MapCache;
use crate::node_clock::{self, ClockRefusal};
use crate::node_probe::NodeProbe;
use crate::rate_limited_log::RateLimit;
use crate::shard_log::{ShardLog, ShardLogError};
use crate::store_starts::{self, StoreStartError};
use crate::timers::block_on;
pub use event_log::describe as describe_event;
pub use join_tokens::describe as describe_join_token;
use join_tokens::{JoinTokenList, JoinTokenRefusal};
use node_states::StateTable;
use outages::{NodeLeases, TakeOutRefusal};
use revocation_list::RevocationList;
pub use revocation_list::describe as describe_revoked;
use shard_counts::ShardCounts;
pub use shard_counts::describe as describe_wanted_shards;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use zonal_disk::LogRoom;
use zonal_driver::shard::Durability;
use zonal_net::{ClaimOutcome, TokenClaim};
use zonal_types::limits::SHARDS_PER_ZONE_MAX;
use zonal_types::{
    CellId, Codec, ErrorCode, KvChange, MapVersion, NodeId, PartitionId, ShardId, TargetId, ZoneId,
};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{DrainStatus, ManagerReply, ManagerRequest, MetaReply};
use zonal_zonemap::subnets::ZoneNameError;
use zonal_zonemap::{EditError, JunctionChange, Manager as Core, MapEdit, SubnetTable, ZoneMap};

/// The manager role.
pub struct ManagerRole {
    log: ShardLog,
    core: Mutex<Core>,
    /// Held during a join, from reading the map to changing it. Taken before `core`.
    joining: Mutex<()>,
    revoked: RevocationList,
    shard_counts: ShardCounts,
    tokens: JoinTokenList,
    states: StateTable,
    leases: NodeLeases,
    /// Rate limit of the message about nodes that the cell does not have.
    unknown_node: RateLimit,
    /// Targets whose objects move elsewhere, as counted last.
    drains: Mutex<Vec<DrainStatus>>,
    parts: Arc<ManagerParts>,
}

/// The parts of a manager that outlast its reign, where there are several managers.
pub struct ManagerParts {
    /// The cell.
    pub cell: CellId,
    /// Gets each durable map.
    pub published: Arc<MapCache>,
    /// The own node of the only manager.
    pub alone_on: Option<NodeId>,
    /// Probes servers before others take their numbers.
    pub probe: Box<dyn NodeProbe>,
    /// Slots of a new stripe set.
    pub set_width: u16,
    /// The table of subnets.
    pub subnets: SubnetTable,
    /// Replicas of each shard.
    pub replicas: usize,
    /// Shards of each zone.
    pub shards: usize,
    /// Takes reports of nodes' loads.
    pub(crate) load_sink: OnceLock<LoadSink>,
}

impl ManagerParts {
    /// The parts as the config of a node has them.
    pub(crate) fn of_config(
        config: &NodeConfig,
        published: Arc<MapCache>,
        probe: impl NodeProbe + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            cell: config.cell,
            published,
            alone_on: (!config.replicated).then_some(config.node),
            probe: Box::new(probe),
            set_width: config.set_width,
            subnets: config.subnets.clone(),
            replicas: config.replicas,
            shards: config.shards,
            load_sink: OnceLock::new(),
        })
    }

    /// Sets the receiver of reports of nodes' loads.
    pub(crate) fn set_load_sink(&self, sink: LoadSink) {
        // There is one call, at the start.
        let _ = self.load_sink.set(sink);
    }
}

/// Takes the used CPU of a node, in thousandths.
pub(crate) type LoadSink = Box<dyn Fn(NodeId, u16) + Send + Sync>;

/// Why the map did not change.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The edit was refused.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The store failed, or the group's log takes no record.
    #[error(transparent)]
    Log(#[from] ShardLogError),
    /// The stored map is damaged.
    #[error("the stored zone map cannot be used: {0}")]
    Stored(ErrorCode),
    /// The zone already has a metadata server.
    #[error(
        "zone {zone} has its metadata on node {node} already, and wants no more. Hint: `zonal shard add {zone}` has it take another"
    )]
    ShardTaken {
        /// The zone.
        zone: ZoneId,
        /// Node of one of its shards.
        node: NodeId,
    },
    /// Another zone's shard takes no replica now.
    #[error(
        "zone {zone} has no shard that lacks a replica. The node waits for one: a node of that zone makes it"
    )]
    NoReplicaWanted {
        /// The zone.
        zone: ZoneId,
    },
    /// A zone has no more shards than the limit.
    #[error("zone {zone} cannot have {shards} shards: {SHARDS_PER_ZONE_MAX} at most")]
    TooManyShards {
        /// The zone.
        zone: ZoneId,
        /// The number that was asked for.
        shards: u16,
    },
    /// The map has no zone of this number.
    #[error("the cell has no zone {0}. Hint: `zonal zone-map show` lists zones")]
    UnknownZone(ZoneId),
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
    /// The map has no node of this number.
    #[error("the cell has no node {0}")]
    UnknownNode(NodeId),
    /// A target may serve still.
    #[error("the target is not taken out: {0}")]
    MayServe(#[from] TakeOutRefusal),
    /// Every number of a zone is in use.
    #[error("no number is free for a new zone")]
    ZonesFull,
    /// There are as many managers as there are to be.
    #[error(
        "there are {replicas} managers already; `zonal shard remove 0 NODE` takes one out, [manager] replicas sets their number"
    )]
    ManagersFull {
        /// Their number.
        replicas: usize,
    },
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
    /// A new join token cannot be kept.
    #[error(transparent)]
    Token(#[from] JoinTokenRefusal),
    /// The node's clock is wrong, or the manager's.
    #[error(transparent)]
    Clock(#[from] ClockRefusal),
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
            | Self::ManagersFull { .. }
            | Self::TooManyShards { .. }
            | Self::NoSubnet { .. }
            | Self::ZoneName(_)
            | Self::Address(_)
            | Self::Claim(_) => ErrorCode::Invalid,
            Self::Token(error) => error.code(),
            Self::UnknownZone(_) | Self::UnknownNode(_) => ErrorCode::NotFound,
            Self::Clock(_) => ErrorCode::Invalid,
            Self::Moving | Self::MayServe(_) | Self::NoReplicaWanted { .. } => ErrorCode::NotReady,
            Self::Foreign => ErrorCode::NotPermitted,
            Self::Start(error) | Self::StoreTaken { error, .. } => error.code(),
            Self::Log(error) => error.code(),
        }
    }
}

impl ManagerRole {
    /// Loads the map, or makes the first one.
    ///
    /// # Errors
    /// Where the stored map cannot be read or belongs to another cell.
    pub fn open(log: ShardLog, parts: Arc<ManagerParts>) -> Result<Self, ManagerError> {
        let core = Core::load(&**log.engine(), parts.cell).map_err(ManagerError::Stored)?;
        let revoked = RevocationList::open(log.engine())?;
        let shard_counts = ShardCounts::open(log.engine(), parts.shards)?;
        let tokens = JoinTokenList::open(log.engine())?;
        let states = StateTable::open(log.engine())?;
        let manager = Self {
            log,
            revoked,
            states,
            leases: NodeLeases::begin(clock::instant()),
            unknown_node: RateLimit::default(),
            drains: Mutex::default(),
            tokens,
            shard_counts,
            core: Mutex::new(core),
            joining: Mutex::new(()),
            parts,
        };
        let map = manager.newest_map();
        manager.settle(map)?;
        Ok(manager)
    }

    /// Sets the width of new stripe sets.
    ///
    /// # Errors
    /// Where the log fails.
    pub fn set_width(&self, slots: u16) -> Result<(), ManagerError> {
        self.edit(&[MapEdit::SetWidth { slots }], None).map(drop)
    }

    /// Its log, which is the root shard's too.
    pub(crate) fn log(&self) -> &ShardLog {
        &self.log
    }

    /// The parts that outlast its reign.
    #[must_use]
    pub(crate) fn parts(&self) -> &Arc<ManagerParts> {
        &self.parts
    }

    /// The engine of its store.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> &zonal_disk::Engine {
        self.log.engine()
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn newest_map(&self) -> Arc<ZoneMap> {
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
        self.write(changes, (edits, Vec::new()), expected, Durability::Later)
    }

    /// As [`Self::append`], for changes of junctions with the root shard's changes.
    ///
    /// # Errors
    /// Where the log fails, or the store cannot be read.
    pub fn append_junctions(
        &self,
        changes: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        durability: Durability,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        self.write(changes, (&[], junctions), None, durability)
    }

    fn write(
        &self,
        mut changes: Vec<KvChange>,
        (edits, junctions): (&[MapEdit], Vec<JunctionChange>),
        expected: Option<MapVersion>,
        durability: Durability,
    ) -> Result<Arc<ZoneMap>, ManagerError> {
        let mut core = self.core();
        let mut planned = core.plan(&**self.log.engine(), edits, junctions, expected)?;
        changes.append(&mut planned.changes);
        if !changes.is_empty() {
            self.log.append(changes, LogRoom::Normal, durability)?;
        }
        core.logged(planned);
        Ok(Arc::clone(core.newest()))
    }

    /// Makes the records up to `map` durable, and publishes the map.
    ///
    /// # Errors
    /// Where the log fails.
    pub fn settle(&self, map: Arc<ZoneMap>) -> Result<(), ManagerError> {
        self.log.flush_now()?;
        self.core().flushed(&map);
        self.parts.published.publish(map);
        Ok(())
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

    /// Gives a shard more partitions durably, where it may have more.
    ///
    /// # Errors
    /// Where the shard does not exist or the log fails.
    pub fn add_partitions(&self, shard: ShardId) -> Result<MetaReply, ManagerError> {
        let map = self.append(Vec::new(), &[MapEdit::AddPartitions { shard }], None)?;
        self.settle(map)?;
        Ok(MetaReply::Done)
    }

    /// Gives a partition to another shard durably.
    ///
    /// # Errors
    /// Where the first shard does not have it, the other cannot have it, or the log fails.
    pub fn give_partition(
        &self,
        partition: PartitionId,
        from: ShardId,
        to: ShardId,
    ) -> Result<MetaReply, ManagerError> {
        let edit = MapEdit::MovePartition {
            partition,
            from,
            to,
        };
        let map = self.append(Vec::new(), &[edit], None)?;
        self.settle(map)?;
        Ok(MetaReply::Done)
    }

    /// Changes of start records for removed stores: deletes the start and records the removal.
    fn records_of_removed(&self, edits: &[MapEdit]) -> Result<Vec<KvChange>, ManagerError> {
        let mut changes = Vec::new();
        for edit in edits {
            let (kind, id) = match edit {
                MapEdit::RemoveTarget { target } => (store_starts::TARGET, target.0),
                // The store of a replica that the node had before.
                MapEdit::RemoveNode { node } => (store_starts::SHARD, node.0),
                _ => continue,
            };
            if let Some(known) = self.known_start(kind, id)? {
                changes.push(KvChange::remove(store_starts::key(kind, id)));
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

    /// Makes an edit of a drain, durable and committed.
    pub(crate) fn edit_for_drain(&self, edit: &MapEdit) -> Result<MapVersion, ManagerError> {
        let map = self.edit(std::slice::from_ref(edit), None)?;
        let settled = block_on(self.log.settled(self.log.position()));
        settled.map_err(|code| ManagerError::Log(ShardLogError::Group(code)))?;
        Ok(map.version)
    }

    /// Targets whose objects move elsewhere, as counted last.
    pub(crate) fn drains(&self) -> MutexGuard<'_, Vec<DrainStatus>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn want_shards(&self, zone: ZoneId, shards: u16) -> Result<ManagerReply, ManagerError> {
        let map = self.newest_map();
        map.zone(zone).ok_or(ManagerError::UnknownZone(zone))?;
        self.shard_counts.raise(&self.log, zone, shards)?;
        let present = map.shards_of_zone(zone).count();
        let wanted = self.shard_counts.wanted(zone).max(present);
        Ok(ManagerReply::ShardCount {
            wanted: u16::try_from(wanted).unwrap_or(u16::MAX),
            present: u16::try_from(present).unwrap_or(u16::MAX),
        })
    }

    fn answer(&self, request: ManagerRequest) -> Result<ManagerReply, ManagerError> {
        Ok(match request {
            ManagerRequest::GetMap { .. }
            | ManagerRequest::GetMapPart { .. }
            | ManagerRequest::Junction { .. }
            | ManagerRequest::Junctions { .. }
            | ManagerRequest::JunctionsAt { .. } => {
                let answered = self.core().answer(&**self.log.engine(), &request);
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
                subnets: self.parts.subnets.message(self.core().durable()),
            },
            ManagerRequest::WantShards { zone, shards } => self.want_shards(zone, shards)?,
            ManagerRequest::GetRevoked { have } => self.revoked.newer(have),
            ManagerRequest::Revoke { serials } => self.revoked.add(&self.log, &serials)?,
            ManagerRequest::Digest { .. }
            | ManagerRequest::NodeStates { .. }
            | ManagerRequest::Events { .. }
            | ManagerRequest::ClientLost { .. } => self.answer_of_states(request)?,
            ManagerRequest::AddJoinToken {
                terms,
                proof,
                sealed,
            } => {
                let map = self.newest_map();
                self.tokens.add(&self.log, &map, (terms, proof, sealed))?
            }
            ManagerRequest::CheckClock { node, clock_ms } => {
                node_clock::judge(node, clock_ms, node_clock::now_ms())?;
                reply_of(self.core().durable())
            }
            ManagerRequest::JoinTokens => self.tokens.list(),
            ManagerRequest::RemoveJoinToken { id } => self.tokens.remove(&self.log, id)?,
            ManagerRequest::ReportLoad {
                node,
                cpu_per_mille,
            } => {
                if let Some(take) = self.parts.load_sink.get() {
                    take(node, cpu_per_mille.min(1_000));
                }
                reply_of(self.core().durable())
            }
            ManagerRequest::RenewLease { node } => self.renew_lease(node)?,
            ManagerRequest::TakeOut { target } => self.take_out(target)?,
            ManagerRequest::PutBack { target } => self.put_back(target)?,
            ManagerRequest::RenewEpochs { target, known } => self.renew_epochs(target, known)?,
            ManagerRequest::GetDrains => ManagerReply::Drains {
                drains: self.drains().clone(),
            },
        })
    }

    /// Answers the claim of a new node.
    #[must_use]
    pub fn claim(&self, claim: &TokenClaim) -> ClaimOutcome {
        self.tokens.claim(&self.log, claim)
    }

    /// Answers a request.
    #[must_use]
    pub fn handle(&self, request: ManagerRequest) -> ManagerReply {
        let answered = self.answer(request).and_then(|reply| {
            // Of what the answer tells, all must be committed, and nobody else may lead.
            let settled = block_on(self.log.settled(self.log.position()));
            settled.map_err(|code| ManagerError::Log(ShardLogError::Group(code)))?;
            Ok(reply)
        });
        answered.unwrap_or_else(|error| {
            match &error {
                // Clients ask again and again.
                ManagerError::MayServe(_) => tracing::debug!(%error, "refused"),
                // So does a server that was removed and still runs.
                ManagerError::UnknownNode(_) if !self.unknown_node.is_due() => {
                    tracing::debug!(%error, "refused");
                }
                _ => tracing::warn!(%error, "a request to the manager is refused"),
            }
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
            | MapEdit::SetReplicas { .. }
            | MapEdit::AddZone { .. }
            | MapEdit::RenameZone { .. }
            | MapEdit::RemoveNode { .. }
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
