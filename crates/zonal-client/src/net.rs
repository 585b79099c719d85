//! What the client core needs from outside: messages, time, randomness.
//!
//! In a mount, futures of this trait are ready when first polled: sending and receiving happen on the calling thread.
//! In the simulator they wait for simulated messages. The core never knows which.

use crate::run::Brought;
use std::future::Future;
use std::task::Poll;
use zonal_types::{ClientIdentity, ErrorCode, Ino, Instant, NodeId, ShardId, Timestamp, TraceId};
use zonal_wire::Header;

/// One request to a server.
#[derive(Debug)]
pub struct Message<'a> {
    /// The node expected at the address; 0: whichever answers.
    pub node: NodeId,
    /// Service, cell, session, slot, deadline and so on; lengths are filled in by the transport.
    pub header: Header,
    /// The encoded message.
    pub body: &'a [u8],
    /// Raw data behind it, in pieces.
    pub payload: &'a [&'a [u8]],
    /// Bytes of payload that the reply may have, where a sink will take it ([`Net::finish_into`]).
    pub room: usize,
}

/// A server's reply.
#[derive(Debug)]
pub struct Reply {
    /// Its header.
    pub header: Header,
    /// The encoded message.
    pub body: Vec<u8>,
    /// How many payload bytes were put into the caller's buffer.
    pub payload_bytes: usize,
}

/// Why there is no reply. The request may or may not have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetFailure {
    /// No connection, or it broke: nobody listens there.
    Unreachable,
    /// No connection: nobody answers there. It need not have taken the time that the caller has.
    Silent,
    /// No reply within the deadline.
    TimedOut,
    /// The server refused the connection for good (key, cell, version) or broke the protocol.
    Refused(ErrorCode),
}

/// The end of an operation that meets a server without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// From then on nothing is asked again; servers that were not asked before still are.
    pub repeats: Instant,
    /// Nobody is waited for any more.
    pub all: Instant,
}

/// What people are to hear of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// It has a session at a shard, where it had none: its events are to be polled. For the shell alone.
    Opened(ShardId),
    /// A shard has given it its first session there.
    Session(ShardId, ClientIdentity),
    /// It has begun anew: a shard has forgotten it.
    Incarnation(ClientIdentity),
    /// Others have got the locks that it held on a file: what was gathered under them is dropped.
    Forfeited(Ino),
}

/// Transport, clock and randomness.
pub trait Net {
    /// A request under way.
    type Pending;

    /// Where a payload may go that is not for a buffer of ours.
    type Sink;

    /// Memory for gathered bytes, of which the transport sends without a copy; `None` where it has none.
    fn memory(&self, _bytes: usize) -> Option<Box<dyn Brought>> {
        None
    }

    /// Monotonic time.
    fn now(&self) -> Instant;

    /// Calendar time.
    fn wall(&self) -> Timestamp;

    /// Random bits.
    fn random(&self) -> u64;

    /// Waits.
    fn sleep(&self, ms: u64) -> impl Future<Output = ()>;

    /// Sends a request to `address`; a failure shows in [`Self::finish`].
    fn start(&self, address: &str, message: &Message<'_>) -> Self::Pending;

    /// Receives the reply; its payload goes into `payload` (one that does not fit is a protocol violation).
    fn finish(
        &self,
        pending: Self::Pending,
        payload: Option<&mut [u8]>,
    ) -> impl Future<Output = Result<Reply, NetFailure>>;

    /// Whether payloads from `address` can go into a sink for less than into a buffer.
    fn suits_sink(&self, address: &str, node: NodeId) -> bool;

    /// As [`Self::finish`] of a request that gave room for `bytes` bytes: they go into an empty sink. Where the reply has no payload of that
    /// length, the sink is empty again.
    fn finish_into(
        &self,
        pending: Self::Pending,
        sink: &mut Self::Sink,
        bytes: usize,
    ) -> impl Future<Output = Result<Reply, NetFailure>>;

    /// Tells people, once and rarely, that a server does not answer.
    fn complain(&self, server: &str, doing: &str, failure: NetFailure);

    /// Tells people what became of this client.
    fn tell(&self, _news: News) {}

    /// The caller begins another operation: what went wrong before does not concern it.
    fn begin(&self) {}

    /// What the requests of the caller's operation have in common for whoever reads logs; `None` where each is for itself.
    fn trace(&self) -> Option<TraceId> {
        None
    }

    /// When the caller's operation must have ended, because a server that it needs does not answer.
    fn operation_ends(&self) -> Option<Ends> {
        None
    }

    /// Whether the caller's operation is to be given up.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Waits for another task's lock, until the operation is to be given up.
///
/// # Errors
/// `Interrupted`.
pub(crate) async fn wait_for<'a, T, N: Net>(
    net: &N,
    mutex: &'a async_lock::Mutex<T>,
) -> Result<async_lock::MutexGuard<'a, T>, ErrorCode> {
    let mut locking = std::pin::pin!(mutex.lock());
    std::future::poll_fn(|context| match locking.as_mut().poll(context) {
        Poll::Ready(guard) => Poll::Ready(Ok(guard)),
        Poll::Pending if net.is_cancelled() => Poll::Ready(Err(ErrorCode::Interrupted)),
        Poll::Pending => Poll::Pending,
    })
    .await
}
