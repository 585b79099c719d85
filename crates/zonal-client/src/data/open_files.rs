//! Open files: how files enter the table of those that are open or dirty here, are counted, and
//! leave it.

use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::file::File;
use crate::file::dirty_ranges::DirtyRanges;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::leaves_gathered;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zonal_types::{Attr, ErrorCode, FileData, Ino};
use zonal_wire::{MetaReply, MetaRequest};

/// Closes gathered before they are sent.
const CLOSES_MAX: usize = 64;

impl<N: Net> ClientCall<'_, N> {
    /// Counts one more open of a file and takes the shard's newest data of it.
    pub(crate) fn open_file(&self, attr: &Attr, data: FileData) -> Arc<File<N>> {
        if data.layout.has_copies() {
            self.outages.note_copies();
        }
        let mut files = lock(&self.files);
        let ino = attr.ino;
        let file = files
            .entry(ino)
            .or_insert_with(|| Arc::new(self.detached_file(ino, data.clone())));
        let boot = self.link_of(ino).map_or(0, |link| link.boot());
        let mut state = file.state();
        state.opens += 1;
        state.unsynced.tell(boot, None);
        state.refresh(attr, Some(data));
        drop(state);
        file.clone()
    }

    /// A file outside the table, for one operation on an inode that is not open.
    pub(crate) fn detached_file(&self, ino: Ino, data: FileData) -> File<N> {
        // Requests of an earlier file of this inode may still be in flight.
        let attempt = self.attempts.load(Ordering::Relaxed);
        File::new(ino, data, attempt)
    }

    /// Ends one open and flushes dirty data. The shard hears of it with the next batch of closes.
    ///
    /// # Errors
    /// The failure of the flush or of sending the closes.
    pub async fn release(&self, ino: Ino) -> Result<(), ErrorCode> {
        let Some(file) = self.file(ino) else {
            return Ok(());
        };
        let flushed = if file.state().is_clean() {
            Ok(())
        } else {
            self.flush(&file).await
        };
        let link = self.reach(ino).await?;
        let (is_last, queued) = {
            let _ending = link.ending_open();
            let mut state = file.state();
            state.opens = state.opens.saturating_sub(1);
            let is_last = state.opens == 0;
            // Unsent bytes are sent again later, although nobody has the file open. Until the shard
            // knows of them, it must not let others disown the bytes behind the end.
            let is_late = is_last && flushed.is_err_and(leaves_gathered);
            let queued = if is_late {
                state.late_closes += 1;
                link.closes()
            } else {
                link.queue_close(ino)
            };
            (is_last && !is_late, queued)
        };
        if is_last {
            self.forget_file(&file);
        }
        let sent = if queued >= CLOSES_MAX {
            self.send_closes(&link).await
        } else {
            Ok(())
        };
        flushed.and(sent)
    }

    /// Removes a file from the table, unless it was opened again or is removed already.
    pub(crate) fn forget_file(&self, file: &File<N>) {
        let link = self.link_of(file.ino).ok();
        let _ending = link.as_ref().map(|link| link.ending_open());
        let mut files = lock(&self.files);
        let is_known = files
            .get(&file.ino)
            .is_some_and(|known| std::ptr::eq(&raw const **known, file));
        let mut state = file.state();
        if state.opens > 0 || !is_known {
            return;
        }
        let left: usize = state.inflight.iter().map(|run| run.batch.bytes()).sum();
        let appended = match &link {
            Some(link) => state.forget_gathered(link),
            None => 0,
        };
        self.dirty_bytes
            .fetch_sub(left + appended + state.dirty.bytes(), Ordering::Relaxed);
        state.inflight.clear();
        state.dirty = DirtyRanges::default();
        files.remove(&file.ino);
        for _close in 0..std::mem::take(&mut state.late_closes) {
            if let Some(link) = &link {
                link.queue_close(file.ino);
            }
        }
        self.leave_behind(file.ino, std::mem::take(&mut state.unsynced));
    }

    /// Sends gathered closes. The next call repeats unanswered ones.
    pub(crate) async fn send_closes(&self, link: &Link) -> Result<(), ErrorCode> {
        let Some(mut closes) = link.take_closes(self.take_slot(link)).await else {
            return Ok(());
        };
        let outcome = self.close_inos(link, &mut closes).await;
        link.closes_ended(closes, outcome);
        outcome
    }

    /// Fetches the newest size and layout of a file from the shard.
    ///
    /// # Errors
    /// Those of the shard; `Stale` where the file is gone.
    pub async fn refetch(&self, file: &File<N>) -> Result<Attr, ErrorCode> {
        let link = self.reach(file.ino).await?;
        let outdatings = file.state().outdatings;
        let ino = file.ino;
        let request = MetaRequest::GetAttr { ino, data: true };
        match self.meta(&link, &request).await? {
            MetaReply::Attr { attr, data, .. } => {
                if let Some(data) = &data {
                    self.know_sets(data).await?;
                }
                let mut state = file.state();
                state.refresh(&attr, data);
                if state.outdatings == outdatings {
                    state.is_outdated = false;
                    self.judge_truncation(&mut state, &attr);
                }
                Ok(attr)
            }
            _other => Err(ErrorCode::Protocol),
        }
    }
}
