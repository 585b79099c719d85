//! Write batches: runs that leave the gathered writes together, and the messages that carry them.
//!
//! The pieces of a batch in one object go in one message ([`pack`]), in order and each byte once.
//! The bounds of a storage write apply. A piece of [`ALONE_BYTES`] or more is a message of its own
//! and is sent without a copy.
//! *Invariant*: the runs of a batch are in order and do not overlap. So no two messages of a batch
//! write the same byte, and their order does not matter.

use crate::file::dirty_ranges::overlap;
use crate::transport::run::Run;
use std::sync::atomic::{AtomicU64, Ordering};
use zonal_basics::to_usize;
use zonal_layout::Piece;
use zonal_types::limits::{STORAGE_IO_BYTES_MAX, WRITE_RANGES_MAX};
use zonal_wire::{ObjectRef, StorageRequest};

/// Most runs of one batch.
pub(crate) const BATCH_RUNS_MAX: usize = 1024;
/// A batch of this many bytes is full; its last run may go beyond it.
pub(crate) const BATCH_BYTES: usize = 1 << 20;
/// A piece of this many bytes is a message of its own.
const ALONE_BYTES: u64 = 256 << 10;

/// Runs that are in flight together.
#[derive(Debug)]
pub(crate) struct Batch {
    runs: Vec<(u64, Run)>,
    bytes: usize,
    /// How often locks of the file had been lost when the runs were gathered.
    forfeits: u64,
    /// By which copies order it; 0: the file has one copy.
    order: AtomicU64,
}

impl Batch {
    /// A batch of runs that are in order and do not overlap.
    pub(crate) fn new(runs: Vec<(u64, Run)>, forfeits: u64) -> Self {
        assert!(
            runs.is_sorted_by(|one, other| end_of(one) <= other.0),
            "runs of a batch overlap or are out of order"
        );
        let bytes = runs.iter().map(|(_at, run)| run.len()).sum();
        Self {
            runs,
            bytes,
            forfeits,
            order: AtomicU64::new(0),
        }
    }

    /// The order by which its messages are sent; 0: the file has one copy.
    pub(crate) fn order(&self) -> u64 {
        self.order.load(Ordering::Relaxed)
    }

    /// Sets the order of the messages that follow.
    pub(crate) fn set_order(&self, order: u64) {
        self.order.store(order, Ordering::Relaxed);
    }

    /// How often locks of the file had been lost when the runs were gathered.
    pub(crate) fn forfeits(&self) -> u64 {
        self.forfeits
    }

    /// Offsets and runs, in order.
    pub(crate) fn runs(&self) -> &[(u64, Run)] {
        &self.runs
    }

    /// Number of bytes in all runs.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Offset of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.runs.first().map_or(0, |(at, _run)| *at)
    }

    /// Offset behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last().map_or(0, end_of)
    }

    /// Runs that may hold bytes of `offset..end`.
    pub(crate) fn within(&self, offset: u64, end: u64) -> &[(u64, Run)] {
        let first = self.runs.partition_point(|run| end_of(run) <= offset);
        let behind = self.runs.partition_point(|(at, _run)| *at < end);
        self.runs.get(first..behind).unwrap_or(&[])
    }

    /// Whether both batches hold a common byte of the file.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        if self.start() >= other.end() || other.start() >= self.end() {
            return false;
        }
        let (mut ours, mut theirs) = (self.runs.iter(), other.runs.iter());
        let (mut one, mut two) = (ours.next(), theirs.next());
        while let (Some(our), Some(their)) = (one, two) {
            if end_of(our) <= their.0 {
                one = ours.next();
            } else if end_of(their) <= our.0 {
                two = theirs.next();
            } else {
                return true;
            }
        }
        false
    }

    /// Copies of the bytes within `offset..end`.
    pub(crate) fn copies(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let touched = self.within(offset, end).iter();
        touched.filter_map(move |(at, run)| overlap(*at, run, offset, end))
    }

    /// The bytes of a piece of one of the runs.
    pub(crate) fn bytes_of(&self, piece: &Piece) -> &[u8] {
        let run = self.within(piece.file_offset, piece.file_offset + piece.length);
        let bytes = run.first().and_then(|(at, run)| {
            let from = to_usize(piece.file_offset.checked_sub(*at)?);
            run.get(from..from + to_usize(piece.length))
        });
        bytes.unwrap_or(&[])
    }

    /// Writes the bytes of the pieces one behind the other.
    pub(crate) fn gather_into(&self, pieces: &[Piece], out: &mut [u8]) {
        let mut rest = out;
        for piece in pieces {
            let bytes = self.bytes_of(piece);
            let (front, behind) = rest.split_at_mut(bytes.len().min(rest.len()));
            front.copy_from_slice(bytes.get(..front.len()).unwrap_or(&[]));
            rest = behind;
        }
    }
}

fn end_of((at, run): &(u64, Run)) -> u64 {
    at + run.len() as u64
}

/// Number of bytes in the pieces.
pub(crate) fn length_of(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| to_usize(piece.length)).sum()
}

/// Sorts pieces by object and groups them into messages.
pub(crate) fn pack(mut pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    pieces.sort_by_key(|piece| (piece.component, piece.column, piece.object_offset));
    let mut messages: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for mut piece in pieces {
        while piece.length > STORAGE_IO_BYTES_MAX as u64 {
            let (first, behind) = cut(piece, STORAGE_IO_BYTES_MAX as u64);
            messages.push(vec![first]);
            (piece, room) = (behind, 0);
        }
        if piece.length >= ALONE_BYTES {
            messages.push(vec![piece]);
            room = 0;
            continue;
        }
        match messages.last_mut() {
            Some(message)
                if piece.length <= room
                    && message.len() < WRITE_RANGES_MAX
                    && message
                        .first()
                        .is_some_and(|first| is_one_object(first, &piece)) =>
            {
                message.push(piece);
            }
            _ => {
                messages.push(vec![piece]);
                room = BATCH_BYTES as u64;
            }
        }
        room = room.saturating_sub(piece.length);
    }
    messages
}

fn cut(piece: Piece, length: u64) -> (Piece, Piece) {
    let behind = Piece {
        object_offset: piece.object_offset + length,
        file_offset: piece.file_offset + length,
        length: piece.length - length,
        ..piece
    };
    (Piece { length, ..piece }, behind)
}

fn is_one_object(one: &Piece, other: &Piece) -> bool {
    (one.component, one.column) == (other.component, other.column)
}

/// The request that writes the pieces of a message.
pub(crate) fn write_request(object: ObjectRef, pieces: &[Piece]) -> StorageRequest {
    let first = pieces.first();
    assert!(
        first.is_some_and(|first| pieces.iter().all(|piece| is_one_object(first, piece))),
        "a message has pieces of one object"
    );
    let mut ranges: Vec<(u64, u32)> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the bound of a message fits"
        )]
        let length = piece.length as u32;
        match ranges.last_mut() {
            Some((at, before)) if *at + u64::from(*before) == piece.object_offset => {
                *before += length;
            }
            _ => ranges.push((piece.object_offset, length)),
        }
    }
    assert!(
        ranges.len() <= WRITE_RANGES_MAX && ranges.is_sorted(),
        "{} ranges in one message, or out of order",
        ranges.len()
    );
    match ranges.as_slice() {
        [(offset, _length)] => StorageRequest::Write {
            object,
            offset: *offset,
            sync: false,
            expected_version: 0,
            txn: 0,
            snap_epoch: 0,
        },
        _ => StorageRequest::WriteRanges { object, ranges },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId, StripeSetId, TargetId};

    fn piece(column: u16, object_offset: u64, length: u64) -> Piece {
        Piece {
            component: 0,
            column: Column(column),
            slot: column,
            object_offset,
            file_offset: object_offset * 3 + u64::from(column),
            length,
        }
    }

    fn object() -> ObjectRef {
        ObjectRef {
            target: TargetId(1),
            set: StripeSetId(1),
            slot: 0,
            data_id: DataId(2),
            column: Column(0),
            layout_gen: 0,
            truncate_seq: 0,
            truncate_bytes: 0,
        }
    }

    #[test]
    fn pieces_of_one_object_travel_together_and_in_order() {
        let mut pieces: Vec<Piece> = (0..600)
            .map(|at| piece(at % 3, u64::from(at) * 4096, 256))
            .collect();
        pieces.reverse();
        let messages = pack(pieces);
        assert_eq!(messages.len(), 3);
        for message in &messages {
            assert_eq!(message.len(), 200);
            assert!(message.is_sorted_by_key(|piece| piece.object_offset));
            assert!(
                message
                    .iter()
                    .all(|piece| piece.column == message[0].column)
            );
        }
    }

    #[test]
    fn messages_are_bounded_by_ranges_and_bytes() {
        let many = (0..WRITE_RANGES_MAX as u64 * 2 + 1).map(|at| piece(0, at * 10, 4));
        let counts: Vec<usize> = pack(many.collect()).iter().map(Vec::len).collect();
        assert_eq!(counts, [WRITE_RANGES_MAX, WRITE_RANGES_MAX, 1]);
        let wide = (0..50).map(|at| piece(0, at << 20, 100_000));
        for message in pack(wide.collect()) {
            assert!(length_of(&message) <= BATCH_BYTES);
        }
        // Long pieces are messages of their own, and a piece behind one does not join an earlier
        // message.
        let mixed = vec![
            piece(0, 0, 100),
            piece(0, 1 << 20, 1 << 20),
            piece(0, 4 << 20, 100),
            piece(0, 5 << 20, 9 << 20),
        ];
        let lengths: Vec<usize> = pack(mixed)
            .iter()
            .map(|message| length_of(message))
            .collect();
        assert_eq!(lengths, [100, 1 << 20, 100, 4 << 20, 4 << 20, 1 << 20]);
    }

    #[test]
    fn adjacent_pieces_of_an_object_become_one_range() {
        let touching = [piece(0, 0, 100), piece(0, 100, 50)];
        let request = write_request(object(), &touching);
        assert!(matches!(request, StorageRequest::Write { offset: 0, .. }));
        let apart = [piece(0, 0, 100), piece(0, 100, 50), piece(0, 151, 2)];
        let StorageRequest::WriteRanges { ranges, .. } = write_request(object(), &apart) else {
            panic!("one range");
        };
        assert_eq!(ranges, [(0, 150), (151, 2)]);
    }

    #[test]
    #[should_panic(expected = "pieces of one object")]
    fn pieces_of_two_objects_are_no_message() {
        write_request(object(), &[piece(0, 0, 100), piece(1, 100, 50)]);
    }

    #[test]
    #[should_panic(expected = "overlap or are out of order")]
    fn overlapping_runs_are_no_batch() {
        batch(&[(10, b"abc"), (12, b"d")]);
    }

    fn batch(runs: &[(u64, &[u8])]) -> Batch {
        Batch::new(
            runs.iter()
                .map(|(at, bytes)| (*at, Run::from(*bytes)))
                .collect(),
            0,
        )
    }

    #[test]
    fn a_batch_reports_its_bounds_bytes_and_overlaps() {
        let one = batch(&[(10, b"abc"), (20, b"defg"), (30, b"h")]);
        assert_eq!((one.start(), one.end(), one.bytes()), (10, 31, 8));
        let copies: Vec<_> = one.copies(12, 22).collect();
        assert_eq!(copies, [(12, b"c".to_vec()), (20, b"de".to_vec())]);
        assert_eq!(one.copies(13, 20).count(), 0);
        for (other, expected) in [
            (batch(&[(0, b"0123456789"), (13, b"0123456")]), false),
            (batch(&[(0, b"0"), (23, b"0")]), true),
            (batch(&[(31, b"0")]), false),
            (batch(&[(24, b"000000"), (30, b"0")]), true),
            (batch(&[]), false),
        ] {
            assert_eq!(one.overlaps(&other), expected, "{other:?}");
            assert_eq!(other.overlaps(&one), expected, "{other:?}");
        }
        let of = |file_offset, length| Piece {
            file_offset,
            ..piece(0, 0, length)
        };
        assert_eq!(one.bytes_of(&of(21, 2)), b"ef");
        let mut out = [0; 5];
        one.gather_into(&[of(10, 3), of(22, 1), of(30, 1)], &mut out);
        assert_eq!(&out, b"abcfh");
    }
}
