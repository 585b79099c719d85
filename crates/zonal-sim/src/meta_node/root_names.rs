//! The mirror of the root beside a zone's shard, for tests that ask for one. Scenarios have none,
//! as their checkers hold the root's names to be fresh.

use super::MetaNode;
use std::rc::Rc;
use zonal_meta::{RootFetch, RootMirror, RootReply, RootRequest};
use zonal_types::{ErrorCode, ShardId};
use zonal_wire::{MetaReply, MetaRequest};

/// Pause between two rounds, ns.
const PERIOD: u64 = 1_000_000_000;

impl MetaNode {
    /// Keeps a mirror of the root from now on.
    pub fn mirror_root(self: &Rc<Self>) {
        let node = Rc::clone(self);
        let clock = self.host().peers.network.clock.clone();
        let pauses = clock.clone();
        clock.spawn(self.host().group, async move {
            loop {
                if let Ok(mirror) = node.next_mirror().await {
                    node.mirror.replace(mirror);
                }
                pauses.sleep(PERIOD).await;
            }
        });
    }

    async fn next_mirror(&self) -> Result<RootMirror, ErrorCode> {
        let peers = &self.host().peers;
        let mut fetch = RootFetch::new(&self.mirror.borrow(), peers.now().instant);
        loop {
            let reply = match fetch.question() {
                RootRequest::Manager(request) => {
                    RootReply::Manager(peers.ask_manager(&request).await?)
                }
                RootRequest::Shard(request) => {
                    RootReply::Shard(peers.ask(ShardId(0), &request).await?)
                }
            };
            if let Some(mirror) = fetch.take(reply)? {
                return Ok(mirror);
            }
        }
    }

    /// Answers a request for the mirror; `None`: it is another request.
    pub(super) fn mirrored(&self, request: &MetaRequest) -> Option<MetaReply> {
        let now = self.host().peers.now().instant;
        self.mirror.borrow().answer(None, request, now)
    }
}
