//! Reports one job from its start to its end.
//!
//! A reporter outlives restarts of the manager, which forgets jobs: where the job is unknown it
//! starts it anew. Failures of the service never fail the job; the caller may note them.

use super::{PlacementClient, ServiceError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zonal_placement::{JOB_SILENCE_MS, JobState, JobTraffic};
use zonal_server::placement_service::JobStart;

/// Reports one job.
#[derive(Debug)]
pub struct JobReporter {
    client: PlacementClient,
    start: JobStart,
    job: u64,
}

impl JobReporter {
    /// Time between two reports: a third of the silence after which the job is lost.
    pub const INTERVAL: Duration = Duration::from_millis(JOB_SILENCE_MS / 3);

    /// Reports that the job begins. `start` names zone and nodes, so that it can be reported anew.
    pub fn start(client: PlacementClient, mut start: JobStart) -> Result<Self, ServiceError> {
        let job = client.start_job(&start)?.job;
        // It is used up.
        start.reservation = None;
        if start.started_ms == 0 {
            // A service that was started anew does not know it.
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let since = since.map_or(0, |since| since.as_millis());
            start.started_ms = u64::try_from(since).unwrap_or_default();
        }
        Ok(Self { client, start, job })
    }

    /// Reports the traffic so far, at least each [`Self::INTERVAL`].
    pub fn report(&mut self, traffic: JobTraffic) -> Result<(), ServiceError> {
        match self.client.report_job(self.job, traffic) {
            Err(ServiceError::Refused { code: 404, .. }) => {
                self.job = self.client.start_job(&self.start)?.job;
                self.client.report_job(self.job, traffic).map(drop)
            }
            reported => reported.map(drop),
        }
    }

    /// Reports the end.
    pub fn end(mut self, state: JobState, traffic: JobTraffic) -> Result<(), ServiceError> {
        match self.client.end_job(self.job, state, traffic) {
            Err(ServiceError::Refused { code: 404, .. }) => {
                self.job = self.client.start_job(&self.start)?.job;
                self.client.end_job(self.job, state, traffic).map(drop)
            }
            ended => ended.map(drop),
        }
    }
}
