//! The metadata shard: a state machine that turns requests into effects.
//!
//! [`MetaShard`] takes a request, the time and a reader of its store, and returns an [`Outcome`].
//! That is a reply with the changes to log first, a wait, or a call to another shard. It does no
//! I/O. Keys and values are in `keys.rs`, `inode.rs` and `dentry.rs` (docs/on-disk-format.md,
//! "Shard"). Each operation is a file under `op/`.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

pub mod acl;
pub mod append;
pub mod check;
pub mod config;
mod deletions;
pub mod dentry;
pub mod describe;
mod dispatch;
mod durable_truncations;
pub mod events;
mod fences;
mod id_ranges;
pub mod inode;
mod inode_counts;
mod inode_records;
pub mod keys;
mod lease_grants;
pub mod leases;
pub mod locks;
mod moves;
mod op;
mod open_files;
pub mod outcome;
pub mod permission;
mod prefetch;
mod recent_removals;
pub mod repair;
pub mod restore;
pub mod root_mirror;
mod scope_cache;
mod session;
mod session_list;
mod session_requests;
pub mod shard;
pub mod shard_loads;
mod spare_partitions;
mod stripe_set_choice;
pub mod stripe_set_references;
mod tx;

pub use config::{Caller, Now, ShardConfig};
pub use durable_truncations::{DurableTruncations, FLUSHED_MAX};
pub use inode_counts::{inodes_of, missing_counts};
pub use moves::{Arrival, Departure, MoveRefusal, ownership_version, partitions_under_way};
pub use outcome::{
    Attempt, Deletion, Detached, JunctionChange, LostClient, Outcome, PendingCall, Ticked, WaitOn,
};
pub use prefetch::prefetch;
pub use root_mirror::{RootFetch, RootMirror, RootReply, RootRequest};
pub use shard::MetaShard;
pub use stripe_set_choice::layout_of_new_file;
