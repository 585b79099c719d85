//! A running job: a conversation with the agent of each node, output, input, signals, moves.
//!
//! *Invariants*:
//! 1. A rank is started elsewhere only when it is gone where it was. Its node's agent said so, or
//!    refuses connections, or has had no poll for longer than a job lives without one.
//! 2. Each conversation ends with an `End`, unless its agent does not answer.
//! 3. Once a signal has asked for the job's end, no rank is started.
//! 4. A signal reaches each rank once, also where it comes while the rank is being started.
//!
//! *Lock order*: `RunningJob::state`, `RunningJob::output`; neither is held during a call.

use super::agents::{self, AgentNode};
use super::command::job_number;
use super::output::RankLines;
use super::plan::{JobPlan, replacement};
use super::signal_queue::{SignalQueue, asks_for_end};
use crate::cell::connection::CellHandle;
use crate::console;
use crate::exit::with_causes;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zonal_net::NetError;
use zonal_types::limits::{AGENT_GUARD_TERM_MS, AGENT_POLL_MS_MAX, REQUEST_DEADLINE_MS};
use zonal_types::{Blob, Codec as _, ErrorCode};
use zonal_wire::{
    AgentReply, AgentRequest, Header, JobCommand, OutputStream, RankEvent, RankStatus, Service,
};

/// Exit code of a rank that SIGKILL ended, and of one that was lost with its node.
const KILLED: u8 = 128 + 9;
/// Time after the last request to an agent when its ranks are gone for certain. By then it has
/// parked the request, the guards have waited their term, and the processes had time to clean up.
const GONE: Duration = Duration::from_millis(AGENT_POLL_MS_MAX + AGENT_GUARD_TERM_MS + 3_500);
/// Time in which the guards end the ranks of a server that is gone: a second to clean up, and more.
const CLEANED_UP: Duration = Duration::from_millis(1_500);
/// Attempts to reach an agent that refuses connections.
const REFUSED_TRIES: u32 = 3;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// Pause before input that an agent had no room for is sent again.
const INPUT_PAUSE: Duration = Duration::from_millis(20);
/// Pause before a signal is sent again to an agent that has not got its ranks yet.
const SIGNAL_PAUSE: Duration = Duration::from_millis(20);
/// Signals that wait until earlier ones are forwarded; the rest is dropped.
const SIGNALS_MAX: usize = 64;
/// Bytes of input in one message.
const INPUT_BYTES: usize = 32_768;

/// Settings of a job, beside its plan.
#[derive(Debug, Clone)]
pub struct JobSettings {
    pub command: JobCommand,
    /// All ranks.
    pub size: u32,
    /// Ranks end with their last process, not with their first.
    pub awaits_all: bool,
    /// Lines of output have their rank.
    pub with_prefix: bool,
    /// Standard input goes to rank 0.
    pub with_input: bool,
    /// How often a rank may move to another node.
    pub moves: u32,
}

/// Ranks on one node, as the asker knows them.
#[derive(Debug)]
struct Conversation {
    agent: AgentNode,
    /// The agent has its ranks.
    is_started: bool,
    is_over: bool,
}

#[derive(Debug, Default)]
struct JobState {
    conversations: BTreeMap<u64, Conversation>,
    codes: BTreeMap<u32, u8>,
    dead: BTreeSet<zonal_types::NodeId>,
    is_killed: bool,
    /// The first signal that asked for the job's end.
    ending: Option<u8>,
    /// An agent refused the job.
    refusal: Option<String>,
}

/// A running job.
pub struct RunningJob {
    cell: CellHandle,
    order: JobSettings,
    state: Mutex<JobState>,
    output: Mutex<RankLines>,
}

/// How a conversation ended.
enum Outcome {
    /// All its ranks have ended.
    Over,
    /// The agent refuses the job.
    Refused(String),
    /// The node or its server is gone, and the ranks with it after this time.
    Lost { reason: String, gone: Instant },
}

/// Runs a job to its end; returns the highest exit code of its ranks.
///
/// # Errors
/// An agent refuses the job; nothing of it is left running.
pub fn run(
    cell: CellHandle,
    order: JobSettings,
    plan: JobPlan,
) -> anyhow::Result<Result<u8, String>> {
    let lines = RankLines::new(order.size, order.with_prefix);
    let job = Arc::new(RunningJob {
        cell,
        order,
        state: Mutex::default(),
        output: Mutex::new(lines),
    });
    let (signals, wait) = SignalQueue::open()?;
    let forwarding = Arc::clone(&job);
    let signalled = std::thread::spawn(move || forwarding.forward(&signals));
    let threads: Vec<JoinHandle<()>> = plan
        .nodes
        .into_iter()
        .map(|node| {
            let job = Arc::clone(&job);
            std::thread::spawn(move || job.run_ranks(node.agent, node.ranks))
        })
        .collect();
    for thread in threads {
        // A panic was printed; the ranks end without polls.
        let _ = thread.join();
    }
    drop(wait);
    let _ = signalled.join();
    let mut state = job.state();
    let highest = state.codes.values().copied().max().unwrap_or(0);
    Ok(match state.refusal.take() {
        Some(refusal) => Err(refusal),
        None => Ok(highest),
    })
}

impl RunningJob {
    fn state(&self) -> MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_killed(&self) -> bool {
        self.state().is_killed
    }

    /// Whether no rank is to be started any more.
    fn is_ending(&self) -> bool {
        let state = self.state();
        state.is_killed || state.ending.is_some()
    }

    /// Runs ranks on a node, and on others if it dies.
    fn run_ranks(self: &Arc<Self>, mut agent: AgentNode, mut ranks: Vec<u32>) {
        let mut moves = self.order.moves;
        let mut with_input = self.order.with_input && ranks.contains(&0);
        loop {
            let (reason, gone) = match self.converse(&agent, &mut ranks, with_input) {
                Outcome::Over => return,
                Outcome::Refused(reason) => {
                    let reason = format!("{}: {reason}", agent.address);
                    self.state().refusal.get_or_insert(reason);
                    self.kill();
                    return;
                }
                Outcome::Lost { reason, gone } => (reason, gone),
            };
            if self.is_killed() {
                self.note_ended(&ranks, KILLED);
                return;
            }
            let shown: Vec<String> = ranks.iter().map(u32::to_string).collect();
            let shown = shown.join(", ");
            console::note(format_args!(
                "zonal: {} does not answer ({reason}): lost with it: rank {shown}",
                agent.address
            ));
            self.state().dead.insert(agent.node);
            if moves == 0 {
                self.note_ended(&ranks, KILLED);
                return;
            }
            moves -= 1;
            let Some(next) = self.next_node(&agent, ranks.len(), gone) else {
                if !self.is_ending() {
                    console::note(format_args!(
                        "zonal: no other node of zone {} has room for rank {shown}",
                        agent.zone
                    ));
                }
                self.note_ended(&ranks, KILLED);
                return;
            };
            console::note(format_args!(
                "zonal: rank {shown} moves to {}",
                next.address
            ));
            agent = next;
            // Input that the lost process has read cannot be read again.
            with_input = false;
        }
    }

    fn note_ended(&self, ranks: &[u32], code: u8) {
        let mut state = self.state();
        for rank in ranks {
            state.codes.insert(*rank, code);
        }
    }

    /// Waits until the ranks of a lost node are gone; returns another node of its zone.
    fn next_node(&self, lost: &AgentNode, ranks: usize, gone: Instant) -> Option<AgentNode> {
        while Instant::now() < gone && !self.is_ending() {
            std::thread::sleep(PAUSE);
        }
        if self.is_ending() {
            return None;
        }
        let map = self.cell.map().ok()?;
        let found = agents::ask_all(&self.cell, &map);
        let state = self.state();
        replacement(&found.nodes, lost.zone, &state.dead, ranks).cloned()
    }

    fn call(&self, to: &AgentNode, request: &AgentRequest) -> anyhow::Result<AgentReply> {
        let mut header = Header::request(Service::Agent, self.cell.id);
        header.deadline_ms = u32::try_from(REQUEST_DEADLINE_MS).unwrap_or(u32::MAX);
        let body = request.to_bytes();
        self.cell
            .call_with(to.address, header, request.name(), &body)
    }

    /// Starts ranks on a node and follows them; `ranks` keeps those that have not ended.
    fn converse(
        self: &Arc<Self>,
        agent: &AgentNode,
        ranks: &mut Vec<u32>,
        with_input: bool,
    ) -> Outcome {
        let number = match job_number() {
            Ok(number) => number,
            Err(error) => return Outcome::Refused(with_causes(error.as_ref())),
        };
        let conversation = Conversation {
            agent: agent.clone(),
            is_started: false,
            is_over: false,
        };
        {
            let mut state = self.state();
            let killed = state.is_killed.then_some(KILLED);
            let ended = state.ending.map(|signal| 128 + signal);
            if let Some(code) = killed.or(ended) {
                drop(state);
                self.note_ended(ranks, code);
                return Outcome::Over;
            }
            state.conversations.insert(number, conversation);
        }
        let outcome = self.follow(agent, number, ranks, with_input);
        if let Some(conversation) = self.state().conversations.get_mut(&number) {
            conversation.is_over = true;
        }
        if matches!(outcome, Outcome::Over) {
            // The agent forgets the job; without this it does so by itself.
            let _ = self.call(agent, &AgentRequest::End { job: number });
        }
        outcome
    }

    fn follow(
        self: &Arc<Self>,
        agent: &AgentNode,
        number: u64,
        ranks: &mut Vec<u32>,
        with_input: bool,
    ) -> Outcome {
        let start = AgentRequest::Start {
            job: number,
            ranks: ranks.clone(),
            size: self.order.size,
            awaits_all: self.order.awaits_all,
            input_rank: with_input.then_some(0),
            command: self.order.command.clone(),
        };
        match self.persist(agent, &start) {
            Ok(AgentReply::Done) => {}
            Ok(AgentReply::Failed { code, detail }) => {
                return Outcome::Refused(format!("{detail} ({})", code.0));
            }
            Ok(other) => return Outcome::Refused(format!("it answers {}", other.name())),
            Err(lost) => return lost,
        }
        let is_killed = {
            let mut state = self.state();
            if let Some(conversation) = state.conversations.get_mut(&number) {
                conversation.is_started = true;
            }
            state.is_killed
        };
        if is_killed {
            // The agent may have got the order to end the job before the job.
            self.note_ended(ranks, KILLED);
            return Outcome::Over;
        }
        if with_input {
            let (job, agent) = (Arc::clone(self), agent.clone());
            // It may wait for input for ever, so nothing waits for it.
            std::thread::spawn(move || job.feed(&agent, number));
        }
        let mut acked = 0;
        while !ranks.is_empty() {
            let wait_ms = u32::try_from(AGENT_POLL_MS_MAX).unwrap_or(u32::MAX);
            let poll = AgentRequest::Poll {
                job: number,
                acked,
                wait_ms,
            };
            match self.persist(agent, &poll) {
                Ok(AgentReply::Events { next, events, .. }) => {
                    acked = next;
                    for event in events {
                        self.deliver(agent, event, ranks);
                    }
                }
                Ok(AgentReply::Failed { .. }) if self.is_killed() => {
                    self.note_ended(ranks, KILLED);
                    return Outcome::Over;
                }
                Ok(AgentReply::Failed { code, .. }) if code.0 == ErrorCode::NotFound => {
                    let reason = "its server was started anew".to_owned();
                    let gone = Instant::now() + CLEANED_UP;
                    return Outcome::Lost { reason, gone };
                }
                Ok(AgentReply::Failed { code, detail }) => {
                    return Outcome::Refused(format!("{detail} ({})", code.0));
                }
                Ok(other) => return Outcome::Refused(format!("it answers {}", other.name())),
                Err(lost) => return lost,
            }
        }
        Outcome::Over
    }

    /// Sends a request until the agent answers, or counts as lost.
    fn persist(&self, agent: &AgentNode, request: &AgentRequest) -> Result<AgentReply, Outcome> {
        let begun = Instant::now();
        let deadline = Duration::from_millis(REQUEST_DEADLINE_MS);
        let mut refused = 0;
        loop {
            let asked = Instant::now();
            let error = match self.call(agent, request) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let net = error.downcast_ref::<NetError>();
            let is_refused = matches!(
                net,
                Some(NetError::Unreachable { source, .. })
                    if source.kind() == ErrorKind::ConnectionRefused
            );
            refused += u32::from(is_refused);
            let is_final = net.is_some_and(|error| !error.is_retryable());
            let is_late =
                begun.elapsed() >= deadline || matches!(net, Some(NetError::TimedOut { .. }));
            if is_final || is_late || refused >= REFUSED_TRIES {
                let gone = match refused >= REFUSED_TRIES {
                    // With the server its guards have ended the ranks.
                    true => Instant::now() + CLEANED_UP,
                    false => asked + GONE,
                };
                let reason = with_causes(error.as_ref());
                return Err(Outcome::Lost { reason, gone });
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn deliver(self: &Arc<Self>, agent: &AgentNode, event: RankEvent, ranks: &mut Vec<u32>) {
        match event {
            RankEvent::Output {
                rank,
                stream,
                bytes: Blob(bytes),
            } => {
                let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
                let shown = output.add(rank, stream, &bytes);
                self.write(stream, &shown);
            }
            RankEvent::Ended { rank, status } => {
                let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
                for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                    let shown = output.end(rank, stream);
                    self.write(stream, &shown);
                }
                drop(output);
                ranks.retain(|known| *known != rank);
                let code = match status {
                    RankStatus::Exited { code } => code,
                    RankStatus::Signalled { signal } => 128 + (signal & 0x7f),
                    RankStatus::NotStarted { code, detail } => {
                        let program = self.order.command.arguments.first();
                        let program = program.map_or(&[][..], |program| program.0.as_slice());
                        let program = String::from_utf8_lossy(program);
                        console::note(format_args!(
                            "zonal: rank {rank} on node {}: {program}: {detail}",
                            agent.node
                        ));
                        code
                    }
                };
                self.state().codes.insert(rank, code);
            }
        }
    }

    /// Writes output; where nobody takes it any more, the job ends.
    fn write(self: &Arc<Self>, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let written = match stream {
            OutputStream::Stdout => {
                let mut out = std::io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            OutputStream::Stderr => std::io::stderr().lock().write_all(bytes),
        };
        if let Err(error) = written
            && !self.is_killed()
        {
            console::shown(Err(error));
            self.kill();
        }
    }

    /// Kills all ranks.
    fn kill(&self) {
        self.state().is_killed = true;
        // An agent that does not answer is noticed by its polls.
        self.at_all(|job, agent| drop(self.call(agent, &AgentRequest::End { job })));
    }

    /// Does something with all conversations that are not over, at the same time.
    fn at_all(&self, act: impl Fn(u64, &AgentNode) + Sync) {
        let running: Vec<(u64, AgentNode)> = {
            let state = self.state();
            let all = state.conversations.iter().filter(|(_, of)| !of.is_over);
            all.map(|(number, of)| (*number, of.agent.clone()))
                .collect()
        };
        std::thread::scope(|scope| {
            for (number, agent) in &running {
                scope.spawn(|| act(*number, agent));
            }
        });
    }

    /// Forwards signals; the second that asks for an end kills all ranks.
    fn forward(self: &Arc<Self>, signals: &SignalQueue) {
        let (order, orders) = sync_channel(SIGNALS_MAX);
        let job = Arc::clone(self);
        // A thread of its own, so that nothing delays the second.
        std::thread::spawn(move || job.send_signals(&orders));
        while let Some(came) = signals.next() {
            for signal in came {
                if asks_for_end(signal) {
                    let mut state = self.state();
                    if state.ending.is_some() {
                        drop(state);
                        self.kill();
                        continue;
                    }
                    state.ending = Some(signal);
                }
                // More signals than have room say nothing new.
                let _ = order.try_send(signal);
            }
        }
    }

    fn send_signals(&self, orders: &Receiver<u8>) {
        for signal in orders {
            self.at_all(|job, agent| self.send_signal(job, agent, signal));
        }
    }

    /// Sends a signal to ranks of a node, also where the agent is yet to get them.
    fn send_signal(&self, number: u64, agent: &AgentNode, signal: u8) {
        loop {
            let is_waited_for = {
                let state = self.state();
                let of = state.conversations.get(&number);
                !state.is_killed && of.is_some_and(|of| !of.is_started && !of.is_over)
            };
            let request = AgentRequest::Signal {
                job: number,
                signal,
            };
            match self.call(agent, &request) {
                Ok(AgentReply::Failed { code, .. })
                    if code.0 == ErrorCode::NotFound && is_waited_for =>
                {
                    std::thread::sleep(SIGNAL_PAUSE);
                }
                // An agent that does not answer is noticed by its polls.
                _ => return,
            }
        }
    }

    /// Reads standard input and sends it to rank 0, until either ends.
    fn feed(&self, agent: &AgentNode, number: u64) {
        let mut input = std::io::stdin().lock();
        let mut bytes = vec![0; INPUT_BYTES];
        let mut offset = 0;
        loop {
            let count = match input.read(&mut bytes) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let behind = offset + count as u64;
            let mut rest = bytes.get(..count).unwrap_or_default();
            loop {
                let request = AgentRequest::Stdin {
                    job: number,
                    rank: 0,
                    offset,
                    bytes: Blob(rest.to_vec()),
                    end: count == 0,
                };
                match self.call(agent, &request) {
                    Ok(AgentReply::Taken { offset: taken }) => {
                        let taken = taken.clamp(offset, behind);
                        let took = usize::try_from(taken - offset).unwrap_or(rest.len());
                        rest = rest.get(took..).unwrap_or_default();
                        offset = taken;
                    }
                    // The rank is gone, or its node: its polls tell.
                    _ => return,
                }
                if rest.is_empty() {
                    break;
                }
                std::thread::sleep(INPUT_PAUSE);
            }
            if count == 0 {
                return;
            }
        }
    }
}
