//! The agent role: runs commands on the node for holders of the cell's credentials.
//!
//! | part | does |
//! | --- | --- |
//! | `job_table` | jobs as a value: owners, ranks, buffered output, terms |
//! | `rights` | who may run a command, as which user |
//! | `rank_io` | pipes and guard of a running rank |
//! | `rank_guard` | the process that ends all processes of its rank |
//! | `rank_process` | the process that becomes the user, then the command |
//! | `inherited_state` | the server's descriptors and limits, which the command must not have |
//! | `rank_channel` | what these three hand on |
//!
//! One thread reads and writes the pipes of all ranks. A poll without events is parked, so that
//! waiting costs no thread.
//!
//! *Lock order*: `AgentRole::state` is taken last, and never held while a process is started.

mod inherited_state;
mod job_table;
mod rank_channel;
mod rank_guard;
mod rank_io;
mod rank_process;
mod rights;

pub use rank_guard::{RANK_GUARD, run_rank_guard};
pub use rank_process::{RANK_PROCESS, run_rank_process};

use crate::clock;
use crate::config::AgentConfig;
use crate::cpu_use::CpuUse;
use crate::map_cache::MapCache;
use job_table::{JobOwner, JobStart, JobTable, RankId};
use rank_channel::RankCommand;
use rank_io::{READ_BYTES, RankIo};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zonal_net::{Peer, ReplyBuilder, Resumer};
use zonal_types::limits::{AGENT_COMMAND_BYTES_MAX, AGENT_POLL_MS_MAX};
use zonal_types::{Blob, ErrorCode, Instant, NodeId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{AgentReply, AgentRequest, JobCommand, OutputStream, RankStatus};

/// Longest sleep of the thread: expired jobs are noticed so much later at most.
const LOOK_MS: u64 = 500;
/// Time for the ranks to end when the server stops.
const STOP_MS: u64 = 5_000;

/// The agent of a node.
pub struct AgentRole {
    config: AgentConfig,
    node: NodeId,
    map: Arc<MapCache>,
    /// CPU use of the machine, where no other node is on it.
    cpu: Option<Arc<CpuUse>>,
    state: Mutex<AgentState>,
    /// Wakes the thread.
    wake: OwnedFd,
}

struct AgentState {
    table: JobTable,
    ranks: BTreeMap<RankId, RankIo>,
    waiting: BTreeMap<u64, WaitingPoll>,
    is_stopping: bool,
}

/// When a parked poll is to be resumed, and how.
struct WaitingPoll {
    acked: u64,
    until: Instant,
    resumer: Resumer,
}

/// A poll that is parked.
pub(crate) struct ParkedPoll {
    owner: JobOwner,
    job: u64,
    acked: u64,
    until: Instant,
}

/// A descriptor that the thread watches.
enum Watched {
    Wake,
    Channel(RankId, Arc<UnixStream>),
    Pipe(RankId, PollFlags, Arc<OwnedFd>),
}

impl Watched {
    fn poll_fd<'a>(&'a self, wake: &'a OwnedFd) -> PollFd<'a> {
        let (descriptor, flags): (BorrowedFd<'a>, PollFlags) = match self {
            Self::Wake => (wake.as_fd(), PollFlags::IN),
            Self::Channel(_, channel) => (channel.as_fd(), PollFlags::IN),
            Self::Pipe(_, flags, pipe) => (pipe.as_fd(), *flags),
        };
        PollFd::from_borrowed_fd(descriptor, flags)
    }
}

fn failed((code, detail): (ErrorCode, impl Into<String>)) -> AgentReply {
    AgentReply::Failed {
        code: ErrorNumber(code),
        detail: detail.into(),
    }
}

impl AgentRole {
    /// Starts the agent's thread.
    ///
    /// # Errors
    /// Where the system refuses it.
    pub(crate) fn start(
        config: AgentConfig,
        node: NodeId,
        map: Arc<MapCache>,
        cpu: Option<Arc<CpuUse>>,
    ) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        let role = Arc::new(Self {
            node,
            map,
            cpu,
            state: Mutex::new(AgentState {
                table: JobTable::new(config.ranks),
                ranks: BTreeMap::new(),
                waiting: BTreeMap::new(),
                is_stopping: false,
            }),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            config,
        });
        let agent = Arc::clone(&role);
        let thread = std::thread::Builder::new().name("agent".into());
        let thread = thread.spawn(move || agent.run())?;
        Ok((role, thread))
    }

    /// Ends all jobs; the thread ends once they are gone.
    pub(crate) fn stop(&self) {
        self.state().is_stopping = true;
        self.wake();
    }

    fn state(&self) -> MutexGuard<'_, AgentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_le_bytes());
    }

    /// Answers a request of a peer; `None`: the poll is parked.
    pub(crate) fn answer(
        &self,
        peer: &Peer,
        request: AgentRequest,
        reply: &mut ReplyBuilder,
    ) -> Option<AgentReply> {
        if let Err(refused) = rights::check_peer(peer) {
            tracing::warn!(peer = %peer.endpoint, request = request.name(), "refused: not for this peer");
            return Some(failed(refused));
        }
        let certified = peer.certified.as_ref();
        let owner = JobOwner {
            subject: certified.map(|known| known.subject.to_string()),
        };
        Some(match request {
            AgentRequest::Describe => self.describe(),
            AgentRequest::Start {
                job,
                ranks,
                size,
                awaits_all,
                input_rank,
                command,
            } => {
                let ranks = (ranks.as_slice(), input_rank);
                let command = (command, awaits_all);
                self.start_job((peer, &owner), (job, ranks, size), command, reply)
            }
            AgentRequest::Poll {
                job,
                acked,
                wait_ms,
            } => {
                let wait = u64::from(wait_ms).min(AGENT_POLL_MS_MAX);
                let parked = ParkedPoll {
                    owner,
                    job,
                    acked,
                    until: clock::instant().plus_ms(wait),
                };
                return self.poll(parked, false, reply);
            }
            AgentRequest::Stdin {
                job,
                rank,
                offset,
                bytes,
                end,
            } => {
                let mut state = self.state();
                let given = (offset, bytes.0.as_slice(), end);
                let taken = state.table.give_stdin(&owner, (job, rank), given);
                drop(state);
                self.wake();
                taken.map_or_else(failed, |offset| AgentReply::Taken { offset })
            }
            AgentRequest::Signal { job, signal } => self.signal(&owner, job, signal),
            AgentRequest::End { job } => self.end(&owner, job),
        })
    }

    fn signal(&self, owner: &JobOwner, job: u64, signal: u8) -> AgentReply {
        let mut state = self.state();
        let running = match state.table.running_of(owner, job) {
            Ok(running) => running,
            Err(refused) => return failed(refused),
        };
        for id in running.into_iter().map(|rank| (job, rank)) {
            match state.ranks.get(&id) {
                Some(rank) => rank.signal(signal),
                // It is being started.
                None => state.table.add_early_signal(id, signal),
            }
        }
        AgentReply::Done
    }

    fn end(&self, owner: &JobOwner, job: u64) -> AgentReply {
        let mut state = self.state();
        for rank in state.table.end(owner, job) {
            if let Some(rank) = state.ranks.get(&(job, rank)) {
                rank.kill();
            }
        }
        if let Some(waiting) = state.waiting.remove(&job) {
            waiting.resumer.resume();
        }
        AgentReply::Done
    }

    fn describe(&self) -> AgentReply {
        let (ranks, ranks_max) = self.state().table.ranks();
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let processors = std::thread::available_parallelism();
        AgentReply::Description {
            ranks: number(ranks),
            ranks_max: number(ranks_max),
            processors: processors.map_or(1, |count| number(count.get())),
            is_standby: self.config.is_standby,
            cpu_per_mille: self.cpu.as_ref().and_then(|cpu| cpu.per_mille()),
        }
    }

    /// Answers a poll, or parks it.
    pub(crate) fn poll(
        &self,
        parked: ParkedPoll,
        was_parked: bool,
        reply: &mut ReplyBuilder,
    ) -> Option<AgentReply> {
        // The peer's end has resumed the request.
        if was_parked && reply.is_peer_gone() {
            reply.close_after();
            return None;
        }
        // Before the look, so that no event in between is lost.
        let resumer = reply.resumer();
        let mut state = self.state();
        let now = clock::instant();
        let is_due = state.table.is_due(parked.job, parked.acked)
            || now >= parked.until
            || state.is_stopping;
        if let Some(resumer) = resumer.filter(|_| !is_due) {
            let waiting = WaitingPoll {
                acked: parked.acked,
                until: parked.until,
                resumer,
            };
            if let Some(earlier) = state.waiting.insert(parked.job, waiting) {
                earlier.resumer.resume();
            }
            drop(state);
            reply.park(Box::new(parked));
            return None;
        }
        // A server that was stopped comes late. The asker counts from when it asked.
        let asked = now.min(parked.until);
        let polled = (parked.job, parked.acked);
        let polled = state.table.poll(asked, &parked.owner, polled);
        if polled.is_ok() {
            for rank in state.table.renewal(asked, parked.job) {
                if let Some(rank) = state.ranks.get(&(parked.job, rank)) {
                    rank.renew();
                }
            }
        }
        drop(state);
        // Acknowledged output made room.
        self.wake();
        Some(
            polled.map_or_else(failed, |(next, running, events)| AgentReply::Events {
                next,
                running,
                events,
            }),
        )
    }

    fn start_job(
        &self,
        (peer, owner): (&Peer, &JobOwner),
        (job, (ranks, input_rank), size): (u64, (&[u32], Option<u32>), u32),
        (mut command, awaits_all): (JobCommand, bool),
        reply: &ReplyBuilder,
    ) -> AgentReply {
        if command.bytes() > AGENT_COMMAND_BYTES_MAX {
            let detail = "the command and its environment are longer than an agent takes";
            return failed((ErrorCode::TooBig, detail));
        }
        if !command.is_sound() || ranks.last().is_none_or(|last| *last >= size) {
            return failed((ErrorCode::Invalid, "no command that can be run"));
        }
        let own = rustix::process::geteuid().as_raw();
        let rights = (own, self.config.user_min);
        command.user = match rights::user(&command.user, peer.scope(), rights) {
            Ok(user) => user,
            Err(refused) => return failed(refused),
        };
        let started = {
            let mut state = self.state();
            match state.is_stopping {
                true => Err((ErrorCode::NotReady, "the server stops")),
                false => state
                    .table
                    .start(clock::instant(), owner, (job, ranks), input_rank),
            }
        };
        match started {
            Ok(JobStart::New) => {}
            Ok(JobStart::Repeated) => return AgentReply::Done,
            Err(refused) => return failed(refused),
        }
        tracing::info!(job = format_args!("{job:016x}"), ranks = ranks.len(), uid = command.user.uid, peer = %peer.endpoint, "a job begins");
        let surroundings = self.surroundings(size);
        let mut rank_command = RankCommand {
            command: JobCommand {
                environment: Vec::new(),
                ..command.clone()
            },
            awaits_all,
            changes_user: own == 0,
            no_new_privs: self.config.no_new_privs,
            term_ms: 0,
        };
        for rank in ranks {
            rank_command.command.environment =
                environment(&command.environment, &surroundings, *rank);
            if reply.is_peer_gone() {
                // An asker that waits no longer may start the rank elsewhere.
                self.end(owner, job);
            }
            self.start_rank((job, *rank), &mut rank_command);
        }
        AgentReply::Done
    }

    /// Variables of all ranks of a job on this node.
    fn surroundings(&self, size: u32) -> Vec<String> {
        let map = self.map.current();
        let zone = map
            .node(self.node)
            .map(|node| node.zone)
            .unwrap_or_default();
        vec![
            format!("ZONAL_SIZE={size}"),
            format!("ZONAL_NODE={}", self.node),
            format!("ZONAL_ZONE={zone}"),
        ]
    }

    fn start_rank(&self, id: RankId, command: &mut RankCommand) {
        {
            let mut state = self.state();
            command.term_ms = state.table.guard_term_ms(clock::instant(), id.0);
            if let Some(signal) = state.table.early_end(id) {
                state.table.rank_ended(id, RankStatus::Signalled { signal });
                drop(state);
                return self.wake();
            }
        }
        let started = RankIo::start(command);
        let mut state = self.state();
        match started {
            Ok(rank) => {
                // It may have been ended meanwhile.
                if !state.table.is_wanted(id.0) || state.is_stopping {
                    rank.kill();
                }
                for signal in state.table.take_early_signals(id) {
                    rank.signal(signal);
                }
                state.ranks.insert(id, rank);
            }
            Err(error) => {
                let detail = format!("the agent cannot start it: {error}");
                let status = RankStatus::NotStarted { code: 126, detail };
                state.table.rank_ended(id, status);
            }
        }
        drop(state);
        self.wake();
    }

    /// The thread: moves bytes between pipes and jobs until the server stops.
    fn run(&self) {
        let mut bytes = vec![0; READ_BYTES];
        let mut stopping_since = None;
        loop {
            let watched = self.state().watched();
            let mut list: Vec<PollFd<'_>> =
                watched.iter().map(|one| one.poll_fd(&self.wake)).collect();
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: i64::try_from(LOOK_MS * 1_000_000).unwrap_or(i64::MAX),
            };
            // After an interrupted or failed call the looks below find nothing.
            let _ = poll(&mut list, Some(&wait));
            let ready: Vec<&Watched> = watched
                .iter()
                .zip(&list)
                .filter(|(_, entry)| !entry.revents().is_empty())
                .map(|(one, _)| one)
                .collect();
            let mut state = self.state();
            for one in ready {
                match one {
                    Watched::Wake => {
                        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                    Watched::Channel(id, _) => {
                        if let Some(rank) = state.ranks.get_mut(id) {
                            rank.read_report();
                        }
                    }
                    Watched::Pipe(id, PollFlags::OUT, _) => state.write_stdin(*id),
                    Watched::Pipe(id, ..) => state.read_output(*id, &mut bytes),
                }
            }
            state.note_ends(&mut bytes);
            state.leave_silent_jobs();
            state.resume_polls();
            if state.is_stopping {
                let since = *stopping_since.get_or_insert_with(clock::instant);
                state.ranks.values().for_each(RankIo::leave);
                if state.ranks.is_empty() || clock::instant() >= since.plus_ms(STOP_MS) {
                    return;
                }
            }
        }
    }
}

/// The complete environment of a rank: the asker's, but for names of the agent.
fn environment(asked: &[Blob], surroundings: &[String], rank: u32) -> Vec<Blob> {
    let own = format!("ZONAL_RANK={rank}");
    let own = surroundings.iter().chain([&own]);
    let own: Vec<Blob> = own.map(|text| Blob(text.clone().into_bytes())).collect();
    let name = |variable: &Blob| {
        let at = variable.0.iter().position(|byte| *byte == b'=');
        variable
            .0
            .get(..at.unwrap_or(0))
            .unwrap_or_default()
            .to_vec()
    };
    let names: Vec<Vec<u8>> = own.iter().map(name).collect();
    let kept = asked
        .iter()
        .filter(|variable| !names.contains(&name(variable)));
    kept.cloned().chain(own.iter().cloned()).collect()
}

impl AgentState {
    /// Everything to be watched now. A pipe of a rank with too much output is left out.
    fn watched(&mut self) -> Vec<Watched> {
        let mut list = vec![Watched::Wake];
        for (id, rank) in &mut self.ranks {
            if let Some(channel) = &rank.channel {
                list.push(Watched::Channel(*id, Arc::clone(channel)));
            }
            if self.table.has_room(*id) {
                for pipe in [&rank.stdout, &rank.stderr].into_iter().flatten() {
                    list.push(Watched::Pipe(*id, PollFlags::IN, Arc::clone(pipe)));
                }
            }
            let Some((waiting, end)) = self.table.stdin(*id) else {
                continue;
            };
            if waiting.is_empty() && end {
                rank.stdin = None;
            }
            if let Some(pipe) = rank.stdin.as_ref().filter(|_| !waiting.is_empty()) {
                list.push(Watched::Pipe(*id, PollFlags::OUT, Arc::clone(pipe)));
            }
        }
        list
    }

    fn write_stdin(&mut self, id: RankId) {
        let Some(rank) = self.ranks.get_mut(&id) else {
            return;
        };
        let Some((waiting, _)) = self.table.stdin(id) else {
            return;
        };
        let Some(pipe) = &rank.stdin else {
            waiting.clear();
            return;
        };
        let (front, _) = waiting.as_slices();
        match rustix::io::write(pipe, front) {
            Ok(count) => drop(waiting.drain(..count)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            // Nobody reads it any more.
            Err(_) => {
                waiting.clear();
                rank.stdin = None;
            }
        }
    }

    /// Reads once from each stream of a rank.
    fn read_output(&mut self, id: RankId, bytes: &mut [u8]) {
        let Some(rank) = self.ranks.get_mut(&id) else {
            return;
        };
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            if let Some(read) = rank.read(stream, bytes) {
                self.table.add_output(id, stream, read);
            }
        }
    }

    /// Reads the rest of the output of ended ranks, then notes their ends.
    fn note_ends(&mut self, bytes: &mut [u8]) {
        let gone = self.ranks.iter().filter(|(_, rank)| rank.channel.is_none());
        let gone: Vec<RankId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            // The output of an ending job is dropped, so it always has room.
            if self.table.has_room(id) {
                self.read_output(id, bytes);
            }
            let ended = self.ranks.get_mut(&id).and_then(RankIo::ended);
            if let Some(status) = ended {
                self.ranks.remove(&id);
                self.table.rank_ended(id, status);
            }
        }
    }

    /// Ends the jobs whose askers are silent.
    fn leave_silent_jobs(&mut self) {
        for id in self.table.expire(clock::instant()) {
            tracing::warn!(
                job = format_args!("{:016x}", id.0),
                rank = id.1,
                "its asker is silent: it is ended"
            );
            if let Some(rank) = self.ranks.get(&id) {
                rank.leave();
            }
        }
    }

    /// Resumes the polls that have a reply, or waited long enough.
    fn resume_polls(&mut self) {
        let now = clock::instant();
        let (table, is_stopping) = (&self.table, self.is_stopping);
        self.waiting.retain(|job, poll| {
            let is_due = is_stopping || now >= poll.until || table.is_due(*job, poll.acked);
            if is_due {
                poll.resumer.resume();
            }
            !is_due
        });
    }
}
