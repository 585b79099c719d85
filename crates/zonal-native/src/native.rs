//! A cell by paths, for programs: what a mount does, without a kernel.
//!
//! [`Native`] is a connection. It is safe to use from many threads; each call runs on the thread
//! that makes it.

mod attributes;
mod connect;
mod listing;
mod names;
mod walk;

pub use attributes::NewTime;
pub(crate) use connect::{Call, Granted, Inner, ask, granted};
pub use connect::{Native, Options};
pub use listing::{DirEntry, ReadDir};
pub(crate) use walk::{Last, find_or_place};
