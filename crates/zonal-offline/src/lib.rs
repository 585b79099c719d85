//! `zonal fsck`: checks and repairs the stores of a stopped cell, and compares the servers of a
//! running one.
//!
//! [`check::check`] reads every store once and sorts the facts outside of memory
//! ([`external_sort`]). The cores judge the facts; repairs go through each store's own engine.
//! Passes are repeated until no finding is left that a repair can help. A running cell is checked
//! through [`running_cell::RunningCell`]. An interrupted check of a stopped cell can be resumed
//! ([`CheckStart`]).
//!
//! Memory: two threads with [`external_sort::RUN_BYTES`] for each of two sorters, two bits a unit
//! of the targets, 24 bytes a directory.
#![forbid(unsafe_code)]

pub mod cell;
pub mod check;
pub mod error;
pub mod external_sort;
mod facts;
mod pass;
mod paths;
mod repair_cell;
mod repair_shard;
mod repair_target;
mod resume;
pub mod running_cell;
mod scratch_folder;
mod segments;
mod store_scan;

pub use cell::{CellStores, Geometry, StoreSpec};
pub use check::{CheckOptions, CheckProgress, CheckReporter, CheckSummary, KEEP_EVERY, check};
pub use error::OfflineError;
pub use resume::{CheckStart, WORK_FOLDER};
pub use running_cell::{RUNNING_FOLDER, RunningCell, RunningOptions, check_running};
pub use scratch_folder::MADE;
