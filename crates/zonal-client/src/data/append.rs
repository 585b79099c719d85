//! Appends: the shard assigns the offset, so that appends of several mounts lose nothing.
//!
//! An append takes three round trips: reserve, write, publish. It takes two where all bytes lie in
//! the part that the shard keeps. An abandoned reservation becomes a hole only where a later one
//! was already written.
//!
//! The client writes to a place for as long as a restarted shard surely keeps places reserved.
//! After that it asks the shard whether the place is still its own. The place stays its own where
//! the file grew past it. After a truncation behind its beginning, the part before the new end
//! stays its own.

use crate::cell::session::{AppendInFlight, Link};
use crate::client::ClientCall;
use crate::data::storage_retry::Persistence;
use crate::file::File;
use crate::file::inline_bytes::split;
use crate::file::tail_ownership::TailOwnership;
use crate::transport::net::Net;
use crate::transport::retry::is_unsure;
use std::collections::VecDeque;
use zonal_basics::to_usize;
use zonal_layout::Piece;
use zonal_types::limits::{CACHE_TERM_MS, FILE_BYTES_MAX};
use zonal_types::{Column, Component, ErrorCode, FileData, Instant, Layout, TargetId};
use zonal_wire::{AppendPlace, MetaReply, MetaRequest, ObjectRef, StorageReply, StorageRequest};

/// The bytes of an append on their way to targets.
struct AppendWrite<'a> {
    bytes: &'a [u8],
    /// Their place in the file.
    offset: u64,
    /// Bytes from here on are truncated.
    end: u64,
    /// The file as it was when the place was assigned, or after a truncation of the place.
    data: FileData,
    /// So long the place is surely this session's.
    until: Instant,
    deadline: Instant,
    /// By which copies order the bytes; 0: the file has one copy.
    order: u64,
}

impl<N: Net> ClientCall<'_, N> {
    /// Appends `bytes` and returns their offset.
    ///
    /// # Errors
    /// `FileTooBig`, `NoSpace`, or a server that does not answer.
    pub async fn append(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.append_gated(file, bytes, kill_suid).await
    }

    /// [`Self::append`] for a caller that holds the gate.
    pub(crate) async fn append_gated(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        self.settle_gated(file).await?;
        self.freshen(file).await?;
        let deadline = self.deadline();
        let appended = loop {
            match self.append_once(file, bytes, kill_suid).await {
                // The shard was restarted and has forgotten the reservation: nothing of it was
                // published.
                Err(ErrorCode::UnknownLease) if !self.is_over(deadline) => {}
                // The file is another shard's now.
                Err(ErrorCode::NotOwner) if !self.is_over(deadline) => {}
                Err(ErrorCode::UnknownLease) => break Err(ErrorCode::TimedOut),
                other => break other,
            }
        };
        if appended.is_err() {
            // The shard may still hold a place behind the end for this append.
            self.end_moves(file);
        }
        appended
    }

    async fn append_once(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        let link = self.reach(file.ino).await?;
        // The first session at a shard, after a move, has no boot before it is open.
        self.open_session(&link, self.deadline()).await?;
        let boot = link.boot();
        let until = self.net.now().plus_ms(CACHE_TERM_MS);
        let length = u32::try_from(bytes.len()).map_err(|_error| ErrorCode::Invalid)?;
        let begin = MetaRequest::AppendBegin {
            ino: file.ino,
            length,
            limit: FILE_BYTES_MAX,
        };
        let asked = self.ask_for_place(&link, file.ino, begin).await?;
        let MetaReply::Appending { offset, data } = asked else {
            return Err(ErrorCode::Protocol);
        };
        let (_boot, session) = link.life();
        let end = offset.checked_add(u64::from(length));
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(ErrorCode::Protocol);
        }
        // Bytes in this place carry this truncation's number, whatever the file learns meanwhile.
        let given = data.clone();
        let truncate_seq = data.truncate_seq;
        file.state().take_data(data);
        // From here on a restarted shard hears of the place before it assigns places again. A shard
        // that restarted since the request may not have heard of it: then nothing is written there.
        let place = AppendPlace {
            offset,
            length,
            truncate_seq,
        };
        let append = (file.ino, place);
        link.begin_append(append);
        let (inline, own) = split(&given, offset, bytes);
        // Bytes written before a failure take space.
        let mut allocated_delta = 0;
        let written = if link.boot() == boot {
            let bytes = &bytes[own..];
            let append = (&*link, append, given);
            self.write_pieces(file, append, bytes, until, &mut allocated_delta)
                .await
        } else {
            Err(ErrorCode::UnknownLease)
        };
        let end = MetaRequest::AppendEnd {
            ino: file.ino,
            offset,
            reserved: length,
            length: if written.is_ok() { length } else { 0 },
            mtime: self.net.wall(),
            allocated_delta,
            kill_suid,
            inline: inline.filter(|_bytes| written.is_ok()),
        };
        let reply = self.meta(&link, &end).await;
        link.end_append(append);
        if reply.as_ref().is_err_and(|code| is_unsure(*code)) {
            // Nobody else tells the shard, for example where the caller was killed.
            link.give_up_append(file.ino, place, session);
        }
        if link.boot() != boot {
            self.end_reclaimed_place(file, &link, place).await;
        }
        if matches!(reply, Err(ErrorCode::UnknownLease)) && allocated_delta != 0 {
            let mut state = file.state();
            let allocated = &mut state.report_mut().allocated_delta;
            *allocated = allocated.saturating_add(allocated_delta);
        }
        // The shard may have disowned the bytes behind the end. Later writes must not be taken for
        // those.
        if reply.is_err() && written.is_err() {
            file.state().outdate();
        }
        self.take_append_reply(file, reply?, written.is_ok());
        written.map(|()| offset)
    }

    /// Ends a place that a restarted shard may have reclaimed after it executed `AppendEnd`. The
    /// place would block the appends behind it.
    pub(crate) async fn end_reclaimed_place(
        &self,
        file: &File<N>,
        link: &Link,
        place: AppendPlace,
    ) {
        let over = MetaRequest::AppendEnd {
            ino: file.ino,
            offset: place.offset,
            reserved: place.length,
            length: 0,
            mtime: self.net.wall(),
            allocated_delta: 0,
            kill_suid: false,
            inline: None,
        };
        self.meta(link, &over).await.ok();
        // The shard may have given this a truncation number.
        file.state().outdate();
    }

    /// Brings the file up to date with the reply to `AppendEnd`.
    fn take_append_reply(&self, file: &File<N>, reply: MetaReply, is_written: bool) {
        self.note_own_change(file.ino, &reply);
        if let MetaReply::Attr { attr, data, .. } = reply {
            let mut state = file.state();
            if !is_written && data.is_none() {
                // The failed write may have left bytes there.
                state.tail_ownership = TailOwnership::Unknown(Instant::default());
            }
            state.refresh(&attr, data);
        }
    }

    /// Writes `bytes`, the last bytes of an append, without gathering. Adds the change of allocated
    /// bytes to `delta`, also on failure.
    pub(crate) async fn write_pieces(
        &self,
        file: &File<N>,
        (link, append, data): (&Link, AppendInFlight, FileData),
        bytes: &[u8],
        until: Instant,
        delta: &mut i64,
    ) -> Result<(), ErrorCode> {
        let deadline = match self.context().is_endless() {
            true => self.deadline(),
            false => self.net.now().plus_ms(self.options.deadline_ms),
        };
        let length = bytes.len() as u64;
        let offset = append.1.offset + u64::from(append.1.length) - length;
        let mut all = self.pieces_to_write(&data, offset, length).await?;
        let mut placed_by = data.layout.clone();
        let mut rounds = 0;
        let mut write = AppendWrite {
            bytes,
            offset,
            end: offset + length,
            data,
            until,
            deadline,
            order: self.order_of_change(file, rounds),
        };
        let again = |all: &[Piece]| VecDeque::from_iter(all.iter().map(|piece| (*piece, false)));
        let mut left = again(&all);
        loop {
            let Some((piece, fills)) = left.pop_front() else {
                let late = self
                    .late_range(file, &mut placed_by, (offset, length))
                    .await?;
                if late.is_empty() {
                    return Ok(());
                }
                left.extend(late.iter().map(|piece| (*piece, true)));
                all.extend(late);
                if write.order == 0 {
                    // The file had one copy when the change began.
                    write.order = self.order_of_change(file, rounds);
                    left = again(&all);
                }
                continue;
            };
            let wrote = self.write_piece(file, (link, append), &mut write, (piece, fills));
            match wrote.await {
                // A copy has a later change of these bytes: all get this one again.
                Err(ErrorCode::Overtaken) if !self.is_over(deadline) => {
                    rounds += 1;
                    write.order = self.order_of_change(file, rounds);
                    left = again(&all);
                }
                Err(ErrorCode::Overtaken) => return Err(ErrorCode::TimedOut),
                Err(code) => return Err(code),
                Ok(None) => {}
                Ok(Some((reply, target))) => {
                    if reply == StorageReply::Done && !fills {
                        left.push_back((piece, true));
                    }
                    let at = (piece.component, piece.column);
                    *delta += file.state().note_written_at(at, target, &reply);
                }
            }
        }
    }

    /// Writes one piece of an append. `None`: the piece is truncated.
    async fn write_piece(
        &self,
        file: &File<N>,
        (link, append): (&Link, AppendInFlight),
        write: &mut AppendWrite<'_>,
        (piece, fills): (Piece, bool),
    ) -> Result<Option<(StorageReply, TargetId)>, ErrorCode> {
        let from = to_usize(piece.file_offset - write.offset);
        let at = (piece.component, piece.column);
        loop {
            let length = piece
                .length
                .min(write.end.saturating_sub(piece.file_offset));
            if length == 0 {
                return Ok(None);
            }
            let part = &write.bytes[from..from + to_usize(length)];
            let component = &write.data.layout.components[piece.component];
            // The request names the object as it is now. It names the file as it was when the place
            // was assigned, or after the truncation that left a part of the place.
            let make = |object: ObjectRef| StorageRequest::Write {
                object: Self::object_as_of(&write.data, component, piece.column, object),
                offset: piece.object_offset,
                sync: false,
                expected_version: 0,
                txn: 0,
                snap_epoch: 0,
            };
            let now = self.net.now();
            if now >= write.until {
                self.still_ours(link, append).await?;
                write.until = now.plus_ms(CACHE_TERM_MS);
            }
            let how = Persistence {
                deadline: write.until.min(write.deadline),
                follows_truncations: false,
                fills,
                order: write.order,
            };
            match self
                .storage_until(file, at, &make, part, (None, None), how)
                .await
            {
                Err(ErrorCode::Overtaken) => return Err(ErrorCode::Overtaken),
                Err(_passing) if self.net.now() >= write.until && !self.is_over(write.deadline) => {
                }
                Err(ErrorCode::StaleTruncate) => {
                    let fresh = self.place_after_truncation(file, (link, append)).await?;
                    write.end = write.end.min(fresh.truncate_size);
                    write.data = fresh;
                }
                wrote => return wrote.map(|(reply, _, target)| Some((reply, target))),
            }
        }
    }

    /// An object with the state of its file as of `data`.
    fn object_as_of(
        data: &FileData,
        component: &Component,
        place: Column,
        object: ObjectRef,
    ) -> ObjectRef {
        ObjectRef {
            column: object.column,
            ..Self::object(data, component, place, &object)
        }
    }

    /// The pieces of a range for places that a change may have missed, placed by this layout.
    async fn late_range(
        &self,
        file: &File<N>,
        placed_by: &mut Layout,
        (offset, length): (u64, u64),
    ) -> Result<Vec<Piece>, ErrorCode> {
        let (late, now) = {
            let state = file.state();
            (state.late_places(placed_by), state.data.clone())
        };
        if late.is_empty() {
            return Ok(Vec::new());
        }
        let mut pieces = self.pieces_to_write(&now, offset, length).await?;
        pieces.retain(|piece| late.contains(&(piece.component, piece.column)));
        Ok(pieces)
    }

    /// Checks that the shard still holds the place. A place belongs to the session that got it; a
    /// later session of this client must not claim it.
    async fn still_ours(&self, link: &Link, append: AppendInFlight) -> Result<(), ErrorCode> {
        if !link.is_appending(append) {
            return Err(ErrorCode::UnknownLease);
        }
        let appends = vec![append];
        let asked = MetaRequest::ReclaimAppends { appends };
        self.meta(link, &asked).await.map(|_done| ())
    }

    /// Handles a target's report that the file was truncated. Returns the file as it is now, if the
    /// truncation left a part of the place. Otherwise the shard has given up the place, and nothing
    /// of it was published.
    async fn place_after_truncation(
        &self,
        file: &File<N>,
        (link, append): (&Link, AppendInFlight),
    ) -> Result<FileData, ErrorCode> {
        self.refetch(file).await?;
        let data = file.state().data.clone();
        let left = append.1.left(data.truncate_seq, data.truncate_size);
        if left.is_none() || data.truncate_seq == append.1.truncate_seq {
            return Err(ErrorCode::UnknownLease);
        }
        self.still_ours(link, append).await?;
        Ok(data)
    }
}
