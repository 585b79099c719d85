//! The socket under a connection: sends and receives bytes within a time limit.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use zonal_wait::Waiter;

use super::{IoFail, TimeLimit};
use crate::stream::Stream;

/// A socket, with the time limits that were set on it last.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) stream: Arc<Stream>,
    receive_limit: Option<Duration>,
    send_limit: Option<Duration>,
    waiter: Waiter,
    /// Bytes of the frame sent last that the peer had not taken at the last look.
    unsent: usize,
    /// The peer may send descriptors of regions.
    pub(super) takes_regions: bool,
    pub(super) region: Option<OwnedFd>,
}

/// Why sending or receiving failed.
pub(crate) enum SocketFail {
    /// The time limit passed.
    TimedOut,
    /// The system's reason.
    System(Errno),
}

impl SocketFail {
    /// Converts the failure, depending on whether a frame was begun.
    pub(super) fn named(self, is_first: bool) -> IoFail {
        match self {
            Self::TimedOut => IoFail::TimedOut,
            Self::System(errno) if is_first => IoFail::Closed(errno),
            Self::System(errno) => IoFail::Broken(errno),
        }
    }
}

impl Socket {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self {
            stream,
            receive_limit: None,
            // Connecting sets a limit that is unknown here. An impossible value makes the first
            // send set its own.
            send_limit: Some(Duration::ZERO),
            waiter: Waiter::default(),
            unsent: 0,
            takes_regions: false,
            region: None,
        }
    }

    /// Begins a frame: the peer has taken all before it.
    pub(super) fn begin_frame(&mut self) {
        self.unsent = 0;
    }

    /// Starts a call's time limit anew where bytes of its request have left since the last look,
    /// and some have not. (Once all have left, the limit counts from the look before.)
    pub(super) fn look_at_unsent(&mut self, time_limit: &TimeLimit) {
        if self.unsent == 0 || !time_limit.follows_sending() {
            return;
        }
        let unsent = self.stream.unsent_bytes();
        if 0 < unsent && unsent < self.unsent {
            time_limit.sent();
        }
        self.unsent = unsent;
    }

    /// Sends some of the bytes; a region's descriptor goes along with the first.
    pub(crate) fn send_some(
        &mut self,
        slices: &[IoSlice<'_>],
        region: Option<BorrowedFd<'_>>,
        time_limit: &TimeLimit,
    ) -> Result<usize, SocketFail> {
        loop {
            let limit = socket_limit(time_limit)?;
            if limit != self.send_limit {
                self.stream
                    .set_send_limit(limit)
                    .map_err(SocketFail::System)?;
                self.send_limit = limit;
            }
            let sent = match region {
                Some(region) => self.stream.send_with(slices, region),
                None => self.stream.send(slices, SendFlags::empty()),
            };
            match sent {
                Ok(count) => {
                    self.unsent += count;
                    if count < slices.iter().map(|slice| slice.len()).sum() {
                        // The send waited for room.
                        time_limit.sent();
                    }
                    return Ok(count);
                }
                // The time limit alone decides when time is up.
                Err(Errno::INTR | Errno::AGAIN) => self.look_at_unsent(time_limit),
                Err(errno) => return Err(SocketFail::System(errno)),
            }
        }
    }

    /// Receives the bytes that are there, at least one; 0: the peer has ended. Spins for a moment
    /// before it sleeps.
    pub(crate) fn receive_some(
        &mut self,
        into: &mut [u8],
        time_limit: &TimeLimit,
    ) -> Result<usize, SocketFail> {
        loop {
            self.limit_receive(time_limit)?;
            let (stream, region) = (&*self.stream, &mut self.region);
            let takes_regions = self.takes_regions;
            let mut receive = |flags| {
                let into = &mut [IoSliceMut::new(into)];
                match takes_regions {
                    true => stream.receive_with(into, flags, region),
                    false => stream.receive(into, flags),
                }
            };
            let found = self.waiter.look(|| match receive(RecvFlags::DONTWAIT) {
                Err(Errno::INTR | Errno::AGAIN) => None,
                found => Some(found),
            });
            let received = found.unwrap_or_else(|| {
                let received = receive(RecvFlags::empty());
                self.waiter.slept();
                received
            });
            match received {
                Ok(count) => return Ok(count),
                Err(Errno::INTR | Errno::AGAIN) => self.look_at_unsent(time_limit),
                Err(errno) => return Err(SocketFail::System(errno)),
            }
        }
    }

    /// Receives as many bytes as arrive before a signal or the time limit: normally one system
    /// call. 0: the peer has ended.
    pub(super) fn receive_long(
        &mut self,
        into: &mut [u8],
        time_limit: &TimeLimit,
    ) -> Result<usize, SocketFail> {
        loop {
            self.limit_receive(time_limit)?;
            let into = &mut [IoSliceMut::new(into)];
            let received = match self.takes_regions {
                true => self
                    .stream
                    .receive_with(into, RecvFlags::WAITALL, &mut self.region),
                false => self.stream.receive(into, RecvFlags::WAITALL),
            };
            match received {
                Ok(count) => return Ok(count),
                Err(Errno::INTR | Errno::AGAIN) => self.look_at_unsent(time_limit),
                Err(errno) => return Err(SocketFail::System(errno)),
            }
        }
    }

    fn limit_receive(&mut self, time_limit: &TimeLimit) -> Result<(), SocketFail> {
        let limit = socket_limit(time_limit)?;
        if limit != self.receive_limit {
            self.stream
                .set_receive_limit(limit)
                .map_err(SocketFail::System)?;
            self.receive_limit = limit;
        }
        Ok(())
    }
}

fn socket_limit(time_limit: &TimeLimit) -> Result<Option<Duration>, SocketFail> {
    time_limit
        .socket_limit()
        .map_err(|_over| SocketFail::TimedOut)
}
