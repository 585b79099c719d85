//! Reports a running job to the placement service, where there is one: its nodes count as loaded
//! meanwhile, and `zonal jobs` lists it with its bytes.
//!
//! The bytes are those that clients of the job's zones exchanged with targets while the job ran.
//! Other work in these zones counts as well.

use super::plan::JobPlan;
use crate::cell::connection::CellHandle;
use crate::cell::node_status::look_at_all;
use crate::console;
use crate::placement_client::{JobReporter, PlacementClient};
use std::collections::BTreeSet;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use zonal_placement::{JobState, JobTraffic};
use zonal_server::placement_service::JobStart;
use zonal_types::ZoneId;

/// How long a node is waited for that is asked for its traffic.
const DEADLINE: Duration = Duration::from_secs(2);

/// A job that is being reported.
pub struct ReportedJob {
    end: Sender<JobState>,
    thread: JoinHandle<()>,
}

impl ReportedJob {
    /// Begins to report; `None` without a service. A service that does not answer is noted once.
    pub fn begin(
        cell: CellHandle,
        service: Option<PlacementClient>,
        name: String,
        plan: &JobPlan,
    ) -> Option<Self> {
        let service = service?;
        let zones: BTreeSet<ZoneId> = plan.nodes.iter().map(|node| node.agent.zone).collect();
        let start = JobStart {
            name,
            user: rustix::process::getuid().as_raw().to_string(),
            zone: zones.first().copied().unwrap_or_default(),
            nodes: plan.nodes.iter().map(|node| node.agent.node).collect(),
            reservation: None,
            started_ms: 0,
        };
        let reporter = match JobReporter::start(service, start) {
            Ok(reporter) => reporter,
            Err(error) => {
                let error = error.failure();
                console::note(format_args!(
                    "zonal: the job is not in `zonal jobs`: {error}"
                ));
                return None;
            }
        };
        let (end, ended) = channel();
        let cell = cell.with_deadline(DEADLINE);
        let thread = std::thread::spawn(move || {
            let mut reporter = reporter;
            let before = traffic(&cell, &zones);
            let since = || {
                let (in_zone, cross_zone) = traffic(&cell, &zones);
                JobTraffic {
                    in_zone: in_zone.saturating_sub(before.0),
                    cross_zone: cross_zone.saturating_sub(before.1),
                }
            };
            // Failures of the service never fail the job.
            loop {
                match ended.recv_timeout(JobReporter::INTERVAL) {
                    Err(RecvTimeoutError::Timeout) => drop(reporter.report(since())),
                    Ok(state) => return drop(reporter.end(state, since())),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Some(Self { end, thread })
    }

    /// Reports the end.
    pub fn end(self, is_done: bool) {
        let state = match is_done {
            true => JobState::Done,
            false => JobState::Failed,
        };
        if self.end.send(state).is_ok() {
            let _ = self.thread.join();
        }
    }
}

/// Bytes of clients of these zones so far, at targets of their own zone and of others.
fn traffic(cell: &CellHandle, zones: &BTreeSet<ZoneId>) -> (u64, u64) {
    let (mut in_zone, mut cross_zone) = (0_u64, 0_u64);
    let Ok(map) = cell.map() else {
        return (0, 0);
    };
    for (node, seen) in map.nodes.iter().zip(look_at_all(cell, &map)) {
        let counts = seen.activity.iter().flat_map(|activity| &activity.clients);
        for counts in counts.filter(|counts| zones.contains(&counts.zone)) {
            let sum = match counts.zone == node.zone {
                true => &mut in_zone,
                false => &mut cross_zone,
            };
            // The numbers come from servers.
            *sum = sum
                .saturating_add(counts.read)
                .saturating_add(counts.written);
        }
    }
    (in_zone, cross_zone)
}
