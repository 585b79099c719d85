//! Snapshots of a group's state: a leader lends one, and a replica fills its disk from it.

use super::ReplicaNode;
use crate::member_disk::StateProgress;
use zonal_types::{Blob, Codec, ErrorCode, KvChange, NodeId};
use zonal_wire::{ReplicaReply, ReplicaRequest};

/// Keys in one reply.
const KEYS_MAX: usize = 60;
/// The key with the progress, behind all others.
const PROGRESS_KEY: &[u8] = b"\xff\xff\xff\xffapplied";

/// A snapshot that is lent.
pub(super) struct LentSnapshot {
    number: u64,
    contents: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ReplicaNode {
    pub(super) async fn lend_snapshot(&self) -> Result<(ReplicaReply, Vec<u8>), ErrorCode> {
        let life = self.life().ok_or(ErrorCode::NotReady)?;
        let disk = &self.parts.disk;
        let (mut contents, applied) = (disk.state().contents(), disk.applied());
        life.driver.lendable(applied.index).await?;
        if applied.changed > applied.since {
            return Err(ErrorCode::Busy);
        }
        contents.push((PROGRESS_KEY.to_vec(), applied.to_bytes()));
        self.snapshots.set(self.snapshots.get() + 1);
        let number = self.snapshots.get();
        *self.lent.borrow_mut() = Some(LentSnapshot { number, contents });
        Ok((ReplicaReply::Snapshot { snapshot: number }, Vec::new()))
    }

    pub(super) fn read_snapshot(
        &self,
        number: u64,
        after: &Blob,
    ) -> Result<(ReplicaReply, Vec<u8>), ErrorCode> {
        let lent = self.lent.borrow();
        let lent = lent.as_ref().filter(|lent| lent.number == number);
        let contents = &lent.ok_or(ErrorCode::NotFound)?.contents;
        let from = contents.partition_point(|(key, _)| *key <= after.0);
        let rest = &contents[from..];
        let some = rest.iter().take(KEYS_MAX);
        let entries = some.map(|(key, value)| (Blob(key.clone()), Blob(value.clone())));
        let entries = entries.collect();
        let end = rest.len() <= KEYS_MAX;
        Ok((ReplicaReply::Entries { entries, end }, Vec::new()))
    }

    /// Fills the disk from a leader's. Where this fails, the disk stays empty, and the next offer
    /// begins again.
    pub(super) async fn install(&self, leader: NodeId) -> Result<(), ErrorCode> {
        let shard = self.parts.shard.0;
        let begin = ReplicaRequest::SnapshotBegin { shard };
        let (ReplicaReply::Snapshot { snapshot }, _) = self.ask(leader, &begin, Vec::new()).await?
        else {
            return Err(ErrorCode::NotReady);
        };
        let disk = &self.parts.disk;
        disk.begin_fill();
        let mut after = Blob(Vec::new());
        loop {
            let read = ReplicaRequest::SnapshotRead {
                shard,
                snapshot,
                after: after.clone(),
            };
            let (ReplicaReply::Entries { entries, end }, _) =
                self.ask(leader, &read, Vec::new()).await?
            else {
                return Err(ErrorCode::NotReady);
            };
            let mut changes = Vec::new();
            let mut progress = None;
            for (key, value) in entries {
                after = key.clone();
                if key.0 == PROGRESS_KEY {
                    progress = Some(value.0);
                } else {
                    changes.push(KvChange::put(key.0, value.0));
                }
            }
            disk.fill(changes);
            if let Some(progress) = progress {
                let applied = StateProgress::from_bytes(&progress);
                disk.end_fill(applied.map_err(|_| ErrorCode::Corrupt)?);
                return Ok(());
            }
            if end {
                return Err(ErrorCode::Corrupt);
            }
        }
    }
}
