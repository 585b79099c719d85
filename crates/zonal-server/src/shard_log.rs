//! The log of a shard: that of its own store, or of a group.
//!
//! A shard without other replicas costs what its store costs: each call here is the engine's own,
//! after one look at an enum.

use crate::permits::Permits;
use crate::replica_role::GroupLog;
use crate::timers::block_on;
use std::sync::Arc;
use zonal_consensus::LogIndex;
use zonal_disk::{DiskError, Engine, LogRoom};
use zonal_driver::shard::Durability;
use zonal_types::{ErrorCode, KvChange};

/// Why the log takes no record, or does not flush.
#[derive(Debug, thiserror::Error)]
pub enum ShardLogError {
    /// The store failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The group's log refuses.
    #[error("the replicas of the shard: {0}")]
    Group(ErrorCode),
}

impl ShardLogError {
    /// The code that crosses the wire.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::Disk(error) => error.code(),
            Self::Group(code) => *code,
        }
    }
}

/// The log of a shard, with the store of its state.
#[derive(Clone)]
pub struct ShardLog {
    engine: Arc<Engine>,
    group: Option<Arc<GroupLog>>,
}

impl ShardLog {
    /// The log of a store without other replicas.
    #[must_use]
    pub fn own(engine: Arc<Engine>) -> Self {
        Self {
            engine,
            group: None,
        }
    }

    /// The log of a group, during one reign of this replica.
    pub(crate) fn of_group(engine: Arc<Engine>, group: GroupLog) -> Self {
        Self {
            engine,
            group: Some(Arc::new(group)),
        }
    }

    /// The store.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// True where others keep it too.
    pub(crate) fn is_of_group(&self) -> bool {
        self.group.is_some()
    }

    /// Appends one record. Of a group's log, `AtOnce` holds up later replies in place of this call.
    pub(crate) fn append(
        &self,
        changes: Vec<KvChange>,
        room: LogRoom,
        durability: Durability,
    ) -> Result<(), ShardLogError> {
        if let Some(group) = &self.group {
            let appended = group.append(&changes, durability);
            return appended.map_err(ShardLogError::Group);
        }
        self.engine.append_with(changes, &[], room)?;
        if durability == Durability::AtOnce {
            self.engine.sync_all()?;
        }
        Ok(())
    }

    /// The place of the last record, in a group's log.
    pub(crate) fn position(&self) -> LogIndex {
        self.group
            .as_ref()
            .map_or(LogIndex(0), |group| group.replica().position())
    }

    /// Waits until replies that depend on the records up to here may leave.
    pub(crate) async fn settled(&self, upto: LogIndex) -> Result<(), ErrorCode> {
        match &self.group {
            Some(group) => group.settled(upto).await,
            None => Ok(()),
        }
    }

    /// Makes all appended records durable.
    pub(crate) async fn flush(&self, permits: &Permits) -> Result<(), ShardLogError> {
        if let Some(group) = &self.group {
            return group.durable().await.map_err(ShardLogError::Group);
        }
        let position = self.engine.head();
        let _permit = permits.flush().await;
        Ok(self.engine.sync(position)?)
    }

    /// As [`Self::flush`], on this thread.
    pub(crate) fn flush_now(&self) -> Result<(), ShardLogError> {
        match &self.group {
            Some(group) => block_on(group.durable()).map_err(ShardLogError::Group),
            None => Ok(self.engine.sync_all()?),
        }
    }

    /// Ends the reign of this replica, where the log is a group's.
    pub(crate) fn fail(&self, code: ErrorCode) {
        if let Some(group) = &self.group {
            group.replica().fail(code);
        }
    }

    /// Whether too much waits for its commit.
    pub(crate) fn is_congested(&self) -> bool {
        self.group
            .as_ref()
            .is_some_and(|group| group.is_congested())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_disk::StoreKind;
    use zonal_testkit::Scratch;

    /// A lone shard uses nothing of a group: each record costs one write, and no flush.
    #[test]
    fn a_record_of_a_lone_shard_costs_one_write_and_no_flush() {
        let scratch = Scratch::new("lone");
        let engine = crate::manager_tests::engine(&scratch, StoreKind::Shard);
        let log = ShardLog::own(Arc::clone(&engine));
        let before = engine.stats();
        for record in 0..20_u64 {
            let changes = vec![KvChange::put(record.to_be_bytes().to_vec(), vec![1])];
            log.append(changes, LogRoom::Normal, Durability::Later)
                .unwrap();
            assert_eq!(log.position(), LogIndex(0));
            let settled = zonal_driver::at_once(log.settled(log.position()));
            assert_eq!(settled, Ok(Ok(())), "a reply waits for nobody");
        }
        let after = engine.stats();
        assert_eq!(after.appends - before.appends, 20);
        assert_eq!(after.flushes, before.flushes);
        log.append(Vec::new(), LogRoom::Normal, Durability::AtOnce)
            .unwrap();
        assert_eq!(engine.stats().flushes, before.flushes + 1);
        assert!(!log.is_of_group() && !log.is_congested());
    }
}
