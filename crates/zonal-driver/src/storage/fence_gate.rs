//! Fence gate: a target that starts may have missed fences while it was away. Before its first
//! change of a file it asks the file's shard for them.
//!
//! A shard keeps the locks of a fenced client until every target has acknowledged the fence, or has
//! had `FENCE_WAIT_MS`. A target that was down in that time would serve the client again. So a
//! change waits (`NotReady`, the sender retries) until the file's shard has answered once in this
//! life of the process. A dead shard needs no bound: its files wait, as all other requests about
//! them do.
//!
//! *Invariants*:
//! 1. Nothing of a shard's files changes before the shard's fences are stored here.
//! 2. One request asks at a time, and no other waits for it.

use super::{Refused, TargetDriver, TargetHost};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use zonal_types::{ClientId, DataId, ErrorCode, HolderNumber, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};

/// The shards that have sent their fences.
#[derive(Debug, Default)]
pub(super) struct FenceGate {
    heard: RwLock<BTreeSet<ShardId>>,
    is_asking: AtomicBool,
}

/// The right to ask a shard, which one request has at a time.
struct Asking<'a>(&'a AtomicBool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl FenceGate {
    fn has_heard(&self, shard: ShardId) -> bool {
        let heard = self.heard.read().unwrap_or_else(PoisonError::into_inner);
        heard.contains(&shard)
    }

    fn ask(&self) -> Option<Asking<'_>> {
        let was_asking = self.is_asking.swap(true, Ordering::AcqRel);
        (!was_asking).then_some(Asking(&self.is_asking))
    }
}

impl<H: TargetHost> TargetDriver<H> {
    /// Fetches the shard's fences before the first change of one of its files, once for each shard.
    ///
    /// # Errors
    /// `NotReady` until the shard has answered; the reason where a fence cannot be stored.
    pub(super) async fn fetch_fences(&self, request: &StorageRequest) -> Result<(), Refused> {
        let Some(data_id) = changed_by(request) else {
            return Ok(());
        };
        let map = self.host.map();
        // A data id that no shard gave has no locks.
        let Some(shard) = map.shard_of(data_id.partition()).map(|shard| shard.id) else {
            return Ok(());
        };
        if self.gate.has_heard(shard) {
            return Ok(());
        }
        let not_yet = || {
            let detail = format!("shard {shard} has not reported its fences yet");
            Refused::new(ErrorCode::NotReady, detail)
        };
        let _asking = self.gate.ask().ok_or_else(not_yet)?;
        if self.gate.has_heard(shard) {
            return Ok(());
        }
        let mut after = (ClientId(0), HolderNumber(0));
        loop {
            let request = MetaRequest::FencesOf {
                target: self.id,
                after: after.0,
                holder: after.1,
            };
            let reply = self.host.ask_shard(shard, &request).await;
            let Some(MetaReply::Fences { fences, end }) = reply else {
                return Err(not_yet());
            };
            if let Some(last) = fences.last() {
                after = (last.client, last.holder);
                self.fence(&fences).await?;
            }
            if end || fences.is_empty() {
                break;
            }
        }
        let heard = self.gate.heard.write();
        let mut heard = heard.unwrap_or_else(PoisonError::into_inner);
        heard.insert(shard);
        Ok(())
    }
}

/// The file that a client's request changes.
fn changed_by(request: &StorageRequest) -> Option<DataId> {
    match request {
        StorageRequest::Truncate { object } => Some(object.data_id),
        request if request.changes_range() => request.object().map(|object| object.data_id),
        _ => None,
    }
}
