//! Leases on files and ranges: reserved. This version's shards grant none and refuse to be asked
//! (`NotSupported`); what is cached is cached under the terms of replies (`entry_ms`, `attr_ms`)
//! and [`crate::Event::Invalidate`].

use zonal_types::{Epoch, codec_enum, codec_struct};

codec_enum! {
    /// What the holder of a lease may do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LeaseKind {
        /// Keep the bytes of the range.
        Read = 1,
        /// Keep them changed and unwritten.
        Write = 2,
        /// Know size and times: whoever asks for them is told what the holder says.
        Size = 3,
    }
}

codec_struct! {
    /// What was granted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct LeaseGrant {
        /// Names it in the session.
        lease: u64,
        /// What for.
        kind: LeaseKind,
        /// The first byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
        /// How long it lasts without being renewed, from the sending of the request.
        term_ms: u32,
        /// Targets refuse writes under an older one.
        epoch: Epoch,
        /// How far its holder may write before it must ask.
        size_limit: u64,
    }
}
