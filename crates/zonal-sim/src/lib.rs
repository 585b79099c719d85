//! A cell on one thread, from one seed: virtual clock, bad network, crashing processes, failing
//! power, and checkers.
//!
//! [`run`] builds the cores' cell ([`world`]), lets programs run ([`workload`]) while faults are
//! injected ([`fault`]), lifts the faults, waits until the cell is quiet, and checks ([`checker`]).
//! Everything depends on the seed alone: the same seed gives the same trace.
#![forbid(unsafe_code)]

pub mod batch;
pub mod cast;
pub mod checker;
pub mod clock;
pub mod coverage;
pub mod disk;
pub mod fault;
mod marks;
pub mod meta_node;
pub mod net;
pub mod plant;
pub mod report;
pub mod rng;
pub mod scenario;
pub mod skew;
pub mod storage_node;
pub mod workload;
pub mod world;

pub use batch::{Summary, run_batch};
pub use plant::Plant;
pub use report::Report;
pub use scenario::{Options, Scenario, run};
