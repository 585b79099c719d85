//! A cell by paths, for programs: the operations of a mount, without a kernel.
//!
//! [`Native`] is a connection. It is safe to use from many threads; each call runs on the thread
//! that makes it.

mod attributes;
mod connect;
mod listing;
mod names;
mod restripe;
mod walk;

pub use attributes::NewTime;
pub(crate) use connect::{Call, GrantSender, Inner, ask, granted};
pub use connect::{ConnectOptions, Native};
pub use listing::{ReadDir, ReadDirEntry};
pub use restripe::Restriped;
pub(crate) use walk::{PathTarget, find_or_place};
