//! A target that starts was away, and may not have heard who is fenced: before its first change of a file it asks the file's shard.
//!
//! A shard waits with the locks of a client that is fenced until every target has acknowledged the fence, or has had `FENCE_WAIT_MS`; one that
//! was down in that time would serve the client again. So what is asked to be changed waits (`NotReady`, the sender comes again) until the shard of the file has
//! answered once in this life of the process. A dead shard needs no bound for that: its files wait, as all else that is asked about them.
//!
//! *Invariants*: (1) nothing of a shard's files changes before its fences are stored here; (2) one thread asks at a time, and nobody waits for it.

use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::storage_role::{Refused, Storage};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};
use zonal_types::{ClientId, DataId, ErrorCode, HolderNumber, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};

/// Which shards have said who is fenced.
pub(crate) struct FenceGate {
    map: Arc<MapCache>,
    peers: Arc<Peers>,
    heard: RwLock<BTreeSet<ShardId>>,
    asking: Mutex<()>,
}

impl FenceGate {
    pub(crate) fn new(map: Arc<MapCache>, peers: Arc<Peers>) -> Self {
        Self {
            map,
            peers,
            heard: RwLock::default(),
            asking: Mutex::default(),
        }
    }

    /// Whether a request may be carried out now.
    ///
    /// # Errors
    /// `NotReady` until the shard has answered; why a fence cannot be stored.
    pub(crate) fn check(&self, storage: &Storage, request: &StorageRequest) -> Result<(), Refused> {
        let Some(data_id) = changed_by(request) else {
            return Ok(());
        };
        let map = self.map.current();
        // One that no shard gave has no locks.
        let Some(shard) = map.shard_of(data_id.partition()).map(|shard| shard.id) else {
            return Ok(());
        };
        if self.has_heard(shard) {
            return Ok(());
        }
        let not_yet = || {
            let detail = format!("shard {shard} has not said yet who is fenced");
            Refused::new(ErrorCode::NotReady, detail)
        };
        let _asking = match self.asking.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(not_yet()),
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Ok(held) => held,
        };
        if self.has_heard(shard) {
            return Ok(());
        }
        let mut after = (ClientId(0), HolderNumber(0));
        loop {
            let request = MetaRequest::FencesOf {
                target: storage.id(),
                after: after.0,
                holder: after.1,
            };
            let reply = self.peers.shard(&self.map, shard, &request);
            let Ok(MetaReply::Fences { fences, end }) = reply else {
                return Err(not_yet());
            };
            if let Some(last) = fences.last() {
                after = (last.client, last.holder);
                storage.fence(&fences)?;
            }
            if end || fences.is_empty() {
                break;
            }
        }
        let mut heard = self.heard.write().unwrap_or_else(PoisonError::into_inner);
        heard.insert(shard);
        Ok(())
    }

    fn has_heard(&self, shard: ShardId) -> bool {
        let heard = self.heard.read().unwrap_or_else(PoisonError::into_inner);
        heard.contains(&shard)
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
