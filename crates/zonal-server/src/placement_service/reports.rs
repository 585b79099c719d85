//! Reports of jobs by their starters, and changes for watchers.

use super::messages::{ChangesAnswer, JobAnswer, JobEntry, JobStart, JobsAnswer, WatchedChange};
use super::{PlacementService, RefusalKind, ServiceRefusal, calendar_ms, check_zones, now_ms};
use zonal_placement::{
    JOB_SILENCE_MS, JobState, JobTableError, JobTraffic, LogChanges, PlacementChange, StartedJob,
};
use zonal_types::ZoneId;
use zonal_wire::ManagerRequest;

/// How far ahead a starter's clock may be: a day.
const CLOCK_DIFFERENCE_MS: u64 = 86_400_000;

fn refusal(error: &JobTableError) -> ServiceRefusal {
    let kind = match error {
        JobTableError::NotRunning(_) => RefusalKind::Missing,
        JobTableError::Full => RefusalKind::Unavailable,
        JobTableError::NameTooLong { .. } | JobTableError::TooManyNodes { .. } => {
            RefusalKind::Invalid
        }
    };
    ServiceRefusal::new(kind, error.to_string())
}

impl PlacementService {
    /// Records a job that begins. Its nodes count as loaded until it ends.
    ///
    /// # Errors
    /// Where the reservation has ended and no nodes are named, or the table is full.
    pub fn start_job(&self, mut start: JobStart) -> Result<JobAnswer, ServiceRefusal> {
        self.with_state(|map, state| {
            // The table may refuse the job: then the reservation stays.
            if let Some(id) = start.reservation
                && start.nodes.is_empty()
            {
                let reserved = state.placer.reservations().get(id).ok_or_else(|| {
                    let text = format!("there is no reservation {id}: name zone and nodes");
                    ServiceRefusal::new(RefusalKind::Missing, text)
                })?;
                (start.zone, start.nodes) = (reserved.zone, reserved.nodes.clone());
            }
            if start.zone == ZoneId(0) || start.nodes.is_empty() {
                let text = "a job has a zone and nodes, or a reservation";
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
            check_zones(map, [start.zone].iter())?;
            if let Some(node) = start.nodes.iter().find(|node| map.node(**node).is_none()) {
                let text = format!("there is no node {node}");
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
            if start.started_ms > calendar_ms().saturating_add(CLOCK_DIFFERENCE_MS) {
                let text = "started_ms is later than now";
                return Err(ServiceRefusal::new(RefusalKind::Invalid, text));
            }
            let started = StartedJob {
                name: start.name,
                user: start.user,
                zone: start.zone,
                nodes: start.nodes.clone(),
                started_ms: match start.started_ms {
                    0 => calendar_ms(),
                    given => given,
                },
            };
            let recorded = state.jobs.start(started, now_ms());
            let job = recorded.map_err(|error| refusal(&error))?;
            if let Some(id) = start.reservation {
                state.release(id);
            }
            state.placer.count_job(&start.nodes, 1);
            state.log.add(PlacementChange::JobStarted(start.zone, job));
            Ok(JobAnswer {
                job,
                silence_ms: JOB_SILENCE_MS,
            })
        })
    }

    /// Notes that a job's starter reports it.
    ///
    /// # Errors
    /// Where the job does not run.
    pub fn report_job(&self, job: u64, traffic: JobTraffic) -> Result<JobAnswer, ServiceRefusal> {
        let noted = self.with_state(|_, state| state.jobs.report(job, traffic, now_ms()));
        noted.map_err(|error| refusal(&error))?;
        Ok(JobAnswer {
            job,
            silence_ms: JOB_SILENCE_MS,
        })
    }

    /// Ends a job.
    ///
    /// # Errors
    /// Where the job does not run.
    pub fn end_job(
        &self,
        job: u64,
        has_failed: bool,
        traffic: JobTraffic,
    ) -> Result<JobAnswer, ServiceRefusal> {
        let state_at_end = match has_failed {
            true => JobState::Failed,
            false => JobState::Done,
        };
        self.with_state(|_, state| {
            let ended = state.jobs.end(job, (state_at_end, traffic), calendar_ms());
            let nodes = ended.map_err(|error| refusal(&error))?;
            state.placer.count_job(&nodes, -1);
            state.log.add(PlacementChange::JobEnded(job));
            Ok(JobAnswer { job, silence_ms: 0 })
        })
    }

    /// The recorded jobs.
    #[must_use]
    pub fn jobs(&self) -> JobsAnswer {
        self.with_state(|_, state| JobsAnswer {
            running: state.jobs.running_count(),
            jobs: state
                .jobs
                .iter()
                .map(|job| JobEntry {
                    job: job.id,
                    name: job.start.name.clone(),
                    user: job.start.user.clone(),
                    zone: job.start.zone.0,
                    nodes: job.nodes,
                    state: job.state.name().to_owned(),
                    started_ms: job.start.started_ms,
                    ended_ms: job.ended_ms,
                    in_zone_bytes: job.traffic.in_zone,
                    cross_zone_bytes: job.traffic.cross_zone,
                    in_zone_per_mille: job.traffic.in_zone_per_mille(),
                })
                .collect(),
        })
    }

    /// The newest version for watchers. Looks at the map, the junctions and the time.
    #[must_use]
    pub fn version(&self) -> u64 {
        let listed = self.junctions(ManagerRequest::Junctions {
            after: None,
            entries: 0,
        });
        self.with_state(|_, state| {
            if let Ok((_, _, version)) = listed
                && let Some(before) = state.junctions_version.replace(version)
                && before != version
            {
                state.log.add(PlacementChange::Junctions);
            }
            state.log.version()
        })
    }

    /// Changes behind a version; `None` where there is nothing new. Without a version the newest
    /// one is returned at once.
    #[must_use]
    pub fn changes(&self, since: Option<u64>) -> Option<ChangesAnswer> {
        let version = self.version();
        let Some(since) = since else {
            return Some(ChangesAnswer {
                version,
                is_complete: true,
                changes: Vec::new(),
            });
        };
        let found = self.with_state(|_, state| state.log.since(since))?;
        Some(watch_answer(&found))
    }
}

fn watch_answer(found: &LogChanges) -> ChangesAnswer {
    let changes = found.changes.iter().map(|(version, change)| {
        use PlacementChange as C;
        let (kind, change, zone, id) = match *change {
            C::ZoneAdded(zone) => ("zone", "added", zone, 0),
            C::ZoneRemoved(zone) => ("zone", "removed", zone, 0),
            C::NodeAdded(zone, node) => ("node", "added", zone, u64::from(node.0)),
            C::NodeRemoved(zone, node) => ("node", "removed", zone, u64::from(node.0)),
            C::Junctions => ("junctions", "changed", ZoneId(0), 0),
            C::Reserved(zone, id) => ("reservation", "added", zone, id),
            C::Released(zone, id) => ("reservation", "removed", zone, id),
            C::JobStarted(zone, id) => ("job", "added", zone, id),
            C::JobEnded(id) => ("job", "removed", ZoneId(0), id),
        };
        WatchedChange {
            version: *version,
            kind: kind.to_owned(),
            change: change.to_owned(),
            zone: zone.0,
            id,
        }
    });
    ChangesAnswer {
        version: found.version,
        is_complete: found.is_complete,
        changes: changes.collect(),
    }
}
