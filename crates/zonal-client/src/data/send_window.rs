//! Send window: batches of gathered writes in flight. The client sends them without waiting, within
//! bounds, and takes acknowledgements oldest first.
//!
//! A file has at most [`WINDOW_BYTES`] and [`WINDOW_BATCHES`] in flight, plus one batch. A mount
//! has at most `TARGET_WRITES_MAX` writes in flight at one target, plus a batch of each file. At a
//! bound, a writer waits for the oldest batch of its file. Replies are taken in the order of
//! sending.
//!
//! The client repeats a message as a whole: a later attempt writes all its ranges again, before any
//! write gathered later can overtake it. A target may refuse a message of many pieces because of
//! one (a damaged block, no space). Then the client sends its halves, so that a bad piece does
//! not fail the others.
//!
//! *Invariants*
//!
//! 1. Two messages in flight have no byte of an object in common.
//! 2. The caller of every function here holds the file's gate.

use crate::cell::placement::TargetPlace;
use crate::client::ClientCall;
use crate::file::batch::{Batch, length_of, pack, write_request};
use crate::file::{File, InFlightMessage};
use crate::transport::net::Net;
use crate::transport::retry::{both, late, leaves_gathered};
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zonal_layout::Piece;
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_types::{ErrorCode, FileData, Layout, TargetId};
use zonal_wire::{ObjectRef, StorageReply};

/// Bytes of one file in flight before a writer waits.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Batches of one file in flight before a writer waits.
const WINDOW_BATCHES: usize = 8;
/// Most splits of one refused message.
const HALVINGS_MAX: usize = 32;

/// Outcome of a message: the reply, its target, and the last truncation known at sending.
type Outcome = Result<(StorageReply, TargetId, u64), ErrorCode>;

/// A batch that is sent, as far as it could be.
pub(crate) struct PlacedBatch<N: Net> {
    pub(crate) parts: Vec<InFlightMessage<N>>,
    /// Pieces of copies that miss changes: they follow after the others.
    pub(crate) left_out: Vec<Piece>,
    /// Messages whose place is not known yet, and why.
    pub(crate) unsent: Vec<(Vec<Piece>, ErrorCode)>,
    /// The last truncation known at sending.
    pub(crate) truncate_seq: u64,
    /// The layout by which the pieces were made.
    pub(crate) placed_by: Layout,
}

impl<N: Net> ClientCall<'_, N> {
    /// Pieces of the batch that was taken last. Where their placement is unknown, the batch is
    /// gathered again.
    pub(crate) async fn pieces_of_batch(
        &self,
        file: &File<N>,
        batch: &Batch,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let mut pieces = self.try_pieces_of(file, batch).await;
        if file.state().is_forfeited(batch) {
            pieces = Err(ErrorCode::Io);
        }
        if let Err(code) = pieces {
            let mut state = file.state();
            let newest = state.inflight.pop_back();
            assert!(
                newest.is_none_or(|newest| std::ptr::eq(&raw const *newest.batch, batch)),
                "another batch is the newest"
            );
            self.dirty_bytes.fetch_sub(batch.bytes(), Ordering::Relaxed);
            if leaves_gathered(code) {
                let again = state.give_batch_back(batch);
                self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
                state.dirty_since.get_or_insert(self.net.now());
            } else {
                state.failures.note(code);
            }
        }
        pieces
    }

    async fn try_pieces_of(&self, file: &File<N>, batch: &Batch) -> Result<Vec<Piece>, ErrorCode> {
        self.freshen(file).await?;
        let data = self.marked_data(file).await?;
        let mut pieces = Vec::with_capacity(batch.runs().len());
        for (at, run) in batch.runs() {
            pieces.extend(self.pieces_to_write(&data, *at, run.len() as u64).await?);
        }
        let left_out = match data.layout.has_copies() {
            true => self.leave_out_stale(file, &mut pieces).await?,
            false => Vec::new(),
        };
        if let Some(last) = file.state().inflight.back_mut() {
            last.left_out = left_out;
            last.placed_by = data.layout;
        }
        Ok(pieces)
    }

    /// Sends the batch that was taken last. Returns the first failure of batches that it waited
    /// for.
    pub(crate) async fn send_batch(
        &self,
        file: &File<N>,
        batch: &Arc<Batch>,
        pieces: Vec<Piece>,
    ) -> Result<(), ErrorCode> {
        let (data, overlapping) = {
            let state = file.state();
            let others = state.inflight.len() - 1;
            let mut others = state.inflight.iter().take(others);
            let last = others.rposition(|other| other.batch.overlaps(batch));
            let count = last.map_or(0, |last| last + 1);
            (state.data.clone(), count)
        };
        let mut done = self.finish_oldest(file, overlapping).await;
        self.begin_order(&data, batch);
        let mut parts = Vec::new();
        for pieces in pack(pieces) {
            let Some(first) = pieces.first() else {
                continue;
            };
            let component = &data.layout.components[first.component];
            // Its target may have been out since the pieces were made.
            if self.misses_changes(&data.layout, component, first.column) {
                note_left_out(file, &pieces);
                continue;
            }
            match self.place_known(data.as_of, component, first.column) {
                Ok(place) => {
                    while self.writes_in_flight.is_full(place.target)
                        && file.state().inflight.len() > 1
                    {
                        done = both(done, self.finish_oldest(file, 1).await);
                    }
                    if file.state().is_forfeited(batch) {
                        let lost = Err(ErrorCode::Io);
                        let newest = (&**batch, usize::MAX);
                        done = both(done, self.note_outcome(file, &pieces, newest, lost));
                        continue;
                    }
                    parts.push(self.send_pieces(file, (&data, place), pieces, batch));
                }
                Err(code) => {
                    let outcome = self.rewrite(file, &pieces, batch, Some(code)).await;
                    if is_left_out(&outcome) {
                        note_left_out(file, &pieces);
                    }
                    // The last batch: none in flight is newer.
                    let noted = self.settle_message(file, &pieces, (batch, usize::MAX), outcome);
                    done = both(done, noted.await);
                }
            }
        }
        if let Some(last) = file.state().inflight.back_mut() {
            last.parts = parts;
            last.truncate_seq = data.truncate_seq;
        }
        let excess = {
            let state = file.state();
            let mut bytes: usize = state.inflight.iter().map(|run| run.batch.bytes()).sum();
            let mut count = state.inflight.len();
            let over = state.inflight.iter().take_while(|run| {
                let is_over = bytes > WINDOW_BYTES || count > WINDOW_BATCHES;
                bytes -= run.batch.bytes();
                count -= 1;
                is_over
            });
            over.count()
        };
        both(done, self.finish_oldest(file, excess).await)
    }

    /// Sends one message.
    pub(crate) fn send_pieces(
        &self,
        file: &File<N>,
        (data, place): (&FileData, TargetPlace),
        pieces: Vec<Piece>,
        batch: &Batch,
    ) -> InFlightMessage<N> {
        let ticket = self.writes_in_flight.enter(place.target);
        let (component, column) = pieces.first().map_or((0, Default::default()), |first| {
            (first.component, first.column)
        });
        let component = &data.layout.components[component];
        let object = Self::object(data, component, column, &place);
        let request = write_request(object, &pieces);
        let (length, order) = (length_of(&pieces), batch.order());
        // Memory from which the transport need not copy, where it has some.
        let brought = (pieces.len() > 1 && length >= REGION_PAYLOAD_MIN)
            .then(|| self.net.memory(length))
            .flatten();
        let pending = match brought {
            Some(mut memory) => {
                let packed = &mut memory[..length];
                batch.gather_into(&pieces, packed);
                self.start_change(file, &place, &request, (&[packed], order))
            }
            None => {
                let packed = payload_of(batch, &pieces);
                self.start_change(file, &place, &request, (&[&packed], order))
            }
        };
        InFlightMessage {
            pieces,
            place,
            pending,
            ticket,
        }
    }

    /// Waits for the oldest `count` batches; returns the first failure.
    pub(crate) async fn finish_oldest(
        &self,
        file: &File<N>,
        count: usize,
    ) -> Result<(), ErrorCode> {
        let mut done = Ok(());
        for _ in 0..count {
            let (batch, sent) = {
                let mut state = file.state();
                let Some(front) = state.inflight.front_mut() else {
                    break;
                };
                let sent = PlacedBatch {
                    parts: std::mem::take(&mut front.parts),
                    left_out: std::mem::take(&mut front.left_out),
                    unsent: Vec::new(),
                    truncate_seq: front.truncate_seq,
                    placed_by: std::mem::take(&mut front.placed_by),
                };
                (front.batch.clone(), sent)
            };
            done = both(done, self.finish_batch(file, &batch, sent).await);
            let over = file.state().inflight.pop_front();
            if let Some(over) = over {
                assert!(
                    Arc::ptr_eq(&over.batch, &batch),
                    "another batch ended than the oldest"
                );
                self.dirty_bytes
                    .fetch_sub(over.batch.bytes(), Ordering::Relaxed);
            }
        }
        done
    }

    /// Waits for the first batch in flight. Pieces that a copy refuses by their order go to all
    /// copies again.
    async fn finish_batch(
        &self,
        file: &File<N>,
        batch: &Batch,
        sent: PlacedBatch<N>,
    ) -> Result<(), ErrorCode> {
        let deadline = self.deadline();
        let (mut next, mut done) = (sent, Ok(()));
        for rounds in 1.. {
            done = both(done, self.finish_round(file, batch, next).await);
            match self.send_overtaken(file, batch, (rounds, deadline)).await {
                Ok(Some(sent)) => next = sent,
                Ok(None) => break,
                Err(code) => {
                    let whole = pieces_of_runs(batch);
                    let noted = self.note_outcome(file, &whole, (batch, 1), Err(late(code)));
                    return both(done, noted);
                }
            }
        }
        done
    }

    /// Takes the replies to the first batch in flight, then reaches copies that get it after the
    /// others.
    async fn finish_round(
        &self,
        file: &File<N>,
        batch: &Batch,
        sent: PlacedBatch<N>,
    ) -> Result<(), ErrorCode> {
        let mut left_out = sent.left_out;
        let mut done = Ok(());
        for (pieces, code) in sent.unsent {
            let outcome = self.rewrite(file, &pieces, batch, Some(code)).await;
            if is_left_out(&outcome) {
                left_out.extend(pieces.iter().copied());
            }
            let noted = self.settle_message(file, &pieces, (batch, 1), outcome);
            done = both(done, noted.await);
        }
        for part in sent.parts {
            let InFlightMessage {
                pieces,
                place,
                pending,
                ticket,
            } = part;
            let has_copies = file.state().data.layout.has_copies();
            let reply = match has_copies {
                true => self.reply_of_copy(&place, pending, 0).await,
                false => self.storage_reply(&place, pending, None).await,
            };
            let outcome = match reply {
                Ok((reply, _)) => Ok((reply, place.target, sent.truncate_seq)),
                Err(ErrorCode::Overtaken) => Err(ErrorCode::Overtaken),
                Err(code) => self.rewrite(file, &pieces, batch, Some(code)).await,
            };
            drop(ticket);
            if is_left_out(&outcome) {
                left_out.extend(pieces.iter().copied());
            }
            // The first batch: all others in flight are newer.
            let noted = self.settle_message(file, &pieces, (batch, 1), outcome);
            done = both(done, noted.await);
        }
        let filled = match done {
            // They must not get there before the others, nor never.
            Err(code) if leaves_gathered(code) && !left_out.is_empty() => {
                self.note_outcome(file, &left_out, (batch, 1), Err(code))
            }
            _ => {
                let placed_by = sent.placed_by.clone();
                self.fill_places(file, left_out, batch, placed_by).await
            }
        };
        self.note_moved(file, batch, &sent.placed_by);
        both(done, filled)
    }

    /// Writes the pieces of copies that missed changes, and of places that came meanwhile.
    async fn fill_places(
        &self,
        file: &File<N>,
        mut left_out: Vec<Piece>,
        batch: &Batch,
        mut placed_by: Layout,
    ) -> Result<(), ErrorCode> {
        loop {
            match self.late_pieces(file, batch, &mut placed_by).await {
                Ok(late) => {
                    // The late ones are all of the batch for their places.
                    let place = |piece: &Piece| (piece.component, piece.column);
                    left_out.retain(|piece| !late.iter().any(|of| place(of) == place(piece)));
                    left_out.extend(late);
                }
                Err(code) => {
                    let whole = pieces_of_runs(batch);
                    return self.note_outcome(file, &whole, (batch, 1), Err(code));
                }
            }
            if left_out.is_empty() {
                return Ok(());
            }
            let pieces = std::mem::take(&mut left_out);
            self.fill_left_out(file, pieces, batch).await?;
        }
    }

    /// Writes the pieces of copies that missed changes, and are being filled by now.
    async fn fill_left_out(
        &self,
        file: &File<N>,
        left_out: Vec<Piece>,
        batch: &Batch,
    ) -> Result<(), ErrorCode> {
        let mut done = Ok(());
        for pieces in pack(left_out) {
            let outcome = self.write_again(file, &pieces, batch, None, true).await;
            let noted = self.settle_message(file, &pieces, (batch, 1), outcome);
            done = both(done, noted.await);
        }
        done
    }

    /// Notes the outcome of a message. Where one piece may have caused a refusal, sends the halves
    /// first.
    async fn settle_message(
        &self,
        file: &File<N>,
        pieces: &[Piece],
        (batch, newer): (&Batch, usize),
        outcome: Outcome,
    ) -> Result<(), ErrorCode> {
        let mut done = Ok(());
        let mut halvings = HALVINGS_MAX;
        let mut ended = vec![(pieces, outcome)];
        while let Some((pieces, outcome)) = ended.pop() {
            let is_of_one = matches!(outcome, Err(ErrorCode::Corrupt | ErrorCode::NoSpace));
            if is_of_one && pieces.len() > 1 && halvings > 0 {
                halvings -= 1;
                let (front, behind) = pieces.split_at(pieces.len() / 2);
                for half in [behind, front] {
                    let outcome = self.rewrite(file, half, batch, None).await;
                    ended.push((half, outcome));
                }
                continue;
            }
            done = both(
                done,
                self.note_outcome(file, pieces, (batch, newer), outcome),
            );
        }
        done
    }

    /// Notes the outcome of pieces. Batches in flight from the one numbered `newer` on are newer.
    ///
    /// | outcome | action |
    /// | --- | --- |
    /// | acknowledged | counted in the report for the shard |
    /// | `Overtaken` | kept, to be sent to all copies again |
    /// | passing error, or a killed writer | gathered again below newer bytes; the caller gets it |
    /// | other error | lost; each open of the file gets the error |
    fn note_outcome(
        &self,
        file: &File<N>,
        pieces: &[Piece],
        (batch, newer): (&Batch, usize),
        outcome: Outcome,
    ) -> Result<(), ErrorCode> {
        let mut state = file.state();
        let code = match outcome {
            Ok((reply @ StorageReply::Written { .. }, target, truncate_seq)) => {
                let at = pieces.first().map_or((0, Default::default()), |first| {
                    (first.component, first.column)
                });
                let allocated_delta = state.note_written_at(at, target, &reply);
                let ends = pieces.iter().map(|piece| piece.file_offset + piece.length);
                let end = state.left_of(truncate_seq, ends.max().unwrap_or(0));
                let report = state.report_mut();
                report.size = report.size.max(end);
                let allocated = &mut report.allocated_delta;
                *allocated = allocated.saturating_add(allocated_delta);
                return Ok(());
            }
            // A copy that is stale by now: the other ones have the pieces.
            Ok((StorageReply::Done, ..)) => return Ok(()),
            Ok(_other) => ErrorCode::Protocol,
            Err(ErrorCode::Overtaken) => {
                state.note_overtaken(batch, pieces);
                return Ok(());
            }
            Err(code) => code,
        };
        if leaves_gathered(code) && !state.is_forfeited(batch) {
            let mut again = 0;
            for piece in pieces {
                state.unsure_end = state.unsure_end.max(piece.file_offset + piece.length);
                let bytes = batch.bytes_of(piece);
                for (at, bytes) in state.beneath(newer, piece.file_offset, bytes) {
                    again += state.give_back(at, bytes);
                }
            }
            self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
            state.dirty_since.get_or_insert(self.net.now());
            return Err(code);
        }
        let code = match leaves_gathered(code) {
            true => ErrorCode::Io,
            false => code,
        };
        state.failures.note(code);
        Err(code)
    }

    /// Writes pieces of one object again. `first`: the error of an earlier attempt.
    async fn rewrite(
        &self,
        file: &File<N>,
        pieces: &[Piece],
        batch: &Batch,
        first: Option<ErrorCode>,
    ) -> Outcome {
        zonal_types::mark!(WriteRepeated);
        self.write_again(file, pieces, batch, first, false).await
    }

    /// As [`Self::rewrite`]. `fills`: the other copies have the pieces.
    async fn write_again(
        &self,
        file: &File<N>,
        pieces: &[Piece],
        batch: &Batch,
        first: Option<ErrorCode>,
        fills: bool,
    ) -> Outcome {
        if file.state().is_forfeited(batch) {
            return Err(ErrorCode::Io);
        }
        let at = pieces.first().ok_or(ErrorCode::Invalid)?;
        let at = (at.component, at.column);
        let truncate_seq = Cell::new(0);
        let make = |object: ObjectRef| {
            truncate_seq.set(object.truncate_seq);
            write_request(object, pieces)
        };
        let bytes = payload_of(batch, pieces);
        let sent = (&*bytes, batch.order());
        let (reply, _, target) = match fills {
            true => self.storage_fill(file, at, &make, sent).await?,
            false => self.storage_change(file, at, &make, sent, first).await?,
        };
        Ok((reply, target, truncate_seq.get()))
    }
}

/// The whole batch as pieces, without places.
fn pieces_of_runs(batch: &Batch) -> Vec<Piece> {
    let runs = batch.runs().iter();
    let pieces = runs.map(|(at, run)| Piece {
        component: 0,
        column: Default::default(),
        slot: 0,
        object_offset: 0,
        file_offset: *at,
        length: run.len() as u64,
    });
    pieces.collect()
}

/// Notes pieces of the batch that was taken last: they go to their copy after the others.
fn note_left_out<N: Net>(file: &File<N>, pieces: &[Piece]) {
    if let Some(last) = file.state().inflight.back_mut() {
        last.left_out.extend(pieces.iter().copied());
    }
}

/// True where the copy misses changes: the pieces go there after the others, if at all.
fn is_left_out(outcome: &Outcome) -> bool {
    matches!(outcome, Ok((StorageReply::Done, ..)))
}

/// The bytes of the pieces, one behind the other; borrowed where there is one piece.
fn payload_of<'a>(batch: &'a Batch, pieces: &[Piece]) -> Cow<'a, [u8]> {
    if let [piece] = pieces {
        return Cow::Borrowed(batch.bytes_of(piece));
    }
    let mut packed = vec![0; length_of(pieces)];
    batch.gather_into(pieces, &mut packed);
    Cow::Owned(packed)
}
