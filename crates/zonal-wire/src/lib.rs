//! Frames and messages between clients, managers, shards and targets.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

pub mod activity;
pub mod admin;
pub mod agent;
pub mod frame;
pub mod lease;
pub mod lock_ranges;
pub mod manager;
pub mod meta;
pub mod moves;
pub mod node_states;
pub mod replica;
pub mod storage;

pub use activity::{
    ClientTraffic, ClientZoneTraffic, DirectoryTraffic, DirectoryTrafficTable, NodeActivity,
    OperationTimes,
};
pub use admin::{
    AdminReply, AdminRequest, Damaged, ObjectEntry, RoleHealth, ScrubOf, ScrubReport, ScrubState,
    SessionEntry,
};
pub use agent::{AgentReply, AgentRequest, JobCommand, OutputStream, RankEvent, RankStatus};
pub use frame::{HEADER_BYTES, Header, NO_SLOT, Service};
pub use lease::{LeaseGrant, LeaseKind};
pub use lock_ranges::{LockRanges, RangeOrigin};
pub use manager::{
    DrainStatus, JoinTarget, JoinTokenStatus, JoinTokenTerms, Junction, ManagerReply,
    ManagerRequest, StartMark, StoreStart, SubnetZone,
};
pub use meta::{
    AppendPlace, AttrChange, DirAfter, DirEntry, Entry, Event, LockKind, LockRange, MetaReply,
    MetaRequest, NewKind, RelocationPlan, SetTime, TargetRoom,
};
pub use moves::{MoveStage, MoveStatus, MovedEntry};
pub use node_states::{
    CellChange, CellEvent, KnownState, NodeState, Sighting, StateCause, Suspicion,
};
pub use replica::{ReplicaPart, ReplicaReply, ReplicaReport, ReplicaRequest};
pub use storage::{ErrorNumber, ObjectRef, StorageReply, StorageRequest};
