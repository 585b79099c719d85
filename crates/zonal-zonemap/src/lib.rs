//! The zone map: zones, nodes, targets, shards, partitions, stripe sets; junctions beside it; and
//! the manager that keeps them, as a value without I/O.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

pub mod change;
pub mod edit;
pub mod epoch_check;
pub mod fetch;
pub mod junctions;
pub mod known_leader;
pub mod known_manager;
pub mod manager;
pub mod map;
pub mod map_records;
pub mod subnets;
pub mod watch;

pub use change::{ChangeMismatch, Item, ItemKey, MapChange};
pub use edit::{EditError, MapEdit};
pub use epoch_check::{ShardVerdict, SlotClaim, SlotVerdict};
pub use fetch::{Fetch, FetchError};
pub use junctions::{Junction, JunctionChange, JunctionsHead};
pub use known_leader::{KnownLeader, KnownLeaders, ReplicaAttempts};
pub use known_manager::KnownManager;
pub use manager::{Manager, PlannedChange};
pub use map::{
    Node, NodeState, PartitionRange, Shard, Slot, SlotState, StripeSet, Target, TargetState, Zone,
    ZoneMap,
};
pub use map_records::Assembly;
pub use subnets::{Subnet, SubnetEntry, SubnetError, SubnetTable, SubnetTableError, ZoneReference};
