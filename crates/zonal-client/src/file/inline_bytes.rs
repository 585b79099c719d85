//! Inline data: the first bytes of a file, where its layout leaves them to its shard. Reports write
//! them; one request reads them.
//!
//! A flush of a small file is one message and reaches no target. The client keeps only gathered
//! writes of these bytes. So a read sees the writes of other clients, as reads of targets do.

use crate::file::batch::Batch;
use crate::file::{FileState, InFlightBatch};
use crate::transport::net::Net;
use std::sync::Arc;
use zonal_types::{Blob, ErrorCode, FileData};

/// Bytes on their way to the shard.
pub(crate) struct InlineRun(Arc<Batch>);

impl InlineRun {
    /// The run as a request carries it.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the layout bounds the start of a run"
    )]
    pub(crate) fn to_wire(&self) -> (u32, Blob) {
        let bytes = self.0.runs().first().map_or(&[][..], |(_at, run)| run);
        (self.0.start() as u32, Blob(bytes.to_vec()))
    }

    /// The batch that holds the run.
    pub(crate) fn batch(&self) -> &Batch {
        &self.0
    }

    /// Offset behind the run.
    pub(crate) fn end(&self) -> u64 {
        self.0.end()
    }
}

/// Offset at which the bytes of the targets begin.
pub(crate) fn end_of_inline(data: &FileData) -> u64 {
    u64::from(data.layout.inline_bytes())
}

/// Splits a range of a file. Returns the shard's part, if any, and its length.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an offset before the end of the inline bytes fits, as that end does"
)]
pub(crate) fn split(data: &FileData, offset: u64, bytes: &[u8]) -> (Option<(u32, Blob)>, usize) {
    let end = end_of_inline(data);
    let length = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
    let length = length.min(bytes.len());
    let own = (length > 0).then(|| (offset as u32, Blob(bytes[..length].to_vec())));
    (own, length)
}

impl<N: Net> FileState<N> {
    /// Takes the first gathered run of the shard's bytes; readers still see it. The caller holds
    /// the gate, and no batch is in flight.
    pub(crate) fn take_inline(&mut self) -> Option<InlineRun> {
        let end = end_of_inline(&self.data);
        let batch = self.take_batch(|dirty| dirty.take_before(end).into_iter().collect())?;
        Some(InlineRun(batch))
    }

    /// Ends the request with `run`. Returns how many bytes are gathered again, and how many leave
    /// flight.
    pub(crate) fn inline_ended(&mut self, run: &InlineRun, is_taken: bool) -> (usize, usize) {
        self.inflight
            .retain(|other: &InFlightBatch<N>| !Arc::ptr_eq(&other.batch, &run.0));
        let again = if is_taken {
            0
        } else {
            self.give_batch_back(&run.0)
        };
        (again, run.0.bytes())
    }

    /// Returns the runs of a batch to the dirty ranges, below newer bytes. Returns the growth in
    /// bytes.
    pub(crate) fn give_batch_back(&mut self, batch: &Batch) -> usize {
        if self.is_forfeited(batch) {
            self.failures.note(ErrorCode::Io);
            return 0;
        }
        let runs = batch.runs().iter();
        runs.map(|(at, run)| self.give_back(*at, run)).sum()
    }

    /// Returns bytes to the dirty ranges, below newer bytes. Returns the growth in bytes.
    pub(crate) fn give_back(&mut self, offset: u64, bytes: &[u8]) -> usize {
        let before = self.dirty.bytes();
        let newer = self.dirty.copies(offset, offset + bytes.len() as u64);
        self.dirty.insert(offset, bytes);
        for (at, newer) in newer {
            self.dirty.insert(at, &newer);
        }
        let after = self.dirty.bytes();
        assert!(
            after >= before,
            "{before} dirty bytes became {after} by an insertion"
        );
        after - before
    }
}

/// Copies the bytes of `inline` from `offset` on to `out` and fills the rest with zeros.
pub(crate) fn copy_out(inline: &[u8], offset: u64, out: &mut [u8]) {
    let rest = usize::try_from(offset).ok().and_then(|at| inline.get(at..));
    let rest = rest.unwrap_or_default();
    let count = rest.len().min(out.len());
    out[..count].copy_from_slice(&rest[..count]);
    out[count..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_inline_bytes_read_as_zeros() {
        let mut out = [9; 4];
        copy_out(&[1, 2, 3], 1, &mut out);
        assert_eq!(out, [2, 3, 0, 0]);
        copy_out(&[1, 2, 3], 7, &mut out);
        assert_eq!(out, [0; 4]);
    }
}
