//! Messages of a replica to others, and requests to its process.

use super::reign_log::ReplicaLife;
use super::{CALL_MS, CALL_PAUSE_MS, LOOK_MS, ReplicaNode, member_on, node_of, planted_bugs};
use crate::net::{SimReply, SimRequest, SimServer, Task};
use crate::planted_bugs::Plant;
use std::rc::Rc;
use zonal_consensus::PeerMessage;
use zonal_types::{Codec, ErrorCode, NodeId};
use zonal_wire::{
    ErrorNumber, Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest, ReplicaReply,
    ReplicaRequest, Service,
};

impl ReplicaNode {
    /// Makes the calls to another replica, one at a time.
    pub(super) async fn run_calls(self: Rc<Self>, life: Rc<ReplicaLife>, to: NodeId) {
        let parts = &self.parts;
        let clock = &parts.network.clock;
        let queues = life.host().queues.clone();
        let mut seen = 0;
        while life.driver.end().is_none() {
            let messages = queues.take(member_on(to));
            if messages.is_empty() {
                queues
                    .changed
                    .wait(clock, seen, clock.now().plus_ms(LOOK_MS))
                    .await;
                seen = queues.changed.raised();
                continue;
            }
            let shard = self.parts.shard.0;
            let asked = ReplicaRequest::Exchange { shard };
            match self.ask(to, &asked, messages.to_bytes()).await {
                Ok((ReplicaReply::Exchanged, back)) => {
                    let back = Vec::<PeerMessage>::from_bytes(&back).unwrap_or_default();
                    life.take_in(&back);
                }
                Ok(_) | Err(_) => {
                    if parts.plant == Plant::VotesAreAssumed {
                        let openings = parts.history.openings_of(member_on(to));
                        life.take_in(&planted_bugs::assumed_votes(messages, openings));
                    }
                    self.sleep(CALL_PAUSE_MS).await;
                }
            }
        }
    }

    pub(super) async fn ask(
        &self,
        to: NodeId,
        request: &ReplicaRequest,
        payload: Vec<u8>,
    ) -> Result<(ReplicaReply, Vec<u8>), ErrorCode> {
        let parts = &self.parts;
        let (cell, address) = {
            let map = parts.map.borrow();
            let address = map.node(to).map(|node| node.address.clone());
            (map.cell, address.ok_or(ErrorCode::Unreachable)?)
        };
        let mut header = Header::request(Service::Replica, cell);
        header.deadline_ms = CALL_MS;
        let request = SimRequest {
            header,
            body: request.to_bytes(),
            payload,
            lent: Vec::new(),
        };
        let pending = parts.network.start(&parts.address, &address, &request);
        let received = pending.receive().await;
        let (_header, answer) = received.map_err(|_| ErrorCode::Unreachable)?;
        let reply = ReplicaReply::from_bytes(&answer.body).map_err(|_| ErrorCode::Protocol)?;
        Ok((reply, answer.payload))
    }

    /// The reply to requests that another replica has to answer.
    fn not_leader(&self) -> MetaReply {
        let leader = self.life().and_then(|life| life.driver.leader());
        MetaReply::NotLeader {
            leader: leader.map_or(NodeId(0), node_of),
        }
    }

    async fn answer_as_shard(&self, header: Header, body: Vec<u8>, payload: Vec<u8>) -> SimReply {
        let not_leader = |node: &Self| SimReply {
            body: node.not_leader().to_bytes(),
            payload: Vec::new(),
        };
        let serving = self.serving.borrow().as_ref().map(|(_, node)| node.clone());
        let Some(node) = serving else {
            return not_leader(self);
        };
        let reply = node.clone().handle(header, body, payload).await;
        let serves = || {
            self.serving()
                .is_some_and(|serving| Rc::ptr_eq(&serving, &node))
        };
        match MetaReply::from_bytes(&reply.body) {
            Ok(MetaReply::Failed { code }) if is_of_reign(code) && !serves() => not_leader(self),
            _ => reply,
        }
    }

    async fn answer_as_manager(&self, body: &[u8]) -> SimReply {
        let manager = self.manager.borrow().clone();
        let reply = match (manager, ManagerRequest::from_bytes(body)) {
            (Some(manager), Ok(request)) => manager.answer(request).await,
            (manager, _) => {
                let is_garbled = manager.is_some();
                let code = ErrorNumber(match is_garbled {
                    true => ErrorCode::Protocol,
                    false => ErrorCode::NotOwner,
                });
                let detail = String::new();
                ManagerReply::Failed { code, detail }
            }
        };
        SimReply {
            body: reply.to_bytes(),
            payload: Vec::new(),
        }
    }

    fn exchange(&self, from: &[PeerMessage]) -> Result<(ReplicaReply, Vec<u8>), ErrorCode> {
        let life = self.life().ok_or(ErrorCode::NotReady)?;
        let Some(sender) = from.first().map(|message| message.from) else {
            return Ok((ReplicaReply::Exchanged, Vec::new()));
        };
        let members = life.driver.status().members;
        let is_wanted = self.replicas().contains(&node_of(sender));
        if members.has(self.own()) && !members.has(sender) && !is_wanted {
            return Err(ErrorCode::NotPermitted);
        }
        let back = life.host().queues.answering(sender, || life.take_in(from));
        Ok((ReplicaReply::Exchanged, back.to_bytes()))
    }

    async fn answer_as_replica(&self, body: &[u8], payload: &[u8]) -> SimReply {
        let answered = match ReplicaRequest::from_bytes(body) {
            Ok(ReplicaRequest::Exchange { .. }) => Vec::<PeerMessage>::from_bytes(payload)
                .map_err(|_| ErrorCode::Protocol)
                .and_then(|messages| self.exchange(&messages)),
            Ok(ReplicaRequest::SnapshotBegin { .. }) => self.lend_snapshot().await,
            Ok(ReplicaRequest::SnapshotRead {
                snapshot, after, ..
            }) => self.read_snapshot(snapshot, &after),
            Ok(_) | Err(_) => Err(ErrorCode::Protocol),
        };
        let (reply, payload) = answered.unwrap_or_else(|code| {
            let code = ErrorNumber(code);
            let detail = String::new();
            (ReplicaReply::Failed { code, detail }, Vec::new())
        });
        let body = reply.to_bytes();
        SimReply { body, payload }
    }
}

/// Errors that a shard gives whose reign has ended.
fn is_of_reign(code: ErrorNumber) -> bool {
    matches!(
        code.0,
        ErrorCode::NotOwner | ErrorCode::NotReady | ErrorCode::Io | ErrorCode::Overloaded
    )
}

impl SimServer for ReplicaNode {
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, payload: Vec<u8>) -> Task<SimReply> {
        Box::pin(async move {
            match header.service {
                Service::Replica => self.answer_as_replica(&body, &payload).await,
                Service::Manager => self.answer_as_manager(&body).await,
                Service::Meta if MetaRequest::from_bytes(&body).is_ok() => {
                    self.answer_as_shard(header, body, payload).await
                }
                _ => SimReply {
                    body: MetaReply::Failed {
                        code: ErrorNumber(ErrorCode::Protocol),
                    }
                    .to_bytes(),
                    payload: Vec::new(),
                },
            }
        })
    }
}
