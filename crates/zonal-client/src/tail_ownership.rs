//! Tail ownership: the bytes behind a file's end at its targets may come from a client that died
//! before it reported them.
//!
//! These bytes must not show where the file grows over them
//! (docs/rfcs/2026-11-22-files-grow-over-zeros.md). For a truncation to a larger size the shard
//! sees to that. Before the first write or reservation that leaves a hole behind the end, the
//! client asks the shard to disown the bytes there. It does so once per open file, except for files
//! that it made. Where others had the file open it repeats the request after [`REFUSED_MS`].
//!
//! *Invariants*
//!
//! 1. The client has reported everything that targets acknowledged before it sends the request: the
//!    rest is truncated.
//! 2. While the shard may still execute a request, the client sends nothing to targets before a
//!    later request is answered. Then the earlier one has no effect.

use crate::file::{File, FileState};
use crate::inline_data::end_of_inline;
use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::{is_unsure, leaves_gathered};
use zonal_types::{ErrorCode, Instant};
use zonal_wire::{MetaReply, MetaRequest};

/// Pause before the request is repeated where others had the file open, ms. By then the session of
/// a client that died meanwhile has expired.
const REFUSED_MS: u64 = 60_000;

/// Known ownership of the bytes behind the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TailOwnership {
    /// Only this client wrote there.
    Ours,
    /// Unknown; the client may ask the shard from this time on.
    Unknown(Instant),
    /// Unknown, and the shard may still execute a request.
    Asked,
}

impl<N: Net> FileState<N> {
    /// Whether a write or a reservation at `offset` leaves a hole behind the end at the targets.
    fn leaves_hole(&self, offset: u64) -> bool {
        offset > self.size.max(end_of_inline(&self.data))
    }

    fn asks_behind(&self, now: Instant) -> bool {
        match self.tail_ownership {
            TailOwnership::Ours => false,
            TailOwnership::Unknown(from) => now >= from,
            TailOwnership::Asked => true,
        }
    }

    /// Notes an unanswered request or truncation: what it may do must not meet later writes.
    pub(crate) fn unsure_behind(&mut self, code: ErrorCode) {
        if is_unsure(code) {
            self.outdate();
            self.tail_ownership = TailOwnership::Asked;
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Asks the shard before a write at `offset` that leaves a hole.
    ///
    /// # Errors
    /// A server that does not answer.
    pub(crate) async fn own_hole(&self, file: &File<N>, offset: u64) -> Result<(), ErrorCode> {
        let asks =
            |state: &FileState<N>| state.leaves_hole(offset) && state.asks_behind(self.net.now());
        if !asks(&file.state()) {
            return Ok(());
        }
        let _gate = self.wait_for(&file.gate).await?;
        self.settle_gated(file).await?;
        if !asks(&file.state()) {
            return Ok(());
        }
        self.own_behind(file, false).await.map(drop)
    }

    /// Asks the shard before space is reserved up to `end`, with or without growth (`keep_size`).
    /// True where the shard was asked and returned the file's state. The caller holds the gate and
    /// has flushed the file.
    ///
    /// # Errors
    /// As [`Self::own_hole`].
    pub(crate) async fn own_reserved(
        &self,
        file: &File<N>,
        end: u64,
        keep_size: bool,
    ) -> Result<bool, ErrorCode> {
        let asks = {
            let state = file.state();
            state.leaves_hole(end) && (keep_size || state.asks_behind(self.net.now()))
        };
        if asks {
            return self.own_behind(file, keep_size).await;
        }
        Ok(false)
    }

    /// Sends the request. The caller holds the gate and has reported its writes. False: the report
    /// failed, or others may be writing there.
    pub(crate) async fn own_behind(
        &self,
        file: &File<N>,
        reserves: bool,
    ) -> Result<bool, ErrorCode> {
        if file.state().report.is_some_and(|report| report.size > 0) {
            // The report failed: unreported bytes would be truncated.
            return Ok(false);
        }
        let link = self.reach(file.ino).await?;
        let deadline = self.deadline();
        let asked = loop {
            let request = MetaRequest::DisownBehind {
                ino: file.ino,
                reserves,
            };
            match self.meta(&link, &request).await {
                Err(ErrorCode::TruncateUnconfirmed) if !self.is_over(deadline) => {
                    self.finish_others_truncate(file.ino).await?;
                }
                asked => break asked,
            }
        };
        let mut state = file.state();
        match asked {
            Ok(MetaReply::Attr { attr, data, .. }) => {
                zonal_types::mark!(BehindAsked);
                state.tail_ownership = if data.is_some() {
                    TailOwnership::Ours
                } else {
                    TailOwnership::Unknown(self.net.now().plus_ms(REFUSED_MS))
                };
                let is_told = data.is_some();
                state.refresh(&attr, data);
                Ok(is_told)
            }
            Ok(_other) => Err(ErrorCode::Protocol),
            Err(code) => {
                state.unsure_behind(code);
                if leaves_gathered(code) {
                    return Err(code);
                }
                // The next request returns the file's state.
                Ok(false)
            }
        }
    }
}
