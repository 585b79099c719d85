//! Gathers the heads of requests for admin pages on one thread, so that a silent or half-sent
//! request holds none of the threads that answer.
//!
//! At most [`PENDING_MAX`] connections have an incomplete head; a new one displaces the oldest.
//! Each ends after [`PATIENCE`].

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::http::{self, HEAD_MAX, PATIENCE, PageRequest};

/// Connections whose request is incomplete.
const PENDING_MAX: usize = 64;
/// Pause before the next attempt where the system has no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection with its request, or with the status code of a refusal.
pub(super) struct CompleteHead {
    pub(super) stream: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) asked: Result<PageRequest, u16>,
    /// The request has waited for a change behind this version, and is to be answered now.
    pub(super) waited_since: Option<u64>,
}

struct PendingHead {
    stream: TcpStream,
    peer: SocketAddr,
    head: Vec<u8>,
    since: Instant,
}

enum HeadProgress {
    /// The head is incomplete.
    Waits,
    /// The head is complete, or refused.
    Done(Result<PageRequest, u16>),
    /// The client went away.
    Gone,
}

impl PendingHead {
    fn read(&mut self) -> HeadProgress {
        let mut some = [0; 2048];
        loop {
            match self.stream.read(&mut some) {
                Ok(0) => return HeadProgress::Gone,
                Ok(count) => {
                    self.head.extend_from_slice(&some[..count]);
                    match http::parse(&self.head) {
                        Ok(Some(asked)) => return HeadProgress::Done(Ok(asked)),
                        Err(code) => return HeadProgress::Done(Err(code)),
                        Ok(None) if self.head.len() >= HEAD_MAX => {
                            return HeadProgress::Done(Err(431));
                        }
                        Ok(None) => {}
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return HeadProgress::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return HeadProgress::Gone,
            }
        }
    }
}

/// The connections of a listener whose heads are incomplete.
#[derive(Default)]
pub(super) struct RequestHeads {
    /// Incomplete ones by age.
    pending: Vec<PendingHead>,
}

impl RequestHeads {
    /// Waits for bytes; returns the connections whose head is complete.
    pub(super) fn wait(&mut self, listener: &TcpListener) -> Vec<CompleteHead> {
        let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
        let streams = self.pending.iter();
        fds.extend(streams.map(|pending| PollFd::new(&pending.stream, PollFlags::IN)));
        let first = self.pending.first();
        let limit = first.map(|first| PATIENCE.saturating_sub(first.since.elapsed()));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // A signal ends the wait early, which does no harm.
        let _ = poll(&mut fds, limit.as_ref());
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut arrived = Vec::new();
        let mut index = 0;
        self.pending.retain_mut(|pending| {
            index += 1;
            if ready.get(index) != Some(&true) {
                return pending.since.elapsed() < PATIENCE;
            }
            match pending.read() {
                HeadProgress::Waits => pending.since.elapsed() < PATIENCE,
                HeadProgress::Gone => false,
                HeadProgress::Done(asked) => {
                    if let Ok(stream) = pending.stream.try_clone() {
                        arrived.push(CompleteHead {
                            stream,
                            peer: pending.peer,
                            asked,
                            waited_since: None,
                        });
                    }
                    false
                }
            }
        });
        if ready.first() == Some(&true) {
            self.accept(listener);
        }
        arrived
    }

    fn accept(&mut self, listener: &TcpListener) {
        match listener.accept() {
            Ok((stream, peer)) => {
                if stream.set_nonblocking(true).is_err() {
                    return;
                }
                if self.pending.len() >= PENDING_MAX {
                    self.pending.remove(0);
                }
                self.pending.push(PendingHead {
                    stream,
                    peer,
                    head: Vec::new(),
                    since: Instant::now(),
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::debug!(%error, "an admin connection is not accepted");
                // Without descriptors accepting would fail at once, again and again.
                std::thread::sleep(PAUSE);
            }
        }
    }
}
