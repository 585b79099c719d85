//! Order of a batch (docs/rfcs/2026-11-27-write-order.md). Where a copy has a later change of its
//! bytes, the batch goes to all copies again with a higher order.
//!
//! A refused message changes its copy not at all or in part. The copies that took the batch have
//! it with its old order. The next round writes the same bytes with one new order everywhere. So
//! the batch or the other change is the last one at each copy.
//!
//! *Cost*: nothing where no writer meets another one.

use crate::client::ClientCall;
use crate::data::send_window::PlacedBatch;
use crate::file::batch::{Batch, pack};
use crate::file::{File, FileState};
use crate::transport::net::Net;
use zonal_layout::Piece;
use zonal_types::{ErrorCode, FileData, Instant, Layout};

impl<N: Net> FileState<N> {
    /// Notes pieces of a batch in flight that a copy refused by their order.
    pub(crate) fn note_overtaken(&mut self, batch: &Batch, pieces: &[Piece]) {
        let of_batch = self.in_flight(batch);
        if let Some(of_batch) = of_batch {
            let ranges = pieces.iter().map(|piece| (piece.file_offset, piece.length));
            of_batch.overtaken.extend(ranges);
        }
    }

    /// Takes the ranges of the file that the batch in front has to write again everywhere.
    fn take_overtaken(&mut self, batch: &Batch) -> Vec<(u64, u64)> {
        if !self.data.layout.has_copies() {
            return Vec::new();
        }
        let truncate_seq = self.data.truncate_seq;
        let Some(of_batch) = self.in_flight(batch) else {
            return Vec::new();
        };
        // A copy may have cut what another one took after the truncation. And by its first layout
        // the file may have had one copy.
        let is_whole = of_batch.truncate_seq != truncate_seq || batch.order() == 0;
        of_batch.truncate_seq = truncate_seq;
        let mut ranges = std::mem::take(&mut of_batch.overtaken);
        if is_whole {
            let runs = batch.runs().iter();
            ranges = runs.map(|(at, run)| (*at, run.len() as u64)).collect();
        }
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// The order of a change of a file; 0 where it has one copy. `rounds`: how often it was sent.
    pub(crate) fn order_of_change(&self, file: &File<N>, rounds: u32) -> u64 {
        let has_copies = file.state().data.layout.has_copies();
        if has_copies {
            self.next_order(rounds)
        } else {
            0
        }
    }

    /// Gives a batch that begins its order.
    pub(crate) fn begin_order(&self, data: &FileData, batch: &Batch) {
        if data.layout.has_copies() {
            batch.set_order(self.next_order(0));
        }
    }

    /// Notes the whole batch for another round where the layout has changed since its pieces were
    /// made. A copy that took a piece early may have been out since, and filled from one that did
    /// not have the piece yet.
    pub(crate) fn note_moved(&self, file: &File<N>, batch: &Batch, placed_by: &Layout) {
        let mut state = file.state();
        if state.data.layout.layout_gen == placed_by.layout_gen {
            return;
        }
        if let Some(of_batch) = state.in_flight(batch) {
            let runs = batch.runs().iter();
            let ranges = runs.map(|(at, run)| (*at, run.len() as u64));
            of_batch.overtaken.extend(ranges);
        }
    }

    /// Sends what a copy refused to all copies again, with a higher order. `None`: nothing was
    /// refused.
    pub(crate) async fn send_overtaken(
        &self,
        file: &File<N>,
        batch: &Batch,
        (rounds, deadline): (u32, Instant),
    ) -> Result<Option<PlacedBatch<N>>, ErrorCode> {
        let ranges = file.state().take_overtaken(batch);
        if ranges.is_empty() {
            return Ok(None);
        }
        zonal_types::mark!(OvertakenSentAgain);
        if self.is_over(deadline) {
            return Err(ErrorCode::TimedOut);
        }
        if file.state().is_forfeited(batch) {
            return Err(ErrorCode::Io);
        }
        let data = self.marked_data(file).await?;
        let mut pieces = Vec::new();
        for (at, length) in disjoint(ranges) {
            pieces.extend(self.pieces_to_write(&data, at, length).await?);
        }
        let left_out = self.leave_out_stale(file, &mut pieces).await?;
        let data = file.state().data.clone();
        batch.set_order(self.next_order(rounds));
        let mut sent = PlacedBatch {
            parts: Vec::new(),
            left_out,
            unsent: Vec::new(),
            truncate_seq: data.truncate_seq,
            placed_by: data.layout.clone(),
        };
        for pieces in pack(pieces) {
            let Some(first) = pieces.first() else {
                continue;
            };
            let component = &data.layout.components[first.component];
            if self.misses_changes(&data.layout, component, first.column) {
                sent.left_out.extend(pieces);
                continue;
            }
            match self.place_known(data.as_of, component, first.column) {
                Ok(place) => {
                    let part = self.send_pieces(file, (&data, place), pieces, batch);
                    sent.parts.push(part);
                }
                Err(code) => sent.unsent.push((pieces, code)),
            }
        }
        if let Some(of_batch) = file.state().in_flight(batch) {
            of_batch.truncate_seq = data.truncate_seq;
        }
        Ok(Some(sent))
    }
}

/// The same bytes as ranges without overlap. They are sorted.
fn disjoint(ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut apart: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (at, length) in ranges {
        let behind = apart.last().map_or(0, |(at, length)| at + length);
        let from = at.max(behind);
        let end = at + length;
        if from < end {
            apart.push((from, end - from));
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_sent_once() {
        let ranges = vec![(0, 10), (5, 3), (5, 10), (15, 5), (30, 1)];
        assert_eq!(disjoint(ranges), [(0, 10), (10, 5), (15, 5), (30, 1)]);
    }
}
