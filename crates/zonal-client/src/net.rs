//! What the client core needs from outside: messages, time, randomness.
//!
//! In a mount, futures of this trait are ready when first polled: sending and receiving happen on
//! the calling thread. In the simulator they wait for simulated messages. The core never knows
//! which.

use crate::operation::OperationContext;
use crate::run::ShellMemory;
use std::future::Future;
use zonal_types::{ClientIdentity, ErrorCode, Ino, Instant, NodeId, ShardId, Timestamp};
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
pub struct ServerReply {
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

/// What people are to hear of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientNotice {
    /// It has a session at a shard, where it had none: its events are to be polled. For the shell
    /// alone.
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

    /// Memory for gathered bytes, of which the transport sends without a copy; `None` where it has
    /// none.
    fn memory(&self, _bytes: usize) -> Option<Box<dyn ShellMemory>> {
        None
    }

    /// Monotonic time.
    fn now(&self) -> Instant;

    /// Calendar time.
    fn wall(&self) -> Timestamp;

    /// Random bits.
    fn random(&self) -> u64;

    /// Pauses, until the operation is given up.
    fn sleep(&self, context: &OperationContext, ms: u64) -> impl Future<Output = ()>;

    /// Sends a request to `address`.
    ///
    /// # Errors
    /// It was not sent; `Interrupted` where the operation is given up meanwhile.
    fn start(
        &self,
        context: &OperationContext,
        address: &str,
        message: &Message<'_>,
    ) -> Result<Self::Pending, NetFailure>;

    /// Receives the reply; its payload goes into `payload` (one that does not fit is a protocol
    /// violation). Ends at once where the operation is given up.
    fn finish(
        &self,
        context: &OperationContext,
        pending: Self::Pending,
        payload: Option<&mut [u8]>,
    ) -> impl Future<Output = Result<ServerReply, NetFailure>>;

    /// Whether payloads from `address` can go into a sink for less than into a buffer.
    fn suits_sink(&self, address: &str, node: NodeId) -> bool;

    /// As [`Self::finish`] of a request that gave room for `bytes` bytes: they go into an empty
    /// sink. Where the reply has no payload of that length, the sink is empty again.
    fn finish_into(
        &self,
        context: &OperationContext,
        pending: Self::Pending,
        sink: &mut Self::Sink,
        bytes: usize,
    ) -> impl Future<Output = Result<ServerReply, NetFailure>>;

    /// Tells people, once and rarely, that a server does not answer.
    fn complain(&self, context: &OperationContext, server: &str, doing: &str, failure: NetFailure);

    /// Tells people what became of this client.
    fn tell(&self, _news: ClientNotice) {}
}
