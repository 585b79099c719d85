//! The zone map: what is where, as one versioned value.
//!
//! Invariants (checked by [`ZoneMap::check`]): ids are unique and references lead somewhere; partitions do not
//! overlap; the slots of a stripe set are targets of its zone; a set's width and order never change.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::limits::{NODES_MAX, RESTORE_STEP, SLOTS_MAX, ZONES_MAX};
use zonal_types::{
    CellId, Codec, Epoch, ErrorCode, Ino, MapVersion, NodeId, PartitionId, Reader, ShardId,
    StripeSetId, TargetId, ZoneId, codec_enum, codec_struct,
};

codec_struct! {
    /// A leaf switch and the nodes on it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Zone {
        /// Its id.
        id: ZoneId,
        /// Its name for people.
        name: String,
        /// The stripe set that new files use: all targets that the zone had when it was made.
        default_set: Option<StripeSetId>,
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
    }
}

codec_enum! {
    /// What a target is able to do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum TargetState {
        /// Reads and writes.
        Serving = 1,
        /// Taken out of service; layouts may still name it.
        Offline = 2,
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
        /// Bytes in all.
        capacity: u64,
        /// What it is able to do.
        state: TargetState,
    }
}

codec_struct! {
    /// A metadata shard and its owner.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Shard {
        /// Its id; 0 is the root's.
        id: ShardId,
        /// Its zone.
        zone: ZoneId,
        /// Its owner.
        node: NodeId,
        /// Rises with each change of the owner.
        epoch: Epoch,
    }
}

codec_struct! {
    /// A run of partitions and their shard.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PartitionRange {
        /// The first one.
        first: PartitionId,
        /// How many.
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
        /// Its target is being rebuilt from the others. Reserved.
        Rebuilding = 2,
    }
}

codec_struct! {
    /// One place of a stripe set.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Slot {
        /// The target that holds it.
        target: TargetId,
        /// The one before it.
        previous: Option<TargetId>,
        /// Its state.
        state: SlotState,
        /// Rises with each change of the slot.
        slot_epoch: Epoch,
    }
}

codec_struct! {
    /// An ordered list of slots, fixed in width and order.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct StripeSet {
        /// Its id.
        id: StripeSetId,
        /// Its zone.
        zone: ZoneId,
        /// Its slots.
        slots: Vec<Slot>,
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
    /// The whole map.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ZoneMap {
        /// Format of what follows; 1.
        format: u16,
        /// The cell.
        cell: CellId,
        /// Strictly increasing.
        version: MapVersion,
        /// Sorted by id, as are all lists.
        zones: Vec<Zone>,
        /// Nodes.
        nodes: Vec<Node>,
        /// Targets.
        targets: Vec<Target>,
        /// Shards.
        shards: Vec<Shard>,
        /// Sorted by first partition.
        partitions: Vec<PartitionRange>,
        /// Stripe sets.
        sets: Vec<StripeSet>,
        /// Junctions.
        junctions: Vec<Junction>,
    }
}

/// The map format that this program writes.
pub const MAP_FORMAT: u16 = 1;

fn find<T, K: Ord + Copy>(list: &[T], key: impl Fn(&T) -> K, wanted: K) -> Option<&T> {
    list.binary_search_by_key(&wanted, key)
        .ok()
        .map(|index| &list[index])
}

impl ZoneMap {
    /// The map of a new cell: no zones yet.
    #[must_use]
    pub fn new(cell: CellId) -> Self {
        Self {
            format: MAP_FORMAT,
            cell,
            version: MapVersion(1),
            zones: Vec::new(),
            nodes: Vec::new(),
            targets: Vec::new(),
            shards: Vec::new(),
            partitions: Vec::new(),
            sets: Vec::new(),
            junctions: Vec::new(),
        }
    }

    /// The map in a store or a message.
    ///
    /// # Errors
    /// `WrongVersion` for a newer format, which says so in its first field; `Corrupt` for what is no map.
    pub fn decode(bytes: &[u8]) -> Result<Self, ErrorCode> {
        let format = u16::get(&mut Reader::new(bytes)).map_err(|_error| ErrorCode::Corrupt)?;
        if format != MAP_FORMAT {
            return Err(ErrorCode::WrongVersion);
        }
        Self::from_bytes(bytes).map_err(|_error| ErrorCode::Corrupt)
    }

    /// The map of a backup that is restored: newer than any that somebody may have seen since, and with owners that
    /// refuse whoever knows an older one.
    #[must_use]
    pub fn restored(&self) -> Self {
        let mut map = self.clone();
        map.version = MapVersion(map.version.0.saturating_add(RESTORE_STEP));
        for shard in &mut map.shards {
            shard.epoch = Epoch(shard.epoch.0.saturating_add(RESTORE_STEP));
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

    /// The shard of a zone (not the root's).
    #[must_use]
    pub fn shard_of_zone(&self, zone: ZoneId) -> Option<&Shard> {
        self.shards
            .iter()
            .find(|shard| shard.zone == zone && shard.id != ShardId(0))
    }

    /// The partitions of a shard.
    #[must_use]
    pub fn partitions_of(&self, shard: ShardId) -> Vec<PartitionId> {
        let ranges = self.partitions.iter().filter(|range| range.shard == shard);
        ranges
            .flat_map(|range| (0..range.count).map(|index| PartitionId(range.first.0 + index)))
            .collect()
    }

    /// The zone of an inode, by its partition's shard (the root shard's objects: their junction or the root's zone).
    #[must_use]
    pub fn zone_of(&self, ino: Ino) -> Option<ZoneId> {
        self.shard_of(ino.partition()).map(|shard| shard.zone)
    }

    /// Every broken invariant, in words.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let sorted = is_sorted(&self.zones, |zone| zone.id)
            && is_sorted(&self.nodes, |node| node.id)
            && is_sorted(&self.targets, |target| target.id)
            && is_sorted(&self.shards, |shard| shard.id)
            && is_sorted(&self.sets, |set| set.id)
            && is_sorted(&self.junctions, |junction| junction.ino);
        if !sorted {
            broken.push("a list is not sorted or an id occurs twice".to_owned());
        }
        if self.zones.len() > ZONES_MAX || self.nodes.len() > NODES_MAX {
            broken.push("too many zones or nodes".to_owned());
        }
        self.check_references(&mut broken);
        self.check_partitions(&mut broken);
        broken
    }

    fn check_references(&self, broken: &mut Vec<String>) {
        for node in self
            .nodes
            .iter()
            .filter(|node| self.zone(node.zone).is_none())
        {
            broken.push(format!("node {} is in unknown zone {}", node.id, node.zone));
        }
        for target in self
            .targets
            .iter()
            .filter(|target| self.node(target.node).is_none())
        {
            broken.push(format!(
                "target {} is on unknown node {}",
                target.id, target.node
            ));
        }
        for shard in self
            .shards
            .iter()
            .filter(|shard| self.node(shard.node).is_none())
        {
            broken.push(format!(
                "shard {} is on unknown node {}",
                shard.id, shard.node
            ));
        }
        for set in &self.sets {
            let mut seen = BTreeSet::new();
            for slot in &set.slots {
                let zone = self
                    .target(slot.target)
                    .and_then(|target| self.node(target.node))
                    .map(|node| node.zone);
                if zone != Some(set.zone) || !seen.insert(slot.target) {
                    broken.push(format!(
                        "set {} has target {} twice or from elsewhere",
                        set.id, slot.target
                    ));
                }
            }
            if set.slots.is_empty() || set.slots.len() > SLOTS_MAX {
                broken.push(format!("set {} has {} slots", set.id, set.slots.len()));
            }
        }
        for zone in &self.zones {
            if zone
                .default_set
                .is_some_and(|id| self.set(id).is_none_or(|set| set.zone != zone.id))
            {
                broken.push(format!(
                    "zone {} has a default set that is not its own",
                    zone.id
                ));
            }
        }
        for junction in self
            .junctions
            .iter()
            .filter(|junction| self.zone(junction.zone).is_none())
        {
            broken.push(format!(
                "junction {} leads to unknown zone {}",
                junction.path, junction.zone
            ));
        }
    }

    fn check_partitions(&self, broken: &mut Vec<String>) {
        let mut free_from = 0;
        for range in &self.partitions {
            let end = range.first.0.checked_add(range.count);
            if range.count == 0
                || range.first.0 < free_from
                || end.is_none_or(|end| end > zonal_types::ids::PARTITIONS_MAX)
            {
                broken.push(format!(
                    "partitions from {} overlap or are out of range",
                    range.first
                ));
            }
            if self.shard(range.shard).is_none() {
                broken.push(format!(
                    "partitions from {} have unknown shard {}",
                    range.first, range.shard
                ));
            }
            free_from = end.unwrap_or(u32::MAX);
        }
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

fn is_sorted<T, K: Ord>(list: &[T], key: impl Fn(&T) -> K) -> bool {
    list.windows(2).all(|pair| key(&pair[0]) < key(&pair[1]))
}
