//! Durability: fsync of a file, of a directory, of everything.

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::file::File;
use crate::file::unsynced_closed_files::{LEFT_BEHIND_MAX, UnsyncedClosedFiles};
use crate::file::unsynced_writes::UnsyncedWrites;
use crate::file::write_failures::ReportedFailures;
use crate::transport::mutex::lock;
use crate::transport::net::{Net, NetFailure};
use crate::transport::retry::{RETRY_MS, is_passing, leaves_gathered};
use std::sync::Arc;
use zonal_types::{ErrorCode, Ino, TargetId, kept_of};
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Makes a file's data, size and name durable.
    ///
    /// The written targets flush while the shard takes the report and flushes its log: the latency
    /// is that of one flush.
    ///
    /// # Errors
    /// A write that failed since `told`; a target or shard that cannot make it durable; `Io` where
    /// a target lost acknowledged bytes. Each open gets a loss once.
    pub async fn fsync_open(
        &self,
        file: &File<N>,
        told: &mut ReportedFailures,
    ) -> Result<(), ErrorCode> {
        let done = self.make_durable(file).await;
        let failed = file.state().failures.tell(told);
        // A loss is reported once: a passing error must not hide it.
        failed.and(done)
    }

    /// [`Self::fsync_open`] for callers without an open of their own: one of them gets a loss.
    ///
    /// # Errors
    /// As [`Self::fsync_open`].
    pub async fn fsync(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let done = self.make_durable(file).await;
        let failed = file.state().failures.tell_others();
        failed.and(done)
    }

    async fn make_durable(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.hear_of_truncation(file).await?;
        let written = self.flush_data(file).await;
        let left = self.take_left_behind(file);
        let mut unsynced = {
            let mut state = file.state();
            state.unsynced.append(left);
            state.unsynced.take_targets()
        };
        // The other copies have these writes.
        let left_out = self.leave_out_unsynced(file, &mut unsynced).await;
        // Targets and shard flush their logs in parallel.
        let syncing = self.start_sync(&unsynced.targets());
        let reported = self.send_reports(file, true).await;
        let logged = match reported {
            Ok(Some(boot)) if file.state().unsynced.shard_synced(boot) => {
                self.told_of_loss(file.ino)
            }
            Ok(_) => self.sync_file_at_shard(file).await,
            // After a report that no shard took within the deadline, no further request is sent.
            Err(_code) => Ok(()),
        };
        let copies = file.state().data.layout.has_copies();
        let synced = self.finish_sync(syncing, &mut unsynced, copies).await;
        let synced = left_out.and(match synced {
            Err(code) if leaves_gathered(code) && copies => {
                self.sync_copies(file, &mut unsynced, code).await
            }
            synced => synced,
        });
        let mut state = file.state();
        // Targets that could not be reached remain.
        state.unsynced.append(unsynced);
        for code in [synced.err(), logged.err()].into_iter().flatten() {
            if !leaves_gathered(code) {
                state.failures.note(code);
            }
        }
        written.and(synced).and(logged).and(reported.map(drop))
    }

    /// Makes the reported state of a file durable at its shard. A shard that restarted meanwhile
    /// may have lost it with its power: then it gets the report again.
    async fn sync_file_at_shard(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let deadline = self.deadline();
        loop {
            let boot = self.sync_shard(file.ino).await?;
            let told = {
                let mut state = file.state();
                if state.unsynced.shard_synced(boot) {
                    drop(state);
                    return self.told_of_loss(file.ino);
                }
                // Later reports go to this boot or a later one.
                state.unsynced.shard_boot = Some(boot);
                state.unsynced.told
            };
            // `Stale`: the file itself is lost.
            let attr = self.refetch(file).await?;
            let seq = file.state().data.truncate_seq;
            if let Some(told) = told
                && attr.size < told.size
                && seq == told.truncate_seq
            {
                zonal_types::mark!(SizeToldAgain);
                {
                    let mut state = file.state();
                    let report = state.report_mut();
                    report.size = report.size.max(told.size);
                    report.mtime = report.mtime.max(told.mtime);
                }
                self.send_report(file).await?;
            }
            // A shard that keeps restarting makes nothing reliably durable.
            if self.is_over(deadline) {
                let map = self.map();
                let shard = map.shard_of(file.ino.partition()).map(|shard| shard.id);
                let server = format!("shard {}", shard.unwrap_or_default());
                self.net
                    .complain(self.context(), &server, "Sync", NetFailure::TimedOut);
                return Err(ErrorCode::TimedOut);
            }
        }
    }

    /// Remembers unsynced writes of a file that is closed now: the fsync of a later open covers
    /// them.
    pub(crate) fn leave_behind(&self, ino: Ino, unsynced: UnsyncedWrites) {
        if unsynced.is_empty() {
            return;
        }
        let mut left = lock(&self.unsynced_closed_files);
        if left.files.len() >= LEFT_BEHIND_MAX {
            let files = std::mem::take(&mut left.files);
            let targets = files.values().flat_map(UnsyncedWrites::targets);
            left.forgotten.extend(targets);
            left.overflows += 1;
        }
        left.files.entry(ino).or_default().append(unsynced);
        assert!(
            left.files.len() <= LEFT_BEHIND_MAX,
            "{} closed files",
            left.files.len()
        );
    }

    fn take_left_behind(&self, file: &File<N>) -> UnsyncedWrites {
        let (mut unsynced, is_incomplete) = {
            let mut left = lock(&self.unsynced_closed_files);
            let unsynced = left.files.remove(&file.ino).unwrap_or_default();
            (unsynced, !left.forgotten.is_empty())
        };
        if is_incomplete {
            let data = file.state().data.clone();
            for component in &data.layout.components {
                let places = zonal_layout::places(component);
                let known = places.filter_map(|place| self.place(component, place).ok());
                known.for_each(|place| unsynced.insert_any(place.target));
            }
        }
        unsynced
    }

    async fn sync_shard(&self, ino: Ino) -> Result<u64, ErrorCode> {
        let link = self.reach(ino).await?;
        self.sync_link(&link).await
    }

    /// Makes a shard's acknowledged changes durable, and finds changes that it lost with its power.
    /// Returns its boot.
    async fn sync_link(&self, link: &Link) -> Result<u64, ErrorCode> {
        let count = lock(&link.changes).count();
        match self.meta(link, &MetaRequest::Sync).await? {
            MetaReply::Synced { boot } => {
                lock(&link.changes).synced(kept_of(boot), count);
                Ok(boot)
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// `Io`, once, where the shard lost an acknowledged change of this inode.
    fn told_of_loss(&self, ino: Ino) -> Result<(), ErrorCode> {
        let link = self.link_of(ino)?;
        if lock(&link.changes).take_lost(ino) {
            zonal_types::mark!(ShardLostPower);
            return Err(ErrorCode::Io);
        }
        Ok(())
    }

    /// Makes the names of a directory durable, and its own name.
    ///
    /// # Errors
    /// Those of the shard; `Io`, once, where it lost an acknowledged change of them with its power.
    pub async fn sync_directory(&self, dir: Ino) -> Result<(), ErrorCode> {
        self.sync_shard(dir).await?;
        self.told_of_loss(dir)
    }

    /// Flushes all files of this mount and makes everything durable that it wrote.
    ///
    /// # Errors
    /// The last failure; the rest is done all the same.
    pub async fn sync_all(&self) -> Result<(), ErrorCode> {
        let mut failed = None;
        let mut open = Vec::new();
        // Before and after the open files, so that no file is missed that is opened or closed
        // meanwhile. Each entry stays until it is durable, so that a concurrent sync waits for it
        // as well.
        let (mut unsynced, _) = self.left_unsynced();
        for file in self.all_files() {
            let (flushed, own) = self.flush_to_sync(&file).await;
            let lost = file.state().failures.tell_others();
            if let Err(code) = lost.and(flushed) {
                failed = Some(code);
            }
            unsynced.append(own.clone());
            open.push((file, own));
        }
        let (closed, before) = self.left_unsynced();
        unsynced.append(closed);
        let synced = self.sync_files(&open, &before, &mut unsynced).await;
        if let Err(code) = synced
            && !leaves_gathered(code)
        {
            // A target lost bytes; their file is unknown.
            let had_unsynced = open.iter().filter(|(_, own)| !own.is_empty());
            for (file, _) in had_unsynced {
                let mut state = file.state();
                state.failures.note(code);
                // This call returns the failure below.
                state.failures.tell_others().ok();
            }
        }
        // Unreachable targets stay with their files. A loss is reported here, once.
        let left = unsynced.targets();
        for (file, own) in &open {
            file.state().unsynced.settle(own, &left);
        }
        lock(&self.unsynced_closed_files).settle(&before, &left);
        for link in self.all_links() {
            if !lock(&link.changes).has_unsynced() {
                if lock(&link.changes).take_any_lost() {
                    failed = Some(ErrorCode::Io);
                }
                continue;
            }
            match self.sync_link(&link).await {
                Ok(boot) => {
                    if lock(&link.changes).take_any_lost() {
                        failed = Some(ErrorCode::Io);
                    }
                    for (file, _own) in &open {
                        let of_link = self
                            .link_of(file.ino)
                            .is_ok_and(|of| Arc::ptr_eq(&of, &link));
                        if of_link && let Err(code) = self.settle_file(file, boot).await {
                            failed = Some(code);
                        }
                    }
                }
                Err(code) => failed = Some(code),
            }
        }
        failed.map_or(synced, Err)
    }

    /// Makes the writes of several files durable. A file with copies passes over a target that is
    /// out. A target with a file's only copy is asked again until the deadline.
    async fn sync_files(
        &self,
        open: &[(Arc<File<N>>, UnsyncedWrites)],
        closed: &UnsyncedClosedFiles,
        unsynced: &mut UnsyncedWrites,
    ) -> Result<(), ErrorCode> {
        if !self.outages.has_seen_copies() {
            return self.sync_targets(unsynced, false).await;
        }
        let deadline = self.deadline();
        loop {
            let map = self.map();
            for target in unsynced.targets() {
                if map.is_out(target) && self.is_left_out_by_all(target, open, closed).await? {
                    unsynced.forget(target);
                }
            }
            match self.sync_targets(unsynced, true).await {
                Err(code) if is_passing(code) && !self.is_over(deadline) => {
                    self.sleep(RETRY_MS.1).await;
                }
                synced => return synced,
            }
        }
    }

    /// Marks the copies on a target of all files with unsynced writes there. True where no file
    /// has its only copy there.
    async fn is_left_out_by_all(
        &self,
        target: TargetId,
        open: &[(Arc<File<N>>, UnsyncedWrites)],
        closed: &UnsyncedClosedFiles,
    ) -> Result<bool, ErrorCode> {
        // Of forgotten files nobody knows the copies.
        let mut all = !closed.forgotten.contains(&target);
        for (file, own) in open
            .iter()
            .filter(|(_, own)| own.targets().contains(&target))
        {
            let mut own = own.clone();
            self.leave_out_unsynced(file, &mut own).await?;
            all &= !own.targets().contains(&target);
        }
        let closed = closed.files.iter();
        for (ino, _) in closed.filter(|(_, own)| own.targets().contains(&target)) {
            all &= match self.mark_closed(*ino, target).await {
                // Removed: nothing is owed.
                Err(ErrorCode::Stale | ErrorCode::NotFound) => true,
                marked => marked?,
            };
        }
        Ok(all)
    }

    /// Flushes a file; returns also its unsynced targets. No fsync of the file is in flight then.
    async fn flush_to_sync(&self, file: &File<N>) -> (Result<(), ErrorCode>, UnsyncedWrites) {
        let gate = self.wait_for(&file.gate).await;
        let flushed = match &gate {
            Ok(_gate) => self.flush_gated(file).await,
            Err(code) => Err(*code),
        };
        let own = file.state().unsynced.of_targets();
        (flushed, own)
    }

    /// Unsynced targets of closed files, including forgotten ones, and a copy of the whole table.
    fn left_unsynced(&self) -> (UnsyncedWrites, UnsyncedClosedFiles) {
        let left = lock(&self.unsynced_closed_files).clone();
        let mut unsynced = UnsyncedWrites::default();
        for file in left.files.values() {
            unsynced.append(file.of_targets());
        }
        let map = self.map();
        // A target that is not in the map is in no layout.
        let known = left.forgotten.iter();
        known
            .filter(|target| map.target(**target).is_some())
            .for_each(|target| unsynced.insert_any(*target));
        (unsynced, left)
    }

    /// Handles a file that was reported to another boot than the one that has flushed its log now.
    async fn settle_file(&self, file: &File<N>, boot: u64) -> Result<(), ErrorCode> {
        if file.state().unsynced.shard_boot == Some(boot) {
            return Ok(());
        }
        let _gate = self.wait_for(&file.gate).await?;
        self.sync_file_at_shard(file).await
    }
}
