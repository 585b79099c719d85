//! Frames of a backup, in the stream of `zonal_disk::stream`. docs/on-disk-format.md, "Backup of
//! metadata".

use zonal_types::{Blob, Epoch, MapVersion, NodeId, ShardId, codec_struct};

/// The zone map; the first frame.
pub const MAP: u8 = 1;
/// A shard begins.
pub const SHARD: u8 = 2;
/// Entries of its store, in key order.
pub const ENTRIES: u8 = 3;
/// The shard ends.
pub const SHARD_END: u8 = 4;

codec_struct! {
    /// What begins a shard.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShardStart {
        shard: ShardId,
        /// The node that owned it.
        node: NodeId,
        epoch: Epoch,
        /// All records of its log that end here or before are in the backup.
        position: u64,
        map_version: MapVersion,
    }
}

codec_struct! {
    /// What ends a shard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ShardEnd {
        entries: u64,
    }
}

/// Keys and values.
pub type Entries = Vec<(Blob, Blob)>;
