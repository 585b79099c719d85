//! The guard of a rank: a process between the agent and the command, with the agent's rights.
//!
//! All processes of a rank are below the guard: it adopts those whose parents have ended. The agent
//! holds the other end of the guard's channel. Where that end is closed, by an order or by the
//! agent's death, the guard ends the rank. It does so by its own clock as well, where no word comes
//! that the asker polls. An agent that is stopped cannot end the rank itself.
//!
//! *Invariants*:
//! 1. The guard reports a status and ends when no process of the rank is left, not before.
//! 2. A signal goes to the group of the command or to a child of the guard. Neither number can be
//!    reused meanwhile: the guard reaps the command last, and each child itself.
//! 3. The guard has one thread, so that all children are that thread's.

use super::rank_channel::{
    KILL, RENEW, RankCommand, SIGNAL, StandardStreams, own_channel, receive, send, send_status,
    status,
};
use super::rank_process::RANK_PROCESS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, waitid, waitpid,
};
use signal_hook::consts::SIGCHLD;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use zonal_types::limits::AGENT_GUARD_TERM_MS;
use zonal_wire::RankStatus;

/// The hidden subcommand that runs this.
pub const RANK_GUARD: &str = "rank-guard";
/// Time between SIGTERM and SIGKILL for the processes of a rank whose asker or agent is gone.
const GRACE: Duration = Duration::from_secs(1);
/// Pause between two looks at processes that were killed.
const PAUSE: Duration = Duration::from_millis(5);

/// How the processes of a rank are to end.
#[derive(Clone, Copy)]
enum Ending {
    /// By SIGTERM, then by SIGKILL: the command has ended, or the asker or the agent is gone.
    Term,
    /// By SIGKILL at once.
    Kill,
}

/// A running rank.
struct GuardedRank {
    /// The first process, which is also the number of its group.
    first: Pid,
    /// How it ended.
    status: Option<RankStatus>,
    /// The rank is to end then, unless its term begins anew.
    deadline: Instant,
}

/// Runs the subcommand.
///
/// # Errors
/// The channel or the system fails; the processes of the rank are killed then.
pub fn run_rank_guard() -> io::Result<()> {
    let begun = Instant::now();
    let channel = own_channel()?;
    let (ended, wakes) = UnixStream::pair()?;
    ended.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(SIGCHLD, wakes)?;
    set_child_subreaper(Some(getpid()))?;
    let (command, streams) = receive(&channel)?;
    let status = match start(&command, streams) {
        Ok(Ok(first)) => {
            let mut rank = GuardedRank {
                first,
                status: None,
                deadline: begun + Duration::from_millis(command.term_ms.min(AGENT_GUARD_TERM_MS)),
            };
            let ending = rank.watch(&channel, &ended, command.awaits_all);
            rank.end(ending.unwrap_or(Ending::Kill))
        }
        Ok(Err(status)) => status,
        Err(error) => RankStatus::NotStarted {
            code: 126,
            detail: error.to_string(),
        },
    };
    send_status(&channel, &status)
}

/// Starts the first process; the inner error is its report that it could not become the command.
fn start(
    command: &RankCommand,
    [input, output, error]: StandardStreams,
) -> io::Result<Result<Pid, RankStatus>> {
    let (mut here, there) = UnixStream::pair()?;
    let mut program = Command::new("/proc/self/exe");
    program
        .arg(RANK_PROCESS)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(there)));
    program.stdout(Stdio::null()).stderr(Stdio::null());
    let child = program.spawn()?;
    // The command holds the other end of the socket until it is dropped.
    drop(program);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidData)?;
    send(
        &here,
        command,
        [input.as_fd(), output.as_fd(), error.as_fd()],
    )?;
    let mut report = Vec::new();
    here.read_to_end(&mut report)?;
    if report.is_empty() {
        return Ok(Ok(pid));
    }
    waitpid(Some(pid), WaitOptions::empty())?;
    let failed = status(&report);
    Ok(Err(failed.unwrap_or(RankStatus::NotStarted {
        code: 126,
        detail: "no report of the first process".to_owned(),
    })))
}

impl GuardedRank {
    /// Follows orders until the rank is to end.
    fn watch(
        &mut self,
        mut channel: &UnixStream,
        mut ended: &UnixStream,
        awaits_all: bool,
    ) -> io::Result<Ending> {
        loop {
            let others = self.reap()?;
            if self.status.is_some() && (!awaits_all || others.is_empty()) {
                return Ok(Ending::Term);
            }
            let mut list = [
                PollFd::new(&channel, PollFlags::IN),
                PollFd::new(&ended, PollFlags::IN),
            ];
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Ending::Term);
            }
            let wait = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut list, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let is_ordered = !list[0].revents().is_empty();
            // Wake-ups come together; one look serves all.
            while matches!(ended.read(&mut [0; 64]), Ok(1..)) {}
            if !is_ordered {
                continue;
            }
            let mut order = [0];
            match channel.read(&mut order) {
                Ok(1..) if order[0] == SIGNAL => {
                    channel.read_exact(&mut order)?;
                    if let Some(signal) = Signal::from_named_raw(i32::from(order[0])) {
                        self.signal(signal, &others);
                    }
                }
                Ok(1..) if order[0] == RENEW => {
                    self.deadline = Instant::now() + Duration::from_millis(AGENT_GUARD_TERM_MS);
                }
                Ok(1..) if order[0] == KILL => return Ok(Ending::Kill),
                _ => return Ok(Ending::Term),
            }
        }
    }

    /// Signals the group of the command, and what left the group and its parents.
    fn signal(&self, signal: Signal, others: &[Pid]) {
        // A process may have ended meanwhile.
        let _ = kill_process_group(self.first, signal);
        for other in others {
            let _ = kill_process(*other, signal);
        }
    }

    /// Notes the end of the command, reaps other children that have ended, and returns the rest.
    fn reap(&mut self) -> io::Result<Vec<Pid>> {
        if self.status.is_none() {
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if let Some(status) = waitid(WaitId::Pid(self.first), options)? {
                self.status = Some(match (status.exit_status(), status.terminating_signal()) {
                    (Some(code), _) => RankStatus::Exited {
                        code: u8::try_from(code & 0xff).unwrap_or(u8::MAX),
                    },
                    (None, signal) => RankStatus::Signalled {
                        signal: u8::try_from(signal.unwrap_or(0)).unwrap_or(u8::MAX),
                    },
                });
            }
        }
        loop {
            let mut others = children()?;
            others.retain(|child| *child != self.first);
            let before = others.len();
            others.retain(|child| matches!(waitpid(Some(*child), WaitOptions::NOHANG), Ok(None)));
            // Children of a reaped one became this process's after the look.
            if others.len() == before {
                return Ok(others);
            }
        }
    }

    /// Ends all processes; returns how the command ended.
    fn end(mut self, ending: Ending) -> RankStatus {
        let begun = Instant::now();
        let mut signal = match ending {
            Ending::Term => Signal::TERM,
            Ending::Kill => Signal::KILL,
        };
        let mut is_told = false;
        loop {
            let others = self.reap().unwrap_or_default();
            // Each process of the rank has an ancestor among the children.
            if self.status.is_some() && others.is_empty() {
                break;
            }
            if signal == Signal::TERM && begun.elapsed() >= GRACE {
                signal = Signal::KILL;
                is_told = false;
            }
            if !is_told || signal == Signal::KILL {
                self.signal(signal, &others);
                is_told = true;
            }
            std::thread::sleep(PAUSE);
        }
        let _ = waitpid(Some(self.first), WaitOptions::NOHANG);
        self.status.unwrap_or(RankStatus::Signalled { signal: 9 })
    }
}

/// Children of this process, ended ones among them.
fn children() -> io::Result<Vec<Pid>> {
    let own = getpid().as_raw_nonzero();
    let parsed = |text: &str| text.parse().ok().and_then(Pid::from_raw);
    if let Ok(list) = std::fs::read_to_string(format!("/proc/self/task/{own}/children")) {
        return Ok(list.split_ascii_whitespace().filter_map(parsed).collect());
    }
    // A kernel without these files.
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(parsed) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name of the program, in parentheses, may have any characters.
        let behind = stat.rsplit_once(") ").map(|(_, behind)| behind);
        let parent = behind.and_then(|behind| behind.split(' ').nth(1));
        if parent.and_then(|parent| parent.parse().ok()) == Some(own.get()) {
            found.push(pid);
        }
    }
    Ok(found)
}
