//! The metadata shard: a state machine that turns requests into effects.
//!
//! [`Shard`] takes a request, the time and a reader of its store, and returns an [`Outcome`]: a
//! reply with the changes to log first, a wait, or a question to another shard. It does no I/O.
//! Keys and values are in `keys.rs`, `inode.rs` and `dentry.rs` (docs/on-disk-format.md, "Shard");
//! each operation is a file under `op/`.
#![forbid(unsafe_code)]

pub mod acl;
pub mod append;
mod caching;
mod census;
pub mod check;
pub mod config;
mod deletions;
pub mod dentry;
pub mod describe;
mod dispatch;
pub mod events;
mod fencing;
mod flushed;
mod ids;
pub mod inode;
pub mod keys;
pub mod leases;
pub mod locks;
pub mod named_sets;
mod op;
mod opens;
pub mod outcome;
pub mod permission;
mod prefetch;
mod recent;
mod records;
pub mod repair;
pub mod restore;
mod scope;
mod session;
mod sets;
pub mod shard;
mod tx;
mod volatile;

pub use config::{Caller, Now, ShardConfig};
pub use flushed::{FLUSHED_MAX, Flushed};
pub use outcome::{
    Attempt, Deletion, Detached, JunctionChange, Outcome, PendingCall, Ticked, WaitOn,
};
pub use prefetch::prefetch;
pub use shard::Shard;
