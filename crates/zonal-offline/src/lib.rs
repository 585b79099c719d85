//! Works on the stores of a stopped cell, and compares what the servers of a running one say:
//! `zonal fsck`.
//!
//! [`run::check`] reads every store once, sorts what they say outside of memory ([`sort`]), has it
//! judged by the cores, and applies repairs through each store's own engine. Passes are repeated
//! until nothing is left that a repair helps. A running cell is behind [`running::RunningCell`].
//! What an interrupted check of a stopped cell had come to is kept ([`Begin`]). Memory: two threads
//! with [`sort::RUN_BYTES`] each for two sorters, two bits a unit of the targets, 24 bytes a
//! directory.
#![forbid(unsafe_code)]

pub mod cell;
pub mod error;
mod facts;
mod pass;
mod paths;
mod repair_cell;
mod repair_shard;
mod repair_target;
mod resume;
pub mod run;
pub mod running;
mod scan;
mod scratch;
mod segments;
pub mod sort;

pub use cell::{Cell, Geometry, StoreSpec};
pub use error::OfflineError;
pub use resume::{Begin, WORK_FOLDER};
pub use run::{KEEP_EVERY, Options, Report, Stage, Summary, check};
pub use running::{RUNNING_FOLDER, RunningCell, RunningOptions, check_running};
pub use scratch::MADE;
