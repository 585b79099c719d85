//! Durability: fsync of a file, of a directory, of everything.

use crate::client::Client;
use crate::file::File;
use crate::net::Net;
use crate::session::lock;
use std::collections::BTreeSet;
use std::sync::Arc;
use zonal_types::{ErrorCode, Ino, TargetId};
use zonal_wire::MetaRequest;

impl<N: Net> Client<N> {
    /// Makes a file's data, size and name durable.
    ///
    /// One parallel round to the targets that were written, one report, one flush of the shard's log.
    ///
    /// # Errors
    /// The first write that failed since the last flush; a target or shard that cannot make it durable.
    pub async fn fsync(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = file.gate.lock().await;
        let written = self.flush_data(file).await;
        let targets: Vec<TargetId> = std::mem::take(&mut file.state().unsynced)
            .into_iter()
            .collect();
        let synced = self.sync_targets(&targets).await;
        if synced.is_err() {
            file.state().unsynced.extend(targets);
        }
        let reported = self.send_report(file).await;
        let logged = self.sync_shard_of(file.ino).await;
        written.and(synced).and(reported).and(logged)
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
        let files: Vec<Arc<File<N>>> = lock(&self.files).values().cloned().collect();
        let mut failed = None;
        let mut targets = BTreeSet::new();
        for file in files {
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
