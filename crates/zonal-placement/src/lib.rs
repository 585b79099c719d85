//! Zones and nodes for jobs: near their data, least loaded first. Pure computation; callers bring
//! the time, the load and the bytes in each zone.
//!
//! * [`job_placer`] chooses a zone and nodes, and reserves them for a bounded time
//! * [`cost`] computes the bytes that cross uplinks for each zone that a job may run in
//! * [`reservations`] is the bounded table of reserved nodes
//! * [`job_table`] is the bounded table of jobs with their traffic
//! * [`change_log`] keeps the last changes for watchers
//! * [`junction_homes`] finds the home zone of a tree by its first-level directory
//! * [`mod@render`] formats an answer for MPI, Slurm, Kubernetes and YARN
//!
//! Invariants, held by the tests: an answer has distinct nodes of one zone. A standby node is
//! chosen only if no zone has enough others. A reservation ends at its time, or earlier if the
//! table is full.
#![forbid(unsafe_code)]

pub mod change_log;
pub mod cost;
pub mod job_placer;
pub mod job_table;
pub mod junction_homes;
pub mod render;
pub mod reservations;

pub use change_log::{ChangeLog, LogChanges, PlacementChange};
pub use cost::{UPLINK_WEIGHT, ZoneCost, costs, uplink_weight};
pub use job_placer::{
    JobError, JobPlacement, JobPlacer, JobPolicy, JobRequest, NodeLoad, ZoneLoad,
};
pub use job_table::{
    JOB_SILENCE_MS, JobState, JobTable, JobTableError, JobTraffic, KnownJob, StartedJob,
};
pub use junction_homes::JunctionHomes;
pub use render::{JobFormat, JobNode, render};
pub use reservations::{RESERVATION_MS_MAX, RESERVATIONS_MAX, Reservation, ReservationTable};
