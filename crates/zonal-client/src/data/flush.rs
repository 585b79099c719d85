//! Flush: sends gathered writes to their targets, waits for them and reports to the shard. A flush
//! happens at close, fsync and lock, and by age.

use crate::client::ClientCall;
use crate::file::File;
use crate::file::batch::{BATCH_BYTES, BATCH_RUNS_MAX};
use crate::file::inline_bytes::end_of_inline;
use crate::file::write_failures::ReportedFailures;
use crate::transport::net::Net;
use crate::transport::retry::{both, leaves_gathered};
use zonal_types::{ErrorCode, Ino, Instant};
use zonal_wire::MetaReply;

impl<N: Net> ClientCall<'_, N> {
    /// Sends gathered writes to the targets and waits for all of them; returns the first failure.
    /// The caller holds the gate.
    pub(crate) async fn flush_data(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let mut done = self.publish_gathered(file).await;
        if done.is_err_and(leaves_gathered) {
            // Later writes must stay behind these.
            return done;
        }
        // Failed bytes return to the dirty ranges: each byte is tried once.
        let mut left = file.state().dirty.bytes();
        while left > 0 {
            let taken = {
                let mut state = file.state();
                let behind = end_of_inline(&state.data);
                state.take_batch(|dirty| dirty.take_many(behind, BATCH_RUNS_MAX, BATCH_BYTES))
            };
            let Some(batch) = taken else { break };
            left = left.saturating_sub(batch.bytes());
            match self.pieces_of_batch(file, &batch).await {
                Ok(pieces) => done = both(done, self.send_batch(file, &batch, pieces).await),
                Err(code) => {
                    done = both(done, Err(code));
                    break;
                }
            }
        }
        let count = file.state().inflight.len();
        done = both(done, self.finish_oldest(file, count).await);
        let mut state = file.state();
        if state.dirty.is_empty() {
            state.dirty_since = None;
        }
        done
    }

    /// Sends everything gathered, waits for it, and reports to the shard.
    ///
    /// # Errors
    /// A failure of this flush; those of the shard.
    pub async fn flush(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.flush_gated(file).await
    }

    /// [`Self::flush`] at a close: the open gets failures since its last report. Its fsync, or that
    /// of a descriptor that shares it, reports them again.
    ///
    /// # Errors
    /// As [`Self::flush`]; an earlier failure of a write.
    pub async fn flush_open(
        &self,
        file: &File<N>,
        told: &mut ReportedFailures,
    ) -> Result<(), ErrorCode> {
        let flushed = self.flush(file).await;
        let failed = file.state().failures.tell_close(told);
        failed.and(flushed)
    }

    /// [`Self::flush`] before another operation on the file, perhaps by a process that wrote
    /// nothing. A loss is reported to the opens of the file and does not stop the operation.
    ///
    /// # Errors
    /// A server that does not answer.
    pub async fn settle(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.settle_gated(file).await
    }

    /// [`Self::settle`] for a caller that holds the gate.
    pub(crate) async fn settle_gated(&self, file: &File<N>) -> Result<(), ErrorCode> {
        match self.flush_gated(file).await {
            Err(code) if leaves_gathered(code) => Err(code),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// [`Self::flush`] for a caller that holds the gate.
    pub(crate) async fn flush_gated(&self, file: &File<N>) -> Result<(), ErrorCode> {
        self.hear_of_truncation(file).await?;
        let written = self.flush_data(file).await;
        let reported = self.send_report(file).await;
        both(written, reported)
    }

    /// Advances the known change counter where this client made the last change.
    pub(crate) fn note_own_change(&self, ino: Ino, reply: &MetaReply) {
        match reply {
            MetaReply::Attr { attr, .. } | MetaReply::Truncated { attr, .. } => {
                self.inode_cache
                    .page_versions()
                    .own_change(ino, attr.change);
                self.note_own_privileges(attr);
            }
            _other => self.inode_cache.forget_pages(ino),
        }
    }

    /// Flushes files with old gathered writes. Returns the age of the oldest that remains, ms.
    pub async fn flush_aged(&self) -> Option<u64> {
        let mut oldest = None;
        let mut due = Vec::new();
        for file in self.all_files() {
            let (since, was_kept) = {
                let state = file.state();
                let since = if state.aside.is_some() && !state.is_doubted() {
                    // A truncation in flight flushes it.
                    Some(self.net.now())
                } else if state.is_clean() {
                    None
                } else {
                    let long_ago = Instant::default();
                    Some(state.dirty_since.unwrap_or(long_ago))
                };
                (since, state.was_kept)
            };
            let Some(since) = since else {
                // The file was closed while its servers did not answer, and another call flushed
                // it.
                self.forget_file(&file);
                continue;
            };
            let age = self.net.now().ms_since(since);
            if age >= self.options.write_behind_age_ms || since == Instant::default() {
                due.push((was_kept, since, file));
            } else {
                oldest = oldest.max(Some(age));
            }
        }
        // A file whose servers do not answer must not delay the others.
        due.sort_by_key(|(was_kept, since, _file)| (*was_kept, *since));
        for (_was_kept, _since, file) in due {
            let flushed = self.another().flush(&file).await;
            let is_kept = flushed.is_err_and(leaves_gathered);
            file.state().was_kept = is_kept;
            if is_kept {
                // Nothing is lost: the next flush tries again. Closes must not wait for it
                // repeatedly.
                file.state().dirty_since = Some(self.net.now());
                return oldest.max(Some(0));
            }
            // The file's failures inform its writers. The file may have been closed while its
            // servers did not answer.
            self.forget_file(&file);
        }
        oldest
    }
}
