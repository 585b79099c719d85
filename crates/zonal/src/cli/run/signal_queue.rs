//! Signals of this process that a job's ranks get: each one counts, also where they come together.

use rustix::event::{PollFd, PollFlags, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::io::Read as _;
use std::os::unix::net::UnixStream;

/// Signals that are forwarded; those that ask for an end are the first.
const FORWARDED: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Whether a signal asks for the job's end.
pub fn asks_for_end(signal: u8) -> bool {
    [SIGINT, SIGTERM].contains(&i32::from(signal))
}

/// Signals that came and were not taken yet: a pipe for each number, with a byte for each signal.
#[derive(Debug)]
pub struct SignalQueue {
    pipes: Vec<(u8, UnixStream)>,
    closing: UnixStream,
}

/// Ends the wait for signals when it is dropped.
#[derive(Debug)]
pub struct SignalWait {
    _open: UnixStream,
}

impl SignalQueue {
    /// Takes the signals from now on.
    pub fn open() -> std::io::Result<(Self, SignalWait)> {
        let mut pipes = Vec::new();
        for signal in FORWARDED {
            let (ours, signals) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            signal_hook::low_level::pipe::register(signal, signals)?;
            pipes.push((u8::try_from(signal).unwrap_or_default(), ours));
        }
        let (closing, open) = UnixStream::pair()?;
        Ok((Self { pipes, closing }, SignalWait { _open: open }))
    }

    /// Waits for the next signals, one entry for each that came; `None`: the wait was ended.
    pub fn next(&self) -> Option<Vec<u8>> {
        let streams = self.pipes.iter().map(|(_, pipe)| pipe);
        let streams = streams.chain([&self.closing]);
        let mut list: Vec<PollFd<'_>> = streams
            .map(|stream| PollFd::new(stream, PollFlags::IN))
            .collect();
        match poll(&mut list, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        if list.last().is_none_or(|entry| !entry.revents().is_empty()) {
            return None;
        }
        let mut came = Vec::new();
        for (signal, mut pipe) in self.pipes.iter().map(|(signal, pipe)| (*signal, pipe)) {
            let count = pipe.read(&mut [0; 64]).unwrap_or(0);
            came.extend(std::iter::repeat_n(signal, count));
        }
        Some(came)
    }
}
