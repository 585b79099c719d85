//! The client core: the decisions of a mount, without a kernel and without sockets.
//!
//! [`Client`] is async code without a runtime, generic over [`Net`]. A mount drives it with futures
//! that are ready at once, the simulator with futures that wait for simulated messages.
//!
//! Operations that may wait are methods of [`ClientCall`]: the client at work for one operation,
//! with its [`OperationContext`].
#![forbid(unsafe_code)]

mod access_times;
pub mod append;
pub mod append_buffer;
pub mod attributes;
mod batch;
pub mod client;
pub mod complete_directories;
pub mod directories;
pub mod dirty_ranges;
pub mod events;
pub mod fallocate;
pub mod file;
pub mod file_table;
mod flush;
mod in_flight;
mod inline_cache;
mod inline_data;
pub mod kept_listings;
pub mod locate;
pub mod locks;
pub mod map;
pub mod names;
pub mod net;
pub mod open;
mod operation;
pub mod page_validity;
pub mod parent_attributes;
mod placement;
mod privileges;
pub mod read;
mod readdir_prefetch;
pub mod removed_attributes;
mod report;
pub mod run;
pub mod seek_and_copy;
mod send_window;
pub mod session;
mod silent_servers;
pub mod statfs;
mod storage;
pub mod sync;
mod tail_ownership;
mod target_sync;
pub mod truncate;
mod unsynced_changes;
mod unsynced_writes;
pub mod write;
mod write_failures;
pub mod xattrs;

pub use client::{Client, ClientOptions};
pub use events::{POLL_WAIT_MS, PolledEvents};
pub use fallocate::Reserve;
pub use file::File;
pub use locks::{LockOutcome, RequeuedLock};
pub use net::{Message, Net, NetFailure, ServerReply};
pub use operation::{Cancellation, ClientCall, OperationContext};
pub use run::Run;
pub use session::Link;
pub use write_failures::ReportedFailures;
