//! Attributes of first-level directories for a listing of the root, and for the stats that belong
//! to it. Their shards are asked together, and none is waited for long.
//!
//! A shard with an open session is asked first, with others at the same time. A shard that has to
//! be connected to, and may not answer, comes behind them, so that it takes no time from them.

use crate::cell::session::Link;
use crate::cell::session::is_no_answer;
use crate::client::ClientCall;
use crate::transport::net::Net;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use zonal_types::limits::{ROOT_ANSWER_MS, ROOT_CONFIRM_MS};
use zonal_types::{Attr, ErrorCode, Ino, ShardId};
use zonal_wire::{MetaReply, MetaRequest};

/// Least wait for a server to which there is no session, ms.
const CONNECTING_MS: u64 = 50;

/// Attributes, and how long they may be cached, ms.
type CachedAttr = (Attr, u32);

/// A shard, and the inodes to ask it about.
type ShardQueue = (Arc<Link>, VecDeque<Ino>);

impl<N: Net> ClientCall<'_, N> {
    /// Attributes of inodes of other shards. Those of a shard without an answer are missing.
    pub(crate) async fn listed_attributes(&self, inos: Vec<Ino>) -> BTreeMap<Ino, CachedAttr> {
        let mut found = BTreeMap::new();
        let mut queues: BTreeMap<ShardId, ShardQueue> = BTreeMap::new();
        for ino in inos {
            if let Some((attr, attr_ms)) = self.cached_attributes(ino) {
                found.insert(ino, self.lay_own_writes(attr, attr_ms));
            } else if let Ok(link) = self.reach(ino).await {
                let queue = queues.entry(link.shard);
                let (_link, inos) = queue.or_insert_with(|| (link, VecDeque::new()));
                inos.push_back(ino);
            }
        }
        let asked = queues.into_values();
        let asked = asked.filter(|(link, _inos)| self.listing_silence(link).is_none());
        let (at_hand, others) = asked.partition(|(link, _inos)| self.is_at_hand(link));
        self.ask_in_rounds(at_hand, &mut found).await;
        let mut opened = Vec::new();
        let mut lost_ms = 0;
        for (link, mut inos) in others {
            let begun = self.net.now();
            let Some(first) = inos.pop_front() else {
                continue;
            };
            // Behind several silent servers others still get the time of a connection.
            let ms = if lost_ms < ROOT_ANSWER_MS {
                ROOT_ANSWER_MS / 2
            } else {
                CONNECTING_MS
            };
            match self.ask_briefly(&link, first, ms).await {
                Ok(attributes) => {
                    found.insert(first, attributes);
                    opened.push((link, inos));
                }
                Err(code) if is_no_answer(code) => lost_ms += self.net.now().ms_since(begun),
                Err(_refusal) => opened.push((link, inos)),
            }
        }
        self.ask_in_rounds(opened, &mut found).await;
        found
    }

    /// Attributes for which no shard is asked.
    fn cached_attributes(&self, ino: Ino) -> Option<CachedAttr> {
        let leased = || {
            let link = self.link_of(ino).ok()?;
            self.inode_cache.leased_attr(self, &link, ino)
        };
        self.inode_cache.fresh(self, ino).or_else(leased)
    }

    /// Asks all shards about one inode each, then about the next. A shard without an answer is
    /// asked no more.
    async fn ask_in_rounds(
        &self,
        mut queues: Vec<ShardQueue>,
        found: &mut BTreeMap<Ino, CachedAttr>,
    ) {
        loop {
            queues.retain(|(_link, inos)| !inos.is_empty());
            if queues.is_empty() {
                return;
            }
            let inos: Vec<Ino> = queues.iter().map(|(_link, inos)| inos[0]).collect();
            let starts = queues.iter().map(|(link, _inos)| {
                let lease = self.inode_cache.lease_request(self, link);
                (self.asking(link), lease)
            });
            let starts: Vec<_> = starts.collect();
            let requests = queues.iter().zip(&inos).map(|((link, _inos), ino)| {
                let request = MetaRequest::GetAttr {
                    ino: *ino,
                    data: false,
                };
                (link.clone(), request)
            });
            let requests: Vec<_> = requests.collect();
            let round = self.briefly(ROOT_ANSWER_MS);
            let replies = round.ask_together(&requests).await;
            let answers = queues.iter_mut().zip(inos.into_iter().zip(starts));
            for (((link, inos), (ino, (start, lease))), reply) in answers.zip(replies) {
                inos.pop_front();
                match reply {
                    Ok(MetaReply::Attr { attr, attr_ms, .. }) => {
                        let of = (&**link, lease);
                        self.inode_cache.keep_attr(self, of, Ino(0), &attr, attr_ms);
                        let attr_ms = self.kernel_ms(link, start, attr_ms);
                        found.insert(ino, self.lay_own_writes(attr, attr_ms));
                    }
                    Err(code) if is_no_answer(code) => {
                        self.note_listing_silence(link, ino, code);
                        inos.clear();
                    }
                    // A session or a map has changed, or the inode is gone.
                    _other => match self.ask_briefly(link, ino, ROOT_ANSWER_MS).await {
                        Ok(attributes) => {
                            found.insert(ino, attributes);
                        }
                        Err(code) if is_no_answer(code) => inos.clear(),
                        Err(_refusal) => {}
                    },
                }
            }
        }
    }

    /// Attributes from a shard within `ms`.
    async fn ask_briefly(&self, link: &Link, ino: Ino, ms: u64) -> Result<CachedAttr, ErrorCode> {
        let outcome = self.briefly(ms).getattr(ino).await;
        if let Err(code) = outcome
            && is_no_answer(code)
        {
            self.note_listing_silence(link, ino, code);
        }
        outcome
    }

    /// Attributes of an inode and how long they may be cached, ms. A stat that belongs to a listing
    /// of the root fails once the server has not answered two requests.
    ///
    /// # Errors
    /// `Stale` where the inode is gone; `TimedOut`, `Unreachable`.
    pub async fn stat(&self, ino: Ino) -> Result<CachedAttr, ErrorCode> {
        if !self.context().is_of_listing() || self.cached_attributes(ino).is_some() {
            return self.getattr(ino).await;
        }
        let link = self.reach(ino).await?;
        if link.shard == self.reach(Ino::ROOT).await?.shard {
            return self.getattr(ino).await;
        }
        if self.listing_silence(&link).is_none() {
            match self.ask_briefly(&link, ino, ROOT_ANSWER_MS).await {
                Err(code) if is_no_answer(code) => {}
                answer => return answer,
            }
        }
        self.confirm_silences().await;
        match self.listing_silence(&link) {
            Some(silence) if silence.is_confirmed => Err(silence.code),
            _answered => self.ask_briefly(&link, ino, ROOT_CONFIRM_MS).await,
        }
    }

    /// Asks all suspected servers once more, together.
    async fn confirm_silences(&self) {
        let suspects = self.silent_servers.listings.suspects(self.net.now());
        let call = self.briefly(ROOT_CONFIRM_MS);
        let (mut links, mut requests) = (Vec::new(), Vec::new());
        for ino in suspects {
            let Ok(link) = self.link_of(ino) else {
                continue;
            };
            if link.is_open() {
                requests.push((link.clone(), MetaRequest::GetAttr { ino, data: false }));
                links.push((link, ino));
            } else if let Err(code) = call.getattr(ino).await
                && is_no_answer(code)
            {
                self.note_listing_silence(&link, ino, code);
            }
        }
        let replies = call.ask_together(&requests).await;
        for ((link, ino), reply) in links.into_iter().zip(replies) {
            let mut outcome = reply.map(|_answer| ());
            if outcome.is_err_and(is_no_answer) && !call.has_ended() {
                // Its process is gone, and may be back soon.
                outcome = call.getattr(ino).await.map(|_answer| ());
            }
            if let Err(code) = outcome
                && is_no_answer(code)
            {
                self.note_listing_silence(&link, ino, code);
            }
        }
    }
}
