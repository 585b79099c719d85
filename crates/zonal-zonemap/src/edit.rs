//! Edits of the map. A list of edits makes one new version, or none where an edit is refused.

mod outages;
mod partitions;
mod stripe_sets;
mod zones_and_nodes;

use crate::change::MapChange;
use crate::map::{Node, NodeState, PartitionRange, Shard, Target, TargetState, ZoneMap};
use thiserror::Error;
use zonal_types::limits::{
    MAP_BYTES_MAX, MAP_CHANGE_BYTES_MAX, NAME_BYTES_MAX, SHARD_REPLICAS_MAX,
};
use zonal_types::{
    Epoch, ErrorCode, MapVersion, NodeId, PartitionId, ShardId, StripeSetId, TargetId, ZoneId,
    codec_enum, is_title,
};
use zonal_wire::JoinTarget;

codec_enum! {
    /// One edit of the map.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum MapEdit {
        /// A node joins or comes back, maybe at another address.
        Join = 1 {
            /// The node.
            node: NodeId,
            /// Its zone, created where it is new.
            zone: ZoneId,
            /// Name of a new zone.
            zone_name: String,
            /// Address that it listens on.
            address: String,
            /// Shard of a node with the meta role, created where it is new. 0: the root's.
            shard: Option<ShardId>,
            /// Targets that it serves.
            targets: Vec<JoinTarget>,
        },
        /// Assigns a target to a slot. The new map version becomes the slot's epoch, also where the
        /// target stays the same.
        SetSlot = 5 {
            /// The set.
            set: StripeSetId,
            /// Index of the slot.
            slot: u16,
            /// Its new target.
            target: TargetId,
        },
        /// Takes a target out of service for files with copies: its slots are out.
        TakeOut = 32 {
            /// The target.
            target: TargetId,
        },
        /// Puts a target that was taken out back into service. All slots of its zone get a new
        /// epoch, so that clients look again which of their files it misses.
        PutBack = 33 {
            /// The target.
            target: TargetId,
        },
        /// Gives all slots of a target's zone a new epoch: clients ask for the state of the files
        /// there before they send anything.
        RenewEpochs = 34 {
            /// The target.
            target: TargetId,
        },
        /// Takes a draining target out of service for good: no file needs it.
        Retire = 35 {
            /// The target.
            target: TargetId,
        },
        /// Ends the return of a target: it serves again.
        EndReturn = 36 {
            /// The target.
            target: TargetId,
        },
        /// Sets the state of a target.
        SetTargetState = 6 {
            /// The target.
            target: TargetId,
            /// Its new state.
            state: TargetState,
        },
        /// Takes a target out of use for new files (offline), or puts it back into use (serving).
        /// The zone gets new stripe sets.
        UseTarget = 7 {
            /// The target.
            target: TargetId,
            /// Its new state.
            state: TargetState,
        },
        /// Removes an offline target, the stripe sets that contain it, and its node where that has
        /// nothing else. The caller has made sure that no layout names these sets.
        RemoveTarget = 8 {
            /// The target.
            target: TargetId,
        },
        /// Opens the default sets of a zone: shards may give them to files, and the sets stay.
        OpenSets = 9 {
            /// The zone; [`ZoneId::CELL`]: the sets over all zones, which the first opening makes.
            zone: ZoneId,
        },
        /// Sets the width of new stripe sets; existing ones stay as they are.
        SetWidth = 10 {
            /// Slots of a new set at most.
            slots: u16,
        },
        /// Gives a shard as many partitions more as it has, up to a limit.
        AddPartitions = 16 {
            /// The shard.
            shard: ShardId,
        },
        /// Gives a partition of one shard to another shard of its zone.
        MovePartition = 17 {
            /// The partition.
            partition: PartitionId,
            /// The shard that has it.
            from: ShardId,
            /// The shard that gets it.
            to: ShardId,
        },
        /// Sets the nodes that keep a shard's log. The order means nothing.
        SetReplicas = 11 {
            /// The shard.
            shard: ShardId,
            /// The nodes, each once, the shard's owner among them.
            replicas: Vec<NodeId>,
        },
        /// Adds a zone without nodes.
        AddZone = 24 {
            /// Its number, which no zone has.
            zone: ZoneId,
            /// Its name; empty: `zone` and the number.
            name: String,
        },
        /// Gives a zone another name.
        RenameZone = 25 {
            /// The zone.
            zone: ZoneId,
            /// Its new name.
            name: String,
        },
        /// Removes a node that has neither a target nor a shard's replica, and keeps no map.
        RemoveNode = 26 {
            /// The node.
            node: NodeId,
        },
    }
}

/// Why an edit was refused. The map stays unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EditError {
    /// The map has another version than the edit expected.
    #[error("the map is at version {now}, the edit expected {expected}")]
    VersionMoved {
        /// The version that the edit expected.
        expected: MapVersion,
        /// The version of the map.
        now: MapVersion,
    },
    /// A node came back in another zone.
    #[error("node {node} is in zone {known}, not in zone {claimed}")]
    ZoneDiffers {
        /// The node.
        node: NodeId,
        /// Its zone in the map.
        known: ZoneId,
        /// The zone that it claims.
        claimed: ZoneId,
    },
    /// A target came up with another store or on another node.
    #[error("target {target} is known with another store or on another node (node {node})")]
    TargetDiffers {
        /// The target.
        target: TargetId,
        /// Its node in the map.
        node: NodeId,
    },
    /// The edit would leave a zone without a target for new files.
    #[error("target {target} is the only one of zone {zone} that serves")]
    OnlyTarget {
        /// The target.
        target: TargetId,
        /// Its zone.
        zone: ZoneId,
    },
    /// A target was drained: its objects lie elsewhere, and it may have old bytes.
    #[error(
        "target {target} was drained. Hint: `zonal target remove --target {target}`; a new target gets a number that was never used"
    )]
    Drained {
        /// The target.
        target: TargetId,
    },
    /// A target that is not draining cannot be retired.
    #[error("target {target} is not draining")]
    NotDraining {
        /// The target.
        target: TargetId,
    },
    /// Only a target that serves gives objects to others.
    #[error("target {target} is not serving")]
    NotServing {
        /// The target.
        target: TargetId,
    },
    /// A target cannot be removed while new files use it.
    #[error("target {target} is still used for new files")]
    InUse {
        /// The target.
        target: TargetId,
    },
    /// A shard's replicas are too few, too many, twice on a node, or not on its owner.
    #[error(
        "shard {shard} needs 1 to {SHARD_REPLICAS_MAX} replicas, each on its own node, one on its owner (node {owner})"
    )]
    Replicas {
        /// The shard.
        shard: ShardId,
        /// Its owner.
        owner: NodeId,
    },
    /// A partition does not belong to the shard that gives it, or cannot go to the other one.
    #[error("partition {partition} cannot go from shard {from} to shard {to}: {why}")]
    Partition {
        /// The partition.
        partition: PartitionId,
        /// The shard that gives it.
        from: ShardId,
        /// The shard that would get it.
        to: ShardId,
        /// The reason.
        why: &'static str,
    },
    /// A zone has the number, or another zone has the name.
    #[error("zone {zone} has that number or name already")]
    ZoneTaken {
        /// The zone.
        zone: ZoneId,
    },
    /// A zone's name that commands would take for a number, or that is empty.
    #[error("a zone's name is neither empty nor a number")]
    ZoneName,
    /// A node cannot be removed while the cell needs it.
    #[error("node {node} has {holds}")]
    NodeInUse {
        /// The node.
        node: NodeId,
        /// The role that needs it.
        holds: String,
    },
    /// The edit names an item that does not exist.
    #[error("the edit names an unknown {what}")]
    Unknown {
        /// The kind of item.
        what: &'static str,
    },
    /// People are shown zone names and addresses.
    #[error(
        "a zone's name or an address has characters that cannot be shown, or more than {NAME_BYTES_MAX} bytes"
    )]
    Title,
    /// The map or the change would be too large for its readers.
    #[error(
        "the zone map would have {bytes} bytes (at most {MAP_BYTES_MAX}), the change {change} (at most {MAP_CHANGE_BYTES_MAX}). Hint: fewer zones or nodes"
    )]
    TooLarge {
        /// Encoded bytes of the map.
        bytes: usize,
        /// Encoded bytes of the change.
        change: usize,
    },
    /// The junctions in the store cannot be read.
    #[error("the stored junctions cannot be read: {0}")]
    Store(ErrorCode),
    /// The result would break an invariant.
    #[error("the edit would break the map: {0}")]
    Broken(String),
}

impl ZoneMap {
    /// Applies edits to a copy of the map. Returns the next version, or `None` where the edits
    /// change nothing.
    ///
    /// # Errors
    /// See [`EditError`]; the map itself is never changed.
    pub fn edited(&self, edits: &[MapEdit]) -> Result<Option<Self>, EditError> {
        Ok(self.edited_by(edits)?.map(|(next, _change)| next))
    }

    /// As [`Self::edited`], with the change from this version to the next.
    pub(crate) fn edited_by(
        &self,
        edits: &[MapEdit],
    ) -> Result<Option<(Self, MapChange)>, EditError> {
        let mut next = self.clone();
        // The version that changes a slot becomes its epoch.
        next.version = MapVersion(self.version.0.saturating_add(1));
        for edit in edits {
            next.apply(edit)?;
        }
        let change = self.change_to(&next);
        if change.is_empty(&self.head()) {
            return Ok(None);
        }
        match next.check_changed(&change).into_iter().next() {
            Some(broken) => Err(EditError::Broken(broken)),
            None => Ok(Some((next, change))),
        }
    }

    fn apply(&mut self, edit: &MapEdit) -> Result<(), EditError> {
        match edit {
            MapEdit::Join {
                node,
                zone,
                zone_name,
                address,
                shard,
                targets,
            } => {
                // Older maps may have other names; those are still read.
                if !is_title(zone_name) || !is_title(address) {
                    return Err(EditError::Title);
                }
                self.join_node(*node, *zone, zone_name, address)?;
                if let Some(shard) = shard {
                    self.join_shard(*shard, *zone, *node);
                }
                self.join_targets(*node, *zone, targets)
            }
            MapEdit::SetSlot { set, slot, target } => self.set_slot(*set, *slot, *target),
            MapEdit::UseTarget { target, state } => self.use_target(*target, *state),
            MapEdit::RemoveTarget { target } => self.remove_target(*target),
            MapEdit::OpenSets { zone } => self.open_sets(*zone),
            MapEdit::SetWidth { slots } => {
                self.set_width = *slots;
                Ok(())
            }
            MapEdit::AddPartitions { shard } => self.add_partitions(*shard),
            MapEdit::MovePartition {
                partition,
                from,
                to,
            } => self.move_partition(*partition, *from, *to),
            MapEdit::SetReplicas { shard, replicas } => self.set_replicas(*shard, replicas),
            MapEdit::AddZone { zone, name } => self.add_zone(*zone, name),
            MapEdit::RenameZone { zone, name } => self.rename_zone(*zone, name),
            MapEdit::RemoveNode { node } => self.remove_node(*node),
            MapEdit::TakeOut { target } => self.take_out(*target),
            MapEdit::PutBack { target } => self.put_back(*target),
            MapEdit::RenewEpochs { target } => self.renew_epochs(*target),
            MapEdit::Retire { target } => self.retire(*target),
            MapEdit::EndReturn { target } => self.end_return(*target),
            MapEdit::SetTargetState { target, state } => {
                let found = self.targets.iter_mut().find(|known| known.id == *target);
                found.ok_or(EditError::Unknown { what: "target" })?.state = *state;
                Ok(())
            }
        }
    }

    fn join_node(
        &mut self,
        id: NodeId,
        zone: ZoneId,
        name: &str,
        address: &str,
    ) -> Result<(), EditError> {
        if self.zone(zone).is_none() {
            self.insert_zone(zone, name);
        }
        match self.nodes.iter_mut().find(|node| node.id == id) {
            Some(known) if known.zone != zone => Err(EditError::ZoneDiffers {
                node: id,
                known: known.zone,
                claimed: zone,
            }),
            Some(known) => {
                address.clone_into(&mut known.address);
                Ok(())
            }
            None => {
                let node = Node {
                    id,
                    zone,
                    address: address.to_owned(),
                    state: NodeState::Up,
                };
                insert(&mut self.nodes, node, |node| node.id);
                Ok(())
            }
        }
    }

    fn join_shard(&mut self, id: ShardId, zone: ZoneId, node: NodeId) {
        let is_replica = |shard: &Shard| shard.is_replicated() && shard.replicas.contains(&node);
        if self.shard(id).is_some_and(is_replica) {
            // It came back: the group chooses its leader, not the map.
            return;
        }
        if id == ShardId(0) {
            self.managers = vec![node];
        }
        if let Some(known) = self.shards.iter_mut().find(|shard| shard.id == id) {
            if known.node != node {
                known.node = node;
                known.epoch = Epoch(known.epoch.0 + 1);
                known.replicas = vec![node];
            }
            return;
        }
        insert(
            &mut self.shards,
            Shard {
                id,
                zone,
                node,
                epoch: Epoch(1),
                replicas: vec![node],
            },
            |shard| shard.id,
        );
        // The root shard has partition 0 alone; each further shard gets some at once.
        let first = self
            .partitions
            .last()
            .map_or(0, |range| range.first.0 + range.count);
        let (first, count) = if id == ShardId(0) {
            (0, 1)
        } else {
            (first.max(1), partitions::FIRST_PARTITIONS)
        };
        let range = PartitionRange {
            first: PartitionId(first),
            count,
            shard: id,
        };
        insert(&mut self.partitions, range, |range| range.first);
    }

    fn set_replicas(&mut self, id: ShardId, replicas: &[NodeId]) -> Result<(), EditError> {
        if replicas.iter().any(|node| self.node(*node).is_none()) {
            return Err(EditError::Unknown { what: "node" });
        }
        let found = self.shards.iter_mut().find(|shard| shard.id == id);
        let shard = found.ok_or(EditError::Unknown { what: "shard" })?;
        let mut sorted = replicas.to_vec();
        sorted.sort_unstable();
        // An owner that leaves hands its name to another replica. The epoch stays: the replicas
        // decide among themselves which of them serves.
        let owner = match (sorted.contains(&shard.node), sorted.first()) {
            (false, Some(first)) if shard.is_replicated() => *first,
            _ => shard.node,
        };
        if !Shard::has_sound_replicas(owner, &sorted) {
            return Err(EditError::Replicas { shard: id, owner });
        }
        if id == ShardId(0) {
            // The map lies beside the root's shard.
            self.managers.clone_from(&sorted);
        }
        (shard.node, shard.replicas) = (owner, sorted);
        Ok(())
    }

    fn join_targets(
        &mut self,
        node: NodeId,
        zone: ZoneId,
        joining: &[JoinTarget],
    ) -> Result<(), EditError> {
        let mut is_new = false;
        for join in joining {
            match self
                .targets
                .iter_mut()
                .find(|target| target.id == join.target)
            {
                Some(known) if known.uuid != join.uuid || known.node != node => {
                    return Err(EditError::TargetDiffers {
                        target: join.target,
                        node: known.node,
                    });
                }
                Some(known) => known.capacity = join.capacity,
                None => {
                    self.refuse_number_of_removed(join.target)?;
                    is_new = true;
                    let target = Target {
                        id: join.target,
                        node,
                        uuid: join.uuid,
                        capacity: join.capacity,
                        state: TargetState::Serving,
                    };
                    insert(&mut self.targets, target, |target| target.id);
                }
            }
        }
        if is_new {
            self.regroup_with(zone);
        }
        Ok(())
    }
}

/// Inserts an item into a sorted list, or replaces the item with the same key.
fn insert<T, K: Ord>(list: &mut Vec<T>, item: T, key: impl Fn(&T) -> K) {
    match list.binary_search_by(|known| key(known).cmp(&key(&item))) {
        Ok(index) => list[index] = item,
        Err(index) => list.insert(index, item),
    }
}

#[cfg(test)]
mod tests;
