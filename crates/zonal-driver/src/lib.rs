//! Drivers: the code between a core and its disk, written once.
//!
//! A core ([`zonal_meta::MetaShard`], [`zonal_object::StorageTarget`]) decides; a driver carries
//! the decision out. The driver logs and flushes, calls other servers, parks requests that must
//! wait, and says when a reply may leave. It does no I/O of its own, reads no clock and draws no
//! randomness: it asks its *host*. There are two hosts: the server (threads, files, sockets) and
//! the simulator (one thread, simulated disks and messages). So the simulator runs the code that
//! the server runs.
//!
//! Drivers are async code without a runtime, as the client core is. A host whose calls block
//! returns futures that are ready when first polled ([`at_once`]). Then a request runs to its reply
//! on the thread that received it. Only a request that waits for another client (a recall, a lock,
//! an event) is pending, and it costs no thread meanwhile.
#![forbid(unsafe_code)]

pub mod drain;
mod joined_futures;
mod ready_future;
pub mod replica;
pub mod shard;
pub mod storage;

pub use joined_futures::either;
pub use ready_future::{NotReady, at_once};
pub use replica::{ReplicaDriver, ReplicaEnd, ReplicaHost, ReplicaStatus};
pub use shard::{ShardDriver, ShardHost, ShardPace, ShardParts};
