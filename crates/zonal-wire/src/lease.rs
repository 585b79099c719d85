//! Leases on files and ranges: reserved. Shards of this version grant none and refuse requests for
//! them (`NotSupported`). Clients cache under the terms of replies (`entry_ms`, `attr_ms`) and
//! [`crate::Event::Invalidate`].

use zonal_types::{Epoch, codec_enum, codec_struct};

codec_enum! {
    /// The right that a lease gives its holder.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LeaseKind {
        /// Keep the bytes of the range.
        Read = 1,
        /// Keep them changed and unwritten.
        Write = 2,
        /// Know size and times: the holder answers for everybody who asks.
        Size = 3,
    }
}

codec_struct! {
    /// A granted lease.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LeaseGrant {
        /// Identifies it in the session.
        lease: u64,
        /// Its kind.
        kind: LeaseKind,
        /// The first byte.
        start: u64,
        /// Offset behind the last byte.
        end: u64,
        /// How long it lasts without being renewed, from the sending of the request.
        term_ms: u32,
        /// Targets refuse writes under an older epoch.
        epoch: Epoch,
        /// Size up to which its holder may write before it must ask.
        size_limit: u64,
    }
}
