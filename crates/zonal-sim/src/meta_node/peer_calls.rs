//! Calls of a metadata process to other servers, and its clocks.

use super::{MapCell, failed};
use crate::net::{Network, SimRequest};
use std::rc::Rc;
use zonal_driver::storage::CopyBytes;
use zonal_meta::Now;
use zonal_types::{Codec, ErrorCode, NodeId, ShardId, TargetId, TraceId};
use zonal_wire::{
    Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest, Service, StorageReply,
    StorageRequest,
};
use zonal_zonemap::{KnownLeaders, ZoneMap};

/// Deadline of a call, ms.
const CALL_MS: u32 = 1_000;

/// The process as a client of other servers.
#[derive(Clone)]
pub(crate) struct PeerCalls {
    pub(crate) address: String,
    pub(crate) network: Rc<Network>,
    pub(crate) map: MapCell,
    pub(crate) leaders: Rc<KnownLeaders>,
}

impl PeerCalls {
    /// The calls of the process at `address`.
    pub(crate) fn new(address: String, network: Rc<Network>, map: MapCell) -> Self {
        Self {
            address,
            network,
            map,
            leaders: Rc::default(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            instant: self.network.instant(&self.address),
            wall: self.network.wall(&self.address),
        }
    }

    /// Sends a request to a shard: its owner, or the replica that leads.
    pub(crate) async fn ask(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        let attempts = self.leaders.attempts(&self.map.borrow(), shard);
        let mut attempts = attempts.ok_or(ErrorCode::Unreachable)?;
        loop {
            let node = attempts.node();
            let asked = self.ask_node(node, request).await;
            if attempts.is_over(node, &asked) {
                return match asked {
                    Ok(MetaReply::NotLeader { .. }) => Err(ErrorCode::NotReady),
                    asked => asked,
                };
            }
        }
    }

    async fn ask_node(&self, node: NodeId, request: &MetaRequest) -> Result<MetaReply, ErrorCode> {
        let address = self
            .map
            .borrow()
            .node(node)
            .map(|node| node.address.clone());
        let address = address.ok_or(ErrorCode::Unreachable)?;
        let body = request.to_bytes();
        let body = self.send(Service::Meta, &address, body).await;
        let body = body.ok_or(ErrorCode::Unreachable)?;
        Ok(MetaReply::from_bytes(&body).unwrap_or(failed(ErrorCode::Protocol)))
    }

    /// Sends a request to the manager, in the process of the root's shard.
    pub(crate) async fn ask_manager(
        &self,
        request: &ManagerRequest,
    ) -> Result<ManagerReply, ErrorCode> {
        self.ask_manager_as(NodeId(0), request).await
    }

    /// As [`Self::ask_manager`], for a node whose connection proves its number.
    pub(crate) async fn ask_manager_as(
        &self,
        node: NodeId,
        request: &ManagerRequest,
    ) -> Result<ManagerReply, ErrorCode> {
        let address = {
            let map = self.map.borrow();
            let root = map.shard(ShardId(0)).and_then(|root| map.node(root.node));
            root.map(|node| node.address.clone())
        };
        let address = address.ok_or(ErrorCode::Unreachable)?;
        let body = request.to_bytes();
        let cell = self.map.borrow().cell;
        let mut header = Header::request(Service::Manager, cell);
        // It stands for the proof in the handshake.
        header.trace = TraceId(node.0.into());
        let body = self.send_with(header, &address, body).await;
        let body = body.ok_or(ErrorCode::Unreachable)?;
        ManagerReply::from_bytes(&body).map_err(|_error| ErrorCode::Protocol)
    }

    /// Sends a request to a target; `None` where no valid reply came.
    pub(crate) async fn ask_target(
        &self,
        target: TargetId,
        request: &StorageRequest,
    ) -> Option<StorageReply> {
        let address = {
            let map = self.map.borrow();
            map.node(map.target(target)?.node)?.address.clone()
        };
        let body = request.to_bytes();
        let body = self.send(Service::Storage, &address, body).await?;
        StorageReply::from_bytes(&body).ok()
    }

    /// Reads an object of a target by the slots of this map.
    pub(crate) async fn read_object(
        &self,
        map: &ZoneMap,
        request: &StorageRequest,
    ) -> Result<CopyBytes, ErrorCode> {
        let (address, epoch) = request
            .object()
            .and_then(|object| {
                let node = map.node(map.target(object.target)?.node)?;
                let slot = map.set(object.set)?.slots.get(usize::from(object.slot))?;
                Some((node.address.clone(), slot.slot_epoch))
            })
            .ok_or(ErrorCode::Unreachable)?;
        let mut header = Header::request(Service::Storage, map.cell);
        header.map_version = map.version;
        header.epoch = epoch;
        header.is_guarded = true;
        let (body, payload) = self
            .exchange(header, &address, request.to_bytes())
            .await
            .ok_or(ErrorCode::Unreachable)?;
        match StorageReply::from_bytes(&body) {
            Ok(StorageReply::Read { order, .. }) => Ok(CopyBytes {
                bytes: payload,
                order,
            }),
            Ok(StorageReply::Failed { code, .. }) => Err(code.0),
            Ok(StorageReply::Stale { .. }) => Err(ErrorCode::StaleEpoch),
            _other => Err(ErrorCode::Protocol),
        }
    }

    async fn send(&self, service: Service, address: &str, body: Vec<u8>) -> Option<Vec<u8>> {
        let cell = self.map.borrow().cell;
        let header = Header::request(service, cell);
        self.send_with(header, address, body).await
    }

    async fn send_with(&self, header: Header, address: &str, body: Vec<u8>) -> Option<Vec<u8>> {
        let exchanged = self.exchange(header, address, body).await;
        exchanged.map(|(body, _payload)| body)
    }

    async fn exchange(
        &self,
        mut header: Header,
        address: &str,
        body: Vec<u8>,
    ) -> Option<(Vec<u8>, Vec<u8>)> {
        header.deadline_ms = CALL_MS;
        let request = SimRequest {
            header,
            body,
            payload: Vec::new(),
            lent: Vec::new(),
        };
        let pending = self.network.start(&self.address, address, &request);
        let received = pending.receive().await;
        received
            .ok()
            .map(|(_header, answer)| (answer.body, answer.payload))
    }
}
