//! Messages between the replicas of a shard, on different nodes, and of commands about them.

#![expect(missing_docs, reason = "fields are described with their variant")]

use crate::manager::StoreStart;
use crate::storage::ErrorNumber;
use zonal_types::{Blob, NodeId, ShardId, codec_enum, codec_struct};

codec_enum! {
    /// The part of a replica in its group.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReplicaPart {
        /// It leads, and its shard serves.
        Leads = 1,
        /// It follows a leader.
        Follows = 2,
        /// It knows no leader.
        Seeks = 3,
        /// It has not joined its group, or is opening its store.
        Starts = 4,
        /// It was never a member, and has no entry.
        Empty = 5,
        /// Its group went on without it after a recovery: it needs an empty store.
        Superseded = 6,
    }
}

codec_struct! {
    /// One replica, as its group's leader knows it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ReplicaReport {
        node: NodeId,
        /// It has a vote.
        votes: bool,
        /// It was heard lately.
        is_heard: bool,
        /// Entries that it lacks, as far as is known.
        lag: Option<u64>,
    }
}

codec_enum! {
    /// A request of one replica to another, or of a command.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ReplicaRequest {
        /// Brings the messages in the payload to the shard's replica; the reply has those that go
        /// back at once.
        Exchange = 1 { shard: ShardId },
        /// Begins a snapshot of the leader's store.
        SnapshotBegin = 2 { shard: ShardId },
        /// Entries of a snapshot with keys after `after`.
        SnapshotRead = 3 { shard: ShardId, snapshot: u64, after: Blob },
        /// Asks how the shard's replica is.
        Status = 10 { shard: ShardId },
        /// Hands the lead over to another replica.
        HandOver = 11 { shard: ShardId, to: NodeId },
        /// Asks for the starts of the replica's store, of a replica of the root's shard.
        Starts = 12 { shard: ShardId },
    }
}

impl ReplicaRequest {
    /// The shard that it is about.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Exchange { shard }
            | Self::SnapshotBegin { shard }
            | Self::SnapshotRead { shard, .. }
            | Self::Status { shard }
            | Self::Starts { shard }
            | Self::HandOver { shard, .. } => *shard,
        }
    }
}

codec_enum! {
    /// The reply of a replica.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ReplicaReply {
        Failed = 0 { code: ErrorNumber, detail: String },
        Done = 1,
        /// The payload has messages for the sender.
        Exchanged = 2,
        Snapshot = 3 { snapshot: u64 },
        /// Keys and values in order; `end`: none follow.
        Entries = 4 { entries: Vec<(Blob, Blob)>, end: bool },
        /// `leader`: 0 where it knows none. `others`: where it leads.
        Status = 10 { part: ReplicaPart, leader: NodeId, term: u64, last: u64, committed: u64, others: Vec<ReplicaReport> },
        Starts = 12 { start: StoreStart },
    }
}
