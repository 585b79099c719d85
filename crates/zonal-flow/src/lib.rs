//! A flow-level model of a data centre: how fast programs read and write files over racks, links
//! and disks, with the placements and layouts of the file system itself.
//!
//! In the order of reading: [`DataCentre`] (racks, links, disks), [`Job`] (who reads or writes),
//! `transfers.rs` (over which links the bytes of a file go), [`fair_rates`], [`presets`]. Rates are
//! bytes a second, times are seconds. docs/datacenter-model.md has the assumptions.
#![forbid(unsafe_code)]

mod data_centre;
mod fair_rates;
pub mod presets;
mod transfers;

pub use data_centre::{DataCentre, ModelError, NODES_A_RACK_MAX};
pub use fair_rates::{FlowClass, FlowTimes, fair_rates, merged, run_flows};
pub use transfers::{Architecture, Direction, Job, Workload, run_job};
