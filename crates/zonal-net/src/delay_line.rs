//! The delay line of a connection: frames wait here for their time, then a thread of the line sends
//! them. Only connections of a testbed's processes have one ([`crate::link_condition`]).
//!
//! *Invariants*:
//! 1. Frames leave in the order in which they came, and none before its time.
//! 2. A sender does not wait for another frame's time, unless [`WAITING_BYTES_MAX`] wait.
//! 3. The end of a connection comes behind the frames that wait. It is given up after
//!    [`ENDING_LIMIT`] where the peer takes none of them.
//! 4. The queue is not locked while the socket is used.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use crate::address::Endpoint;
use crate::link_condition::ConditionFile;

/// Bytes that wait in one line before its sender waits, as for a socket's full buffer.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// How long a sender waits for room, before it looks at its own time limit.
const ROOM_STEP: Duration = Duration::from_millis(50);
/// How long the thread of an empty line waits for more.
const IDLE: Duration = Duration::from_secs(1);
/// How long frames are sent still after their connection was ended.
const ENDING_LIMIT: Duration = Duration::from_secs(5);
/// Stack of a line's thread, in bytes.
const STACK_BYTES: usize = 64 << 10;

/// The frames of one connection that wait for their time.
#[derive(Debug)]
pub(crate) struct DelayLine {
    file: &'static ConditionFile,
    peer: IpAddr,
    waiting: Arc<WaitingFrames>,
}

#[derive(Debug, Default)]
struct WaitingFrames {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes of the frames, and of the one that is being sent.
    bytes: usize,
    last_due: Option<Instant>,
    has_thread: bool,
    ended: Option<Instant>,
    failed: Option<Errno>,
}

impl WaitingFrames {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>, time: Duration) -> MutexGuard<'a, Queue> {
        let waited = self.changed.wait_timeout(queue, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl DelayLine {
    /// The line of a connection; `None` outside of testbeds and inside of a node.
    pub(crate) fn of(endpoint: Endpoint) -> Option<Self> {
        let file = ConditionFile::of_process()?;
        match endpoint {
            Endpoint::Tcp(peer) => Some(Self {
                file,
                peer: peer.ip(),
                waiting: Arc::default(),
            }),
            Endpoint::Unix(_) | Endpoint::Local { .. } => None,
        }
    }

    /// Takes a frame and returns its bytes; `None`: it is not late, and the caller sends it.
    pub(crate) fn take(
        &self,
        socket: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
    ) -> Option<Result<usize, Errno>> {
        let delay = self.file.delay_to(self.peer);
        let now = Instant::now();
        let mut queue = self.waiting.queue();
        if let Some(errno) = queue.failed {
            return Some(Err(errno));
        }
        if delay.is_zero() && queue.bytes == 0 {
            return None;
        }
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        if queue.bytes > 0 && queue.bytes + bytes > WAITING_BYTES_MAX {
            queue = self.waiting.wait(queue, ROOM_STEP);
            if queue.bytes > 0 && queue.bytes + bytes > WAITING_BYTES_MAX {
                return Some(Err(Errno::AGAIN));
            }
        }
        if queue.ended.is_some() {
            return Some(Err(Errno::PIPE));
        }
        if !queue.has_thread {
            if let Err(errno) = start(&self.waiting, socket) {
                return Some(Err(errno));
            }
            queue.has_thread = true;
        }
        let due = queue
            .last_due
            .map_or(now + delay, |last| last.max(now + delay));
        let mut frame = Vec::with_capacity(bytes);
        slices
            .iter()
            .for_each(|slice| frame.extend_from_slice(slice));
        queue.last_due = Some(due);
        queue.bytes += bytes;
        queue.frames.push_back((due, frame));
        drop(queue);
        self.waiting.changed.notify_all();
        Some(Ok(bytes))
    }

    /// Bytes of the frames that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.waiting.queue().bytes
    }

    /// Ends the connection behind the frames that wait. False: none waits, and the caller ends it.
    pub(crate) fn end(&self) -> bool {
        let mut queue = self.waiting.queue();
        let waits = queue.bytes > 0;
        queue.ended.get_or_insert_with(Instant::now);
        drop(queue);
        self.waiting.changed.notify_all();
        waits
    }

    /// The time that connecting takes longer: a round trip.
    pub(crate) fn delay_of_connecting(&self) -> Duration {
        self.file.delay_to(self.peer) + self.file.delay_to(self.peer)
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.end();
    }
}

fn start(waiting: &Arc<WaitingFrames>, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let socket = rustix::io::fcntl_dupfd_cloexec(socket, 0)?;
    let waiting = Arc::clone(waiting);
    let thread = std::thread::Builder::new().name("delay-line".into());
    let started = thread
        .stack_size(STACK_BYTES)
        .spawn(move || run(&waiting, &socket));
    started.map(drop).map_err(|_error| Errno::NOBUFS)
}

/// Sends each frame at its time, until the line was empty for a while.
fn run(waiting: &WaitingFrames, socket: &OwnedFd) {
    let mut queue = waiting.queue();
    let mut emptied = Instant::now();
    loop {
        let now = Instant::now();
        match queue.frames.front().map(|(due, _frame)| *due) {
            None if queue.ended.is_some() || emptied + IDLE <= now => break,
            None => queue = waiting.wait(queue, IDLE),
            Some(due) if due > now => queue = waiting.wait(queue, due - now),
            Some(_due) => {
                let Some((_due, frame)) = queue.frames.pop_front() else {
                    break;
                };
                drop(queue);
                let sent = send_all(waiting, socket, &frame);
                queue = waiting.queue();
                queue.bytes -= frame.len();
                emptied = Instant::now();
                if let Err(errno) = sent {
                    queue.failed = Some(errno);
                    queue.frames.clear();
                    queue.bytes = 0;
                    // The receiver of this connection learns of it.
                    let _ = shutdown(socket, Shutdown::Both);
                    break;
                }
                waiting.changed.notify_all();
            }
        }
    }
    queue.has_thread = false;
    if queue.ended.is_some() {
        let _ = shutdown(socket, Shutdown::Both);
    }
    drop(queue);
    waiting.changed.notify_all();
}

/// Sends a whole frame; waits for a peer that does not take it for as long as the connection lives.
fn send_all(waiting: &WaitingFrames, socket: &OwnedFd, frame: &[u8]) -> Result<(), Errno> {
    let mut rest = frame;
    while !rest.is_empty() {
        match send(socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ended = waiting.queue().ended;
                if ended.is_some_and(|ended| ended.elapsed() >= ENDING_LIMIT) {
                    return Err(Errno::TIMEDOUT);
                }
                let socket = socket.as_fd();
                let step = Timespec::try_from(ROOM_STEP).map_err(|_error| Errno::INVAL)?;
                match poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&step)) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    use zonal_testkit::Scratch;

    const PEER: [u8; 4] = [10, 77, 2, 1];

    /// Conditions of one peer.
    struct Conditions {
        _scratch: Scratch,
        file: &'static ConditionFile,
    }

    impl Conditions {
        fn new(name: &str, delay_us: u64) -> Self {
            let scratch = Scratch::new(name);
            let file = Box::leak(Box::new(ConditionFile::at(scratch.join("0"))));
            let text = format!("seed 1\n10.77.2.1 {delay_us} 0\n");
            std::fs::write(scratch.join("0"), text).unwrap();
            Self {
                _scratch: scratch,
                file,
            }
        }

        fn line(&self) -> DelayLine {
            DelayLine {
                file: self.file,
                peer: PEER.into(),
                waiting: Arc::default(),
            }
        }
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
        socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn take(line: &DelayLine, socket: &OwnedFd, bytes: &[u8]) -> Option<Result<usize, Errno>> {
        line.take(socket.as_fd(), &[IoSlice::new(bytes)])
    }

    fn receive(socket: &OwnedFd) -> Vec<u8> {
        let mut bytes = [0; 64];
        let (count, _whole) = recv(socket, &mut bytes, RecvFlags::empty()).unwrap();
        bytes[..count].to_vec()
    }

    #[test]
    fn frames_come_in_their_order_and_not_before_their_time() {
        let late = Conditions::new("delay-order", 100_000);
        let soon = Conditions::new("delay-order-soon", 0);
        let (mut line, (near, far)) = (late.line(), pair());
        let begun = Instant::now();
        assert_eq!(take(&line, &near, b"a"), Some(Ok(1)));
        // A shorter delay does not let a frame overtake another one.
        line.file = soon.file;
        let second = take(&line, &near, b"b");
        let mut arrived = receive(&far);
        assert!(begun.elapsed() >= Duration::from_millis(100));
        if second.is_some() {
            while arrived.len() < 2 {
                arrived.extend(receive(&far));
            }
            assert_eq!((second, &arrived[..]), (Some(Ok(1)), &b"ab"[..]));
        }
        // Nothing waits any more, so the caller sends.
        while line.waiting.queue().bytes > 0 {
            std::thread::yield_now();
        }
        assert_eq!(take(&line, &near, b"c"), None);
    }

    #[test]
    fn a_sender_waits_for_no_frame_until_too_many_wait() {
        // The frames would leave in an hour.
        let conditions = Conditions::new("delay-senders", 3_600_000_000);
        let (line, (near, far)) = (conditions.line(), pair());
        let frame = vec![7; WAITING_BYTES_MAX / 4];
        for _frame in 0..4 {
            assert_eq!(take(&line, &near, &frame), Some(Ok(frame.len())));
        }
        assert_eq!(take(&line, &near, b"x"), Some(Err(Errno::AGAIN)));
        // Another connection is not kept from sending, and this one still has sent nothing.
        let other = (conditions.line(), pair());
        assert_eq!(take(&other.0, &other.1.0, b"x"), Some(Ok(1)));
        let nothing = recv(&far, &mut [0; 8], RecvFlags::DONTWAIT);
        assert_eq!(nothing.unwrap_err(), Errno::AGAIN);
    }

    #[test]
    fn the_end_of_a_connection_comes_behind_its_frames() {
        let conditions = Conditions::new("delay-end", 30_000);
        let (line, (near, far)) = (conditions.line(), pair());
        assert_eq!(take(&line, &near, b"last"), Some(Ok(4)));
        assert!(line.end());
        assert_eq!(take(&line, &near, b"later"), Some(Err(Errno::PIPE)));
        drop((line, near));
        assert_eq!(receive(&far), b"last");
        assert_eq!(receive(&far), b"");
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error_of_the_next_frame() {
        let conditions = Conditions::new("delay-gone", 1);
        let (line, (near, far)) = (conditions.line(), pair());
        drop(far);
        assert_eq!(take(&line, &near, b"a"), Some(Ok(1)));
        // The receiver of the connection learns of it.
        assert_eq!(receive(&near), b"");
        while line.waiting.queue().has_thread {
            std::thread::yield_now();
        }
        assert_eq!(take(&line, &near, b"b"), Some(Err(Errno::PIPE)));
    }
}
