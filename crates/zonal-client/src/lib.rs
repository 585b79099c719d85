//! The client core: the decisions of a mount, without a kernel and without sockets.
//!
//! [`Client`] is async code without a runtime, generic over [`Net`]. A mount drives it with futures
//! that are ready at once, the simulator with futures that wait for simulated messages.
//!
//! Operations that may wait are methods of [`ClientCall`]: the client at work for one operation,
//! with its [`OperationContext`].
//!
//! Layers, each of which uses only itself and those above:
//!
//! 1. `transport`: what the core asks of its environment (`Net`), the context of an operation,
//!    which failures pass.
//! 2. `cell`: the zone map, sessions at shards, requests to shards and targets.
//! 3. `inode_cache`: all that attributes and names pass on the way to the kernel.
//! 4. `held_locks`: locks that this client holds, waits for and must release.
//! 5. `file`: the state of an open file: gathered bytes, failures, what is not durable.
//! 6. `client`: the state of a client, and what its sessions must know of it.
//! 7. `data`: reading, writing, appending, truncating, syncing.
//! 8. `names`: names, directories, attributes, opens, locks, events.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

pub mod cell;
pub mod client;
pub mod data;
mod file;
mod held_locks;
pub mod inode_cache;
pub mod names;
pub mod transport;

pub use cell::session::POLL_WAIT_MS;
pub use cell::{ClientOptions, Link};
pub use client::{Client, ClientCall};
pub use data::{Reserve, WRITE_WINDOW_BYTES};
pub use file::{File, ReportedFailures};
pub use names::{LockOutcome, PolledEvents, RequeuedLock};
pub use transport::{Cancellation, Message, Net, NetFailure, OperationContext, Run, ServerReply};
