//! The mount process: the client core between the kernel's FUSE session and the network.

mod background;
mod caller;
mod callers;
mod convert;
mod crossings;
mod directories;
mod executed;
mod expiries;
mod fs;
mod gauges;
mod handle_locks;
mod hints;
#[cfg(debug_assertions)]
mod late_writes;
mod listings;
mod masks;
mod mount;
mod names;
mod opening;
mod ops_data;
mod ops_listing;
mod ops_locks;
mod ops_names;
mod ops_open;
mod ops_seek;
mod ops_write;
mod ops_xattr;
mod tails;
mod told;
mod writers;

pub use fs::ZonalFs;
pub use mount::{MountConfig, Mounted, StartError};
pub use ops_xattr::{GAUGES, LOCATE, MKDIR};
