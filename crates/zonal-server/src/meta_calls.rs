//! Deferred calls of a shard to other servers. They have a thread of their own, so that no reply
//! waits for a silent server.

use crate::map_cache::MapCache;
use crate::peers::Peers;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use zonal_types::{ShardId, TargetId};
use zonal_wire::{MetaRequest, StorageReply, StorageRequest};

/// Queued calls; past it, the newest are left to housekeeping.
const LATER_MAX: usize = 1_024;

/// The queue of deferred calls.
#[derive(Default)]
pub(crate) struct DeferredCalls {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    calls: VecDeque<(ShardId, MetaRequest)>,
    is_stopping: bool,
}

impl DeferredCalls {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, calls: Vec<(ShardId, MetaRequest)>) {
        let mut queue = self.queue();
        let room = LATER_MAX.saturating_sub(queue.calls.len());
        queue.calls.extend(calls.into_iter().take(room));
        drop(queue);
        self.changed.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.queue().is_stopping = true;
        self.changed.notify_all();
    }

    /// Makes the calls one after the other, until [`Self::stop`].
    pub(crate) fn run(&self, peers: &Peers, map: &MapCache) {
        loop {
            let queue = self.queue();
            let is_idle = |queue: &mut Queue| queue.calls.is_empty() && !queue.is_stopping;
            let woken = self.changed.wait_while(queue, is_idle);
            let mut queue = woken.unwrap_or_else(PoisonError::into_inner);
            if queue.is_stopping {
                return;
            }
            let next = queue.calls.pop_front();
            drop(queue);
            if let Some((shard, request)) = next
                && let Err(error) = peers.shard(map, shard, &request)
            {
                tracing::warn!(%error, shard = shard.0, operation = request.name(), "left to housekeeping");
            }
        }
    }
}

/// Calls one target; failures are logged.
pub(crate) fn call_target(
    peers: &Peers,
    map: &Arc<MapCache>,
    target: TargetId,
    request: &StorageRequest,
) -> Option<StorageReply> {
    let node = map.current().target(target).map(|target| target.node);
    let Some(node) = node else {
        tracing::warn!(
            target_id = target.0,
            request = request.name(),
            "the zone map does not name the target"
        );
        return None;
    };
    match peers.storage(map, node, request) {
        Ok(StorageReply::Done) => Some(StorageReply::Done),
        Ok(other) => {
            tracing::warn!(target_id = target.0, request = request.name(), reply = ?other, "a target refuses");
            Some(other)
        }
        Err(error) => {
            tracing::warn!(target_id = target.0, request = request.name(), %error, "a target does not answer, it is asked again");
            None
        }
    }
}
