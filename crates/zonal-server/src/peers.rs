//! Calls from this server to others: the manager, other shards, targets.

use crate::map_cache::MapCache;
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use zonal_net::{Address, NetError, PayloadInto, Pool, Request};
use zonal_types::{CellId, Codec, ErrorCode, NodeId, ShardId, TraceId};
use zonal_wire::{
    Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest, Service, StorageReply,
    StorageRequest,
};

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
}

impl PeerError {
    /// The error code for replies.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Net(error) => error.code(),
            Self::Garbled { .. } => ErrorCode::Protocol,
            Self::Unknown { .. } => ErrorCode::NotReady,
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
}

impl Peers {
    /// Calls go through `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool>, cell: CellId) -> Self {
        Self { pool, cell }
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

    /// Calls the manager.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub fn manager(
        &self,
        manager: SocketAddr,
        request: &ManagerRequest,
    ) -> Result<ManagerReply, PeerError> {
        let header = Header::request(Service::Manager, self.cell);
        let to = Address::any_node(manager);
        self.call(to, header, request.name(), &request.to_bytes())
    }

    /// Calls a shard.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub fn shard(
        &self,
        map: &MapCache,
        shard: ShardId,
        request: &MetaRequest,
    ) -> Result<MetaReply, PeerError> {
        let node = map.current().shard(shard).map(|shard| shard.node);
        let node = node.ok_or_else(|| PeerError::Unknown {
            what: format!("shard {shard}"),
        })?;
        let to = address_of(map, node)?;
        let mut header = Header::request(Service::Meta, self.cell);
        header.map_version = map.current().version;
        self.call(to, header, request.name(), &request.to_bytes())
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

fn address_of(map: &MapCache, node: NodeId) -> Result<Address, PeerError> {
    let unknown = || PeerError::Unknown {
        what: format!("address of node {node}"),
    };
    let map = map.current();
    let known = map.node(node).ok_or_else(unknown)?;
    let tcp = known.address.parse().map_err(|_error| unknown())?;
    Ok(Address::new(tcp, node))
}
