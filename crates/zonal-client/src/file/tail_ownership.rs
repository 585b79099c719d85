//! Tail ownership: the bytes behind a file's end at its targets may come from a client that died
//! before it reported them.
//!
//! These bytes must not show where the file grows over them
//! (docs/rfcs/2026-11-22-files-grow-over-zeros.md). For a truncation to a larger size the shard
//! sees to that. Before the first write or reservation that leaves a hole behind the end, the
//! client asks the shard to disown the bytes there. It does so once per open file, except for files
//! that it made. Where others had the file open it repeats the request after [`REFUSED_MS`].
//!
//! *Invariants*
//!
//! 1. The client has reported everything that targets acknowledged before it sends the request: the
//!    rest is truncated.
//! 2. While the shard may still execute a request, the client sends nothing to targets before a
//!    later request is answered. Then the earlier one has no effect.

use crate::file::FileState;
use crate::file::inline_bytes::end_of_inline;
use crate::transport::net::Net;
use crate::transport::retry::is_unsure;
use zonal_types::{ErrorCode, Instant};

/// Pause before the request is repeated where others had the file open, ms. By then the session of
/// a client that died meanwhile has expired.
pub(crate) const REFUSED_MS: u64 = 60_000;

/// Known ownership of the bytes behind the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TailOwnership {
    /// Only this client wrote there.
    Ours,
    /// Unknown; the client may ask the shard from this time on.
    Unknown(Instant),
    /// Unknown, and the shard may still execute a request.
    Asked,
}

impl<N: Net> FileState<N> {
    /// Whether a write or a reservation at `offset` leaves a hole behind the end at the targets.
    pub(crate) fn leaves_hole(&self, offset: u64) -> bool {
        offset > self.size.max(end_of_inline(&self.data))
    }

    pub(crate) fn asks_behind(&self, now: Instant) -> bool {
        match self.tail_ownership {
            TailOwnership::Ours => false,
            TailOwnership::Unknown(from) => now >= from,
            TailOwnership::Asked => true,
        }
    }

    /// Notes an unanswered request or truncation: what it may do must not meet later writes.
    pub(crate) fn unsure_behind(&mut self, code: ErrorCode) {
        if is_unsure(code) {
            self.outdate();
            self.tail_ownership = TailOwnership::Asked;
        }
    }
}
