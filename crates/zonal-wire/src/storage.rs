//! Messages between a client and a storage target. Data travels as the frame's payload.
//!
//! Offsets are in the object (not in the file), unless said otherwise. An object is {data id,
//! column}; an object that was never written reads as a hole.
//!
//! A request on an object names the slot by which its sender came to the target. The message has
//! set and slot, the header the slot's epoch. The target refuses the request unless it has that
//! slot by that epoch. The order of requests means nothing: the client orders writes of one byte
//! range.

#![expect(missing_docs, reason = "fields are described with their variant")]

use zonal_types::{
    Column, DataId, Epoch, ErrorCode, Fence, MapVersion, StripeSetId, TargetId, codec_enum,
    codec_struct,
};

codec_struct! {
    /// The object, and the last truncation of its file that the sender knows.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectRef {
        /// The target meant (a node may serve several).
        target: TargetId,
        /// The stripe set of the object's layout. 0, with no epoch in the header: a tool that means
        /// the target whatever its slots.
        set: StripeSetId,
        /// The slot of that set in which the object's column lies.
        slot: u16,
        /// Identity of the bytes.
        data_id: DataId,
        /// Place in the stripe.
        column: Column,
        /// Layout generation that the sender used.
        layout_gen: u32,
        /// Number of the last truncation that the sender knows.
        truncate_seq: u64,
        /// Bytes of this object that the last truncation left (computed by the sender for this
        /// column).
        truncate_bytes: u64,
    }
}

codec_enum! {
    /// A request of a client to a target.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum StorageRequest {
        /// Reads `length` bytes at `offset`. The reply's payload ends where the object ends; the
        /// client fills the rest with zeros.
        Read = 1 { object: ObjectRef, offset: u64, length: u32 },
        /// Writes the payload at `offset`. `sync`: reply after it is durable.
        /// `expected_version`, `txn`, `snap_epoch`: reserved, 0.
        Write = 2 { object: ObjectRef, offset: u64, sync: bool, expected_version: u64, txn: u64, snap_epoch: u64 },
        /// Truncates the object to `object.truncate_bytes` where `object.truncate_seq` is newer
        /// than the target's.
        Truncate = 3 { object: ObjectRef },
        /// Makes `offset..offset+length` a hole.
        Punch = 4 { object: ObjectRef, offset: u64, length: u64 },
        /// Reserves space for the range; holes read as zeros. `zero`: data in the range becomes
        /// zeros, too.
        Allocate = 5 { object: ObjectRef, offset: u64, length: u64, zero: bool },
        /// Ranges of `offset..end` that hold data (written or allocated), in order, at most
        /// `limit`.
        Map = 6 { object: ObjectRef, offset: u64, end: u64, limit: u32 },
        /// Length and allocated bytes of the object.
        Stat = 7 { object: ObjectRef },
        /// Makes all writes durable that the target acknowledged before.
        Sync = 8 { target: TargetId },
        /// Deletes objects; objects that do not exist are skipped.
        Delete = 9 { target: TargetId, objects: Vec<(DataId, Column)> },
        /// Capacity.
        StatFs = 10 { target: TargetId },
        /// Writes the payload to at most `WRITE_RANGES_MAX` ranges (offset, length), in order and
        /// without overlap. Their bytes lie one behind the other and fill the payload. After a
        /// failure some may be written.
        WriteRanges = 11 { object: ObjectRef, ranges: Vec<(u64, u32)> },
        /// Fences incarnations of clients: from now on their requests are neither carried out nor
        /// answered. Durable before the reply.
        Fence = 12 { target: TargetId, fences: Vec<Fence> },
        /// Reserved for erasure coding and shared disks.
        Prepare = 32 { object: ObjectRef, txn: u64 },
        /// Reserved.
        Commit = 33 { object: ObjectRef, txn: u64 },
        /// Reserved.
        Abort = 34 { object: ObjectRef, txn: u64 },
        /// Reserved.
        Resolve = 35 { object: ObjectRef, txn: u64 },
        /// Reserved.
        MapExtents = 36 { object: ObjectRef, offset: u64, length: u64 },
        /// Reserved.
        CommitExtents = 37 { object: ObjectRef, txn: u64 },
    }
}

impl StorageRequest {
    /// The object of the request; `None` where it is about the target.
    #[must_use]
    pub fn object(&self) -> Option<&ObjectRef> {
        match self {
            Self::Read { object, .. }
            | Self::Write { object, .. }
            | Self::WriteRanges { object, .. }
            | Self::Truncate { object }
            | Self::Punch { object, .. }
            | Self::Allocate { object, .. }
            | Self::Map { object, .. }
            | Self::Stat { object }
            | Self::Prepare { object, .. }
            | Self::Commit { object, .. }
            | Self::Abort { object, .. }
            | Self::Resolve { object, .. }
            | Self::MapExtents { object, .. }
            | Self::CommitExtents { object, .. } => Some(object),
            Self::Sync { .. } | Self::Delete { .. } | Self::Fence { .. } | Self::StatFs { .. } => {
                None
            }
        }
    }

    /// The target of the request.
    #[must_use]
    pub fn target(&self) -> TargetId {
        match self {
            Self::Sync { target }
            | Self::Delete { target, .. }
            | Self::Fence { target, .. }
            | Self::StatFs { target } => *target,
            of_an_object => of_an_object
                .object()
                .map_or(TargetId(0), |object| object.target),
        }
    }

    /// True where it changes a range of an object: these requests are numbered by attempt.
    #[must_use]
    pub fn changes_range(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteRanges { .. }
                | Self::Punch { .. }
                | Self::Allocate { .. }
        )
    }
}

codec_enum! {
    /// A target's reply.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum StorageReply {
        /// The request failed.
        Failed = 0 { code: ErrorNumber, detail: String },
        /// Payload: the bytes. `object_bytes`: length of the object. `order`: the highest order of
        /// a change of these bytes; 0 without copies.
        Read = 1 { object_bytes: u64, order: u64 },
        /// Done. `allocated_delta`: change of the object's allocated bytes (4 KiB blocks).
        /// `verifier` changes where the target may have lost acknowledged writes.
        Written = 2 { allocated_delta: i64, object_bytes: u64, verifier: u64 },
        /// Data ranges (start, length).
        Map = 6 { ranges: Vec<(u64, u64)>, object_bytes: u64 },
        /// Length and allocated bytes.
        Stat = 7 { object_bytes: u64, allocated: u64, truncate_seq: u64 },
        /// Done.
        Done = 8,
        /// All writes are durable that were acknowledged with this verifier.
        Synced = 11 { verifier: u64 },
        /// Total bytes, free bytes and objects of the target.
        StatFs = 10 { total: u64, free: u64, objects: u64 },
        /// Refused (`StaleEpoch`): the slot that the sender names has another epoch. Holds
        /// the slot's target and epoch in the map of this version.
        Stale = 12 { map_version: MapVersion, set: StripeSetId, slot: u16, target: TargetId, epoch: Epoch },
        /// Refused (`Overtaken`): the change meets bytes of a change with a higher order, or its
        /// order is too far ahead of the target's calendar. `order`: the highest one of the object,
        /// or that calendar. Send the change with a higher one to all copies.
        Overtaken = 13 { order: u64 },
    }
}

/// An [`ErrorCode`] in a message; numbers that this program does not know become `Io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorNumber(pub ErrorCode);

impl zonal_types::Codec for ErrorNumber {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.number().put(out);
    }
    fn get(from: &mut zonal_types::Reader<'_>) -> Result<Self, zonal_types::CodecError> {
        Ok(Self(
            ErrorCode::from_number(u16::get(from)?).unwrap_or(ErrorCode::Io),
        ))
    }
}
