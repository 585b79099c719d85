//! Identifiers and geometry of a target: objects, senders, truncations, places, extents.
//!
//! Units: a *unit* is 4 KiB of a segment; a *block* is 4 KiB of an object; a chunk has 64 blocks.

use zonal_types::limits::{BLOCK_BYTES, CHUNK_BYTES};
use zonal_types::{ClientIdentity, Column, DataId, HolderNumber, codec_struct};

/// Bytes of a block, as an offset.
pub const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of a chunk.
pub const CHUNK_BLOCKS: u64 = (CHUNK_BYTES / BLOCK_BYTES) as u64;
/// Writes with at least this many aligned bytes go to extents at once; smaller ones go through the
/// log.
pub const LARGE_WRITE_BYTES: u64 = 65_536;

codec_struct! {
    /// One object: a column of a data id.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct ObjectId {
        /// Identity of the stored bytes.
        data_id: DataId,
        /// Column of the stripe.
        column: Column,
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.data_id, self.column)
    }
}

/// The file's last truncation, as the sender of a request knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Truncation {
    /// Number of the last truncation.
    pub seq: u64,
    /// Bytes of this object that it left.
    pub bytes: u64,
}

/// The sender of a request. Client 0 stands for no particular client and is never refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Sender {
    /// The client.
    pub identity: ClientIdentity,
    /// The identity that it has proved.
    pub holder: HolderNumber,
}

/// The sender of a change and its attempt. See `attempts.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeAttempt {
    /// The sender.
    pub sender: Sender,
    /// Raised by the sender when it got no answer.
    pub number: u32,
    /// By which all copies order changes; 0: the file has one copy. See `change_orders.rs`.
    pub order: u64,
    /// The target fills its copy with bytes of another one, which have this order at most.
    pub is_fill: bool,
}

codec_struct! {
    /// The place of one unit.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct Place {
        /// Segment number.
        segment: u32,
        /// Unit in the segment.
        unit: u32,
    }
}

impl Place {
    /// Byte offset in the segment.
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.unit) * BLOCK
    }
}

codec_struct! {
    /// A run of units in one segment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Extent {
        /// Segment number.
        segment: u32,
        /// First unit of the run.
        unit: u32,
        /// Number of units.
        count: u32,
    }
}

impl Extent {
    /// The places of the run, in order.
    pub fn places(self) -> impl Iterator<Item = Place> {
        (0..self.count).map(move |index| Place {
            segment: self.segment,
            unit: self.unit.saturating_add(index),
        })
    }
}

/// Appends `place` to `list`: to its last extent where `place` continues it, else as a new one.
pub(crate) fn push_place(list: &mut Vec<Extent>, place: Place) {
    if let Some(last) = list.last_mut()
        && last.segment == place.segment
        && last.unit.checked_add(last.count) == Some(place.unit)
    {
        last.count += 1;
        return;
    }
    list.push(Extent {
        segment: place.segment,
        unit: place.unit,
        count: 1,
    });
}

/// Size and bounds of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetConfig {
    /// Units of one segment; fixed for the life of the target.
    pub segment_units: u32,
    /// Segments that the target may use: its capacity.
    pub segments: u32,
    /// Pending blocks (4 KiB each, in memory) from which small writes have to wait for a
    /// checkpoint.
    pub pending_blocks_max: usize,
}

impl TargetConfig {
    /// Units in all.
    #[must_use]
    pub fn units(&self) -> u64 {
        u64::from(self.segment_units) * u64::from(self.segments)
    }

    /// Units kept back from writes that use space for good, so that overwrites, zeroed edges and
    /// checkpoints go on when the target is full. A sixteenth of all, at most 8 MiB (two of the
    /// largest writes).
    #[must_use]
    pub fn reserve_units(&self) -> u64 {
        (self.units() / 16).min(2048)
    }

    /// The part of the reserve that overwrites leave to truncation and the checkpoint.
    #[must_use]
    pub fn floor_units(&self) -> u64 {
        self.reserve_units() / 4
    }
}
