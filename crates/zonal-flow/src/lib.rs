//! A flow-level model of a data centre: bandwidth of programs over racks, links and disks. Files
//! get the placements and layouts of the file system itself.
//!
//! In the order of reading: `data_centre.rs` (links), `fair_rates.rs` (rates of flows),
//! `transfers.rs` (jobs and files as flows), `presets.rs` (published set-ups). Rates are bytes a
//! second, times are seconds. docs/datacenter-model.md has the assumptions.
//!
//! Frame by frame, and slower: `ports.rs` (queues), `tcp.rs` (windows of connections),
//! `network.rs` (calls), `request_windows.rs` (requests of a client), `frame_run.rs` (jobs).
#![forbid(unsafe_code)]

mod data_centre;
mod fair_rates;
mod frame_run;
mod network;
mod ports;
pub mod presets;
mod request_windows;
mod tcp;
mod transfers;

pub use data_centre::{DataCentre, ModelError, NODES_A_RACK_MAX};
pub use fair_rates::{FlowClass, FlowTimes, fair_rates, merged, run_flows};
pub use frame_run::{frame_times, runs_in_frames};
pub use ports::port_bounds;
pub use request_windows::READ_AHEAD_BYTES;
pub use transfers::{Architecture, Direction, Job, Workload, run_job};
