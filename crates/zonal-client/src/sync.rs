//! Durability: fsync of a file, of a directory, of everything.

use crate::client::Client;
use crate::file::File;
use crate::net::Net;
use crate::session::lock;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{ErrorCode, Ino, TargetId};
use zonal_wire::MetaRequest;

/// Closed files of which targets with unflushed data are remembered.
pub(crate) const LEFT_BEHIND_MAX: usize = 65_536;

/// Targets by closed file.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind {
    files: BTreeMap<Ino, BTreeSet<TargetId>>,
    /// Some were forgotten: every target of a file must be asked.
    is_incomplete: bool,
}

impl LeftBehind {
    /// Files remembered now.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}

impl<N: Net> Client<N> {
    /// Makes a file's data, size and name durable.
    ///
    /// The targets that were written flush while the shard takes the report and flushes its log: one flush of latency.
    ///
    /// # Errors
    /// The first write that failed since the last flush; a target or shard that cannot make it durable.
    pub async fn fsync(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = file.gate.lock().await;
        let written = self.flush_data(file).await;
        let mut targets = std::mem::take(&mut file.state().unsynced);
        self.take_left_behind(file, &mut targets);
        let targets: Vec<TargetId> = targets.into_iter().collect();
        // Targets and shard flush their logs at the same time.
        let syncing = self.start_sync(&targets);
        let reported = self.send_report(file).await;
        // A shard that took no report within the deadline is not asked again.
        let logged = if reported.is_ok() {
            self.sync_shard_of(file.ino).await
        } else {
            Ok(())
        };
        let synced = self.finish_sync(syncing).await;
        if synced.is_err() {
            file.state().unsynced.extend(targets);
        }
        written.and(synced).and(reported).and(logged)
    }

    /// Remembers what a file that is closed now has not made durable: a later open's fsync covers it.
    pub(crate) fn leave_behind(&self, ino: Ino, targets: BTreeSet<TargetId>) {
        if targets.is_empty() {
            return;
        }
        let mut left = lock(&self.left_behind);
        if left.files.len() >= LEFT_BEHIND_MAX {
            left.files.clear();
            left.is_incomplete = true;
        }
        left.files.entry(ino).or_default().extend(targets);
    }

    fn take_left_behind(&self, file: &File<N>, targets: &mut BTreeSet<TargetId>) {
        let is_incomplete = {
            let mut left = lock(&self.left_behind);
            targets.extend(left.files.remove(&file.ino).unwrap_or_default());
            left.is_incomplete
        };
        if is_incomplete {
            let data = file.state().data.clone();
            targets.extend(self.bytes_by_target(&data, u64::MAX).into_keys());
        }
    }

    /// Makes an inode and its names durable.
    ///
    /// # Errors
    /// What the shard answers.
    pub async fn sync_shard_of(&self, ino: Ino) -> Result<(), ErrorCode> {
        let link = self.link_of(ino)?;
        self.meta(&link, &MetaRequest::Sync).await.map(|_done| ())
    }

    /// Flushes all files of this mount and makes everything durable that it wrote.
    ///
    /// # Errors
    /// The first failure; the rest is done all the same.
    pub async fn sync_all(&self) -> Result<(), ErrorCode> {
        let mut failed = None;
        let mut targets = BTreeSet::new();
        for file in self.all_files() {
            if let Err(code) = self.flush(&file).await {
                failed = Some(code);
            }
            targets.append(&mut file.state().unsynced);
        }
        // What closed files left behind is not listed by file: every target of the cell is asked.
        targets.extend(self.map().targets.iter().map(|target| target.id));
        let targets: Vec<TargetId> = targets.into_iter().collect();
        let synced = self.sync_targets(&targets).await;
        for link in self.all_links() {
            if let Err(code) = self.meta(&link, &MetaRequest::Sync).await {
                failed = Some(code);
            }
        }
        failed.map_or(synced, Err)
    }
}
