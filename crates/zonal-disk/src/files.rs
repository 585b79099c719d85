//! The lowest layer: the files of a store, their names, owners and flushes, and the errors of the
//! crate.
//!
//! Every change of an open store's files goes through [`StoreDir`] and its files.

pub mod disk;
pub mod error;
mod file_names;
pub(crate) mod group_commit;
pub mod identity;
pub mod power_loss;
mod recorder;
pub mod recording;
pub mod start_marks;
mod store_dir;
pub mod stream;
pub mod trusted_paths;

pub(crate) use file_names::{COPIES, FILES, INDEX, LOCK, LOG, SUMS, VOTE};
pub use store_dir::StoreDir;
pub(crate) use store_dir::{NO_LINK, StoreFile};
