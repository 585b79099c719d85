//! Simulates a cell on one thread, from one seed: virtual clock, bad network, crashing processes,
//! failing power, and checkers.
//!
//! [`run`] builds a cell of the cores ([`world`]) and runs programs ([`workload`]) while it injects
//! faults ([`fault`]). Then it lifts the faults, waits until the cell is quiet, and checks it
//! ([`checker`]). A run depends on the seed alone: the same seed gives the same trace.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    reason = "numbers of a simulated run are small and come from its seed"
)]

pub mod batch;
pub mod checker;
pub mod clock;
pub mod clock_skew;
pub mod coverage;
mod coverage_marks;
pub mod disk;
pub mod drains;
pub mod fault;
pub mod member_disk;
pub mod meta_node;
pub mod moves;
pub mod net;
pub mod planted_bugs;
pub mod program_set;
pub mod replica_node;
pub mod report;
pub mod restripes;
pub mod rng;
pub mod scenario;
pub mod storage_node;
pub mod workload;
pub mod world;

pub use batch::{BatchSummary, run_batch};
pub use planted_bugs::Plant;
pub use report::RunReport;
pub use scenario::{RunOptions, Scenario, run};
