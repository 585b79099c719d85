//! The table of jobs: who runs where, and how much of their traffic stayed in their zone.
//!
//! A job's starter reports it at its start, at intervals, and at its end. A job whose starter is
//! silent for [`JOB_SILENCE_MS`] is lost: it no longer counts as load.
//!
//! Invariants, held by the tests: the table has at most [`JOBS_MAX`] jobs. A new job displaces the
//! oldest that has ended, never one that runs. Each job that leaves the running ones is given to
//! the caller once, with its nodes.

use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use zonal_types::{NodeId, ZoneId};

/// Most jobs that are kept, running and ended.
pub const JOBS_MAX: usize = 4_096;

/// Most nodes of one job.
pub const JOB_NODES_MAX: usize = 4_096;

/// Bytes of a job's name, and of its user's.
pub const JOB_NAME_BYTES_MAX: usize = 255;

/// Silence of a starter after which its job is lost.
pub const JOB_SILENCE_MS: u64 = 60_000;

/// State of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Its starter reports it.
    Running,
    /// It ended, and its starter reported success.
    Done,
    /// It ended, and its starter reported a failure.
    Failed,
    /// Its starter became silent.
    Lost,
}

impl JobState {
    /// Its name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// Bytes that a job read and wrote so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobTraffic {
    /// In the job's zone.
    pub in_zone: u64,
    /// To and from other zones.
    pub cross_zone: u64,
}

impl JobTraffic {
    /// The part that stayed in the zone, in thousandths; `None` without traffic.
    #[must_use]
    pub fn in_zone_per_mille(&self) -> Option<u64> {
        let all = u128::from(self.in_zone) + u128::from(self.cross_zone);
        let part = (u128::from(self.in_zone) * 1_000).checked_div(all)?;
        u64::try_from(part).ok()
    }
}

/// A job as its starter reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedJob {
    /// Its name.
    pub name: String,
    /// Name of its user.
    pub user: String,
    /// The zone of its nodes.
    pub zone: ZoneId,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
    /// Calendar time of its start, in milliseconds since 1970.
    pub started_ms: u64,
}

/// A job of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownJob {
    /// Its number.
    pub id: u64,
    /// Its start.
    pub start: StartedJob,
    /// How many nodes it has or had; of an ended job the list of nodes is empty.
    pub nodes: usize,
    /// Its state.
    pub state: JobState,
    /// Its traffic.
    pub traffic: JobTraffic,
    /// Calendar time of its end, in milliseconds since 1970; 0 while it runs.
    pub ended_ms: u64,
    /// When its starter was last heard, by the clock of deadlines.
    heard_ms: u64,
}

/// Why a report of a job is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JobTableError {
    /// The job is unknown, or it has ended.
    #[error("there is no running job {0}: it has ended, was silent for too long, or is forgotten")]
    NotRunning(u64),
    /// All jobs of a full table run.
    #[error("{JOBS_MAX} jobs run: no more are recorded")]
    Full,
    /// A name is too long.
    #[error("a name of {bytes} bytes is too long: at most {JOB_NAME_BYTES_MAX}")]
    NameTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The job has too many nodes.
    #[error("a job of {nodes} nodes is too large: at most {JOB_NODES_MAX} are recorded")]
    TooManyNodes {
        /// Its nodes.
        nodes: usize,
    },
}

/// All jobs by number.
#[derive(Debug)]
pub struct JobTable {
    jobs: BTreeMap<u64, KnownJob>,
    /// Running jobs by the time when their starter was last heard.
    heard: BTreeSet<(u64, u64)>,
    last_id: u64,
}

impl JobTable {
    /// Makes an empty table whose first job gets the number behind `last_id`.
    #[must_use]
    pub fn new(last_id: u64) -> Self {
        Self {
            jobs: BTreeMap::new(),
            heard: BTreeSet::new(),
            last_id,
        }
    }

    /// Adds a job; returns its number.
    ///
    /// # Errors
    /// Where the report is too large, or all jobs of a full table run.
    pub fn start(&mut self, start: StartedJob, now_ms: u64) -> Result<u64, JobTableError> {
        if let Some(long) = [&start.name, &start.user]
            .into_iter()
            .find(|name| name.len() > JOB_NAME_BYTES_MAX)
        {
            return Err(JobTableError::NameTooLong { bytes: long.len() });
        }
        let nodes = start.nodes.len();
        if nodes > JOB_NODES_MAX {
            return Err(JobTableError::TooManyNodes { nodes });
        }
        if self.jobs.len() >= JOBS_MAX {
            let mut jobs = self.jobs.values();
            let ended = jobs.find(|job| job.state != JobState::Running);
            let oldest = ended.map(|job| job.id).ok_or(JobTableError::Full)?;
            self.jobs.remove(&oldest);
        }
        self.last_id += 1;
        let id = self.last_id;
        let job = KnownJob {
            id,
            start,
            nodes,
            state: JobState::Running,
            traffic: JobTraffic::default(),
            ended_ms: 0,
            heard_ms: now_ms,
        };
        self.jobs.insert(id, job);
        self.heard.insert((now_ms, id));
        Ok(id)
    }

    /// Notes that a running job's starter reports it.
    ///
    /// # Errors
    /// Where the job does not run.
    pub fn report(
        &mut self,
        id: u64,
        traffic: JobTraffic,
        now_ms: u64,
    ) -> Result<(), JobTableError> {
        let job = self.running(id)?;
        job.traffic = traffic;
        let before = std::mem::replace(&mut job.heard_ms, now_ms);
        self.heard.remove(&(before, id));
        self.heard.insert((now_ms, id));
        Ok(())
    }

    /// Ends a running job; returns its nodes. `ended_ms` is calendar time.
    ///
    /// # Errors
    /// Where the job does not run.
    pub fn end(
        &mut self,
        id: u64,
        (state, traffic): (JobState, JobTraffic),
        ended_ms: u64,
    ) -> Result<Vec<NodeId>, JobTableError> {
        let job = self.running(id)?;
        job.state = state;
        job.traffic = traffic;
        job.ended_ms = ended_ms;
        let (heard_ms, nodes) = (job.heard_ms, std::mem::take(&mut job.start.nodes));
        self.heard.remove(&(heard_ms, id));
        Ok(nodes)
    }

    /// Marks one job as lost whose starter was silent for too long; returns its number and nodes.
    pub fn pop_silent(&mut self, now_ms: u64, ended_ms: u64) -> Option<(u64, Vec<NodeId>)> {
        let (heard_ms, id) = *self.heard.first()?;
        if now_ms < heard_ms.saturating_add(JOB_SILENCE_MS) {
            return None;
        }
        let traffic = self.jobs.get(&id)?.traffic;
        let nodes = self.end(id, (JobState::Lost, traffic), ended_ms).ok()?;
        Some((id, nodes))
    }

    /// All jobs, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &KnownJob> {
        self.jobs.values()
    }

    /// How many jobs run.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.heard.len()
    }

    fn running(&mut self, id: u64) -> Result<&mut KnownJob, JobTableError> {
        let job = self.jobs.get_mut(&id);
        job.filter(|job| job.state == JobState::Running)
            .ok_or(JobTableError::NotRunning(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str) -> StartedJob {
        StartedJob {
            name: name.to_owned(),
            user: "user".to_owned(),
            zone: ZoneId(1),
            nodes: vec![NodeId(7)],
            started_ms: 5,
        }
    }

    #[test]
    fn a_job_ends_once_and_gives_its_nodes_back() {
        let mut table = JobTable::new(40);
        let id = table.start(job("a"), 0).unwrap();
        assert_eq!((id, table.running_count()), (41, 1));
        let traffic = JobTraffic {
            in_zone: 9,
            cross_zone: 1,
        };
        assert_eq!(traffic.in_zone_per_mille(), Some(900));
        assert_eq!(JobTraffic::default().in_zone_per_mille(), None);
        table.report(id, traffic, 10).unwrap();
        let ended = table.end(id, (JobState::Done, traffic), 77).unwrap();
        assert_eq!(ended, [NodeId(7)]);
        assert_eq!(
            table.end(id, (JobState::Done, traffic), 78),
            Err(JobTableError::NotRunning(id))
        );
        let kept = table.iter().next().unwrap();
        assert_eq!((kept.nodes, kept.ended_ms, kept.traffic), (1, 77, traffic));
        assert_eq!(table.running_count(), 0);
    }

    #[test]
    fn a_job_is_lost_when_its_starter_is_silent() {
        let mut table = JobTable::new(0);
        let silent = table.start(job("silent"), 0).unwrap();
        let heard = table.start(job("heard"), 0).unwrap();
        let none = JobTraffic::default();
        table.report(heard, none, 10).unwrap();
        assert_eq!(table.pop_silent(JOB_SILENCE_MS - 1, 99), None);
        let lost = table.pop_silent(JOB_SILENCE_MS, 99);
        assert_eq!(lost, Some((silent, vec![NodeId(7)])));
        assert_eq!(table.pop_silent(JOB_SILENCE_MS, 99), None);
        assert!(table.report(silent, none, JOB_SILENCE_MS).is_err());
        let states: Vec<JobState> = table.iter().map(|job| job.state).collect();
        assert_eq!(states, [JobState::Lost, JobState::Running]);
    }

    #[test]
    fn a_full_table_forgets_the_oldest_ended_job_and_no_running_one() {
        let mut table = JobTable::new(0);
        for _ in 0..JOBS_MAX {
            table.start(job("a"), 0).unwrap();
        }
        assert_eq!(table.start(job("b"), 0), Err(JobTableError::Full));
        let none = JobTraffic::default();
        table.end(5, (JobState::Failed, none), 1).unwrap();
        table.end(3, (JobState::Done, none), 2).unwrap();
        table.start(job("b"), 0).unwrap();
        assert!(table.iter().all(|job| job.id != 3));
        assert!(table.iter().any(|job| job.id == 5));
        assert_eq!(table.iter().count(), JOBS_MAX);
    }

    #[test]
    fn a_report_that_is_too_large_is_refused() {
        let mut table = JobTable::new(0);
        let mut large = job(&"a".repeat(JOB_NAME_BYTES_MAX + 1));
        let refused = table.start(large.clone(), 0).unwrap_err();
        assert_eq!(refused, JobTableError::NameTooLong { bytes: 256 });
        large.name.clear();
        large.nodes = vec![NodeId(1); JOB_NODES_MAX + 1];
        let refused = table.start(large, 0).unwrap_err();
        assert!(matches!(refused, JobTableError::TooManyNodes { .. }));
    }
}
