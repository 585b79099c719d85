//! A connected socket, TCP or Unix: connecting, options, sending and receiving bytes.
//!
//! Sockets block; deadlines are the kernel's (SO_RCVTIMEO, SO_SNDTIMEO), so that a thread sleeps in
//! the call itself.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect,
    recvmsg, sendmsg, shutdown, socket_with,
};

use crate::address::Endpoint;
use crate::delay_line::DelayLine;

/// How often a pending connect checks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);
/// Pause before another attempt at a Unix socket whose listener's queue is full.
const FULL_PAUSE: Duration = Duration::from_millis(5);

/// Slices of one send: Linux takes at most 1024 in one call.
const SLICES_MAX: usize = 1024;

/// A connected socket.
#[derive(Debug)]
pub struct Stream {
    fd: OwnedFd,
    endpoint: Endpoint,
    /// In processes of a testbed alone.
    delay_line: Option<Box<DelayLine>>,
}

impl Stream {
    fn new(fd: OwnedFd, endpoint: Endpoint) -> Self {
        let delay_line = DelayLine::of(endpoint).map(Box::new);
        Self {
            fd,
            endpoint,
            delay_line,
        }
    }

    /// Wraps an accepted socket and sets its options.
    pub(crate) fn accepted(fd: OwnedFd, endpoint: Endpoint, buffer_bytes: usize) -> Self {
        set_buffers(fd.as_fd(), endpoint.is_unix(), buffer_bytes);
        let stream = Self::new(fd, endpoint);
        stream.set_tcp_options();
        stream
    }

    /// Connects to a TCP address for as long as `goes_on` returns true.
    pub(crate) fn connect_tcp(
        to: SocketAddr,
        limit: Duration,
        buffer_bytes: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Self, Errno> {
        let family = if to.is_ipv4() {
            AddressFamily::INET
        } else {
            AddressFamily::INET6
        };
        let begun = Instant::now();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::STREAM, flags, None)?;
        // Before connecting: the first packet fixes the window scale.
        set_buffers(fd.as_fd(), false, buffer_bytes);
        match connect(&fd, &to) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => finish_connecting(fd.as_fd(), limit, goes_on)?,
            Err(errno) => return Err(errno),
        }
        ioctl_fionbio(&fd, false)?;
        let stream = Self::new(fd, Endpoint::Tcp(to));
        stream.set_tcp_options();
        if let Some(line) = &stream.delay_line {
            let end = begun + limit;
            wait_for_round_trip(begun + line.delay_of_connecting(), end, goes_on)?;
        }
        Ok(stream)
    }

    /// Connects to the Unix socket that stands for a TCP address.
    pub(crate) fn connect_unix(
        to: &SocketAddrUnix,
        stands_for: SocketAddr,
        limit: Duration,
        buffer_bytes: usize,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Self, Errno> {
        let fd = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        set_buffers(fd.as_fd(), true, buffer_bytes);
        let end = Instant::now() + limit;
        // AGAIN: the listener's queue is full. (A blocking call could not be cancelled.)
        while let Err(errno) = connect(&fd, to) {
            let is_passing = errno == Errno::AGAIN || errno == Errno::INTR;
            if !is_passing || Instant::now() >= end || !goes_on() {
                return Err(errno);
            }
            std::thread::sleep(FULL_PAUSE);
        }
        ioctl_fionbio(&fd, false)?;
        Ok(Self::new(fd, Endpoint::Unix(stands_for)))
    }

    /// The peer's endpoint.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// User id of the process at the other end of a Unix socket.
    pub(crate) fn peer_uid(&self) -> Option<u32> {
        sockopt::socket_peercred(&self.fd)
            .ok()
            .map(|credentials| credentials.uid.as_raw())
    }

    /// Ends both directions; calls that wait on the socket return.
    pub(crate) fn shut(&self) {
        let waits = self.delay_line.as_ref().is_some_and(|line| line.end());
        let end = if waits {
            Shutdown::Read
        } else {
            Shutdown::Both
        };
        // An error means that it is not connected any more.
        let _ = shutdown(&self.fd, end);
    }

    /// Ends receiving; a call that waits for bytes returns, sending goes on.
    pub(crate) fn shut_receiving(&self) {
        let _ = shutdown(&self.fd, Shutdown::Read);
    }

    /// True until the peer has closed or reset the connection. Does not wait.
    pub(crate) fn is_open(&self) -> bool {
        let mut byte = [0_u8];
        loop {
            let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
            match self.receive(&mut [IoSliceMut::new(&mut byte)], flags) {
                Ok(0) => return false,
                Ok(_) | Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Discards the bytes that have arrived, so that closing sends an orderly end and not a reset.
    pub(crate) fn discard_arrived(&self) {
        let mut scratch = [0_u8; 4096];
        for _ in 0..16 {
            match self.receive(&mut [IoSliceMut::new(&mut scratch)], RecvFlags::DONTWAIT) {
                Ok(count) if count > 0 => {}
                _ => break,
            }
        }
    }

    /// Bytes given to this socket that the peer has not taken; 0 where the system does not tell.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let held_back = self.delay_line.as_ref().map_or(0, |line| line.bytes());
        held_back + zonal_region::unsent_bytes(self.fd.as_fd()).unwrap_or(0)
    }

    pub(crate) fn send(&self, slices: &[IoSlice<'_>], flags: SendFlags) -> Result<usize, Errno> {
        if let Some(line) = &self.delay_line
            && let Some(taken) = line.take(self.fd.as_fd(), slices)
        {
            return taken;
        }
        let slices = slices.get(..SLICES_MAX).unwrap_or(slices);
        let mut control = SendAncillaryBuffer::default();
        sendmsg(&self.fd, slices, &mut control, SendFlags::NOSIGNAL | flags)
    }

    /// As [`Self::send`], with a descriptor that goes along with the first byte. A Unix socket
    /// only.
    pub(crate) fn send_with(
        &self,
        slices: &[IoSlice<'_>],
        descriptor: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        let slices = slices.get(..SLICES_MAX).unwrap_or(slices);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Errno::NOBUFS);
        }
        sendmsg(&self.fd, slices, &mut control, SendFlags::NOSIGNAL)
    }

    /// As [`Self::receive`]. A descriptor that arrives replaces an earlier one in `region`; the
    /// kernel closes all but one.
    pub(crate) fn receive_with(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        descriptor: &mut Option<OwnedFd>,
    ) -> Result<usize, Errno> {
        let count = slices.len().min(SLICES_MAX);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.fd, &mut slices[..count], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                came.for_each(|came| *descriptor = Some(came));
            }
        }
        Ok(received.bytes)
    }

    pub(crate) fn receive(
        &self,
        slices: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, Errno> {
        let count = slices.len().min(SLICES_MAX);
        let mut control = RecvAncillaryBuffer::default();
        recvmsg(&self.fd, &mut slices[..count], &mut control, flags).map(|received| received.bytes)
    }

    pub(crate) fn set_receive_limit(&self, limit: Option<Duration>) -> Result<(), Errno> {
        sockopt::set_socket_timeout(&self.fd, Timeout::Recv, limit)
    }

    pub(crate) fn set_send_limit(&self, limit: Option<Duration>) -> Result<(), Errno> {
        sockopt::set_socket_timeout(&self.fd, Timeout::Send, limit)
    }

    /// Sends small frames without delay, and lets the kernel's keep-alive notice a peer that
    /// vanished, at no cost to this process. Failures make a connection slower or longer-lived, not
    /// wrong.
    fn set_tcp_options(&self) {
        if self.endpoint.is_unix() {
            return;
        }
        let _ = sockopt::set_tcp_nodelay(&self.fd, true);
        let _ = sockopt::set_socket_keepalive(&self.fd, true);
        let _ = sockopt::set_tcp_keepidle(&self.fd, Duration::from_secs(30));
        let _ = sockopt::set_tcp_keepintvl(&self.fd, Duration::from_secs(10));
        let _ = sockopt::set_tcp_keepcnt(&self.fd, 3);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits for a pending connect, and checks from time to time whether it is still wanted.
fn finish_connecting(
    fd: BorrowedFd<'_>,
    limit: Duration,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), Errno> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        if !goes_on() {
            return Err(Errno::CANCELED);
        }
        let step = Timespec::try_from(left.min(LOOK)).map_err(|_error| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&step)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return sockopt::socket_error(fd)?,
            Err(error) => return Err(error),
        }
    }
}

/// Waits until a connection over links with a delay is made. `end`: the caller's time limit.
fn wait_for_round_trip(
    made: Instant,
    end: Instant,
    goes_on: &dyn Fn() -> bool,
) -> Result<(), Errno> {
    loop {
        let now = Instant::now();
        let left = made.saturating_duration_since(now);
        if left.is_zero() {
            return Ok(());
        }
        if now >= end {
            return Err(Errno::TIMEDOUT);
        }
        if !goes_on() {
            return Err(Errno::CANCELED);
        }
        std::thread::sleep(left.min(end - now).min(LOOK));
    }
}

/// Sets both buffers; 0 leaves the system's.
///
/// With CAP_NET_ADMIN the system's maximum does not bind. Without it, TCP keeps its self-adjusting
/// buffers when the maximum is below what is wanted (a fixed small buffer would be slower than they
/// are).
pub(crate) fn set_buffers(fd: BorrowedFd<'_>, is_unix: bool, bytes: usize) {
    if bytes == 0 {
        return;
    }
    if sockopt::set_socket_send_buffer_size_force(fd, bytes).is_ok() {
        let _ = sockopt::set_socket_recv_buffer_size_force(fd, bytes);
    } else if is_unix {
        let _ = sockopt::set_socket_send_buffer_size(fd, bytes);
        let _ = sockopt::set_socket_recv_buffer_size(fd, bytes);
    }
}
