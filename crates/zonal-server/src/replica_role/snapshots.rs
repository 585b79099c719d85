//! Snapshots of a group's state. A leader lends views of its store. A replica fills its store from
//! one where it lacks entries that no log has any more.

use super::ReplicaParts;
use crate::clock;
use crate::peers::PeerError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_disk::replica::APPLIED_KEY;
use zonal_disk::{DiskError, ReplicaStore, View};
use zonal_types::{Blob, ErrorCode, KvChange, NodeId};
use zonal_wire::{ReplicaReply, ReplicaRequest};

/// Views lent at a time: each keeps a copy of the overlay in memory.
const LENT_MAX: usize = 2;
/// A view that was not read for this long is dropped.
const TERM: Duration = Duration::from_secs(30);
/// Bytes put into the store in one step.
const STEP_BYTES: usize = 4 << 20;

/// Entries of a view, and whether they are the last.
type ViewPage = (Vec<(Blob, Blob)>, bool);

struct LentView {
    id: u64,
    view: Arc<View>,
    used: Instant,
}

/// The views that a leader has lent.
#[derive(Default)]
pub(super) struct Snapshots {
    lent: Mutex<Vec<LentView>>,
}

impl Snapshots {
    fn lent(&self) -> MutexGuard<'_, Vec<LentView>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends a view; returns its number.
    pub(super) fn add(&self, view: View) -> Result<u64, ErrorCode> {
        self.expire();
        let mut lent = self.lent();
        if lent.len() >= LENT_MAX {
            return Err(ErrorCode::Busy);
        }
        let id = clock::boot_number();
        lent.push(LentView {
            id,
            view: Arc::new(view),
            used: Instant::now(),
        });
        Ok(id)
    }

    /// Entries of a lent view behind a key, and whether they are the last. A view that was read to
    /// its end is given back; a replica that did not get the end begins anew.
    pub(super) fn read(&self, id: u64, after: &[u8]) -> Result<ViewPage, ErrorCode> {
        let view = {
            let mut lent = self.lent();
            let found = lent.iter_mut().find(|one| one.id == id);
            let found = found.ok_or(ErrorCode::NotFound)?;
            found.used = Instant::now();
            Arc::clone(&found.view)
        };
        let (entries, end) = crate::control::read(&view, after)?;
        if end {
            self.lent().retain(|one| one.id != id);
        }
        Ok((entries, end))
    }

    /// Drops views that nobody reads.
    pub(super) fn expire(&self) {
        self.lent().retain(|one| one.used.elapsed() < TERM);
    }

    /// Drops all views.
    pub(super) fn clear(&self) {
        self.lent().clear();
    }
}

/// Fills the store from the leader's. Where this fails, the store stays empty, and the next
/// offer begins again.
pub(super) fn install(
    parts: &ReplicaParts,
    store: &ReplicaStore,
    leader: NodeId,
) -> Result<(), DiskError> {
    let shard = parts.config.shard;
    let ask = |request: &ReplicaRequest| {
        let asked = parts.peers.replica(&parts.map, leader, request);
        asked.map_err(|error: PeerError| unread(error.to_string()))
    };
    let snapshot = match ask(&ReplicaRequest::SnapshotBegin { shard })? {
        ReplicaReply::Snapshot { snapshot } => snapshot,
        ReplicaReply::Failed { code, .. } => {
            return Err(unread(format!("node {leader} lends none now: {}", code.0)));
        }
        other => return Err(unread(format!("node {leader} answers {}", other.name()))),
    };
    tracing::info!(
        shard = shard.0,
        leader = leader.0,
        "filling a replica from a snapshot"
    );
    store.empty()?;
    let (mut after, mut progress) = (Blob(Vec::new()), None);
    let (mut step, mut bytes) = (Vec::new(), 0);
    loop {
        let request = ReplicaRequest::SnapshotRead {
            shard,
            snapshot,
            after: after.clone(),
        };
        let ReplicaReply::Entries { entries, end } = ask(&request)? else {
            return Err(unread("the snapshot is gone".into()));
        };
        for (key, value) in entries {
            bytes += key.0.len() + value.0.len();
            after = key.clone();
            let change = KvChange::put(key.0, value.0);
            if change.key == APPLIED_KEY {
                progress = Some(change);
            } else {
                step.push(change);
            }
        }
        if bytes >= STEP_BYTES || end {
            ReplicaStore::fill(store.engine(), std::mem::take(&mut step))?;
            bytes = 0;
        }
        if end {
            break;
        }
    }
    let progress = progress.ok_or_else(|| unread("it lacks its progress".into()))?;
    ReplicaStore::fill(store.engine(), vec![progress])
}

fn unread(why: String) -> DiskError {
    DiskError::Io {
        what: "read a snapshot of the group".into(),
        source: std::io::Error::other(why),
    }
}
