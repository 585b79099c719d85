//! Tail ownership: asks the shard to disown the bytes behind a file's end
//! (`file/tail_ownership.rs`, with its invariants).

use crate::client::ClientCall;
use crate::file::tail_ownership::{REFUSED_MS, TailOwnership};
use crate::file::{File, FileState};
use crate::transport::net::Net;
use crate::transport::retry::leaves_gathered;
use zonal_types::ErrorCode;
use zonal_wire::{MetaReply, MetaRequest};

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
