//! The zone map: where everything is, as one versioned value. Junctions are beside it
//! ([`crate::junctions`]).
//!
//! Invariants (checked by [`ZoneMap::check`]):
//! 1. Ids are unique, and references lead somewhere.
//! 2. Partitions do not overlap.
//! 3. The slots of a stripe set are targets of its zone, or out.
//! 4. A set's width and order never change, and its number is never issued again.
//! 5. A slot's epoch is the map version that made or last changed it.
//! 6. Each serving target of a zone is in exactly one of the zone's default sets.

mod check;
mod copies;
mod object_places;
mod placement;

use std::collections::BTreeMap;
use zonal_types::limits::{RESTORE_STEP, SET_WIDTH_DEFAULT, SHARD_REPLICAS_MAX};
use zonal_types::{
    CellId, Codec, Epoch, ErrorCode, Ino, MapVersion, NodeId, PartitionId, Reader, ShardId,
    StripeSetId, TargetId, ZoneId, codec_enum, codec_struct,
};
use zonal_wire::MetaReply;
pub use zonal_wire::NodeState;

codec_struct! {
    /// A leaf switch and the nodes on it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Zone {
        /// Its id.
        id: ZoneId,
        /// Its name for people.
        name: String,
        /// Stripe sets that new files use in turn, in rising order: together all serving targets of
        /// the zone.
        default_sets: Vec<StripeSetId>,
    }
}

codec_struct! {
    /// A server process with an address.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Node {
        /// Its id.
        id: NodeId,
        /// Its zone.
        zone: ZoneId,
        /// `ip:port`.
        address: String,
        /// Its state.
        state: NodeState,
    }
}

codec_enum! {
    /// State of a target.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TargetState {
        /// It reads and writes.
        Serving = 1,
        /// Taken out of service; layouts may still name it.
        Offline = 2,
        /// Its objects are moved to other targets, for good.
        Draining = 3,
        /// No file needs it: its objects lie elsewhere, and its slots are out for good.
        Drained = 4,
        /// It is out for long: its objects are made anew on other targets.
        Rebuilding = 5,
        /// It is back, or its drain was cancelled: objects that have left stay where they are.
        Returning = 6,
        /// It reads and writes. It is fuller than others, which get objects of it.
        Shedding = 7 {
            /// Another rebalance chooses other objects.
            salt: u32,
            /// It is cancelled: what is under way is dropped.
            is_ending: bool,
        },
    }
}

impl TargetState {
    /// True where new files use the target.
    #[must_use]
    pub fn takes_files(self) -> bool {
        matches!(self, Self::Serving | Self::Shedding { .. })
    }

    /// True where its objects move to other targets.
    #[must_use]
    pub fn is_leaving(self) -> bool {
        matches!(self, Self::Draining | Self::Rebuilding)
    }

    /// True where the target gives objects to others, and serves on.
    #[must_use]
    pub fn is_shedding(self) -> bool {
        matches!(self, Self::Shedding { .. })
    }

    /// True where objects of the target move, or return.
    #[must_use]
    pub fn is_moving(self) -> bool {
        self.is_leaving() || self.is_shedding() || self == Self::Returning
    }

    /// The word for it in commands.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::Offline => "disused",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Rebuilding => "rebuilding",
            Self::Returning => "returning",
            Self::Shedding { .. } => "rebalancing",
        }
    }
}

codec_struct! {
    /// One unit of storage.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Target {
        /// Its id.
        id: TargetId,
        /// The node that serves it.
        node: NodeId,
        /// Identity of its store.
        uuid: [u8; 16],
        /// Its capacity in bytes.
        capacity: u64,
        /// Its state.
        state: TargetState,
    }
}

codec_struct! {
    /// A metadata shard and its owner.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Shard {
        /// Its id; 0: the root's.
        id: ShardId,
        /// Its zone.
        zone: ZoneId,
        /// Its owner.
        node: NodeId,
        /// Rises with each change of the owner.
        epoch: Epoch,
        /// Nodes that keep its log, in rising order, its owner among them. Where there are several,
        /// they choose which of them leads.
        replicas: Vec<NodeId>,
    }
}

impl Shard {
    /// Whether several nodes keep its log, so that another than its owner may lead.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        self.replicas.len() > 1
    }

    /// Whether these nodes may keep the log of a shard of this owner.
    pub(crate) fn has_sound_replicas(owner: NodeId, replicas: &[NodeId]) -> bool {
        let is_rising = replicas.windows(2).all(|pair| pair[0] < pair[1]);
        is_rising && replicas.len() <= SHARD_REPLICAS_MAX && replicas.contains(&owner)
    }
}

codec_struct! {
    /// A run of partitions with one shard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PartitionRange {
        /// First partition.
        first: PartitionId,
        /// Number of partitions.
        count: u32,
        /// Their shard.
        shard: ShardId,
    }
}

codec_enum! {
    /// State of a slot.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SlotState {
        /// Its target has the data.
        Serving = 1,
        /// Reserved.
        Rebuilding = 2,
        /// Its target may miss changes of files with copies. Their readers and writers pass it
        /// over; files with one copy wait for it. The target may have left the map.
        Out = 3,
    }
}

codec_struct! {
    /// One place of a stripe set.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Slot {
        /// The target of the slot.
        target: TargetId,
        /// The target before the last change.
        previous: Option<TargetId>,
        /// Its state.
        state: SlotState,
        /// The map version that made or last changed the slot, so no two changes have the same
        /// epoch.
        slot_epoch: Epoch,
    }
}

codec_struct! {
    /// An ordered list of slots, fixed in width and order.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StripeSet {
        /// Its id.
        id: StripeSetId,
        /// Its zone; [`ZoneId::CELL`] for a set over all zones.
        zone: ZoneId,
        /// Open: shards may give it to files. A set that is not open has no files, so an edit may
        /// replace it.
        is_open: bool,
        /// Its slots.
        slots: Vec<Slot>,
    }
}

impl StripeSet {
    /// Number of slots.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most SLOTS_MAX slots: map/check.rs"
    )]
    pub fn width(&self) -> u16 {
        self.slots.len() as u16
    }
}

codec_struct! {
    /// The whole map.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ZoneMap {
        /// Format version: 3.
        format: u16,
        /// The cell.
        cell: CellId,
        /// Map version; strictly increasing.
        version: MapVersion,
        /// Nodes that keep the map; one in this version.
        managers: Vec<NodeId>,
        /// Width of a new stripe set: slots at most.
        set_width: u16,
        /// Number of the next stripe set.
        next_set: StripeSetId,
        /// Stripe sets over all zones that new files take in turn. None until a directory with the
        /// placement `cell` gets its first file.
        cell_sets: Vec<StripeSetId>,
        /// Zones, sorted by id, as are all lists.
        zones: Vec<Zone>,
        /// Nodes.
        nodes: Vec<Node>,
        /// Targets.
        targets: Vec<Target>,
        /// Shards.
        shards: Vec<Shard>,
        /// Runs of partitions, sorted by first partition.
        partitions: Vec<PartitionRange>,
        /// Stripe sets.
        sets: Vec<StripeSet>,
    }
}

/// The map format that this program writes.
pub const MAP_FORMAT: u16 = 3;

fn find<T, K: Ord + Copy>(list: &[T], key: impl Fn(&T) -> K, wanted: K) -> Option<&T> {
    list.binary_search_by_key(&wanted, key)
        .ok()
        .map(|index| &list[index])
}

impl ZoneMap {
    /// The map of a new cell, without zones.
    #[must_use]
    pub fn new(cell: CellId) -> Self {
        Self {
            format: MAP_FORMAT,
            cell,
            version: MapVersion(1),
            managers: Vec::new(),
            set_width: SET_WIDTH_DEFAULT,
            next_set: StripeSetId(1),
            cell_sets: Vec::new(),
            zones: Vec::new(),
            nodes: Vec::new(),
            targets: Vec::new(),
            shards: Vec::new(),
            partitions: Vec::new(),
            sets: Vec::new(),
        }
    }

    /// Placeholder for a map that was not fetched yet: any map of a manager is newer.
    #[must_use]
    pub fn unknown(cell: CellId) -> Self {
        Self {
            version: MapVersion(0),
            ..Self::new(cell)
        }
    }

    /// Decodes a whole map from a message or a backup.
    ///
    /// # Errors
    /// `WrongVersion` for another format, which its first field tells; `Corrupt` for other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, ErrorCode> {
        let format = u16::get(&mut Reader::new(bytes)).map_err(|_error| ErrorCode::Corrupt)?;
        if format != MAP_FORMAT {
            return Err(ErrorCode::WrongVersion);
        }
        Self::from_bytes(bytes).map_err(|_error| ErrorCode::Corrupt)
    }

    /// The map after restoring a backup. Its version is newer than any that was seen since, and its
    /// owners' new epochs refuse requests that name older ones.
    #[must_use]
    pub fn restored(&self) -> Self {
        let mut map = self.clone();
        map.version = MapVersion(map.version.0.saturating_add(RESTORE_STEP));
        for shard in &mut map.shards {
            shard.epoch = Epoch(shard.epoch.0.saturating_add(RESTORE_STEP));
        }
        let slot_epoch = Epoch(map.version.0);
        for slot in map.sets.iter_mut().flat_map(|set| &mut set.slots) {
            slot.slot_epoch = slot_epoch;
        }
        map
    }

    /// The zone with this id.
    #[must_use]
    pub fn zone(&self, id: ZoneId) -> Option<&Zone> {
        find(&self.zones, |zone| zone.id, id)
    }

    /// The node with this id.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        find(&self.nodes, |node| node.id, id)
    }

    /// The target with this id.
    #[must_use]
    pub fn target(&self, id: TargetId) -> Option<&Target> {
        find(&self.targets, |target| target.id, id)
    }

    /// The shard with this id.
    #[must_use]
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        find(&self.shards, |shard| shard.id, id)
    }

    /// The stripe set with this id.
    #[must_use]
    pub fn set(&self, id: StripeSetId) -> Option<&StripeSet> {
        find(&self.sets, |set| set.id, id)
    }

    /// The stripe sets that new files of a zone take in turn; for [`ZoneId::CELL`] those of files
    /// over all zones.
    pub fn default_sets(&self, zone: ZoneId) -> impl Iterator<Item = &StripeSet> {
        let ids = match zone {
            ZoneId::CELL => &self.cell_sets[..],
            zone => self.zone(zone).map_or(&[][..], |zone| &zone.default_sets),
        };
        ids.iter().filter_map(|id| self.set(*id))
    }

    /// The reply that a zone's sets were opened.
    #[must_use]
    pub fn opened(&self, zone: ZoneId) -> MetaReply {
        let sets = self.default_sets(zone).filter(|set| set.is_open);
        MetaReply::Sets {
            map_version: self.version,
            sets: sets.map(|set| (set.id, set.width())).collect(),
        }
    }

    /// The shard that owns a partition.
    #[must_use]
    pub fn shard_of(&self, partition: PartitionId) -> Option<&Shard> {
        let after = self
            .partitions
            .partition_point(|range| range.first <= partition);
        let range = self.partitions.get(after.checked_sub(1)?)?;
        if partition.0 - range.first.0 < range.count {
            self.shard(range.shard)
        } else {
            None
        }
    }

    /// The partitions of a shard.
    #[must_use]
    pub fn partitions_of(&self, shard: ShardId) -> Vec<PartitionId> {
        let ranges = self.partitions.iter().filter(|range| range.shard == shard);
        ranges
            .flat_map(|range| (0..range.count).map(|index| PartitionId(range.first.0 + index)))
            .collect()
    }

    /// The zone of an inode, by its partition's shard. For the root shard's objects: their
    /// junction's or the root's zone.
    #[must_use]
    pub fn zone_of(&self, ino: Ino) -> Option<ZoneId> {
        self.shard_of(ino.partition()).map(|shard| shard.zone)
    }

    /// Targets by zone, for people and schedulers.
    #[must_use]
    pub fn targets_by_zone(&self) -> BTreeMap<ZoneId, Vec<TargetId>> {
        let mut by_zone: BTreeMap<ZoneId, Vec<TargetId>> = BTreeMap::new();
        for target in &self.targets {
            if let Some(node) = self.node(target.node) {
                by_zone.entry(node.zone).or_default().push(target.id);
            }
        }
        by_zone
    }
}
