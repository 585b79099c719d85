//! Inline data: ends requests with the bytes that a shard keeps, and fetches them
//! (`file/inline_bytes.rs`).

use crate::client::ClientCall;
use crate::file::File;
use crate::file::inline_bytes::InlineRun;
use crate::transport::net::Net;
use std::sync::atomic::Ordering;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Ends the request with `run`: the shard has the bytes (`is_taken`), or they are gathered
    /// again.
    pub(crate) fn inline_ended(&self, file: &File<N>, run: Option<&InlineRun>, is_taken: bool) {
        let Some(run) = run else { return };
        let mut state = file.state();
        let (again, gone) = state.inline_ended(run, is_taken);
        if again > 0 {
            state.dirty_since.get_or_insert(self.net.now());
        } else if state.dirty.is_empty() {
            state.dirty_since = None;
        }
        drop(state);
        self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
        self.dirty_bytes.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Fetches the first bytes of a file from its shard.
    pub(crate) async fn inline_bytes(&self, ino: Ino) -> Result<Vec<u8>, ErrorCode> {
        let link = self.reach(ino).await?;
        match self.meta(&link, &MetaRequest::ReadInline { ino }).await? {
            MetaReply::Inline { bytes } => Ok(bytes.0),
            _other => Err(ErrorCode::Protocol),
        }
    }
}
