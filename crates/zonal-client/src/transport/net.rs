//! The client core's interface to its environment: messages, time, randomness.
//!
//! In a mount, futures of this trait are ready when first polled: sending and receiving happen on
//! the calling thread. In the simulator they wait for simulated messages. The core does not depend
//! on which.

use crate::transport::operation::OperationContext;
use crate::transport::run::ShellMemory;
use std::future::Future;
use zonal_types::{ClientIdentity, ErrorCode, Ino, Instant, NodeId, ShardId, Timestamp};
use zonal_wire::Header;

/// One request to a server.
#[derive(Debug)]
pub struct Message<'a> {
    /// The expected node; 0: any.
    pub node: NodeId,
    /// Service, cell, session, slot, deadline and other fields; the transport fills in lengths.
    pub header: Header,
    /// The encoded message.
    pub body: &'a [u8],
    /// Raw data behind the message, in pieces.
    pub payload: &'a [&'a [u8]],
    /// Most payload bytes of the reply, where a sink will take it ([`Net::finish_into`]).
    pub room: usize,
}

/// A server's reply.
#[derive(Debug)]
pub struct ServerReply {
    /// Its header.
    pub header: Header,
    /// The encoded message.
    pub body: Vec<u8>,
    /// Payload bytes in the caller's buffer.
    pub payload_bytes: usize,
}

/// Why there is no reply. The request may or may not have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetFailure {
    /// No connection, or it broke: nothing listens there.
    Unreachable,
    /// No connection, because the server does not react. This may take less time than the deadline.
    Silent,
    /// No reply within the deadline.
    TimedOut,
    /// The server refused the connection for good (key, cell, version) or violated the protocol.
    Refused(ErrorCode),
}

/// A change of this client's state, for logs and for the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientNotice {
    /// It opened a session at a shard where it had none: its events must be polled. Only for the
    /// shell.
    Opened(ShardId),
    /// A shard has given it its first session there.
    Session(ShardId, ClientIdentity),
    /// It has a new incarnation, because a shard has forgotten it.
    Incarnation(ClientIdentity),
    /// Others have got its locks on a file: writes gathered under them are dropped.
    Forfeited(Ino),
}

/// Transport, clock and randomness.
pub trait Net {
    /// A request in flight.
    type Pending;

    /// Target of payloads that do not go into the caller's buffer.
    type Sink;

    /// Memory for gathered bytes, from which the transport sends without a copy; `None` where it
    /// has none.
    fn memory(&self, _bytes: usize) -> Option<Box<dyn ShellMemory>> {
        None
    }

    /// Monotonic time.
    fn now(&self) -> Instant;

    /// Calendar time.
    fn wall(&self) -> Timestamp;

    /// Random bits.
    fn random(&self) -> u64;

    /// Pauses until the time has passed or the operation is cancelled.
    fn sleep(&self, context: &OperationContext, ms: u64) -> impl Future<Output = ()>;

    /// Sends a request to `address`.
    ///
    /// # Errors
    /// The request was not sent; `Interrupted` where the operation was cancelled.
    fn start(
        &self,
        context: &OperationContext,
        address: &str,
        message: &Message<'_>,
    ) -> Result<Self::Pending, NetFailure>;

    /// Receives the reply and puts its payload into `payload`. A payload that does not fit is a
    /// protocol violation. Ends at once where the operation is cancelled.
    fn finish(
        &self,
        context: &OperationContext,
        pending: Self::Pending,
        payload: Option<&mut [u8]>,
    ) -> impl Future<Output = Result<ServerReply, NetFailure>>;

    /// Waits until one of these requests has its reply, or has failed; returns its place. `None`
    /// where `ms` pass first. A cancelled operation has the first.
    fn await_first(
        &self,
        context: &OperationContext,
        pending: &[&Self::Pending],
        ms: u64,
    ) -> impl Future<Output = Option<usize>>;

    /// Whether a payload from `address` costs less in a sink than in a buffer.
    fn suits_sink(&self, address: &str, node: NodeId) -> bool;

    /// As [`Self::finish`], for a request with room for `bytes` bytes, into an empty sink. Where
    /// the reply's payload has another length, the sink stays empty.
    fn finish_into(
        &self,
        context: &OperationContext,
        pending: Self::Pending,
        sink: &mut Self::Sink,
        bytes: usize,
    ) -> impl Future<Output = Result<ServerReply, NetFailure>>;

    /// Logs that a server does not answer, at a limited rate.
    fn complain(&self, context: &OperationContext, server: &str, doing: &str, failure: NetFailure);

    /// Reports a change of this client's state.
    fn tell(&self, _news: ClientNotice) {}
}
