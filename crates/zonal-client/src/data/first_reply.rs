//! The first reply of two copies: a read that its target does not answer soon is asked of another
//! copy, too.
//!
//! Costs nothing where a file has one copy, and one look at the connection where the first copy
//! answers in time. A second request costs its connection, which is closed with the reply that
//! nobody takes.

use crate::cell::call::SentRequest;
use crate::cell::placement::TargetPlace;
use crate::client::ClientCall;
use crate::file::File;
use crate::transport::net::Net;
use zonal_layout::Piece;
use zonal_types::{ErrorCode, FileData};
use zonal_wire::{ObjectRef, StorageRequest};

/// How long both are waited for, ms.
const BOTH_COPIES_MS: u64 = 500;

impl<N: Net> ClientCall<'_, N> {
    /// Takes the reply of a read, or that of another copy where it comes first. Returns the number
    /// of bytes.
    pub(crate) async fn first_reply(
        &self,
        file: &File<N>,
        (data, piece): (&FileData, &Piece),
        (place, pending): (TargetPlace, SentRequest<N>),
        make: &dyn Fn(ObjectRef) -> StorageRequest,
        out: &mut [u8],
    ) -> Result<usize, ErrorCode> {
        if data.layout.has_copies() && self.is_slow(&pending).await {
            zonal_types::mark!(SecondCopyAsked);
            if let Some((other, second)) = self.start_other(file, (data, piece), make) {
                let both = [&pending, &second];
                if self.first_of(&both, BOTH_COPIES_MS).await == Some(1) {
                    let reply = self.storage_reply(&other, second, Some(out)).await;
                    if let Ok((_, bytes)) = reply {
                        return Ok(bytes);
                    }
                }
            }
        }
        let reply = self.storage_reply(&place, pending, Some(out)).await;
        reply.map(|(_, bytes)| bytes)
    }

    /// Waits for a copy's reply until another copy is to be asked, too. False where it is there, or
    /// no other copy is asked.
    pub(crate) async fn is_slow(&self, sent: &SentRequest<N>) -> bool {
        match self.options.second_copy_after() {
            Some(ms) => !self.has_reply(sent, ms).await,
            None => false,
        }
    }

    /// Asks another copy that has all changes; `None` where there is none.
    fn start_other(
        &self,
        file: &File<N>,
        (data, piece): (&FileData, &Piece),
        make: &dyn Fn(ObjectRef) -> StorageRequest,
    ) -> Option<(TargetPlace, SentRequest<N>)> {
        let component = data.layout.components.get(piece.component)?;
        let whole = self.whole_copies(&data.layout, component, piece.column);
        let mut others = whole.into_iter().filter(|copy| *copy != piece.column);
        let other = others.next()?;
        let place = self.place_known(data.as_of, component, other).ok()?;
        let request = make(Self::object(data, component, other, &place));
        let pending = self.start_read(file.ino, &place, &request);
        Some((place, pending))
    }
}
