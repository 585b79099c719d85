//! Jobs of an agent as a value: their owners, ranks, buffered output and terms. No I/O, no clock.
//!
//! *Invariants*:
//! 1. A job answers only the owner that started it.
//! 2. Buffered output of a rank is at most [`AGENT_OUTPUT_BYTES_MAX`] and one read; past it the
//!    rank's pipes are not read.
//! 3. A job that is not polled for [`AGENT_TERM_MS`] is ending. An ending job is forgotten with the
//!    end of its last rank.
//! 4. A rank has one end, and it is its last event.

use std::collections::{BTreeMap, VecDeque};
use zonal_types::limits::{
    AGENT_EVENTS_BYTES_MAX, AGENT_GUARD_TERM_MS, AGENT_JOBS_MAX, AGENT_OUTPUT_BYTES_MAX,
    AGENT_STDIN_BYTES_MAX, AGENT_TERM_MS,
};
use zonal_types::{Blob, ErrorCode, Instant};
use zonal_wire::{OutputStream, RankEvent, RankStatus};

/// Numbers of signals that ask a process to end.
const INTERRUPT: u8 = 2;
const KILL: u8 = 9;
const TERM: u8 = 15;

/// A job's number and a rank in it.
pub(super) type RankId = (u64, u32);

/// The asker who may command a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobOwner {
    /// Subject of the certificate; `None`: a process of the server's user, or root.
    pub(super) subject: Option<String>,
}

/// Result of a start.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum JobStart {
    /// The ranks are to be started.
    New,
    /// The request came a second time.
    Repeated,
}

/// A refusal with its reason.
pub(super) type JobRefusal = (ErrorCode, &'static str);

#[derive(Debug, Default)]
struct JobRank {
    buffered: usize,
    has_ended: bool,
    stdin: VecDeque<u8>,
    stdin_offset: u64,
    stdin_end: bool,
    /// Signals that came before the rank's process was there.
    early_signals: Vec<u8>,
}

#[derive(Debug)]
struct Job {
    owner: JobOwner,
    polled: Instant,
    /// When its guards were told of a poll.
    renewed: Instant,
    ranks: BTreeMap<u32, JobRank>,
    events: VecDeque<RankEvent>,
    /// Position of the first of `events`.
    first: u64,
    /// Ranks whose end is not among the events.
    running: u32,
    is_ending: bool,
}

/// All jobs of an agent.
#[derive(Debug)]
pub(super) struct JobTable {
    jobs: BTreeMap<u64, Job>,
    ranks: usize,
    ranks_max: usize,
}

/// Time between two words to a guard that the asker polls. The guard's term is longer than the
/// job's by as much.
const RENEWAL_MS: u64 = AGENT_GUARD_TERM_MS - AGENT_TERM_MS;
/// Signals that are kept for a rank whose process is not there yet; later ones are dropped.
const EARLY_SIGNALS_MAX: usize = 16;

const UNKNOWN: JobRefusal = (
    ErrorCode::NotFound,
    "there is no such job here: it was ended, or the server was started anew",
);

impl JobTable {
    pub(super) fn new(ranks_max: usize) -> Self {
        Self {
            jobs: BTreeMap::new(),
            ranks: 0,
            ranks_max,
        }
    }

    /// Ranks of all jobs, ended ones of unforgotten jobs among them, and their bound.
    pub(super) fn ranks(&self) -> (usize, usize) {
        (self.ranks, self.ranks_max)
    }

    /// Adds a job, or ranks to a known job.
    pub(super) fn start(
        &mut self,
        now: Instant,
        owner: &JobOwner,
        (number, ranks): (u64, &[u32]),
        input_rank: Option<u32>,
    ) -> Result<JobStart, JobRefusal> {
        if ranks.is_empty() || ranks.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err((ErrorCode::Invalid, "ranks are not in rising order"));
        }
        if self.ranks + ranks.len() > self.ranks_max {
            return Err((ErrorCode::Overloaded, "the node runs as many as it may"));
        }
        if let Some(job) = self.jobs.get_mut(&number) {
            if job.owner != *owner {
                return Err((ErrorCode::NotPermitted, "the job is another's"));
            }
            if job.is_ending {
                return Err((ErrorCode::Invalid, "the job is ending"));
            }
            let known = ranks.iter().filter(|rank| job.ranks.contains_key(rank));
            match known.count() {
                0 => {}
                known if known == ranks.len() => return Ok(JobStart::Repeated),
                _ => return Err((ErrorCode::Invalid, "some ranks run here")),
            }
        } else if self.jobs.len() >= AGENT_JOBS_MAX {
            return Err((ErrorCode::Overloaded, "the node has as many jobs as it may"));
        }
        let job = self.jobs.entry(number).or_insert_with(|| Job {
            owner: owner.clone(),
            polled: now,
            renewed: now,
            ranks: BTreeMap::new(),
            events: VecDeque::new(),
            first: 0,
            running: 0,
            is_ending: false,
        });
        job.polled = now;
        for rank in ranks {
            let state = JobRank {
                stdin_end: input_rank != Some(*rank),
                ..JobRank::default()
            };
            job.ranks.insert(*rank, state);
            job.running += 1;
        }
        self.ranks += ranks.len();
        Ok(JobStart::New)
    }

    fn of(&mut self, owner: &JobOwner, number: u64) -> Result<&mut Job, JobRefusal> {
        let job = self.jobs.get_mut(&number).ok_or(UNKNOWN)?;
        match job.owner == *owner {
            true => Ok(job),
            // As if it were not there: numbers of jobs are secrets of their owners.
            false => Err(UNKNOWN),
        }
    }

    /// Drops events before `acked` and returns the next ones with their end, and the running ranks.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        owner: &JobOwner,
        (number, acked): (u64, u64),
    ) -> Result<(u64, u32, Vec<RankEvent>), JobRefusal> {
        let job = self.of(owner, number)?;
        let known = job.first + job.events.len() as u64;
        if acked < job.first || acked > known {
            return Err((ErrorCode::Invalid, "the position is not one of the job's"));
        }
        job.polled = now;
        while job.first < acked {
            job.first += 1;
            if let Some(RankEvent::Output { rank, bytes, .. }) = job.events.pop_front()
                && let Some(rank) = job.ranks.get_mut(&rank)
            {
                rank.buffered -= bytes.0.len();
            }
        }
        let mut bytes = 0;
        let mut events = Vec::new();
        for event in &job.events {
            bytes += match event {
                RankEvent::Output { bytes, .. } => bytes.0.len() + 16,
                RankEvent::Ended { .. } => 256,
            };
            if !events.is_empty() && bytes > AGENT_EVENTS_BYTES_MAX {
                break;
            }
            events.push(event.clone());
        }
        Ok((acked + events.len() as u64, job.running, events))
    }

    /// Running ranks whose guards are to be told that the asker polls, at most once in
    /// [`RENEWAL_MS`].
    pub(super) fn renewal(&mut self, now: Instant, number: u64) -> Vec<u32> {
        let job = self.jobs.get_mut(&number).filter(|job| !job.is_ending);
        match job {
            Some(job) if now >= job.renewed.plus_ms(RENEWAL_MS) => job.renewed = now,
            _ => return Vec::new(),
        }
        self.running(number)
    }

    /// Rest of the term for a guard that is started now.
    pub(super) fn guard_term_ms(&self, now: Instant, number: u64) -> u64 {
        let polled = self.jobs.get(&number).map_or(now, |job| job.polled);
        AGENT_GUARD_TERM_MS.saturating_sub(now.ms_since(polled))
    }

    /// Whether a poll from `acked` on has a reply already.
    pub(super) fn is_due(&self, number: u64, acked: u64) -> bool {
        let job = self.jobs.get(&number);
        job.is_none_or(|job| acked < job.first + job.events.len() as u64 || job.running == 0)
    }

    /// Takes bytes for the standard input of a rank; returns the position up to which they were
    /// taken.
    pub(super) fn give_stdin(
        &mut self,
        owner: &JobOwner,
        (number, rank): RankId,
        (offset, bytes, end): (u64, &[u8], bool),
    ) -> Result<u64, JobRefusal> {
        let job = self.of(owner, number)?;
        let unknown = (ErrorCode::NotFound, "the rank does not run here");
        let rank = job.ranks.get_mut(&rank).ok_or(unknown)?;
        let behind = offset + bytes.len() as u64;
        if rank.has_ended {
            // Nobody reads it any more.
            return Ok(behind);
        }
        let known = rank.stdin_offset.checked_sub(offset);
        let known = known.and_then(|known| usize::try_from(known).ok());
        let fresh = known.and_then(|known| bytes.get(known..));
        let wrong = (ErrorCode::Invalid, "the position is not one of the rank's");
        let fresh = fresh.ok_or(wrong)?;
        if rank.stdin_end && !fresh.is_empty() {
            return Err((ErrorCode::Invalid, "the rank's standard input has ended"));
        }
        let room = AGENT_STDIN_BYTES_MAX.saturating_sub(rank.stdin.len());
        let taken = &fresh[..fresh.len().min(room)];
        rank.stdin.extend(taken);
        rank.stdin_offset += taken.len() as u64;
        rank.stdin_end |= end && rank.stdin_offset == behind;
        Ok(rank.stdin_offset)
    }

    /// Bytes that wait for a rank's standard input, and whether none follow.
    pub(super) fn stdin(&mut self, (number, rank): RankId) -> Option<(&mut VecDeque<u8>, bool)> {
        let rank = self.jobs.get_mut(&number)?.ranks.get_mut(&rank)?;
        Some((&mut rank.stdin, rank.stdin_end))
    }

    /// Whether more output of a rank may be read.
    pub(super) fn has_room(&self, (number, rank): RankId) -> bool {
        let job = self.jobs.get(&number);
        job.is_some_and(|job| {
            let rank = job.ranks.get(&rank);
            job.is_ending || rank.is_some_and(|rank| rank.buffered < AGENT_OUTPUT_BYTES_MAX)
        })
    }

    /// Adds output of a rank. Output of an ending job is dropped, as nobody fetches it.
    pub(super) fn add_output(&mut self, id: RankId, stream: OutputStream, bytes: &[u8]) {
        let Some(job) = self.jobs.get_mut(&id.0).filter(|job| !job.is_ending) else {
            return;
        };
        if let Some(rank) = job.ranks.get_mut(&id.1) {
            rank.buffered += bytes.len();
            job.events.push_back(RankEvent::Output {
                rank: id.1,
                stream,
                bytes: Blob(bytes.to_vec()),
            });
        }
    }

    /// A rank has ended, with all its processes.
    pub(super) fn rank_ended(&mut self, id: RankId, status: RankStatus) {
        let Some(job) = self.jobs.get_mut(&id.0) else {
            return;
        };
        let Some(rank) = job.ranks.get_mut(&id.1).filter(|rank| !rank.has_ended) else {
            return;
        };
        rank.has_ended = true;
        rank.stdin = VecDeque::new();
        job.running -= 1;
        job.events
            .push_back(RankEvent::Ended { rank: id.1, status });
        self.forget(id.0);
    }

    fn forget(&mut self, number: u64) {
        let job = self.jobs.get(&number);
        if job.is_some_and(|job| job.is_ending && job.running == 0) {
            let job = self.jobs.remove(&number);
            self.ranks -= job.map_or(0, |job| job.ranks.len());
        }
    }

    /// Ends a job of this owner; returns its running ranks. An unknown job has ended.
    pub(super) fn end(&mut self, owner: &JobOwner, number: u64) -> Vec<u32> {
        match self.of(owner, number) {
            Ok(job) => job.is_ending = true,
            Err(_) => return Vec::new(),
        }
        let running = self.running(number);
        self.forget(number);
        running
    }

    /// The running ranks of a job of this owner.
    pub(super) fn running_of(
        &mut self,
        owner: &JobOwner,
        number: u64,
    ) -> Result<Vec<u32>, JobRefusal> {
        self.of(owner, number)?;
        Ok(self.running(number))
    }

    fn running(&self, number: u64) -> Vec<u32> {
        let ranks = self.jobs.get(&number).map(|job| job.ranks.iter());
        let running = ranks.into_iter().flatten().filter(|(_, of)| !of.has_ended);
        running.map(|(rank, _)| *rank).collect()
    }

    /// Ends the jobs whose askers were silent for too long; returns their running ranks.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<RankId> {
        let jobs = self.jobs.iter_mut();
        let silent =
            jobs.filter(|(_, job)| !job.is_ending && now >= job.polled.plus_ms(AGENT_TERM_MS));
        let numbers: Vec<u64> = silent
            .map(|(number, job)| {
                job.is_ending = true;
                *number
            })
            .collect();
        let mut running = Vec::new();
        for number in numbers {
            running.extend(self.running(number).into_iter().map(|rank| (number, rank)));
            self.forget(number);
        }
        running
    }

    /// Keeps a signal for a rank whose process is not there yet.
    pub(super) fn add_early_signal(&mut self, (number, rank): RankId, signal: u8) {
        let job = self.jobs.get_mut(&number);
        if let Some(rank) = job.and_then(|job| job.ranks.get_mut(&rank))
            && rank.early_signals.len() < EARLY_SIGNALS_MAX
        {
            rank.early_signals.push(signal);
        }
    }

    /// Takes the signals that were kept for a rank.
    pub(super) fn take_early_signals(&mut self, (number, rank): RankId) -> Vec<u8> {
        let job = self.jobs.get_mut(&number);
        let rank = job.and_then(|job| job.ranks.get_mut(&rank));
        rank.map_or(Vec::new(), |rank| std::mem::take(&mut rank.early_signals))
    }

    /// The signal that ends a rank before its process is started; `None`: it is to be started.
    pub(super) fn early_end(&self, (number, rank): RankId) -> Option<u8> {
        let Some(job) = self.jobs.get(&number).filter(|job| !job.is_ending) else {
            return Some(KILL);
        };
        let signals = job.ranks.get(&rank).map(|rank| rank.early_signals.iter());
        let mut ends = signals.into_iter().flatten();
        ends.find(|signal| [INTERRUPT, TERM].contains(signal))
            .copied()
    }

    /// Whether a job may be started still: it is known and not ending.
    pub(super) fn is_wanted(&self, number: u64) -> bool {
        self.jobs.get(&number).is_some_and(|job| !job.is_ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (JobTable, JobOwner) {
        let owner = JobOwner {
            subject: Some("a".into()),
        };
        (JobTable::new(4), owner)
    }

    fn output(bytes: &[u8]) -> RankEvent {
        RankEvent::Output {
            rank: 0,
            stream: OutputStream::Stdout,
            bytes: Blob(bytes.to_vec()),
        }
    }

    const AT: Instant = Instant(0);
    const OK: RankStatus = RankStatus::Exited { code: 0 };

    #[test]
    fn events_are_kept_until_they_are_acknowledged() {
        let (mut table, owner) = table();
        assert_eq!(
            table.start(AT, &owner, (1, &[0]), Some(0)),
            Ok(JobStart::New)
        );
        assert_eq!(
            table.start(AT, &owner, (1, &[0]), Some(0)),
            Ok(JobStart::Repeated)
        );
        assert!(!table.is_due(1, 0));
        table.add_output((1, 0), OutputStream::Stdout, b"x");
        assert!(table.is_due(1, 0));
        for _twice in 0..2 {
            let polled = table.poll(AT, &owner, (1, 0)).unwrap();
            assert_eq!(polled, (1, 1, vec![output(b"x")]));
        }
        table.rank_ended((1, 0), OK);
        table.rank_ended((1, 0), RankStatus::Signalled { signal: 9 });
        let ended = RankEvent::Ended {
            rank: 0,
            status: OK,
        };
        assert_eq!(table.poll(AT, &owner, (1, 1)), Ok((2, 0, vec![ended])));
        assert!(table.poll(AT, &owner, (1, 0)).is_err());
        assert!(table.poll(AT, &owner, (1, 3)).is_err());
        assert_eq!(table.end(&owner, 1), [0; 0]);
        assert_eq!(table.ranks(), (0, 4));
        assert_eq!(table.poll(AT, &owner, (1, 2)), Err(UNKNOWN));
    }

    #[test]
    fn signals_wait_for_ranks_that_are_being_started() {
        let (mut table, owner) = table();
        table.start(AT, &owner, (1, &[0, 1]), None).unwrap();
        assert_eq!(table.early_end((1, 0)), None);
        table.add_early_signal((1, 0), 10);
        assert_eq!(table.early_end((1, 0)), None);
        assert_eq!(table.take_early_signals((1, 0)), [10]);
        assert_eq!(table.take_early_signals((1, 0)), [0; 0]);
        table.add_early_signal((1, 0), 15);
        assert_eq!(table.early_end((1, 0)), Some(15));
        assert_eq!(table.early_end((1, 1)), None);
        table.end(&owner, 1);
        assert_eq!(table.early_end((1, 1)), Some(9));
    }

    #[test]
    fn a_job_is_its_owners_alone() {
        let (mut table, owner) = table();
        table.start(AT, &owner, (1, &[0, 1]), Some(0)).unwrap();
        for subject in [None, Some("b".to_owned())] {
            let other = JobOwner { subject };
            assert!(table.start(AT, &other, (1, &[2]), Some(0)).is_err());
            assert_eq!(table.poll(AT, &other, (1, 0)), Err(UNKNOWN));
            assert_eq!(table.end(&other, 1), [0; 0]);
            assert!(table.running_of(&other, 1).is_err());
            let given = table.give_stdin(&other, (1, 0), (0, b"x", false));
            assert_eq!(given, Err(UNKNOWN));
        }
        assert_eq!(table.running_of(&owner, 1), Ok(vec![0, 1]));
    }

    #[test]
    fn bounds_of_ranks_and_output_hold() {
        let (mut table, owner) = table();
        assert!(
            table
                .start(AT, &owner, (1, &[0, 1, 2, 3, 4]), Some(0))
                .is_err()
        );
        assert!(table.start(AT, &owner, (1, &[1, 1]), Some(0)).is_err());
        assert!(table.start(AT, &owner, (1, &[]), Some(0)).is_err());
        table.start(AT, &owner, (1, &[0, 1, 2]), Some(0)).unwrap();
        assert!(table.start(AT, &owner, (2, &[0, 1]), Some(0)).is_err());
        assert!(table.start(AT, &owner, (1, &[2, 3]), Some(0)).is_err());
        table.start(AT, &owner, (1, &[3]), Some(0)).unwrap();
        let piece = vec![7; 65_536];
        while table.has_room((1, 0)) {
            table.add_output((1, 0), OutputStream::Stderr, &piece);
        }
        assert!(table.has_room((1, 1)));
        let (next, _, events) = table.poll(AT, &owner, (1, 0)).unwrap();
        assert!(events.len() * piece.len() <= AGENT_EVENTS_BYTES_MAX);
        table.poll(AT, &owner, (1, next)).unwrap();
        assert!(table.has_room((1, 0)));
    }

    #[test]
    fn standard_input_is_taken_once_and_within_its_bound() {
        let (mut table, owner) = table();
        table.start(AT, &owner, (1, &[0]), Some(0)).unwrap();
        let mut give = |at, bytes: &[u8], end| table.give_stdin(&owner, (1, 0), (at, bytes, end));
        assert_eq!(give(0, b"ab", false), Ok(2));
        assert_eq!(give(0, b"abc", false), Ok(3));
        assert!(give(4, b"x", false).is_err());
        let much = vec![0; AGENT_STDIN_BYTES_MAX];
        let taken = give(3, &much, true).unwrap();
        assert_eq!(taken, AGENT_STDIN_BYTES_MAX as u64);
        let (waiting, end) = table.stdin((1, 0)).unwrap();
        assert!(waiting.iter().take(3).eq(b"abc") && !end);
        waiting.clear();
        let mut give = |at, bytes: &[u8], end| table.give_stdin(&owner, (1, 0), (at, bytes, end));
        assert_eq!(give(taken, &much[..3], true), Ok(taken + 3));
        assert!(table.stdin((1, 0)).unwrap().1);
    }

    #[test]
    fn a_silent_askers_job_ends_and_is_forgotten() {
        let (mut table, owner) = table();
        table.start(AT, &owner, (1, &[0, 1]), Some(0)).unwrap();
        let later = AT.plus_ms(AGENT_TERM_MS - 1);
        assert_eq!(table.expire(later), []);
        table.poll(later, &owner, (1, 0)).unwrap();
        assert_eq!(table.renewal(later, 1), [0, 1]);
        assert_eq!(table.renewal(later, 1), [0; 0]);
        let left = table.guard_term_ms(later.plus_ms(4_000), 1);
        assert_eq!(left, AGENT_GUARD_TERM_MS - 4_000);
        assert_eq!(table.expire(AT.plus_ms(AGENT_TERM_MS)), []);
        table.rank_ended((1, 1), OK);
        let over = later.plus_ms(AGENT_TERM_MS);
        assert_eq!(table.expire(over), [(1, 0)]);
        assert_eq!(table.expire(over), []);
        assert!(!table.is_wanted(1));
        assert!(table.start(over, &owner, (1, &[2]), Some(0)).is_err());
        table.add_output((1, 0), OutputStream::Stdout, b"unread");
        table.rank_ended((1, 0), OK);
        assert_eq!(table.ranks(), (0, 4));
        assert!(table.is_due(1, 5));
    }
}
