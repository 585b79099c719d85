//! Pipes and the guard of one running rank, as the agent holds them.

use super::rank_channel::{self, KILL, RENEW, RankCommand, SIGNAL};
use super::rank_guard::RANK_GUARD;
use rustix::fs::{OFlags, fchown, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Uid};
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use zonal_wire::{OutputStream, RankStatus};

/// Time for handing a command to a new guard.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Bytes of one read of a pipe.
pub(super) const READ_BYTES: usize = 65_536;

/// A running rank.
pub(super) struct RankIo {
    guard: Child,
    /// The guard's channel, until the guard has closed it.
    pub(super) channel: Option<Arc<UnixStream>>,
    pub(super) stdin: Option<Arc<OwnedFd>>,
    pub(super) stdout: Option<Arc<OwnedFd>>,
    pub(super) stderr: Option<Arc<OwnedFd>>,
    /// The guard's report, as far as it has come.
    report: Vec<u8>,
}

fn own_end(end: OwnedFd) -> io::Result<Option<Arc<OwnedFd>>> {
    let flags = fcntl_getfl(&end)?;
    fcntl_setfl(&end, flags | OFlags::NONBLOCK)?;
    Ok(Some(Arc::new(end)))
}

fn hand_over(
    channel: &UnixStream,
    command: &RankCommand,
    streams: [BorrowedFd<'_>; 3],
) -> io::Result<()> {
    channel.set_write_timeout(Some(HAND_OVER))?;
    rank_channel::send(channel, command, streams)?;
    channel.set_nonblocking(true)
}

impl RankIo {
    /// Starts the guard of a rank and hands the command to it.
    pub(super) fn start(command: &RankCommand) -> io::Result<Self> {
        let (input, stdin) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stdout, output) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, error) = pipe_with(PipeFlags::CLOEXEC)?;
        if command.changes_user {
            // The user opens them again as /dev/stdin, /dev/stdout and /dev/stderr.
            let user = &command.command.user;
            let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
            for pipe in [&input, &output, &error] {
                fchown(pipe, Some(uid), Some(gid))?;
            }
        }
        let (channel, there) = UnixStream::pair()?;
        let mut program = Command::new("/proc/self/exe");
        program
            .arg(RANK_GUARD)
            .stdin(Stdio::from(OwnedFd::from(there)));
        // Signals for the group of the server are not for the guard.
        program
            .stdout(Stdio::null())
            .process_group(0)
            .current_dir("/");
        let guard = program.spawn()?;
        // The command holds the other end of the channel until it is dropped.
        drop(program);
        let mut started = Self {
            guard,
            stdin: own_end(stdin)?,
            stdout: own_end(stdout)?,
            stderr: own_end(stderr)?,
            channel: Some(Arc::new(channel)),
            report: Vec::new(),
        };
        let streams = [input.as_fd(), output.as_fd(), error.as_fd()];
        let handed = match &started.channel {
            Some(channel) => hand_over(channel, command, streams),
            None => Ok(()),
        };
        match handed {
            Ok(()) => Ok(started),
            Err(error) => {
                started.channel = None;
                let _ = started.guard.kill();
                let _ = started.guard.wait();
                Err(error)
            }
        }
    }

    /// Sends an order; false where the channel is full, as its guard does not read. A guard that is
    /// gone needs no orders.
    fn order(&self, bytes: &[u8]) -> bool {
        let channel = self.channel.as_ref();
        channel.is_none_or(|channel| (&**channel).write(bytes).is_ok())
    }

    /// Tells the guard that the asker polls.
    pub(super) fn renew(&self) {
        let _ = self.order(&[RENEW]);
    }

    pub(super) fn signal(&self, signal: u8) {
        let _ = self.order(&[SIGNAL, signal]);
    }

    /// Has the guard kill all processes of the rank.
    pub(super) fn kill(&self) {
        if !self.order(&[KILL]) {
            self.leave();
        }
    }

    /// Has the guard end all processes of the rank, with time to clean up.
    pub(super) fn leave(&self) {
        if let Some(channel) = &self.channel {
            let _ = channel.shutdown(Shutdown::Write);
        }
    }

    /// Reads what the guard reports. At its end, all processes of the rank are gone.
    pub(super) fn read_report(&mut self) {
        let mut bytes = [0; 512];
        while let Some(channel) = &self.channel {
            match rustix::io::read(channel, &mut bytes) {
                Ok(count) if count > 0 && !rank_channel::is_too_long(&self.report) => {
                    self.report.extend(bytes.get(..count).unwrap_or_default());
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                _ => self.channel = None,
            }
        }
    }

    pub(super) fn stream(&mut self, stream: OutputStream) -> &mut Option<Arc<OwnedFd>> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// Reads once from a stream; `None` where nothing more can come, or nothing is there now.
    pub(super) fn read<'a>(
        &mut self,
        stream: OutputStream,
        into: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let has_ended = self.channel.is_none();
        let from = self.stream(stream);
        match rustix::io::read(from.as_ref()?, &mut *into) {
            Ok(count) if count > 0 => into.get(..count),
            Err(Errno::INTR) => None,
            // All that ever comes is in the pipe once the processes are gone.
            Err(Errno::AGAIN) if !has_ended => None,
            _ => {
                *from = None;
                None
            }
        }
    }

    /// How the rank ended, once the guard is gone and all output was read.
    pub(super) fn ended(&mut self) -> Option<RankStatus> {
        if self.channel.is_some() || self.stdout.is_some() || self.stderr.is_some() {
            return None;
        }
        // The guard has closed its channel, and does nothing else before it ends.
        let _ = self.guard.wait();
        let status = rank_channel::status(&self.report);
        Some(status.unwrap_or(RankStatus::Signalled { signal: 9 }))
    }
}
