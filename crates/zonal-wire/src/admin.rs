//! Messages of commands that look after a running server: health, scrub, lists of objects, backups.
//!
//! Only commands and servers send them; a mount that sends one is refused. None of them changes
//! what a program sees.

#![expect(missing_docs, reason = "fields are described with their variant")]

use crate::activity::NodeActivity;
use crate::node_states::Sighting;
use crate::storage::ErrorNumber;
use zonal_types::{
    Blob, ClientIdentity, Column, DataId, Epoch, MapVersion, NodeId, SessionId, ShardId, TargetId,
    Timestamp, ZoneId, codec_enum, codec_struct,
};

codec_struct! {
    /// Health of one role, as the role reports it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct RoleHealth {
        /// `shard 3`, `target 7`.
        role: String,
        /// Whether it takes requests.
        serves: bool,
        /// The fault, for people; empty: none.
        trouble: String,
    }
}

codec_enum! {
    /// State of a scrub.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ScrubState {
        /// Nothing was begun, or the last pass came to its end.
        Idle = 1,
        /// A pass is under way.
        Running = 2,
        /// Stopped by a command; `start` resumes it.
        Stopped = 3,
        /// The index could not be read further; `zonal fsck` has the details.
        Failed = 4,
    }
}

codec_enum! {
    /// The store to scrub.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ScrubOf {
        /// A target: its objects.
        Target = 1 { target: TargetId },
        /// A shard: the entries of its store.
        Shard = 2 { shard: ShardId },
    }
}

codec_struct! {
    /// One finding of a scrub.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Damaged {
        data_id: DataId,
        column: Column,
        /// First byte of the block in the object.
        offset: u64,
        /// The fault.
        detail: String,
    }
}

codec_struct! {
    /// Progress of the pass in progress, or of the last one.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ScrubReport {
        state: ScrubState,
        /// Bytes a second.
        rate: u64,
        /// When the pass was begun, and when it ended (0: not yet).
        started: Timestamp,
        ended: Timestamp,
        /// Objects (of a shard: entries) and bytes looked at so far.
        objects: u64,
        bytes: u64,
        /// Objects and allocated bytes of the target now, to compare the two above with; 0 for a
        /// shard.
        objects_now: u64,
        bytes_now: u64,
        /// The object reached so far.
        data_id: DataId,
        column: Column,
        /// Damaged blocks that the pass found, and the first of them by name. For a shard: blocks
        /// of its index, not named.
        damaged_blocks: u64,
        damaged: Vec<Damaged>,
    }
}

codec_struct! {
    /// An object in a list.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectEntry {
        data_id: DataId,
        column: Column,
        /// Offset behind the last byte.
        object_bytes: u64,
        /// Allocated bytes.
        allocated: u64,
        truncate_seq: u64,
        /// The highest order of its changes; 0 where it has none.
        order: u64,
        /// Digest of its contents by the checksums of its blocks. `None`: not asked for, or a block
        /// is lost.
        digest: Option<u64>,
    }
}

codec_struct! {
    /// A session of a shard.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SessionEntry {
        session: SessionId,
        /// The client, as this shard knows it.
        identity: ClientIdentity,
        /// The zone that the client claims.
        zone: ZoneId,
        /// The name that the client claims.
        name: String,
        /// Time since its last request.
        idle_ms: u64,
        /// Files that it has open here.
        open_files: u32,
        /// Files at which it holds or awaits locks.
        locked_files: u32,
    }
}

codec_enum! {
    /// A request of a command to a server.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum AdminRequest {
        /// Asks for the health of this node's roles.
        Health = 1,
        /// Begins a scrub, or resumes a stopped one. `rate`: bytes a second, 0: as configured.
        /// `anew`: from the start.
        ScrubStart = 10 { of: ScrubOf, rate: u64, anew: bool },
        /// Stops a scrub; it keeps its place.
        ScrubStop = 11 { of: ScrubOf },
        ScrubStatus = 12 { of: ScrubOf },
        /// Objects behind `after` (`None`: from the first) in order, at most `limit`. `digests`:
        /// with the digest of each, which costs a look at all its index records.
        ListObjects = 20 { target: TargetId, after: Option<(DataId, Column)>, limit: u32, digests: bool },
        /// Takes a snapshot of this node's shard as it is now, to be read by `SnapshotRead`. One at
        /// a time.
        SnapshotBegin = 30 { shard: ShardId },
        /// Entries of the snapshot's store behind `after` (empty: from the first) in key order.
        SnapshotRead = 31 { snapshot: u64, after: Blob },
        /// Drops the snapshot. A snapshot that nobody reads for `SNAPSHOT_TERM_MS` is dropped by
        /// itself.
        SnapshotEnd = 32 { snapshot: u64 },
        /// Sessions behind `after` (0: from the first) in order, at most `limit`.
        ListSessions = 40 { shard: ShardId, after: SessionId, limit: u32 },
        /// Asks for the activity of this node.
        Activity = 46,
        /// A server at `claimed_by` says that it is `node`. The node with this number logs it.
        NumberClaimed = 50 { node: NodeId, claimed_by: String },
        /// A server of the cell asks whether this node works. Reply `Heartbeat`.
        Heartbeat = 60,
        /// Sightings of the sending node's neighbours, for the reporter of its zone. Reply `Done`;
        /// `NotReady` from a node that is not the reporter.
        Sightings = 61 { zone: ZoneId, sightings: Vec<Sighting> },
    }
}

codec_enum! {
    /// The reply of a server to a command.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum AdminReply {
        Failed = 0 { code: ErrorNumber, detail: String },
        Done = 1,
        Health = 2 { roles: Vec<RoleHealth> },
        Scrub = 10 { report: ScrubReport },
        /// `end`: nothing follows.
        Objects = 20 { objects: Vec<ObjectEntry>, end: bool },
        /// `position` of the log: all records before it are in the snapshot, and durable.
        /// `map_version`: of the map that the shard used then.
        Snapshot = 30 { snapshot: u64, shard: ShardId, epoch: Epoch, position: u64, map_version: MapVersion },
        /// Keys and values. `end`: nothing follows.
        Entries = 31 { entries: Vec<(Blob, Blob)>, end: bool },
        /// `end`: nothing follows.
        Sessions = 40 { sessions: Vec<SessionEntry>, end: bool },
        Activity = 46 { activity: NodeActivity },
        /// Whether all roles of the node serve.
        Heartbeat = 60 { serves: bool },
    }
}
