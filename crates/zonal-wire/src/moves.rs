//! Moves of partitions from one shard to another, as messages have them.

#![expect(missing_docs, reason = "fields are described with their struct")]

use zonal_types::{Blob, PartitionId, ShardId, codec_enum, codec_struct};

codec_enum! {
    /// How far a move is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MoveStage {
        /// The partition is copied while it is used. The move can be cancelled.
        Copying = 1,
        /// The copy is complete, and the map is about to name the other shard.
        Switching = 2,
        /// The other shard serves; this one removes what it had.
        Clearing = 3,
        /// The move was cancelled; the other shard has yet to hear of it.
        Cancelled = 4,
    }
}

codec_struct! {
    /// A partition that is leaving a shard.
    ///
    /// * `number`: of the attempt
    /// * `sent`: inodes sent by this attempt, of `inodes` in all
    /// * `attempts`: those begun by this life of the shard
    /// * `failure`: number of the error that ended the last one
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct MoveStatus {
        partition: PartitionId,
        number: u64,
        to: ShardId,
        stage: MoveStage,
        sent: u64,
        inodes: u64,
        attempts: u32,
        failure: Option<u16>,
    }
}

codec_struct! {
    /// A key of a shard's store and its value; `None`: it has been removed.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct MovedEntry {
        key: Blob,
        value: Option<Blob>,
    }
}
