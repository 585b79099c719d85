//! Writing: gathered, then sent by whole stripe units without waiting, bounded; acknowledged in order at the flush.
//!
//! A streaming write costs no copy here (its memory becomes the run that is kept until its target has acknowledged it; the
//! worker goes on with that of an earlier one: no page fault), one send on the calling thread, and no wait while less than
//! [`WINDOW_BYTES`] are under way. Bytes are kept until acknowledged, so that a restarted target gets them again.

use crate::behind::Behind;
use crate::client::Client;
use crate::dirty::Dirty;
use crate::file::{File, Inflight};
use crate::inline::end_of_inline;
use crate::net::{Net, wait_for};
use crate::run::Run;
use crate::session::{both, leaves_gathered};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use zonal_layout::Piece;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{ErrorCode, TargetId};
use zonal_wire::{ObjectRef, StorageReply, StorageRequest};

/// Bytes of one file under way before a writer waits.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Runs of at least this many bytes leave at once; shorter ones are gathered.
const SEND_UNIT: u64 = 1 << 20;

impl<N: Net> Client<N> {
    /// Writes `bytes` at `offset`. They are on their way or gathered when this returns; errors of that show at the
    /// next write, close and fsync. `kill_suid`: the writer has no right to keep set-id bits.
    ///
    /// # Errors
    /// `FileTooBig`; what fails of bytes that are waited for meanwhile.
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
        let gather = |dirty: &mut Dirty| dirty.insert_in(offset, bytes, room);
        self.gather(file, (offset, bytes.len()), kill_suid, gather)
            .await
    }

    /// [`Self::write`] of bytes that come with their memory: not copied, where they do not meet what is gathered.
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
        let gather = |dirty: &mut Dirty| {
            if let Err(run) = dirty.adopt(offset, run, SEND_UNIT) {
                dirty.insert(offset, &run);
            }
        };
        self.gather(file, (offset, length), kill_suid, gather).await
    }

    /// Gathers a write, and sends what is whole.
    async fn gather(
        &self,
        file: &File<N>,
        (offset, length): (u64, usize),
        kill_suid: bool,
        gather: impl FnOnce(&mut Dirty),
    ) -> Result<(), ErrorCode> {
        let end = offset
            .checked_add(length as u64)
            .filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(ErrorCode::FileTooBig)?;
        self.own_hole(file, offset).await?;
        let unit = {
            let mut state = file.state();
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
            let full = state.dirty.bytes() as u64 >= unit.max(SEND_UNIT);
            let over = state.dirty.bytes() > self.options.write_behind_file_bytes;
            if !full && !over && self.dirty_bytes() <= self.options.write_behind_bytes {
                return Ok(());
            }
            unit.min(SEND_UNIT)
        };
        let _gate = wait_for(&self.net, &file.gate).await?;
        let sent = self.send_full(file, unit).await;
        if sent.is_err_and(|code| !leaves_gathered(code)) {
            file.state().failures.writer_met();
        }
        sent
    }

    /// Sends whole units, and everything where too much is gathered. The caller holds the gate.
    async fn send_full(&self, file: &File<N>, unit: u64) -> Result<(), ErrorCode> {
        self.hear_of_cut(file).await?;
        let mut left = file.state().dirty.bytes();
        while left > 0 {
            // Taken in a statement of its own: the state's lock must not be held while sending.
            let taken = {
                let mut state = file.state();
                let behind = end_of_inline(&state.data);
                state.take_run(|dirty| dirty.take_full(unit, behind))
            };
            let Some((at, run)) = taken else { break };
            left = left.saturating_sub(run.len());
            let pieces = self.pieces_of_run(file, at, &run).await?;
            self.send_run(file, (at, &run), pieces).await?;
        }
        let over = file.state().dirty.bytes() > self.options.write_behind_file_bytes;
        if over || self.dirty_bytes() > self.options.write_behind_bytes {
            self.flush_gated(file).await?;
        }
        Ok(())
    }

    /// Writes and waits until the targets have it (not: until it is durable).
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

    /// The pieces of the run that was taken last. Where they are not known now, it is gathered again.
    pub(crate) async fn pieces_of_run(
        &self,
        file: &File<N>,
        at: u64,
        run: &[u8],
    ) -> Result<Vec<Piece>, ErrorCode> {
        let fresh = self.freshen(file).await;
        let data = file.state().data.clone();
        let pieces = match fresh {
            Ok(()) => self.known_pieces(&data, at, run.len() as u64).await,
            Err(code) => Err(code),
        };
        if let Err(code) = pieces {
            let mut state = file.state();
            state.inflight.pop_back();
            self.dirty_bytes.fetch_sub(run.len(), Ordering::Relaxed);
            if leaves_gathered(code) {
                let again = state.give_back(at, run);
                self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
                state.dirty_since.get_or_insert(self.net.now());
            } else {
                state.failures.note(code);
            }
        }
        pieces
    }

    /// Asks what the shard may have changed that we did not hear of. The caller holds the gate.
    pub(crate) async fn freshen(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let (is_outdated, is_asked) = {
            let state = file.state();
            (state.is_outdated, state.behind == Behind::Asked)
        };
        if is_asked {
            self.own_behind(file, false).await?;
        }
        if is_outdated {
            self.refetch(file).await?;
        }
        Ok(())
    }

    /// Sends the run that was taken last; the first failure of what was waited for meanwhile. The caller holds the gate.
    pub(crate) async fn send_run(
        &self,
        file: &File<N>,
        (at, run): (u64, &[u8]),
        pieces: Vec<Piece>,
    ) -> Result<(), ErrorCode> {
        let end = at + run.len() as u64;
        let (data, overlapping) = {
            let state = file.state();
            let others = state.inflight.len() - 1;
            let overlaps = |other: &Inflight<N>| {
                other.offset < end && at < other.offset + other.bytes.len() as u64
            };
            let last = state.inflight.iter().take(others).rposition(overlaps);
            (state.data.clone(), last.map_or(0, |last| last + 1))
        };
        let mut done = self.finish_oldest(file, overlapping).await;
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let component = &data.layout.components[piece.component];
            let bytes = piece_bytes(run, at, &piece);
            match self.place(component, piece.column) {
                Ok(place) => {
                    let object = Self::object(&data, component, piece.column, place.target);
                    let request = write_request(object, &piece);
                    let pending = self.start_change(file, &place, &request, &[bytes]);
                    parts.push((piece, place, pending));
                }
                Err(code) => {
                    let outcome = self.rewrite(file, &piece, bytes, code).await;
                    // The last run: none under way is newer.
                    done = both(
                        done,
                        self.note_outcome(file, &piece, (bytes, usize::MAX), outcome),
                    );
                }
            }
        }
        if let Some(last) = file.state().inflight.back_mut() {
            last.parts = parts;
            last.truncate_seq = data.truncate_seq;
        }
        let excess = {
            let state = file.state();
            let mut bytes: usize = state.inflight.iter().map(|run| run.bytes.len()).sum();
            let over = state.inflight.iter().take_while(|run| {
                let is_over = bytes > WINDOW_BYTES;
                bytes -= run.bytes.len();
                is_over
            });
            over.count()
        };
        both(done, self.finish_oldest(file, excess).await)
    }

    /// Waits for the oldest `count` runs: the first failure. The caller holds the gate.
    pub(crate) async fn finish_oldest(
        &self,
        file: &File<N>,
        count: usize,
    ) -> Result<(), ErrorCode> {
        let mut done = Ok(());
        for _ in 0..count {
            let (at, bytes, parts, truncate_seq) = {
                let mut state = file.state();
                let Some(front) = state.inflight.front_mut() else {
                    break;
                };
                (
                    front.offset,
                    front.bytes.clone(),
                    std::mem::take(&mut front.parts),
                    front.truncate_seq,
                )
            };
            for (piece, place, pending) in parts {
                let part = piece_bytes(&bytes, at, &piece);
                let outcome = match self.storage_reply(&place, pending, None).await {
                    Ok((reply, _)) => Ok((reply, place.target, truncate_seq)),
                    Err(code) => self.rewrite(file, &piece, part, code).await,
                };
                // The first run: all others under way are newer.
                done = both(done, self.note_outcome(file, &piece, (part, 1), outcome));
            }
            drop(bytes);
            let over = file.state().inflight.pop_front();
            if let Some(over) = over {
                self.dirty_bytes
                    .fetch_sub(over.bytes.len(), Ordering::Relaxed);
            }
        }
        done
    }

    /// Notes what became of a piece; runs under way are newer from the one numbered `newer` on. One whose target did not answer, or whose writer was killed while it waited (it may be
    /// another process's), goes back among the gathered writes, below what is newer: only the call that waited is told. What is
    /// lost is told to each open of the file.
    fn note_outcome(
        &self,
        file: &File<N>,
        piece: &Piece,
        (bytes, newer): (&[u8], usize),
        outcome: Result<(StorageReply, TargetId, u64), ErrorCode>,
    ) -> Result<(), ErrorCode> {
        let mut state = file.state();
        let code = match outcome {
            Ok((reply @ StorageReply::Written { .. }, target, truncate_seq)) => {
                let allocated_delta = state.note_written(target, &reply);
                let end = piece.file_offset + piece.length;
                let end = state.left_of(truncate_seq, end);
                let report = state.report_mut();
                report.size = report.size.max(end);
                report.allocated_delta += allocated_delta;
                return Ok(());
            }
            Ok(_other) => ErrorCode::Protocol,
            Err(code) => code,
        };
        if leaves_gathered(code) {
            let mut again = 0;
            for (at, bytes) in state.beneath(newer, piece.file_offset, bytes) {
                again += state.give_back(at, bytes);
            }
            self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
            state.dirty_since.get_or_insert(self.net.now());
        } else {
            state.failures.note(code);
        }
        Err(code)
    }

    /// Writes a piece again: the reply, whose it is, and the last shrink that was known.
    async fn rewrite(
        &self,
        file: &File<N>,
        piece: &Piece,
        bytes: &[u8],
        code: ErrorCode,
    ) -> Result<(StorageReply, TargetId, u64), ErrorCode> {
        zonal_types::mark!(WriteRepeated);
        let truncate_seq = Cell::new(0);
        let make = |object: ObjectRef| {
            truncate_seq.set(object.truncate_seq);
            write_request(object, piece)
        };
        let at = (piece.component, piece.column);
        let (reply, _, target) = self
            .storage_retry(file, at, &make, bytes, None, Some(code))
            .await?;
        Ok((reply, target, truncate_seq.get()))
    }
}

fn piece_bytes<'a>(run: &'a [u8], at: u64, piece: &Piece) -> &'a [u8] {
    let from = (piece.file_offset - at) as usize;
    &run[from..from + piece.length as usize]
}

fn write_request(object: ObjectRef, piece: &Piece) -> StorageRequest {
    let offset = piece.object_offset;
    StorageRequest::Write {
        object,
        offset,
        sync: false,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    }
}
