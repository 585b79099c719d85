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

codec_struct! {
    /// A directory whose home differs from its parent's.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Junction {
        /// The directory.
        ino: Ino,
        /// Its path, an index for schedulers.
        path: String,
        /// Its home.
        zone: ZoneId,
    }
}

codec_enum! {
    /// What is asked of a manager.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ManagerRequest {
        /// What changed in the map since `have`: `MapChanges`, `At` where nothing did; the first
        /// `MapPart` where the manager does not know it any more, or `have` is 0.
        GetMap = 1 { have: MapVersion },
        /// A node comes up. New nodes, targets and shards are added to the map; known ones must
        /// agree. Each store that it brings has a start in `starts`: all are taken with the join,
        /// or nothing is. Reply `At`.
        Join = 2 { node: NodeId, zone: ZoneId, zone_name: String, address: String, meta: bool, targets: Vec<JoinTarget>, starts: Vec<StoreStart> },
        /// Changes the map (an encoded list of edits), if it is still at `expected`. Reply `At`.
        Edit = 3 { expected: MapVersion, edits: Blob },
        /// The junction of a directory. Reply `Junctions`, as to the next two.
        Junction = 4 { ino: Ino },
        /// Junctions in the order of their paths, behind the one named.
        Junctions = 8 { after: Option<(String, Ino)>, entries: u32 },
        /// Junctions with this path: one in a sound cell.
        JunctionsAt = 9 { path: String },
        /// The list of revoked certificates, where it is newer than `have` (0: none).
        GetRevoked = 5 { have: u64 },
        /// Adds serial numbers of certificates to that list (asked by admins).
        Revoke = 6 { serials: Vec<u64> },
        /// The encoded map of this version from `offset` on; the first part of another one where
        /// the manager has that one no more.
        GetMapPart = 7 { version: MapVersion, offset: u64 },
    }
}

codec_enum! {
    /// A manager's answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ManagerReply {
        Failed = 0 { code: ErrorNumber, detail: String },
        /// The newest version: nothing is newer than the one named, and what was asked to be
        /// changed is in it.
        At = 2 { version: MapVersion },
        /// All revoked certificates, rising. The version rises with each change; 0: none was
        /// revoked yet.
        Revoked = 3 { version: u64, serials: Vec<u64> },
        /// A part of the encoded map of `version`, which has so many bytes.
        MapPart = 4 { version: MapVersion, newest: MapVersion, bytes: u64, offset: u64, part: Blob },
        /// Changes that lead from a version to a later one, each encoded; `newest`: the manager's.
        MapChanges = 5 { from: MapVersion, to: MapVersion, newest: MapVersion, changes: Vec<Blob> },
        /// Junctions; `end`: none follows. The version rises with each change of a junction;
        /// `count` is how many the cell has.
        Junctions = 6 { version: u64, count: u64, junctions: Vec<Junction>, end: bool },
    }
}
