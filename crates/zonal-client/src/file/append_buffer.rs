//! Append buffer: gathers records behind a lent end of a file and publishes them as one long
//! append.
//!
//! The shard lends the end to a client that alone has the file open
//! (docs/rfcs/2026-11-25-appends-gathered.md). From then on the client assigns offsets to records
//! itself and keeps them like other writes. Only the shard's answer to `AppendAt` says whether the
//! end is still lent.
//!
//! *Invariants*
//!
//! 1. The caller holds the file's gate for each change here, except of `is_recalled` and
//!    `truncations`.
//! 2. Records are gathered only while nothing else of the file is unsent, and are published before
//!    anything else is sent. So they are older than `dirty` and `inflight`.
//! 3. A record's offset never changes. Where its place is gone, the record is lost and its writers
//!    get an error.
//! 4. An unanswered `AppendEnd` keeps its slot. The client repeats it there before it sends any
//!    other request about the file's end, and before it gathers more.

use crate::cell::session::{AppendInFlight, Link, SlotPlace};
use crate::file::FileState;
use crate::file::dirty_ranges::overlap;
use crate::transport::net::Net;
use std::sync::Arc;
use zonal_types::{ErrorCode, Instant, Timestamp};
use zonal_wire::MetaRequest;

/// Longer records are not gathered.
pub(crate) const RECORD_MAX: usize = 64 << 10;
/// Records gathered of one file, in bytes; beyond it they are published.
pub(crate) const RECORDS_BYTES_MAX: usize = 1 << 20;
/// Pause before the client asks again for an end that the shard did not lend or recalled, ms.
pub(crate) const ASK_AGAIN_MS: u64 = 1_000;

/// Gathered records of one file, and the lent end that permits gathering.
#[derive(Default)]
pub(crate) struct AppendBuffer {
    pub(crate) lent: Option<LentEnd>,
    /// Offset of the first record.
    pub(crate) at: u64,
    /// The records, one behind the other.
    pub(crate) records: Arc<Vec<u8>>,
    /// Time of the newest record.
    pub(crate) mtime: Option<Timestamp>,
    /// Change of allocated bytes by attempts to write the records.
    pub(crate) allocated_delta: i64,
    /// An `AppendEnd` for the first records that was not answered.
    pub(crate) ending: Option<UnconfirmedEnd>,
    /// End of this client's last append.
    pub(crate) last_end: Option<u64>,
    /// Earliest time to ask the shard for the end.
    pub(crate) ask_from: Instant,
    /// The shard has recalled the end.
    pub(crate) is_recalled: bool,
    /// Truncating opens of this client that are in flight.
    pub(crate) truncations: usize,
}

/// A lent end of the file.
pub(crate) struct LentEnd {
    pub(crate) append: AppendInFlight,
    /// [`Link::places_lost`] when the shard lent the end.
    pub(crate) places_lost: u64,
}

/// An `AppendEnd` without a reply.
pub(crate) struct UnconfirmedEnd {
    /// Where the slot is: the file may be another shard's since.
    pub(crate) link: Arc<Link>,
    pub(crate) slot: SlotPlace,
    pub(crate) request: MetaRequest,
    pub(crate) append: AppendInFlight,
}

/// Result of one attempt to publish.
pub(crate) enum PublishOutcome {
    Published,
    /// Try again at once.
    Again(ErrorCode),
    /// The records stay gathered.
    Kept(ErrorCode),
    Lost(ErrorCode),
}

impl AppendBuffer {
    /// Unpublished bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.records.len()
    }

    /// True where no records are gathered.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// End of the records, or 0.
    pub(crate) fn end(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.at + self.records.len() as u64
    }

    /// Time of the newest record.
    pub(crate) fn mtime(&self) -> Option<Timestamp> {
        self.mtime
    }

    /// A copy of the records within `offset..end`.
    pub(crate) fn copies(&self, offset: u64, end: u64) -> Option<(u64, Vec<u8>)> {
        overlap(self.at, &self.records, offset, end)
    }

    /// Removes the first `length` bytes: they were published, or all are lost. Returns the number
    /// of bytes removed.
    pub(crate) fn take(&mut self, length: usize) -> usize {
        let length = length.min(self.records.len());
        let end = self.at + self.records.len() as u64;
        if length == self.records.len() {
            // Frees the memory that a burst allocated.
            self.records = Arc::default();
            self.mtime = None;
        } else {
            Arc::make_mut(&mut self.records).drain(..length);
        }
        self.at += length as u64;
        assert_eq!(
            self.at + self.records.len() as u64,
            end,
            "records moved when the first left"
        );
        self.allocated_delta = 0;
        length
    }
}

impl<N: Net> FileState<N> {
    /// Whether the next record may be gathered.
    pub(crate) fn gathers(&self, link: &Link) -> bool {
        let Some(lent) = &self.append_buffer.lent else {
            return false;
        };
        let is_alone = self.dirty.is_empty()
            && self.inflight.is_empty()
            && self.aside.is_none()
            && self.report.is_none()
            && self.reporting.is_none();
        let place = lent.append.1;
        let is_same = place
            .left(self.data.truncate_seq, self.data.truncate_size)
            .is_some();
        is_alone
            && is_same
            && !self.is_outdated
            && !self.append_buffer.is_recalled
            && self.append_buffer.ending.is_none()
            && self.append_buffer.truncations == 0
            && lent.places_lost == link.places_lost()
    }

    /// End of the file as the shard must know it while the end is lent.
    pub(crate) fn published_end(&self) -> u64 {
        if self.append_buffer.is_empty() {
            self.size
        } else {
            self.append_buffer.at
        }
    }

    /// Drops the lent end. True where one was held.
    pub(crate) fn unlend(&mut self, link: &Link) -> bool {
        let lent = self.append_buffer.lent.take();
        if let Some(lent) = &lent {
            link.end_append(lent.append);
        }
        lent.is_some()
    }

    /// Drops the lent end, an unconfirmed `AppendEnd` and all records, because the file is
    /// forgotten. Returns the number of bytes removed.
    pub(crate) fn forget_gathered(&mut self, link: &Link) -> usize {
        self.unlend(link);
        if let Some(ending) = self.append_buffer.ending.take() {
            link.end_append(ending.append);
            link.free_slot(&ending.slot);
        }
        self.append_buffer.take(usize::MAX)
    }
}
