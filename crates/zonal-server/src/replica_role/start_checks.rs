//! Start checks between managers: an older image of a manager's store has no say in its group.
//!
//! A zone's replica joins before it opens its log, and an older image is refused there. A manager's
//! replica cannot: the record of starts is in the group's own state. So each replica of the root's
//! shard asks another one for the starts of its store at the first message of each of its lives. It
//! compares them with the record in its own store, as a join does. Until then, and where it finds a
//! later start, it takes no message of that life.
//!
//! *Limit*: a member that was gone when the later start was taken has no record of it, and finds
//! nothing.
//!
//! Lock order: [`StartChecks::judged`] is taken alone, and never during a call.

use super::ReplicaRole;
use crate::store_starts::{self, StartRecord};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use zonal_consensus::PeerMessage;
use zonal_disk::{DiskError, ReplicaStore};
use zonal_types::{Codec, ErrorCode, NodeId};
use zonal_wire::{ReplicaReply, ReplicaRequest, StoreStart};

/// The lives of other replicas that were compared.
#[derive(Debug, Default)]
pub(super) struct StartChecks {
    /// The last life of each node, and whether its store is the newest.
    judged: Mutex<BTreeMap<NodeId, (u64, bool)>>,
}

impl StartChecks {
    fn verdict(&self, node: NodeId, life: u64) -> Option<bool> {
        let judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        let known = judged.get(&node).filter(|(known, _)| *known == life);
        known.map(|(_, is_newest)| *is_newest)
    }

    fn note(&self, node: NodeId, life: u64, is_newest: bool) {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        judged.insert(node, (life, is_newest));
    }
}

impl ReplicaRole {
    /// True where messages of a node may be taken in. Always for a zone's shard.
    pub(super) fn is_newest_image(
        &self,
        store: &ReplicaStore,
        from: NodeId,
        messages: &[PeerMessage],
    ) -> bool {
        let Some(life) = messages.first().map(|message| message.life) else {
            return true;
        };
        if self.parts.manager.is_none() {
            return true;
        }
        if let Some(is_newest) = self.starts.verdict(from, life) {
            return is_newest;
        }
        match self.compare_starts(store, from) {
            Ok(is_newest) => {
                self.starts.note(from, life, is_newest);
                is_newest
            }
            Err(code) => {
                tracing::debug!(node = from.0, %code, "the starts of a manager are not known yet");
                false
            }
        }
    }

    fn compare_starts(&self, store: &ReplicaStore, from: NodeId) -> Result<bool, ErrorCode> {
        let record = store.newest(&store_starts::key(store_starts::ROOT, from.0))?;
        // It has not joined with this store yet.
        let Some(record) = record else {
            return Ok(true);
        };
        let record = StartRecord::from_bytes(&record).map_err(|_damaged| ErrorCode::Corrupt)?;
        let shard = self.shard();
        let asked = ReplicaRequest::Starts { shard };
        let reply = self.parts.peers.replica(&self.parts.map, from, &asked);
        let ReplicaReply::Starts { start } = reply.map_err(|error| error.code())? else {
            return Err(ErrorCode::NotReady);
        };
        if start.id != from.0 {
            return Err(ErrorCode::Protocol);
        }
        let judged = store_starts::judge(Some(&record), &start);
        if let Err(error) = &judged {
            tracing::error!(node = from.0, %error, "a manager with an older store has no say");
        }
        Ok(judged.is_ok())
    }

    /// The starts of this replica's store.
    ///
    /// # Errors
    /// Where the disk fails.
    pub(super) fn own_starts(&self) -> Result<StoreStart, DiskError> {
        let (dir, uuid) = (&self.parts.dir, self.parts.uuid);
        store_starts::known(dir, store_starts::ROOT, self.parts.node.0, uuid)
    }
}
