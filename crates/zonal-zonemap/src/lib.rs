//! The zone map: zones, nodes, targets, shards, partitions, stripe sets; junctions beside it; and
//! its manager as a value.
#![forbid(unsafe_code)]

pub mod change;
pub mod claim;
pub mod edit;
pub mod fetch;
pub mod junctions;
pub mod manager;
pub mod map;
pub mod stored;

pub use change::{Item, ItemKey, MapChange, Misfit};
pub use claim::{ShardVerdict, SlotClaim, SlotVerdict};
pub use edit::{EditError, MapEdit};
pub use fetch::{Fetch, FetchError};
pub use junctions::{Junction, JunctionChange, JunctionsHead};
pub use manager::{Manager, Planned};
pub use map::{
    Node, NodeState, PartitionRange, Shard, Slot, SlotState, StripeSet, Target, TargetState, Zone,
    ZoneMap,
};
pub use stored::Assembly;
