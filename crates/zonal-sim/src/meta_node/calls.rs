//! What a metadata process asks of others.

use super::{MetaNode, failed};
use crate::net::Request;
use zonal_types::{Codec, ErrorCode, ShardId};
use zonal_wire::{Header, MetaReply, MetaRequest, Service};

/// How long one server waits for another, ms.
pub(super) const CALL_MS: u32 = 1_000;

impl MetaNode {
    /// Asks a shard; a failure is a `Failed` reply.
    pub(super) async fn ask(&self, shard: ShardId, request: &MetaRequest) -> MetaReply {
        let address = {
            let map = self.map.borrow();
            let shard = map.shard(shard);
            let node = shard.and_then(|shard| map.node(shard.node));
            node.map(|node| node.address.clone())
        };
        let Some(address) = address else {
            return failed(ErrorCode::Unreachable);
        };
        let body = request.to_bytes();
        match self.send(Service::Meta, &address, body).await {
            Some(body) => MetaReply::from_bytes(&body).unwrap_or(failed(ErrorCode::Protocol)),
            None => failed(ErrorCode::Unreachable),
        }
    }

    pub(super) async fn send(
        &self,
        service: Service,
        address: &str,
        body: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let cell = self.map.borrow().cell;
        let mut header = Header::request(service, cell);
        header.deadline_ms = CALL_MS;
        let request = Request {
            header,
            body,
            payload: Vec::new(),
        };
        let pending = self.network.start(&self.address, address, &request);
        pending
            .receive()
            .await
            .ok()
            .map(|(_header, answer)| answer.body)
    }
}
