//! Drivers: the code between a core and its disk, written once.
//!
//! A core ([`zonal_meta::Shard`], [`zonal_object::StorageTarget`]) decides; a driver carries the decision
//! out: what is logged and flushed, which calls are made, who waits for what, and when the reply
//! leaves. A driver does no I/O of its own, reads no clock and draws no randomness. It asks its
//! *host*, of which there are two: the server (threads, files, sockets) and the simulator (one
//! thread, simulated disks and messages). So what is simulated is what runs.
//!
//! Drivers are async code without a runtime, as the client core is. A host whose calls block
//! returns futures that are ready when they are first polled ([`at_once`]); then a request runs to
//! its reply on the thread that received it. Only a request that waits for another client (a
//! recall, a lock, an event) is pending, and costs no thread meanwhile.
#![forbid(unsafe_code)]

mod race;
mod ready;
pub mod shard;
pub mod storage;

pub use race::either;
pub use ready::{NotReady, at_once};
pub use shard::{Pace, ShardDriver, ShardHost, ShardParts};
