//! The end of a restripe: a file gets the bytes of its copy with another layout.

use crate::client::ClientCall;
use crate::transport::net::Net;
use zonal_types::{Credentials, ErrorCode, Ino};
use zonal_wire::{MetaReply, MetaRequest};

/// The state of a file before its bytes were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedState {
    /// Its change counter.
    pub change: u64,
    /// The life of its shard, taken before the counter.
    pub boot: u64,
}

impl<N: Net> ClientCall<'_, N> {
    /// The life of the shard of a file.
    ///
    /// # Errors
    /// Those of opening a session.
    pub async fn boot_of(&self, ino: Ino) -> Result<u64, ErrorCode> {
        Ok(self.reach(ino).await?.boot())
    }

    /// Gives a file the bytes of its copy, all of which are durable, and the reverse. The caller
    /// has both open once, and closes both.
    ///
    /// # Errors
    /// `Busy`: others may have it open, or it has changed. `WouldBlock`: as for the beginning, or
    /// a target of the new layout leaves. Others of the shard.
    pub async fn swap_bytes(
        &self,
        who: &Credentials,
        (ino, copy): (Ino, Ino),
        copied: CopiedState,
    ) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        // Closes of earlier opens must not come after the shard has counted.
        self.send_closes(&link).await?;
        let request = MetaRequest::SwapBytes {
            who: who.clone(),
            ino,
            copy,
            change: copied.change,
            boot: copied.boot,
        };
        match self.meta(&link, &request).await? {
            MetaReply::Attr { .. } => Ok(()),
            _other => Err(ErrorCode::Protocol),
        }
    }
}
