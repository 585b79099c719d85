//! Frames of a backup, in a stream of `zonal_disk::stream`. See docs/on-disk-format.md, "Backup of
//! metadata".

use zonal_types::{Blob, Epoch, MapVersion, NodeId, ShardId, codec_struct};

/// Frame kind: the zone map; the first frame.
pub const MAP: u8 = 1;
/// Frame kind: start of a shard.
pub const SHARD: u8 = 2;
/// Frame kind: entries of the shard's store, in key order.
pub const ENTRIES: u8 = 3;
/// Frame kind: end of a shard.
pub const SHARD_END: u8 = 4;

codec_struct! {
    /// Contents of the frame that starts a shard.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ShardStart {
        shard: ShardId,
        /// The node that owned the shard.
        node: NodeId,
        epoch: Epoch,
        /// Log position: the backup holds every record of the shard that ends here or earlier.
        position: u64,
        map_version: MapVersion,
    }
}

codec_struct! {
    /// Contents of the frame that ends a shard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ShardEnd {
        entries: u64,
    }
}

/// Keys with their values.
pub type Entries = Vec<(Blob, Blob)>;
