//! Writing: gathers bytes, then sends whole stripe units without waiting, within bounds. The flush
//! takes the acknowledgements in order.
//!
//! A streaming write is not copied here: its memory becomes the run. The worker goes on with the
//! memory of an earlier one, without a page fault. It costs one send on the calling thread, and
//! no wait while little is in flight (`send_window.rs`). Bytes are kept until acknowledged, so that
//! a restarted target gets them again. Scattered writes stay gathered until a batch of them is
//! full.

use crate::client::ClientCall;
use crate::file::File;
use crate::file::batch::{BATCH_BYTES, BATCH_RUNS_MAX};
use crate::file::dirty_ranges::DirtyRanges;
use crate::file::inline_bytes::end_of_inline;
use crate::file::tail_ownership::TailOwnership;
use crate::transport::net::Net;
use crate::transport::retry::leaves_gathered;
use crate::transport::run::Run;
use std::sync::atomic::Ordering;
use zonal_types::ErrorCode;
use zonal_types::limits::FILE_BYTES_MAX;

/// Runs of at least this many bytes are sent at once; shorter ones are gathered.
const SEND_UNIT: u64 = 1 << 20;
/// Runs gathered of one file; beyond it the first are sent, even if they cover no unit.
const GATHERED_RUNS_MAX: usize = 4096;

impl<N: Net> ClientCall<'_, N> {
    /// Writes `bytes` at `offset`. On return they are gathered or in flight; their errors show at
    /// the next write, close and fsync. `kill_suid`: the writer has no right to keep set-id bits.
    ///
    /// # Errors
    /// `FileTooBig`; failures of batches that this write waited for.
    pub async fn write(
        &self,
        file: &File<N>,
        offset: u64,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<(), ErrorCode> {
        let room = |bytes| match self.net.memory(bytes) {
            Some(memory) => Run::new(memory, 0..0),
            None => Run::with_room(bytes),
        };
        let gather = |dirty: &mut DirtyRanges| dirty.insert_in(offset, bytes, room);
        self.gather(file, (offset, bytes.len()), kill_suid, gather)
            .await
    }

    /// [`Self::write`] of bytes in their own memory. They are not copied where they meet no
    /// gathered bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_run(
        &self,
        file: &File<N>,
        offset: u64,
        run: Run,
        kill_suid: bool,
    ) -> Result<(), ErrorCode> {
        let length = run.len();
        let gather = |dirty: &mut DirtyRanges| {
            if let Err(run) = dirty.adopt(offset, run, SEND_UNIT) {
                dirty.insert(offset, &run);
            }
        };
        self.gather(file, (offset, length), kill_suid, gather).await
    }

    /// Gathers a write, and sends complete units.
    async fn gather(
        &self,
        file: &File<N>,
        (offset, length): (u64, usize),
        kill_suid: bool,
        gather: impl FnOnce(&mut DirtyRanges),
    ) -> Result<(), ErrorCode> {
        let end = offset
            .checked_add(length as u64)
            .filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(ErrorCode::FileTooBig)?;
        let forfeits = file.state().failures.forfeits();
        self.own_hole(file, offset).await?;
        let unit = {
            let mut state = file.state();
            if state.failures.forfeits() != forfeits {
                // The write was made while its lock was held, and the lock is lost.
                return Err(ErrorCode::Io);
            }
            let before = state.dirty.bytes();
            gather(&mut state.dirty);
            self.dirty_bytes
                .fetch_add(state.dirty.bytes() - before, Ordering::Relaxed);
            state.size = state.size.max(end);
            let report = state.report_mut();
            report.mtime = Some(self.net.wall());
            report.kill_suid |= kill_suid;
            state.dirty_since.get_or_insert(self.net.now());
            let unit = state
                .data
                .layout
                .components
                .first()
                .map_or(SEND_UNIT, |component| u64::from(component.unit));
            let full = state.dirty.has_long() && state.dirty.bytes() as u64 >= unit.max(SEND_UNIT);
            let over = self.dirty_bytes() > self.options.write_behind_bytes;
            if !full && !over && !self.is_crowded(&state.dirty) {
                return Ok(());
            }
            unit.min(SEND_UNIT)
        };
        let _gate = self.wait_for(&file.gate).await?;
        let sent = self.send_full(file, unit).await;
        if sent.is_err_and(|code| !leaves_gathered(code)) {
            file.state().failures.writer_met();
        }
        sent
    }

    /// Whether a file has so many gathered bytes or runs that some are sent without covering a
    /// stripe unit.
    fn is_crowded(&self, dirty: &DirtyRanges) -> bool {
        dirty.runs() > GATHERED_RUNS_MAX || dirty.bytes() > self.options.write_behind_file_bytes / 2
    }

    /// Sends whole units, then excess runs, and everything where that is not enough. The caller
    /// holds the gate.
    async fn send_full(&self, file: &File<N>, unit: u64) -> Result<(), ErrorCode> {
        self.hear_of_truncation(file).await?;
        self.publish_gathered(file).await?;
        let mut left = file.state().dirty.bytes();
        while left > 0 {
            // A statement of its own: the state's lock must not be held while sending.
            let taken = {
                let mut state = file.state();
                let behind = end_of_inline(&state.data);
                state.take_batch(|dirty| match dirty.take_full(unit, behind) {
                    Some(run) => vec![run],
                    None if self.is_crowded(dirty) => {
                        dirty.take_many(behind, BATCH_RUNS_MAX, BATCH_BYTES)
                    }
                    None => Vec::new(),
                })
            };
            let Some(batch) = taken else { break };
            left = left.saturating_sub(batch.bytes());
            let pieces = self.pieces_of_batch(file, &batch).await?;
            self.send_batch(file, &batch, pieces).await?;
        }
        let over = file.state().dirty.bytes() > self.options.write_behind_file_bytes;
        if over || self.dirty_bytes() > self.options.write_behind_bytes {
            self.flush_gated(file).await?;
        }
        Ok(())
    }

    /// Writes and waits until the targets have the bytes (not until they are durable).
    ///
    /// # Errors
    /// As [`Self::write`] and [`Self::flush`].
    pub async fn write_through(
        &self,
        file: &File<N>,
        offset: u64,
        bytes: &[u8],
        kill: bool,
    ) -> Result<(), ErrorCode> {
        self.write(file, offset, bytes, kill).await?;
        self.flush(file).await
    }

    /// Refreshes an outdated file from the shard. The caller holds the gate.
    pub(crate) async fn freshen(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let (is_outdated, is_asked) = {
            let state = file.state();
            (
                state.is_outdated,
                state.tail_ownership == TailOwnership::Asked,
            )
        };
        if is_asked {
            self.own_behind(file, false).await?;
        }
        if is_outdated {
            self.refetch(file).await?;
        }
        Ok(())
    }
}
