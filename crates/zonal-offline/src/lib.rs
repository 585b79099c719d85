//! Works on the stores of a stopped cell, and compares what the servers of a running one say:
//! `zonal fsck`.
//!
//! [`check::check`] reads every store once, sorts what they say outside of memory ([`external_sort`]), has it
//! judged by the cores, and applies repairs through each store's own engine. Passes are repeated
//! until nothing is left that a repair helps. A running cell is behind [`running_cell::RunningCell`].
//! What an interrupted check of a stopped cell had come to is kept ([`Begin`]). Memory: two threads
//! with [`external_sort::RUN_BYTES`] each for two sorters, two bits a unit of the targets, 24 bytes a
//! directory.
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
pub use resume::{Begin, WORK_FOLDER};
pub use running_cell::{RUNNING_FOLDER, RunningCell, RunningOptions, check_running};
pub use scratch_folder::MADE;
