//! Bytes past the end: gathered bytes behind the new end of a truncation, held back until its
//! outcome is known (`data/truncate.rs`).

use crate::file::dirty_ranges::overlap;

/// Gathered bytes behind the new end of a truncation.
pub(crate) struct BytesPastEnd {
    pub(crate) size: u64,
    /// The last truncation known at a request that the shard did not answer.
    pub(crate) unanswered: Option<u64>,
    pub(crate) bytes: Vec<(u64, Vec<u8>)>,
}

impl BytesPastEnd {
    /// Whether the truncation ended with an unknown outcome.
    pub(crate) fn is_doubted(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Copies of the bytes within `offset..end`.
    pub(crate) fn copies(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let overlaps = move |(at, bytes): &(u64, Vec<u8>)| overlap(*at, bytes, offset, end);
        self.bytes.iter().filter_map(overlaps)
    }

    /// Drops the bytes.
    pub(crate) fn forget(&mut self) {
        self.bytes.clear();
    }

    /// End of the bytes.
    pub(crate) fn end(&self) -> u64 {
        let ends = self.bytes.iter().map(|(at, bytes)| at + bytes.len() as u64);
        ends.max().unwrap_or(0)
    }
}
