//! The client: what a mount decides, without a kernel and without sockets.
//!
//! [`Client`] is async code without a runtime, generic over [`Net`]: a mount drives it with futures
//! that are ready at once, the simulator with futures that wait for simulated messages.
//!
//! Whatever may wait is asked of a [`ClientCall`]: the client at work for one operation, with its
//! [`OperationContext`].
#![forbid(unsafe_code)]

mod ahead;
pub mod append;
pub mod attributes;
mod batch;
mod behind;
mod changes;
pub mod client;
pub mod directories;
pub mod dirty;
pub mod events;
mod failures;
pub mod file;
pub mod files;
mod flush;
pub mod fresh;
pub mod gathered;
pub mod ghosts;
mod inline;
pub mod known;
pub mod listed;
pub mod locate;
pub mod locks;
pub mod map;
pub mod names;
pub mod net;
pub mod opening;
mod operation;
mod places;
mod privileges;
pub mod read;
mod report;
pub mod reserve;
pub mod run;
pub mod seen;
mod sending;
pub mod session;
mod silence;
pub mod size;
mod small;
pub mod statfs;
mod storage;
pub mod sync;
mod syncing;
mod touches;
pub mod truncate;
mod under_way;
mod unsynced;
pub mod write;
pub mod xattrs;

pub use client::{Client, Options};
pub use events::{POLL_WAIT_MS, Polled};
pub use failures::Told;
pub use file::File;
pub use locks::{LockOutcome, QueuedAgain};
pub use net::{Message, Net, NetFailure, Reply};
pub use operation::{Cancellation, ClientCall, OperationContext};
pub use reserve::Reserve;
pub use run::Run;
pub use session::Link;
