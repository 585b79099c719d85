//! The mount process: the client core between the kernel's FUSE session and the network.

mod attribute_hints;
mod background;
mod caller;
mod conversions;
mod directories;
mod executables;
mod expiries;
mod fs;
mod gauges;
mod handle_errors;
mod handle_locks;
mod in_flight;
mod listing_cache;
mod mount;
mod name_cache;
mod open_invalidation;
mod ops_data;
mod ops_listing;
mod ops_locks;
mod ops_names;
mod ops_open;
mod ops_seek;
mod ops_write;
mod ops_xattr;
mod page_masks;
mod page_races;
mod page_tails;
mod root_listings;
#[cfg(debug_assertions)]
mod write_delay;
mod write_handles;

pub use fs::ZonalFs;
pub use mount::{MountConfig, MountStartError, Mounted};
pub use ops_xattr::{GAUGES, LOCATE, MKDIR};
