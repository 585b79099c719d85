//! The log of a group, as its shard uses it during one reign of this replica.

use super::disk::ReplicaDisk;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_consensus::{LogIndex, Term};
use zonal_driver::ReplicaDriver;
use zonal_driver::shard::Durability;
use zonal_types::{ErrorCode, KvChange};

/// Entries that may wait for their commit before the shard takes no more requests.
const UNCOMMITTED_MAX: u64 = 4_096;

/// A group's log during one reign.
pub(crate) struct GroupLog {
    replica: Arc<ReplicaDriver<ReplicaDisk>>,
    reign: Term,
    /// Everything up to here must be durable before a reply leaves.
    at_once: AtomicU64,
}

impl GroupLog {
    pub(super) fn new(replica: Arc<ReplicaDriver<ReplicaDisk>>, reign: Term) -> Self {
        Self {
            replica,
            reign,
            at_once: AtomicU64::new(0),
        }
    }

    pub(crate) fn replica(&self) -> &Arc<ReplicaDriver<ReplicaDisk>> {
        &self.replica
    }

    /// Appends a record. Called under the lock of the state that it changes.
    pub(crate) fn append(
        &self,
        changes: &[KvChange],
        durability: Durability,
    ) -> Result<(), ErrorCode> {
        let appended = self.replica.append(self.reign, changes);
        let index = appended.inspect_err(|code| {
            if *code != ErrorCode::NotOwner {
                // The state is ahead of its log: it is to be loaded again.
                self.replica.fail(*code);
            }
        })?;
        if durability == Durability::AtOnce {
            self.at_once.fetch_max(index.0, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Waits until replies that depend on the records up to here may leave.
    pub(crate) async fn settled(&self, upto: LogIndex) -> Result<(), ErrorCode> {
        let at_once = LogIndex(self.at_once.load(Ordering::Acquire));
        if at_once > LogIndex(0) {
            self.replica.durable(self.reign, at_once).await?;
        }
        self.replica.settled(self.reign, upto).await
    }

    /// Waits until a majority has flushed everything so far.
    pub(crate) async fn durable(&self) -> Result<(), ErrorCode> {
        let last = self.replica.position();
        self.replica.durable(self.reign, last).await
    }

    /// Whether too much waits for its commit.
    pub(crate) fn is_congested(&self) -> bool {
        self.replica.uncommitted() > UNCOMMITTED_MAX
    }
}
