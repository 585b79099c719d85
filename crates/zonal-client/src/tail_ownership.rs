//! What lies behind a file's end at the targets: perhaps what a client wrote that is gone, and
//! never told the shard.
//!
//! It must not show where the file grows over it (docs/rfcs/2026-11-22-files-grow-over-zeros.md). A
//! truncation to a larger size sees to that at the shard. Before the first write, or reservation,
//! that leaves a hole behind the end the shard is asked to make nobody's what is there: once an
//! open file, not where it was made here, and again after [`REFUSED_MS`] where others had it open.
//!
//! *Invariants*: (1) whoever asks has told the shard before of all that targets acknowledged: the
//! rest is cut; (2) where the shard may still execute a question, nothing is sent to targets before
//! a later one is answered: then the earlier one finds nothing to do.

use crate::file::{File, FileState};
use crate::inline_data::end_of_inline;
use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::{is_unsure, leaves_gathered};
use zonal_types::{ErrorCode, Instant};
use zonal_wire::{MetaReply, MetaRequest};

/// When to ask again where others had the file open: one of them may have died before that, and its
/// session is over by then.
const REFUSED_MS: u64 = 60_000;

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TailOwnership {
    /// Nothing but what this client wrote.
    Ours,
    /// Nothing; the shard is asked from then on.
    Unknown(Instant),
    /// The shard was asked, and may do it still.
    Asked,
}

impl<N: Net> FileState<N> {
    /// Whether a write or a reservation that begins at `offset` leaves a hole at the targets behind
    /// the end.
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

    /// A question, or a truncation, was not answered: what it may do is not to meet what is sent
    /// from here on.
    pub(crate) fn unsure_behind(&mut self, code: ErrorCode) {
        if is_unsure(code) {
            self.outdate();
            self.tail_ownership = TailOwnership::Asked;
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Before a write at `offset`.
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

    /// Before space is reserved up to `end`, to stay there (`keep_size`), or as the file's: true
    /// where the shard was asked, and told what the file is. The caller holds the gate, and has
    /// settled what was written.
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

    /// Asks. The caller holds the gate, and has told the shard what it wrote; false: it could not,
    /// or others may be writing there.
    pub(crate) async fn own_behind(
        &self,
        file: &File<N>,
        reserves: bool,
    ) -> Result<bool, ErrorCode> {
        if file.state().report.is_some_and(|report| report.size > 0) {
            // The shard did not take it: what it does not know would be cut.
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
                // What the file is now is told by what comes next.
                Ok(false)
            }
        }
    }
}
