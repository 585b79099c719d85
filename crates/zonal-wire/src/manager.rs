//! Messages to the manager of the zone map. The map itself travels encoded (`zonal-zonemap`).

#![expect(missing_docs, reason = "fields are described with their variant")]

use crate::node_states::{CellEvent, KnownState, Suspicion};
use crate::storage::ErrorNumber;
use zonal_types::{
    Blob, ClientId, Ino, MapVersion, NodeId, ShardId, TargetId, ZoneId, codec_enum, codec_struct,
};

codec_struct! {
    /// A target that a joining node serves.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JoinTarget {
        target: TargetId,
        /// Identity of the store, so that a copied or foreign store is noticed.
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
        /// 1 shard, 2 target, 4 a manager's replica of the root's shard.
        kind: u8,
        /// Number of the shard's node or of the target.
        id: u32,
        /// Identity of the store.
        uuid: [u8; 16],
        /// This start.
        mark: StartMark,
        /// The last start that the store knows to be accepted; number 0: none.
        taken: StartMark,
        /// Later starts whose result the store does not know.
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

codec_struct! {
    /// A subnet whose addresses are in one zone.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SubnetZone {
        /// ADDRESS/PREFIX.
        subnet: String,
        /// Its zone; 0: the named zone, which has no node yet.
        zone: ZoneId,
        /// The zone's name, where the table has that and no number.
        zone_name: String,
    }
}

codec_struct! {
    /// A join token, as the manager knows it: a one-time secret for a new node.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JoinTokenTerms {
        /// Its name, which tells nothing of its secret.
        id: [u8; 8],
        /// End of its term, in seconds since 1970.
        expires: u64,
        /// The node that it is for.
        node: NodeId,
        /// The target that the node may bring; 0: none.
        target: TargetId,
        /// Roles of the node, with commas between them.
        roles: String,
    }
}

codec_struct! {
    /// A join token in a manager's list.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JoinTokenStatus {
        terms: JoinTokenTerms,
        /// A node has claimed its credential.
        is_used: bool,
    }
}

codec_struct! {
    /// Progress of a target whose objects move elsewhere.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DrainStatus {
        /// The target.
        target: TargetId,
        /// Objects that are still to be filled elsewhere.
        filling: u64,
        /// Most of them at once, since this manager leads.
        most: u64,
        /// Objects without another copy in service, or without a target to go to.
        stuck: u64,
        /// Those of them for which no target has room.
        no_room: u64,
        /// Time since this manager began with it, ms.
        ms: u64,
    }
}

codec_enum! {
    /// A request to a manager.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ManagerRequest {
        /// Changes of the map since `have`. Reply `MapChanges`, or `At` where there are none. Reply
        /// the first `MapPart` where `have` is 0 or too old for the manager.
        GetMap = 1 { have: MapVersion },
        /// A node starts. New nodes, targets and shards are added to the map; known ones must
        /// agree. Each store that it brings has a start in `starts`: all are accepted with the
        /// join, or none is. Reply `At`.
        ///
        /// `zone` 0: the zone is the one named, a new one where there is none. Without a name it is
        /// that of the address's subnet. `meta_zone`: the node has a replica of a shard of this
        /// other zone (0: of its own).
        Join = 2 { node: NodeId, zone: ZoneId, zone_name: String, address: String, meta: bool, meta_zone: ZoneId, targets: Vec<JoinTarget>, starts: Vec<StoreStart> },
        /// Changes the map by an encoded list of edits, if it is still at `expected`. Reply `At`.
        Edit = 3 { expected: MapVersion, edits: Blob },
        /// The junction of a directory. Reply `Junctions`, as for the next two.
        Junction = 4 { ino: Ino },
        /// Junctions in the order of their paths, behind the named one.
        Junctions = 8 { after: Option<(String, Ino)>, entries: u32 },
        /// Junctions with this path: one in a sound cell.
        JunctionsAt = 9 { path: String },
        /// The list of revoked certificates, where it is newer than `have` (0: none).
        GetRevoked = 5 { have: u64 },
        /// Adds serial numbers of certificates to the list. Only admins may.
        Revoke = 6 { serials: Vec<u64> },
        /// The encoded map of this version from `offset` on. Where the manager no longer has this
        /// version, the first part of another one.
        GetMapPart = 7 { version: MapVersion, offset: u64 },
        /// The table of subnets. Reply `Subnets`.
        GetSubnets = 10,
        /// A node with a target reports the used CPU of its machine. Reply `At`.
        ReportLoad = 11 { node: NodeId, cpu_per_mille: u16 },
        /// Has a zone take nodes with `[meta]` until it has so many shards; a lower number than
        /// before changes nothing. Reply `ShardCount`.
        WantShards = 16 { zone: ZoneId, shards: u16 },
        /// States of a zone's nodes from its reporter: those that are not up, and those of which it
        /// does not know yet. All others are up. Only the reporter's server may. Reply
        /// `DigestTaken`.
        Digest = 20 { zone: ZoneId, reporter: NodeId, suspicions: Vec<Suspicion>, unknown: Vec<NodeId> },
        /// States of nodes behind `after` (0: from the first) in order. Reply `NodeStates`.
        NodeStates = 21 { after: NodeId },
        /// Events behind number `after`, at most `limit`. Reply `Events`.
        Events = 22 { after: u64, limit: u32 },
        /// A shard lost a client: its session expired. Reply `At`.
        ClientLost = 23 { shard: ShardId, zone: ZoneId, client: ClientId, name: String },
        /// Keeps a sealed credential for the claim of a new node. `proof`: SHA-256 of the claim's
        /// proof. Only admins may. Reply `JoinTokens` with this token.
        AddJoinToken = 24 { terms: JoinTokenTerms, proof: [u8; 32], sealed: Blob },
        /// All join tokens. Only admins may. Reply `JoinTokens`.
        JoinTokens = 25,
        /// Removes a join token: a later claim finds none. Only admins may. Reply `JoinTokens` with
        /// the removed token, or without any.
        RemoveJoinToken = 26 { id: [u8; 8] },
        /// The clock of a node that is about to join, in milliseconds since 1970. Reply `At`;
        /// `Invalid` where it is too far from the manager's.
        CheckClock = 27 { node: NodeId, clock_ms: u64 },
        /// Takes a target that serves no more out of service for files with copies. A client asks
        /// it that cannot reach the target. Reply `At` where it is out. `NotReady` while its node
        /// is not down, or may still serve under its lease.
        TakeOut = 32 { target: TargetId },
        /// Puts a target back into service. Only its own server may. Reply `At`.
        PutBack = 33 { target: TargetId },
        /// The server of a node with targets asks for its lease, from the sending of this request
        /// on. Only the leading manager answers. Reply `At`: the lease begins once the server has
        /// this version of the map.
        RenewLease = 34 { node: NodeId },
        /// Targets whose objects move elsewhere, as the leading manager counted last. Reply
        /// `Drains`.
        GetDrains = 35,
        /// A target has objects to fill that clients may not know. Gives all slots of its zone a
        /// new epoch, where they have none since version `known`. Only its own server may. Reply
        /// `At`.
        RenewEpochs = 36 { target: TargetId, known: MapVersion },
    }
}

codec_enum! {
    /// A manager's reply.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum ManagerReply {
        Failed = 0 { code: ErrorNumber, detail: String },
        /// The newest version: no version is newer than the named one, and the requested change
        /// is in it.
        At = 2 { version: MapVersion },
        /// All revoked certificates, in rising order. The version rises with each change; 0:
        /// nothing was revoked yet.
        Revoked = 3 { version: u64, serials: Vec<u64> },
        /// A part of the encoded map of `version`, which has `bytes` bytes in all.
        MapPart = 4 { version: MapVersion, newest: MapVersion, bytes: u64, offset: u64, part: Blob },
        /// Changes that lead from a version to a later one, each encoded; `newest`: the manager's
        /// version.
        MapChanges = 5 { from: MapVersion, to: MapVersion, newest: MapVersion, changes: Vec<Blob> },
        /// Junctions; `end`: the list ends here. The version rises with each change of a junction;
        /// `count`: all junctions of the cell.
        Junctions = 6 { version: u64, count: u64, junctions: Vec<Junction>, end: bool },
        /// The table of subnets, in the order of the manager's config.
        Subnets = 7 { subnets: Vec<SubnetZone> },
        /// Shards that the zone is to have, and shards that it has.
        ShardCount = 12 { wanted: u16, present: u16 },
        /// States of nodes; `end`: nothing follows.
        NodeStates = 16 { states: Vec<KnownState>, end: bool },
        /// Events in the order of their numbers. `first`, `last`: the numbers of the oldest and the
        /// newest event that the manager keeps; 0: none.
        Events = 17 { first: u64, last: u64, events: Vec<CellEvent> },
        /// A digest was taken; the next one without a change is due after this time.
        DigestTaken = 18 { next_ms: u32 },
        /// Join tokens, in the order of their names.
        JoinTokens = 20 { tokens: Vec<JoinTokenStatus> },
        /// Targets whose objects move elsewhere.
        Drains = 21 { drains: Vec<DrainStatus> },
    }
}
