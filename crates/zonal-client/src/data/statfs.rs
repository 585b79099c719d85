//! Capacity, from all concerned servers in parallel. Below a first-level directory it is its home
//! zone's, because files there can fill no other zone. In the root it is the cell's. A zone's
//! figures need no other zone.
//!
//! The cell's figures are wanted soon. A server that does not answer within [`ROOT_ANSWER_MS`]
//! counts with its last figures; one that this client never had figures of is left out.

use crate::cell::Link;
use crate::cell::call::SentRequest;
use crate::cell::known_capacities::Figures;
use crate::cell::placement::TargetPlace;
use crate::cell::session::is_no_answer;
use crate::client::ClientCall;
use crate::transport::net::Net;
use std::collections::BTreeSet;
use std::sync::Arc;
use zonal_types::limits::ROOT_ANSWER_MS;
use zonal_types::{ErrorCode, Ino, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::{Node, Target};

/// How long one server is waited for to which there is no connection.
const CONNECTING_MS: u64 = ROOT_ANSWER_MS / 2;

/// Capacity and free space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Bytes of the targets.
    pub total: u64,
    /// Free bytes of the targets.
    pub free: u64,
    /// Inodes of the shards.
    pub inodes: u64,
    /// Estimate of new names for which the shard of the inode has room.
    pub names_left: u64,
}

fn place_of(target: &Target, node: &Node) -> TargetPlace {
    TargetPlace {
        target: target.id,
        node: node.id,
        zone: node.zone,
        address: node.address.clone(),
        slot: (zonal_types::StripeSetId(0), 0),
        epoch: zonal_types::Epoch(0),
        is_guarded: false,
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Bytes and inodes of the home zone of `ino` (of the cell, for the root's entries), and room
    /// for names beside it.
    ///
    /// # Errors
    /// None at present.
    pub async fn statfs(&self, ino: Ino) -> Result<Capacity, ErrorCode> {
        // Shards get partitions as they get directories. Without a manager the cell answers.
        if self.map().shard_of(ino.partition()).is_none() {
            self.try_refresh_map().await.ok();
        }
        let map = self.map();
        let own = map.shard_of(ino.partition());
        let zone = own.filter(|own| own.id != ShardId(0)).map(|own| own.zone);
        let own = own.map(|own| own.id);
        let concerned = map.targets.iter().filter_map(|target| {
            let node = map.node(target.node)?;
            let is_concerned = zone.is_none_or(|zone| node.zone == zone);
            is_concerned.then(|| place_of(target, node))
        });
        let places: Vec<TargetPlace> = concerned.collect();
        let links: Vec<Arc<Link>> = match (zone, own) {
            (Some(_), Some(own)) => vec![self.link(own)],
            _root => map.shards.iter().map(|one| self.link(one.id)).collect(),
        };
        if zone.is_some() {
            let figures = self.ask_targets(&places.iter().collect::<Vec<_>>()).await;
            let mut capacity = sum_of(figures.into_iter().flatten());
            for link in &links {
                let reply = self.meta(link, &MetaRequest::StatFs).await;
                if let Ok((inodes, names_left)) = self.note_shard(link, reply) {
                    (capacity.inodes, capacity.names_left) = (inodes, names_left);
                }
            }
            return Ok(capacity);
        }
        self.known_capacities.keep_only(&map);
        self.ask_soon(&places, &links).await;
        let known = &self.known_capacities;
        let targets = places.iter().map(|place| known.target(place.target));
        let mut capacity = sum_of(targets.flatten());
        for link in &links {
            let (inodes, names_left) = known.shard(link.shard).unwrap_or_default();
            capacity.inodes = capacity.inodes.saturating_add(inodes);
            if own == Some(link.shard) {
                capacity.names_left = names_left;
            }
        }
        Ok(capacity)
    }

    /// Asks the cell's servers, and keeps their figures. Those that may have to be waited for come
    /// last, one after the other. Behind them come the others of a zone with a silent server.
    async fn ask_soon(&self, places: &[TargetPlace], links: &[Arc<Link>]) {
        let (map, now) = (self.map(), self.net.now());
        let silences = &self.silent_servers.listings;
        let asked = places.iter();
        let asked = asked.filter(|place| silences.of(&place.address, now).is_none());
        let (at_hand, others): (Vec<_>, Vec<_>) =
            asked.partition(|place| !silences.remembers(&place.address));
        let asked = links.iter();
        let asked = asked.filter(|link| self.listing_silence(link).is_none());
        let (open, shut): (Vec<_>, Vec<_>) = asked.partition(|link| self.is_at_hand(link));
        let call = self.briefly(ROOT_ANSWER_MS);
        let sent = call.start_targets(&at_hand);
        let requests = open
            .iter()
            .map(|link| ((*link).clone(), MetaRequest::StatFs));
        let replies = call.ask_together(&requests.collect::<Vec<_>>()).await;
        for (link, reply) in open.into_iter().zip(replies) {
            self.note_shard(link, reply).ok();
        }
        let outcomes = call.finish_targets(&at_hand, sent).await;
        let unasked = at_hand.into_iter().zip(outcomes);
        let unasked = unasked
            .filter(|(place, outcome)| outcome.is_err() && !silences.remembers(&place.address));
        let others = others
            .into_iter()
            .chain(unasked.map(|(place, _outcome)| place));
        let mut waiting: Vec<AskedServer<'_>> = others.map(AskedServer::Target).collect();
        waiting.extend(shut.into_iter().map(AskedServer::Shard));
        let zone_of = |server: &AskedServer<'_>| match server {
            AskedServer::Shard(link) => map.shard(link.shard).map(|shard| shard.zone),
            AskedServer::Target(place) => Some(place.zone),
        };
        let (mut silent_zones, mut lost_ms) = (BTreeSet::new(), 0);
        while !waiting.is_empty() && lost_ms < ROOT_ANSWER_MS {
            let next = waiting.iter().rposition(|server| {
                zone_of(server).is_none_or(|zone| !silent_zones.contains(&zone))
            });
            let server = waiting.swap_remove(next.unwrap_or(0));
            let (zone, begun) = (zone_of(&server), self.net.now());
            let call = self.briefly(CONNECTING_MS);
            let outcome = match server {
                AskedServer::Shard(link) => {
                    let reply = call.meta(link, &MetaRequest::StatFs).await;
                    self.note_shard(link, reply)
                }
                AskedServer::Target(place) => {
                    let outcomes = call.ask_targets(&[place]).await;
                    outcomes.first().copied().unwrap_or(Ok((0, 0)))
                }
            };
            if outcome.is_err_and(is_no_answer) {
                silent_zones.extend(zone);
                lost_ms += self.net.now().ms_since(begun);
            }
        }
    }

    /// Keeps the figures of a shard, or notes that its server does not answer.
    fn note_shard(
        &self,
        link: &Link,
        reply: Result<MetaReply, ErrorCode>,
    ) -> Result<Figures, ErrorCode> {
        match reply {
            Ok(MetaReply::StatFs { inodes, names_left }) => {
                let figures = (inodes, names_left);
                self.known_capacities.note_shard(link.shard, figures);
                Ok(figures)
            }
            Ok(_other) => Err(ErrorCode::Protocol),
            Err(code) => {
                if is_no_answer(code) {
                    self.note_listing_silence(link, Ino(0), code);
                }
                Err(code)
            }
        }
    }

    /// Asks targets at once, and keeps their figures.
    async fn ask_targets(&self, places: &[&TargetPlace]) -> Vec<Result<Figures, ErrorCode>> {
        let sent = self.start_targets(places);
        self.finish_targets(places, sent).await
    }

    /// Asks targets; [`Self::finish_targets`] takes the replies.
    fn start_targets(&self, places: &[&TargetPlace]) -> Vec<Option<SentRequest<N>>> {
        let sent = places.iter().map(|place| {
            let target = place.target;
            // A start may have waited for a connection until the end.
            let is_over = self.context().is_brief() && self.has_ended();
            let request = StorageRequest::StatFs { target };
            (!is_over).then(|| self.start_storage(place, &request))
        });
        sent.collect()
    }

    /// Keeps the figures of targets, or notes that their servers do not answer.
    async fn finish_targets(
        &self,
        places: &[&TargetPlace],
        sent: Vec<Option<SentRequest<N>>>,
    ) -> Vec<Result<Figures, ErrorCode>> {
        let mut outcomes = Vec::with_capacity(places.len());
        for (place, sent) in places.iter().zip(sent) {
            let Some(sent) = sent else {
                outcomes.push(Err(ErrorCode::TimedOut));
                continue;
            };
            let outcome = match self.storage_reply(place, sent, None).await {
                Ok((StorageReply::StatFs { total, free, .. }, _)) => Ok((total, free)),
                Ok(_other) => Err(ErrorCode::Protocol),
                Err(code) => Err(code),
            };
            match outcome {
                Ok(figures) => self.known_capacities.note_target(place.target, figures),
                Err(code) if is_no_answer(code) => {
                    let silences = &self.silent_servers.listings;
                    silences.begin(&place.address, self.net.now(), Ino(0), code);
                }
                Err(_refusal) => {}
            }
            outcomes.push(outcome);
        }
        outcomes
    }
}

/// A server that may have to be connected to.
enum AskedServer<'a> {
    Shard(&'a Arc<Link>),
    Target(&'a TargetPlace),
}

fn sum_of(targets: impl Iterator<Item = Figures>) -> Capacity {
    let mut capacity = Capacity::default();
    for (total, free) in targets {
        capacity.total = capacity.total.saturating_add(total);
        capacity.free = capacity.free.saturating_add(free);
    }
    capacity
}
