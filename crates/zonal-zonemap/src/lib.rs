//! The zone map: zones, nodes, targets, shards, partitions, stripe sets, junctions.
#![forbid(unsafe_code)]

pub mod claim;
pub mod edit;
pub mod map;

pub use claim::{ShardVerdict, SlotClaim, SlotVerdict};
pub use edit::{EditError, MapEdit};
pub use map::{
    Junction, Node, NodeState, PartitionRange, Shard, Slot, SlotState, StripeSet, Target,
    TargetState, Zone, ZoneMap,
};
