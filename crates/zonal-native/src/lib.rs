//! A client of a cell that needs no kernel.
//!
//! [`Native`] connects to a cell and offers the operations of a mount, by paths. It looks names up
//! through symbolic links and `..`, opens files with positions, reads and writes them in parallel
//! on all targets of their zone. It takes locks, lists directories and reports the location of
//! bytes. A program that uses it and programs on mounts see the same files at once, under the same
//! rules (docs/semantics.md).
//!
//! # Users
//! Each call names a [`User`]; the shards decide what this user may do. An open file keeps the user
//! of its open.
//!
//! # Threads and forks
//! Everything may be used from many threads at once; a call runs on the thread that makes it. After
//! a fork the child's calls fail with [`Error::Forked`]: it must connect itself.
//!
//! # Errors
//! [`Error`] has the errno that a mount would give. Each open file gets the loss of an accepted
//! write: at its next write, at its close, and once at its next fsync.
//!
//! # Parts that a mount uses
//! [`RealNet`], [`background`] and [`lock_waiters`]: the client core's sockets, its threads, and
//! callers that wait for locks. A mount adds the kernel.

pub mod background;
mod block_on;
mod error;
mod file;
pub mod lock_waiters;
mod native;
mod open;
mod read_sink;
mod transport;
mod user;

pub use background::{Background, Listener, Signal};
pub use block_on::block_on;
pub use error::{ConnectError, Error};
pub use file::{Lock, LockKind, OpenFile, Wait, Whence};
pub use native::{ConnectOptions, Native, NewTime, ReadDir, ReadDirEntry, Restriped};
pub use open::OpenOptions;
pub use read_sink::ReadSink;
pub use transport::{RealNet, RealPending};
pub use user::User;
pub use zonal_client::data::Capacity;
pub use zonal_client::names::Located;
pub use zonal_net::{Credential, Identity, Role, Transport};
pub use zonal_types::{
    Attr, CellId, Credentials, ErrorCode, FileKind, Ino, NodeId, Timestamp, ZoneId,
};
