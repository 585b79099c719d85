//! Calls from this server to others: the manager, other shards, targets.

use crate::clock;
use crate::map_cache::MapCache;
use crate::root_names::RootNames;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use zonal_basics::const_u32;
use zonal_net::{Address, DetachedCall, NetError, PayloadInto, Pool, PoolConfig, Reply, Request};
use zonal_types::limits::{REPLICA_ATTEMPT_MS, REQUEST_DEADLINE_MS};
use zonal_types::{CellId, Codec, ErrorCode, NodeId, ShardId, TraceId};
use zonal_wire::{
    AdminReply, AdminRequest, Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest,
    ReplicaReply, ReplicaRequest, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::known_manager::is_of_follower;
use zonal_zonemap::{KnownLeaders, KnownManager, ZoneMap};

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The network failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The answer cannot be decoded.
    #[error("{server} sent an answer that cannot be decoded")]
    Garbled {
        /// The server.
        server: SocketAddr,
    },
    /// The map has no address for it.
    #[error("the zone map has no entry for it: {what}")]
    Unknown {
        /// The shard or target.
        what: String,
    },
    /// Its replicas answer, and none leads; or it has more than this server's map says.
    #[error("no known replica of shard {shard} leads it")]
    NoLeader {
        /// The shard.
        shard: ShardId,
    },
}

impl PeerError {
    /// The error code for replies.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Net(error) => error.code(),
            Self::Garbled { .. } => ErrorCode::Protocol,
            Self::Unknown { .. } | Self::NoLeader { .. } => ErrorCode::NotReady,
        }
    }
}

thread_local! {
    static SERVING: Cell<TraceId> = const { Cell::new(TraceId(0)) };
}

/// Runs `serve` with this trace id: its calls to other servers belong to the same operation.
pub fn as_part_of<T>(trace: TraceId, serve: impl FnOnce() -> T) -> T {
    SERVING.set(trace);
    let outcome = serve();
    SERVING.set(TraceId(0));
    outcome
}

/// The other servers.
pub struct Peers {
    pool: Arc<Pool>,
    cell: CellId,
    leaders: KnownLeaders,
    /// Addresses of managers, from the config.
    managers: Vec<String>,
    manager: KnownManager,
    /// The root as this server knows it, where it has a zone's shard.
    pub(crate) root: RootNames,
}

impl Peers {
    /// Calls go through `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool>, cell: CellId) -> Self {
        Self {
            pool,
            cell,
            leaders: KnownLeaders::default(),
            managers: Vec::new(),
            manager: KnownManager::default(),
            root: RootNames::default(),
        }
    }

    /// Sets the managers that are asked where the map has none.
    #[must_use]
    pub fn with_managers(mut self, managers: &[SocketAddr]) -> Self {
        self.managers = managers.iter().map(SocketAddr::to_string).collect();
        self
    }

    #[cfg(test)]
    pub(crate) fn close_idle(&self) {
        self.pool.close_idle();
    }

    /// The same servers by connections of their own.
    pub(crate) fn with_own_pool(&self, config: PoolConfig) -> Self {
        let pool = Pool::new(self.pool.identity().clone(), config);
        Self {
            managers: self.managers.clone(),
            ..Self::new(Arc::new(pool), self.cell)
        }
    }

    /// Sends a node a request about the server itself.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(crate) fn admin(
        &self,
        map: &MapCache,
        node: NodeId,
        request: &AdminRequest,
        deadline_ms: u32,
    ) -> Result<AdminReply, PeerError> {
        let to = address_of(map, node)?;
        let mut header = Header::request(Service::Admin, self.cell);
        header.map_version = map.current().version;
        header.deadline_ms = deadline_ms;
        self.call(to, header, request.name(), &request.to_bytes())
    }

    fn call<T: Codec>(
        &self,
        to: Address,
        mut header: Header,
        operation: &'static str,
        body: &[u8],
    ) -> Result<T, PeerError> {
        header.trace = SERVING.get();
        let request = Request {
            operation,
            header,
            body,
            payload: &[],
            room: 0,
        };
        let reply = self.pool.call(to, request, PayloadInto::Owned)?;
        T::from_bytes(&reply.body).map_err(|_error| PeerError::Garbled { server: to.tcp })
    }

    /// Calls the managers until one of them answers that leads. Each is asked once.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub fn manager(
        &self,
        map: &ZoneMap,
        request: &ManagerRequest,
    ) -> Result<ManagerReply, PeerError> {
        self.manager_within(map, request, REQUEST_DEADLINE_MS)
    }

    /// As [`Self::manager`]; each manager is waited for at most `ms`.
    pub(crate) fn manager_within(
        &self,
        map: &ZoneMap,
        request: &ManagerRequest,
        ms: u64,
    ) -> Result<ManagerReply, PeerError> {
        let mut header = Header::request(Service::Manager, self.cell);
        header.map_version = map.version;
        header.deadline_ms = u32::try_from(ms).unwrap_or(u32::MAX);
        let managers = self.manager.order(map, &self.managers);
        let is_among_several = managers.len() > 1;
        if is_among_several {
            header.deadline_ms = header.deadline_ms.min(const_u32(REPLICA_ATTEMPT_MS));
        }
        let body = request.to_bytes();
        let mut last = PeerError::NoLeader { shard: ShardId(0) };
        for manager in &managers {
            let Ok(to) = manager.parse().map(Address::any_node) else {
                continue;
            };
            match self.call(to, header, request.name(), &body) {
                Ok(reply) if is_among_several && is_of_follower(&reply) => {}
                Ok(reply) => {
                    self.manager.answered(manager);
                    return Ok(reply);
                }
                Err(error) => {
                    self.manager.silent(manager, &managers);
                    last = error;
                }
            }
        }
        Err(last)
    }

    /// Asks a server at an address, whose number is unknown, about its replica of the root's shard.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(crate) fn replica_at(
        &self,
        address: SocketAddr,
        request: &ReplicaRequest,
    ) -> Result<ReplicaReply, PeerError> {
        let header = Header::request(Service::Replica, self.cell);
        let to = Address::any_node(address);
        self.call(to, header, request.name(), &request.to_bytes())
    }

    /// Calls a shard: its owner, or the replica that leads.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub fn shard(
        &self,
        map: &MapCache,
        shard: ShardId,
        request: &MetaRequest,
    ) -> Result<MetaReply, PeerError> {
        self.shard_within(map, shard, request, REQUEST_DEADLINE_MS)
    }

    /// As [`Self::shard`], at most for `ms`.
    pub(crate) fn shard_within(
        &self,
        map: &MapCache,
        shard: ShardId,
        request: &MetaRequest,
        ms: u64,
    ) -> Result<MetaReply, PeerError> {
        let attempts = self.leaders.attempts(&map.current(), shard);
        let mut attempts = attempts.ok_or_else(|| PeerError::Unknown {
            what: format!("shard {shard}"),
        })?;
        let body = request.to_bytes();
        let begun = clock::instant();
        loop {
            let node = attempts.node();
            let mut header = Header::request(Service::Meta, self.cell);
            header.map_version = map.current().version;
            let left = ms.saturating_sub(clock::instant().ms_since(begun));
            let attempt_ms = match attempts.is_among_several() {
                true => left.clamp(1, REPLICA_ATTEMPT_MS),
                false => left.max(1),
            };
            header.deadline_ms = u32::try_from(attempt_ms).unwrap_or(u32::MAX);
            let called =
                address_of(map, node).and_then(|to| self.call(to, header, request.name(), &body));
            if attempts.is_over(node, &called) || left == 0 {
                return match called {
                    Ok(MetaReply::NotLeader { .. }) => Err(PeerError::NoLeader { shard }),
                    called => called,
                };
            }
        }
    }

    /// Brings messages to a shard's replica on a node; returns those that come back, encoded.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(crate) fn exchange(
        &self,
        map: &MapCache,
        node: NodeId,
        shard: ShardId,
        messages: &[u8],
        deadline_ms: u32,
    ) -> Result<Vec<u8>, PeerError> {
        let to = address_of(map, node)?;
        let asked = ReplicaRequest::Exchange { shard };
        let mut header = self.exchange_header(map);
        header.deadline_ms = deadline_ms;
        let request = Request {
            operation: asked.name(),
            header,
            body: &asked.to_bytes(),
            payload: &[messages],
            room: 0,
        };
        messages_in(self.pool.call(to, request, PayloadInto::Owned)?, to.tcp)
    }

    /// As [`Self::exchange`], on an idle connection, without waiting for the reply. `None` where
    /// there is no idle connection.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(crate) fn begin_exchange(
        &self,
        map: &MapCache,
        node: NodeId,
        shard: ShardId,
        messages: &[u8],
        limit: Duration,
    ) -> Result<Option<DetachedCall>, PeerError> {
        let to = address_of(map, node)?;
        let asked = ReplicaRequest::Exchange { shard };
        let request = Request {
            operation: asked.name(),
            header: self.exchange_header(map),
            body: &asked.to_bytes(),
            payload: &[messages],
            room: 0,
        };
        let started = self.pool.start_on_idle(to, request, limit)?;
        Ok(started.map(|call| call.detach(Arc::clone(&self.pool))))
    }

    fn exchange_header(&self, map: &MapCache) -> Header {
        let mut header = Header::request(Service::Replica, self.cell);
        header.map_version = map.current().version;
        header
    }

    /// Calls the replica of a shard on a node.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(crate) fn replica(
        &self,
        map: &MapCache,
        node: NodeId,
        request: &ReplicaRequest,
    ) -> Result<ReplicaReply, PeerError> {
        let to = address_of(map, node)?;
        let mut header = Header::request(Service::Replica, self.cell);
        header.map_version = map.current().version;
        self.call(to, header, request.name(), &request.to_bytes())
    }

    /// Reads an object by the slots of this map, as part of the group of its copies.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(crate) fn read_object(
        &self,
        map: &ZoneMap,
        request: &StorageRequest,
    ) -> Result<(StorageReply, Vec<u8>), PeerError> {
        let unknown = || PeerError::Unknown {
            what: format!("target {}", request.target()),
        };
        let target = map.target(request.target()).ok_or_else(unknown)?;
        let node = map.node(target.node).ok_or_else(unknown)?;
        let tcp = node.address.parse().map_err(|_error| unknown())?;
        let slot = request.object().and_then(|object| {
            let set = map.set(object.set)?;
            set.slots.get(usize::from(object.slot))
        });
        let mut header = Header::request(Service::Storage, self.cell);
        header.map_version = map.version;
        header.epoch = slot.ok_or_else(unknown)?.slot_epoch;
        header.is_guarded = true;
        header.trace = SERVING.get();
        let request = Request {
            operation: request.name(),
            header,
            body: &request.to_bytes(),
            payload: &[],
            room: 0,
        };
        let to = Address::new(tcp, target.node);
        let reply = self.pool.call(to, request, PayloadInto::Owned)?;
        let decoded = StorageReply::from_bytes(&reply.body);
        let decoded = decoded.map_err(|_error| PeerError::Garbled { server: tcp })?;
        Ok((decoded, reply.payload))
    }

    /// Calls a target of a node.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub fn storage(
        &self,
        map: &MapCache,
        node: NodeId,
        request: &StorageRequest,
    ) -> Result<StorageReply, PeerError> {
        let to = address_of(map, node)?;
        let mut header = Header::request(Service::Storage, self.cell);
        header.map_version = map.current().version;
        self.call(to, header, request.name(), &request.to_bytes())
    }
}

/// Waits for the reply to [`Peers::begin_exchange`]; returns the messages in it, encoded.
///
/// # Errors
/// See [`PeerError`].
pub(crate) fn messages_of(call: DetachedCall) -> Result<Vec<u8>, PeerError> {
    let server = call.address().tcp;
    messages_in(call.finish(PayloadInto::Owned)?, server)
}

fn messages_in(reply: Reply, server: SocketAddr) -> Result<Vec<u8>, PeerError> {
    match ReplicaReply::from_bytes(&reply.body) {
        Ok(ReplicaReply::Exchanged) => Ok(reply.payload),
        Ok(_refused) => Ok(Vec::new()),
        Err(_error) => Err(PeerError::Garbled { server }),
    }
}

fn address_of(map: &MapCache, node: NodeId) -> Result<Address, PeerError> {
    let unknown = || PeerError::Unknown {
        what: format!("address of node {node}"),
    };
    let map = map.current();
    let known = map.node(node).ok_or_else(unknown)?;
    let tcp = known.address.parse().map_err(|_error| unknown())?;
    Ok(Address::new(tcp, node))
}

#[cfg(test)]
mod tests;
