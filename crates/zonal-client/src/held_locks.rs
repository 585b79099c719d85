//! Held locks: what this client holds, waits for and must still release, for a restart of a shard.

mod lock_table;
mod releases;
mod state;

pub(crate) use lock_table::{Owner, owner_of};
pub(crate) use releases::{ClosedOwner, LATE_RELEASES_MAX, PendingRelease};
pub(crate) use state::{LockState, WaitingRequest};
