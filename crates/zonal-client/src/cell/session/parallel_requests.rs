//! Requests to several shards at once, one attempt each, for operations that wait only briefly.

use super::link::Link;
use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::transport::listing_silences::ListingSilence;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::sync::Arc;
use zonal_types::{Codec, ErrorCode, Ino};
use zonal_wire::{MetaReply, MetaRequest, NO_SLOT, Service};

/// True where the server has given no answer.
pub(crate) fn is_no_answer(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::TimedOut | ErrorCode::Unreachable)
}

impl<N: Net> Cell<N> {
    /// The server of a shard, as silences name it: its address, or its replicas' common name.
    pub(crate) fn server_of(&self, link: &Link) -> Option<String> {
        let map = self.map();
        let shard = map.shard(link.shard)?;
        if shard.is_replicated() {
            return Some(link.group.clone());
        }
        let node = map.node(shard.node)?;
        Some(node.address.clone())
    }

    /// The silence of a shard's server towards listings of the root.
    pub(crate) fn listing_silence(&self, link: &Link) -> Option<ListingSilence> {
        let server = self.server_of(link)?;
        let silences = &self.silent_servers.listings;
        silences.of(&server, self.net.now())
    }

    /// Whether a shard will answer at once, as far as is known: its session is open, and its server
    /// answered when it was asked last.
    pub(crate) fn is_at_hand(&self, link: &Link) -> bool {
        let silences = &self.silent_servers.listings;
        link.is_open()
            && self
                .server_of(link)
                .is_some_and(|server| !silences.remembers(&server))
    }

    /// Notes that a shard's server gave no answer about `ino`.
    pub(crate) fn note_listing_silence(&self, link: &Link, ino: Ino, code: ErrorCode) {
        if let Some(server) = self.server_of(link) {
            let silences = &self.silent_servers.listings;
            silences.begin(&server, self.net.now(), ino, code);
        }
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Sends a request without a slot to each of several shards, whose sessions are open, at once.
    /// `Failed` replies become errors.
    pub(crate) async fn ask_together(
        &self,
        requests: &[(Arc<Link>, MetaRequest)],
    ) -> Vec<Result<MetaReply, ErrorCode>> {
        let mut sent = Vec::with_capacity(requests.len());
        for (link, request) in requests {
            assert!(!request.is_mutation(), "a change needs a slot");
            let under_way = link.used.begin(request, self.cell().net.now());
            let mut header = self.header(Service::Meta);
            {
                let state = lock(&link.state);
                header.session = state.session;
                header.epoch = state.epoch;
                header.identity = self.cell().identity_at(link);
                header.slot = NO_SLOT;
            }
            // A start may have waited for a connection until the end.
            let body = request.to_bytes();
            let attempt = match self.has_ended() {
                true => Err(ErrorCode::TimedOut),
                false => self.start_attempt(link, header, &body, 0),
            };
            sent.push((under_way, header, body, attempt));
        }
        let mut replies = Vec::with_capacity(requests.len());
        for ((link, request), (_under_way, header, body, attempt)) in requests.iter().zip(sent) {
            let reply = match attempt {
                Ok(attempt) => {
                    let message = (header, &body[..]);
                    self.finish_or_resend(link, attempt, message, request.name(), 0)
                        .await
                }
                Err(code) => Err(code),
            };
            replies.push(match reply {
                Ok(MetaReply::Failed { code }) => Err(code.0),
                reply => reply,
            });
        }
        replies
    }

    /// Whether a brief operation is at its end.
    pub(crate) fn has_ended(&self) -> bool {
        let ends = self.context().ends();
        ends.is_some_and(|ends| self.cell().net.now() >= ends.all)
    }
}
