//! One attempt of a request at a shard: to its owner, or to the replica that leads.
//!
//! A replica that does not lead is no failure. The attempt goes on at once to the replica that is
//! asked next ([`zonal_zonemap::KnownLeader`]), with the same slot and sequence. A session belongs
//! to the shard, so nothing else changes with the leader. A new leader has another boot, and is
//! told what is held as after a restart.

use super::link::Link;
use crate::cell::call::{Call, SentRequest};
use crate::cell::owner::SessionOwner;
use crate::transport::mutex::lock;
use crate::transport::net::{Message, Net, NetFailure};
use crate::transport::retry::failure_code;
use std::sync::Arc;
use zonal_types::limits::REPLICA_ATTEMPT_MS;
use zonal_types::{Codec, ErrorCode, NodeId};
use zonal_wire::{Header, MetaReply};
use zonal_zonemap::{Shard, ZoneMap};

/// An attempt in flight to a shard.
pub(super) struct SentAttempt<N: Net> {
    /// The map by which it was sent.
    map: Arc<ZoneMap>,
    node: NodeId,
    sent: SentRequest<N>,
}

/// Name of a shard's server for silences.
fn server_name<'a>(link: &'a Link, shard: &Shard, address: &'a str) -> &'a str {
    if shard.is_replicated() {
        &link.group
    } else {
        address
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Sends one attempt; from a replica that does not lead it goes on once to the next. A shard
    /// with a newer epoch returns it, for the next attempt.
    pub(crate) async fn send(
        &self,
        link: &Link,
        header: Header,
        body: &[u8],
        doing: &str,
        wait_ms: u64,
    ) -> Result<MetaReply, ErrorCode> {
        let sent = self.start_attempt(link, header, body, wait_ms)?;
        self.finish_or_resend(link, sent, (header, body), doing, wait_ms)
            .await
    }

    /// Receives the reply of an attempt, or of another to the leader.
    pub(super) async fn finish_or_resend(
        &self,
        link: &Link,
        attempt: SentAttempt<C::Net>,
        (header, body): (Header, &[u8]),
        doing: &str,
        wait_ms: u64,
    ) -> Result<MetaReply, ErrorCode> {
        if let Some(reply) = self.finish_attempt(link, attempt, doing).await? {
            return Ok(reply);
        }
        let again = self.start_attempt(link, header, body, wait_ms)?;
        match self.finish_attempt(link, again, doing).await? {
            Some(reply) => Ok(reply),
            // The newer map may have other replicas.
            None if self.cell().map_is_old() => Err(ErrorCode::StaleEpoch),
            None => {
                let server = format!("{} without a leader", link.group);
                let refused = NetFailure::Refused(ErrorCode::NotOwner);
                let net = &self.cell().net;
                net.complain(self.context(), &server, doing, refused);
                Err(ErrorCode::TimedOut)
            }
        }
    }

    /// Sends one attempt; [`Self::finish_attempt`] takes the reply. `wait_ms`: how long the shard
    /// may hold it.
    pub(super) fn start_attempt(
        &self,
        link: &Link,
        header: Header,
        body: &[u8],
        wait_ms: u64,
    ) -> Result<SentAttempt<C::Net>, ErrorCode> {
        let map = self.cell().map();
        let shard = map.shard(link.shard).ok_or(ErrorCode::NotOwner)?;
        let node = map.node(link.leader.node(shard));
        let node = node.ok_or(ErrorCode::NotOwner)?;
        let mut attempt_ms = self.attempt_ms();
        if shard.is_replicated() {
            attempt_ms = attempt_ms.min(REPLICA_ATTEMPT_MS);
        }
        let mut header = header;
        header.deadline_ms = u32::try_from(attempt_ms + wait_ms).unwrap_or(u32::MAX);
        let message = Message {
            node: node.id,
            header,
            body,
            payload: &[],
            room: 0,
        };
        let server = server_name(link, shard, &node.address);
        Ok(SentAttempt {
            sent: self.start_at(server, &node.address, message),
            node: node.id,
            map,
        })
    }

    /// Receives the reply of one attempt; `None` where the replica does not lead. Then the link
    /// knows which one to ask next.
    pub(super) async fn finish_attempt(
        &self,
        link: &Link,
        attempt: SentAttempt<C::Net>,
        doing: &str,
    ) -> Result<Option<MetaReply>, ErrorCode> {
        let SentAttempt { map, node, sent } = attempt;
        let (at, outcome) = self.receive(sent).await;
        let shard = map.shard(link.shard).ok_or(ErrorCode::NotOwner)?;
        let address = map.node(node).map_or("", |node| &node.address);
        let server = server_name(link, shard, address);
        let reply = match outcome {
            Ok(reply) => reply,
            Err(failure) => {
                self.note_received(server, at, Some(failure));
                if !is_own_end(failure) {
                    link.leader.failed(shard, node);
                }
                let server = format!("shard {} at {address}", link.shard);
                let net = &self.cell().net;
                net.complain(self.context(), &server, doing, failure);
                return Err(match failure_code(failure) {
                    // The process of one replica is gone, which is not that of the shard.
                    ErrorCode::Unreachable if shard.is_replicated() => ErrorCode::TimedOut,
                    code => code,
                });
            }
        };
        self.cell().note_map_version(reply.header.map_version);
        let reply = MetaReply::from_bytes(&reply.body);
        if let Ok(MetaReply::NotLeader { leader }) = reply {
            if !shard.is_replicated() {
                // It has other replicas in a newer map.
                self.note_received(server, at, None);
                return Err(ErrorCode::NotOwner);
            }
            // The process lives; the shard gave no answer.
            self.note_received(server, at, Some(NetFailure::Silent));
            link.leader.refused(shard, node, leader);
            return Ok(None);
        }
        self.note_received(server, at, None);
        match reply.map_err(|_error| ErrorCode::Protocol)? {
            MetaReply::StaleShard {
                epoch, map_version, ..
            } => {
                self.cell().note_map_version(map_version);
                let mut state = lock(&link.state);
                state.epoch = state.epoch.max(epoch);
                Err(ErrorCode::StaleEpoch)
            }
            refused @ MetaReply::Failed { code } if code.0 == ErrorCode::NotOwner => {
                link.leader.failed(shard, node);
                Ok(Some(refused))
            }
            reply => {
                link.leader.answered(shard, node);
                Ok(Some(reply))
            }
        }
    }
}

/// True where the client did not send, or stopped waiting: it says nothing about the server.
fn is_own_end(failure: NetFailure) -> bool {
    let codes = [ErrorCode::Interrupted, ErrorCode::TooBig];
    matches!(failure, NetFailure::Refused(code) if codes.contains(&code))
}

#[cfg(test)]
mod tests;
