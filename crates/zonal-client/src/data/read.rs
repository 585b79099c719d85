//! Reading: one request per piece, all in parallel, payloads straight into the caller's buffer.
//!
//! Per call: one lock of the file's state, one allocation for the pieces, no copy of the data.

use crate::cell::zone_traffic::TrafficDirection;
use crate::client::ClientCall;
use crate::file::inline_bytes::{copy_out, end_of_inline};
use crate::file::{File, lay_over};
use crate::transport::net::{Net, NetFailure};
use zonal_basics::to_usize;
use zonal_types::{ErrorCode, FileData, Ino};
use zonal_wire::{ObjectRef, StorageRequest};

/// Shorter reads go into the buffer even where there is a sink: copying a few pages costs less than
/// moving them.
const SINK_BYTES_MIN: usize = 64 << 10;

/// How often a read is repeated after it met a truncation.
const REREADS: u32 = 16;

/// Location of the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadInto {
    /// This many bytes at the front of the buffer.
    Buffer(usize),
    /// The whole range, in the sink.
    Sink,
}

impl<N: Net> ClientCall<'_, N> {
    /// Reads at `offset` into `out`. Returns the number of bytes, less than requested only at the
    /// end of the file.
    ///
    /// # Errors
    /// `Corrupt` or `Io` from a target; `TimedOut` or `Unreachable` where one does not answer.
    pub async fn read(
        &self,
        file: &File<N>,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, ErrorCode> {
        match self.read_into(file, offset, out, None).await? {
            ReadInto::Buffer(bytes) => Ok(bytes),
            ReadInto::Sink => Err(ErrorCode::Protocol),
        }
    }

    /// As [`Self::read`]. Reads into `sink` where the range lies in one piece and no own unsent
    /// write overlaps it.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_into(
        &self,
        file: &File<N>,
        offset: u64,
        out: &mut [u8],
        mut sink: Option<&mut N::Sink>,
    ) -> Result<ReadInto, ErrorCode> {
        for _ in 0..REREADS {
            let (into, short) = self
                .read_now(file, offset, out, sink.as_deref_mut())
                .await?;
            let Some(shrink) = short else {
                return Ok(into);
            };
            // Fewer stored bytes than the size says: the range has a hole, or the file was
            // truncated meanwhile.
            self.refetch(file).await?;
            if file.state().data.truncate_seq == shrink {
                return Ok(into);
            }
        }
        let (into, _) = self.read_now(file, offset, out, sink).await?;
        Ok(into)
    }

    /// Reads by the known state of the file. Returns the number of its last truncation, where fewer
    /// bytes were stored than its size says.
    async fn read_now(
        &self,
        file: &File<N>,
        offset: u64,
        out: &mut [u8],
        sink: Option<&mut N::Sink>,
    ) -> Result<(ReadInto, Option<u64>), ErrorCode> {
        let end = offset.saturating_add(out.len() as u64);
        // At the end: another client may have extended the file.
        let is_old = {
            let state = file.state();
            state.is_outdated || state.size <= offset
        };
        if is_old {
            self.refetch(file).await?;
        }
        let (data, size, copies) = {
            let state = file.state();
            (
                state.data.clone(),
                state.size,
                state.pending_copies(offset, end),
            )
        };
        let length = usize::try_from(size.saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(out.len());
        let is_whole = length == out.len()
            && length >= SINK_BYTES_MIN
            && copies.is_empty()
            && offset >= end_of_inline(&data);
        if let Some(sink) = sink
            && is_whole
            && self
                .read_sunk((file.ino, &data), offset, length, sink)
                .await?
        {
            return Ok((ReadInto::Sink, None));
        }
        let out = &mut out[..length];
        let is_short = self.read_stored(file, &data, offset, out).await?;
        lay_over(&copies, offset, out);
        // Own unreported writes extend the file beyond its stored bytes. A truncation may have come
        // as well.
        let short = is_short.then_some(data.truncate_seq);
        Ok((ReadInto::Buffer(length), short))
    }

    /// Reads a range that lies in one piece into an empty sink. False: not read, and the sink is
    /// empty.
    async fn read_sunk(
        &self,
        (ino, data): (Ino, &FileData),
        offset: u64,
        length: usize,
        sink: &mut N::Sink,
    ) -> Result<bool, ErrorCode> {
        let pieces = self.pieces_to_read(data, offset, length as u64).await?;
        let [piece] = pieces.as_slice() else {
            return Ok(false);
        };
        let component = &data.layout.components[piece.component];
        // The read into the buffer fetches a newer map.
        let Ok(place) = self.place_known(data.as_of, component, piece.column) else {
            return Ok(false);
        };
        if !self.net.suits_sink(&place.address, place.node) {
            return Ok(false);
        }
        let object = Self::object(data, component, piece.column, &place);
        let brief = data.layout.has_copies().then(|| self.until_other_copy(0));
        let call = brief.as_ref().unwrap_or(self);
        let pending = call.start_sunk(ino, &place, &read_request(object, piece), length);
        if data.layout.has_copies() && call.is_slow(&pending).await {
            return Ok(false);
        }
        match call
            .finish_into(&place.address, pending, sink, length)
            .await
        {
            Ok(reply) => {
                let is_whole = reply.payload_bytes == length;
                if is_whole {
                    let (data_id, direction) = (Some(object.data_id), TrafficDirection::Read);
                    self.count_traffic(&place, data_id, direction, length);
                }
                Ok(is_whole)
            }
            // The deadline has passed.
            Err(NetFailure::TimedOut) if brief.is_none() && !self.context().is_endless() => {
                Err(ErrorCode::TimedOut)
            }
            Err(_failure) => Ok(false),
        }
    }

    /// Reads the bytes of the targets and of the shard; holes are zeros. True where a part had
    /// fewer bytes than requested.
    async fn read_stored(
        &self,
        file: &File<N>,
        data: &FileData,
        offset: u64,
        out: &mut [u8],
    ) -> Result<bool, ErrorCode> {
        let mut is_short = false;
        let own = end_of_inline(data).saturating_sub(offset);
        let own = usize::try_from(own).unwrap_or(usize::MAX).min(out.len());
        let (first, out) = out.split_at_mut(own);
        let pieces = self
            .pieces_to_read(data, offset + own as u64, out.len() as u64)
            .await?;
        let mut started = Vec::with_capacity(pieces.len());
        let brief = data.layout.has_copies().then(|| self.until_other_copy(0));
        let call = brief.as_ref().unwrap_or(self);
        for piece in &pieces {
            let component = &data.layout.components[piece.component];
            let place = self.place_known(data.as_of, component, piece.column);
            let first = place.map(|place| {
                let object = Self::object(data, component, piece.column, &place);
                let pending = call.start_read(file.ino, &place, &read_request(object, piece));
                (place, pending)
            });
            started.push(first);
        }
        let mut failed = None;
        if !first.is_empty() {
            let change = file.state().change;
            let kept = self.inode_cache.take_bytes(self, file.ino, change);
            let bytes = match kept {
                Some(bytes) => Ok(bytes),
                None => self.inline_bytes(file.ino).await,
            };
            match bytes {
                Ok(bytes) => {
                    is_short |= (bytes.len() as u64) < offset + first.len() as u64;
                    copy_out(&bytes, offset, first);
                }
                Err(code) => failed = Some(code),
            }
        }
        let mut rest = out;
        for (piece, first) in pieces.iter().zip(started) {
            let (part, behind) = rest.split_at_mut(to_usize(piece.length));
            rest = behind;
            let outcome = match first {
                Ok(first) => {
                    let make = |object| read_request(object, piece);
                    call.first_reply(file, (data, piece), first, &make, part)
                        .await
                }
                Err(code) => Err(code),
            };
            let outcome = match outcome {
                Ok(bytes) => Ok(bytes),
                Err(code) => {
                    let make = |object| read_request(object, piece);
                    let at = (piece.component, piece.column);
                    let again = self
                        .storage_retry(file, at, &make, &[], Some(part), Some(code))
                        .await;
                    again.map(|(_, bytes, _)| bytes)
                }
            };
            match outcome {
                Ok(bytes) => {
                    is_short |= bytes < part.len();
                    part[bytes.min(to_usize(piece.length))..].fill(0);
                }
                Err(code) => failed = Some(code),
            }
        }
        failed.map_or(Ok(is_short), Err)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a piece is at most as long as the caller's buffer, which a frame bounds"
)]
fn read_request(object: ObjectRef, piece: &zonal_layout::Piece) -> StorageRequest {
    StorageRequest::Read {
        object,
        offset: piece.object_offset,
        length: piece.length as u32,
    }
}
