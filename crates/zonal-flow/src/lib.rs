//! A flow-level model of a data centre: bandwidth of programs over racks, links and disks. Files
//! get the placements and layouts of the file system itself.
//!
//! In the order of reading: `data_centre.rs` (links), `fair_rates.rs` (rates of flows),
//! `transfers.rs` (jobs and files as flows), `presets.rs` (published set-ups). Rates are bytes a
//! second, times are seconds. docs/datacenter-model.md has the assumptions.
#![forbid(unsafe_code)]

mod data_centre;
mod fair_rates;
pub mod presets;
mod transfers;

pub use data_centre::{DataCentre, ModelError, NODES_A_RACK_MAX};
pub use fair_rates::{FlowClass, FlowTimes, fair_rates, merged, run_flows};
pub use transfers::{Architecture, Direction, Job, Workload, run_job};
