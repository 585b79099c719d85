//! Appends: the shard says where, so that appends of several mounts lose nothing.
//!
//! Three round trips: reserve, write, publish. A reservation that is given up becomes a hole only where a later one was
//! already written.

use crate::client::Client;
use crate::file::File;
use crate::net::{Net, wait_for};
use std::sync::atomic::Ordering;
use zonal_types::ErrorCode;
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};

impl<N: Net> Client<N> {
    /// Appends `bytes`; returns where they are.
    ///
    /// # Errors
    /// `FileTooBig`, `NoSpace`, a server that does not answer.
    pub async fn append(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        let _gate = wait_for(&self.net, &file.gate).await?;
        self.flush_gated(file).await?;
        let deadline = self.deadline();
        loop {
            match self.append_once(file, bytes, kill_suid).await {
                // The shard was restarted and has forgotten the reservation: nothing of it was published.
                Err(ErrorCode::UnknownLease) if self.net.now() < deadline => {}
                other => return other,
            }
        }
    }

    async fn append_once(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        let link = self.link_of(file.ino)?;
        let length = u32::try_from(bytes.len()).map_err(|_error| ErrorCode::Invalid)?;
        let begin = MetaRequest::AppendBegin {
            ino: file.ino,
            length,
            limit: zonal_types::limits::FILE_BYTES_MAX,
        };
        let MetaReply::Appending { offset, data } = self.meta(&link, &begin).await? else {
            return Err(ErrorCode::Protocol);
        };
        file.state().take_data(data);
        link.appending.fetch_add(1, Ordering::SeqCst);
        // A restarted shard is not told what we hold before this is over, and gives no places away before it is told.
        let written = self.write_pieces(file, offset, bytes).await;
        link.appending.fetch_sub(1, Ordering::SeqCst);
        let end = MetaRequest::AppendEnd {
            ino: file.ino,
            offset,
            reserved: length,
            length: if written.is_ok() { length } else { 0 },
            mtime: self.net.wall(),
            allocated_delta: *written.as_ref().unwrap_or(&0),
            kill_suid,
        };
        let reply = self.meta(&link, &end).await?;
        self.note_own_change(file.ino, &reply);
        if let MetaReply::Attr { attr, .. } = reply {
            file.state().refresh(&attr, None);
        }
        written.map(|_delta| offset)
    }

    /// Writes without gathering; returns the change of allocated bytes.
    async fn write_pieces(
        &self,
        file: &File<N>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<i64, ErrorCode> {
        let data = file.state().data.clone();
        let mut delta = 0;
        for piece in self.pieces(&data, offset, bytes.len() as u64)? {
            let from = (piece.file_offset - offset) as usize;
            let part = &bytes[from..from + piece.length as usize];
            let make = |object| StorageRequest::Write {
                object,
                offset: piece.object_offset,
                sync: false,
                expected_version: 0,
                txn: 0,
                snap_epoch: 0,
            };
            let at = (piece.component, piece.column);
            let (reply, _, target) = self
                .storage_retry(file, at, &make, part, None, None)
                .await?;
            delta += file.state().note_written(target, &reply);
        }
        Ok(delta)
    }
}
