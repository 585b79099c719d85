//! Messages to the manager of the zone map. The map itself travels encoded (`zonal-zonemap`).

#![expect(missing_docs, reason = "fields are described with their variant")]

use crate::storage::ErrorNumber;
use zonal_types::{Blob, Ino, MapVersion, NodeId, TargetId, ZoneId, codec_enum, codec_struct};

codec_struct! {
    /// A target that a joining node serves.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JoinTarget {
        target: TargetId,
        /// Identity of the store, so that a copied or foreign one is noticed.
        uuid: [u8; 16],
        /// Bytes in all.
        capacity: u64,
    }
}

codec_struct! {
    /// One start of a store: a number that rises, and a random tag.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StartMark {
        number: u64,
        tag: u64,
    }
}

codec_struct! {
    /// A store that a node has opened and wants to serve.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StoreStart {
        /// 1 shard, 2 target.
        kind: u8,
        /// Number of the shard's node or of the target.
        id: u32,
        /// Identity of the store.
        uuid: [u8; 16],
        /// This start.
        mark: StartMark,
        /// The last start that the store knows to be taken; number 0: none.
        taken: StartMark,
        /// Starts since then of which it does not know.
        proposed: Vec<StartMark>,
    }
}

codec_enum! {
    /// What is asked of a manager.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ManagerRequest {
        /// The map, where it is newer than `have`.
        GetMap = 1 { have: MapVersion },
        /// A node comes up. New nodes, targets and shards are added to the map; known ones must agree.
        /// Each store that it brings has a start in `starts`: all are taken with the join, or nothing is.
        Join = 2 { node: NodeId, zone: ZoneId, zone_name: String, address: String, meta: bool, targets: Vec<JoinTarget>, starts: Vec<StoreStart> },
        /// Changes the map (an encoded list of edits), if it is still at `expected`.
        Edit = 3 { expected: MapVersion, edits: Blob },
        /// The list of revoked certificates, where it is newer than `have` (0: none).
        GetRevoked = 5 { have: u64 },
        /// Adds serial numbers of certificates to that list (asked by admins).
        Revoke = 6 { serials: Vec<u64> },
        /// A new first-level directory's inode (asked by tools): zone of a junction.
        Junction = 4 { ino: Ino },
    }
}

codec_enum! {
    /// A manager's answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ManagerReply {
        Failed = 0 { code: ErrorNumber, detail: String },
        /// The map, encoded.
        Map = 1 { version: MapVersion, map: Blob },
        /// The sender's map is the newest.
        Unchanged = 2 { version: MapVersion },
        /// All revoked certificates, rising. The version rises with each change; 0: none was revoked yet.
        Revoked = 3 { version: u64, serials: Vec<u64> },
    }
}
