//! The context of an operation: its trace, its deadline, whether a caller waits for it, and its
//! cancellation.
//!
//! The start of an operation makes its context: a kernel request, a program's call, or a round of
//! the client's own work. The context goes down to each request and each wait by reference
//! ([`ClientCall`]); no thread keeps any of it.
//!
//! # Deadline of an operation
//!
//! Each request is retried until its own deadline. The first request without an answer starts the
//! operation's deadline: one request's deadline and a fifth for everything that remains. An answer
//! of that server ends it. (The fifth is for requests to other servers.)
//!
//! An operation whose servers answer has no deadline of its own. After a wait in vain for a server,
//! later operations wait for it only briefly ([`crate::silent_servers`]).

use crate::client::Client;
use crate::net::{Message, Net, NetFailure, ServerReply};
use crate::session::lock;
use crate::silent_servers::{SilentServers, brief_ms};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use zonal_types::{ErrorCode, Instant, TraceId};

/// Cancels an operation from elsewhere, for good.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    /// Wakes the waiting operation.
    wakes: Mutex<Option<Waker>>,
}

impl Cancellation {
    /// Ends the current wait and all later ones with `Interrupted`.
    pub fn cancel(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        let wakes = lock(&self.0.wakes).take();
        if let Some(waker) = wakes {
            waker.wake();
        }
    }

    /// Whether it was cancelled.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }
}

/// Deadlines of an operation after a server did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperationEnds {
    /// No request is retried after this time; servers not asked before still are.
    pub(crate) repeats: Instant,
    /// No reply is awaited after this time.
    pub(crate) all: Instant,
}

/// A server that did not answer the operation.
#[derive(Debug)]
struct UnansweredServer {
    server: String,
    /// Time since which nothing was heard of it.
    unheard: Instant,
    ends: OperationEnds,
}

/// The context of one operation: trace, deadline, cancellation.
#[derive(Debug)]
pub struct OperationContext {
    trace: TraceId,
    is_awaited: bool,
    /// Time from the first unanswered request to the end, ms.
    patience_ms: u64,
    trouble: Mutex<Option<UnansweredServer>>,
    cancellation: Cancellation,
}

impl OperationContext {
    /// `deadline_ms`: deadline of one request.
    pub(crate) fn new(
        trace: TraceId,
        is_awaited: bool,
        deadline_ms: u64,
        cancellation: Cancellation,
    ) -> Self {
        Self {
            trace,
            is_awaited,
            patience_ms: deadline_ms + deadline_ms / 5,
            trouble: Mutex::new(None),
            cancellation,
        }
    }

    /// The trace that all its requests carry into logs.
    #[must_use]
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// The operation's cancellation.
    #[must_use]
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Registers a wait: `waker` is woken where the operation is cancelled, until
    /// [`Self::waits_no_more`] or the next wait.
    ///
    /// # Errors
    /// The operation is already cancelled.
    pub fn waits(&self, waker: &Waker) -> Result<(), NetFailure> {
        *lock(&self.cancellation.0.wakes) = Some(waker.clone());
        match self.cancellation.is_set() {
            true => Err(NetFailure::Refused(ErrorCode::Interrupted)),
            false => Ok(()),
        }
    }

    /// Ends a wait.
    pub fn waits_no_more(&self) {
        *lock(&self.cancellation.0.wakes) = None;
    }

    /// The deadlines, if a server did not answer.
    pub(crate) fn ends(&self) -> Option<OperationEnds> {
        let ends = lock(&self.trouble).as_ref().map(|known| known.ends);
        assert!(
            ends.is_none_or(|ends| ends.repeats <= ends.all),
            "retries end after the operation"
        );
        ends
    }

    /// How long to wait for a reply from this server, at most `deadline_ms`. For a silent server
    /// this is brief, and as much time is left for other servers.
    fn limit(&self, silences: &SilentServers, server: &str, at: Instant, deadline_ms: u32) -> u32 {
        if !self.is_awaited || !silences.is_silent(server, at) {
            return deadline_ms;
        }
        let brief = brief_ms(self.patience_ms);
        lock(&self.trouble).get_or_insert_with(|| UnansweredServer {
            server: server.to_owned(),
            unheard: at,
            ends: OperationEnds {
                repeats: at.plus_ms(brief),
                all: at.plus_ms(2 * brief),
            },
        });
        zonal_types::mark!(SilentServerMet);
        deadline_ms.min(u32::try_from(brief).unwrap_or(u32::MAX))
    }

    /// Notes the outcome of a request to a server, sent and answered at the two times.
    fn note_answer(
        &self,
        silences: &SilentServers,
        server: &str,
        (at, now): (Instant, Instant),
        failure: Option<NetFailure>,
    ) {
        let unheard = match failure {
            Some(NetFailure::TimedOut) => at,
            // The server was alive until now, because the connection to it existed.
            Some(NetFailure::Unreachable | NetFailure::Silent) => now,
            // The client stopped waiting.
            Some(NetFailure::Refused(ErrorCode::Interrupted)) => {
                zonal_types::mark!(OperationGivenUp);
                return;
            }
            // The request was not sent.
            Some(NetFailure::Refused(ErrorCode::TooBig)) => return,
            None | Some(NetFailure::Refused(_)) => {
                silences.end(server);
                lock(&self.trouble).take_if(|known| known.server == server);
                return;
            }
        };
        let unheard = {
            let mut trouble = lock(&self.trouble);
            let end = at.plus_ms(self.patience_ms);
            let known = trouble.get_or_insert_with(|| UnansweredServer {
                server: server.to_owned(),
                unheard,
                ends: OperationEnds {
                    repeats: end,
                    all: end,
                },
            });
            let is_known = known.server == server;
            if is_known { known.unheard } else { unheard }
        };
        if self.is_awaited && now.ms_since(unheard) >= self.patience_ms * 3 / 4 {
            silences.begin(server, now, self.patience_ms);
        }
    }
}

/// The client at work for one operation. Methods that may wait are here.
pub struct ClientCall<'a, N: Net> {
    client: &'a Client<N>,
    context: OperationContext,
}

impl<N: Net> Deref for ClientCall<'_, N> {
    type Target = Client<N>;

    fn deref(&self) -> &Client<N> {
        self.client
    }
}

/// A request in flight, or why it could not be sent.
pub(crate) struct SentRequest<N: Net> {
    pending: Result<N::Pending, NetFailure>,
    at: Instant,
}

impl<N: Net> Client<N> {
    /// Begins an operation for a waiting caller.
    pub fn begin(&self) -> ClientCall<'_, N> {
        self.call(true, Cancellation::default())
    }

    /// Begins an operation of the client's own work, which waits its full deadline for silent
    /// servers.
    pub fn background(&self) -> ClientCall<'_, N> {
        self.background_until(&Cancellation::default())
    }

    /// As [`Self::background`], with a cancellation. One operation at a time waits under it.
    pub fn background_until(&self, cancellation: &Cancellation) -> ClientCall<'_, N> {
        self.call(false, cancellation.clone())
    }

    fn call(&self, is_awaited: bool, cancellation: Cancellation) -> ClientCall<'_, N> {
        ClientCall {
            client: self,
            context: OperationContext::new(
                self.next_trace(),
                is_awaited,
                self.options.deadline_ms,
                cancellation,
            ),
        }
    }
}

impl<'a, N: Net> ClientCall<'a, N> {
    /// Another operation for the same caller, with a new deadline and the same cancellation.
    #[must_use]
    pub fn another(&self) -> ClientCall<'a, N> {
        let cancellation = self.context.cancellation.clone();
        self.client.call(self.context.is_awaited, cancellation)
    }

    /// The operation's context.
    #[must_use]
    pub fn context(&self) -> &OperationContext {
        &self.context
    }

    /// Sends a request.
    pub(crate) fn start(&self, address: &str, mut message: Message<'_>) -> SentRequest<N> {
        let at = self.net.now();
        if self.context.cancellation.is_set() {
            let pending = Err(NetFailure::Refused(ErrorCode::Interrupted));
            return SentRequest { pending, at };
        }
        let limit = &mut message.header.deadline_ms;
        *limit = self
            .context
            .limit(&self.silent_servers, address, at, *limit);
        let pending = self.net.start(&self.context, address, &message);
        if let Err(failure) = &pending {
            self.note(address, at, Some(*failure));
        }
        SentRequest { pending, at }
    }

    /// Receives the reply of a request.
    pub(crate) async fn finish(
        &self,
        address: &str,
        sent: SentRequest<N>,
        payload: Option<&mut [u8]>,
    ) -> Result<ServerReply, NetFailure> {
        let outcome = self.net.finish(&self.context, sent.pending?, payload).await;
        self.note(address, sent.at, outcome.as_ref().err().copied());
        outcome
    }

    /// As [`Self::finish`], into a sink.
    pub(crate) async fn finish_into(
        &self,
        address: &str,
        sent: SentRequest<N>,
        sink: &mut N::Sink,
        bytes: usize,
    ) -> Result<ServerReply, NetFailure> {
        let finish = self
            .net
            .finish_into(&self.context, sent.pending?, sink, bytes);
        let outcome = finish.await;
        self.note(address, sent.at, outcome.as_ref().err().copied());
        outcome
    }

    fn note(&self, server: &str, at: Instant, failure: Option<NetFailure>) {
        let now = self.net.now();
        self.context
            .note_answer(&self.silent_servers, server, (at, now), failure);
    }

    /// Pauses until the time has passed or the operation is cancelled.
    pub(crate) async fn sleep(&self, ms: u64) {
        self.net.sleep(&self.context, ms).await;
    }

    /// Waits for an async lock until it is free or this operation is cancelled.
    ///
    /// # Errors
    /// `Interrupted` where this operation is cancelled.
    pub(crate) async fn wait_for<'m, T>(
        &self,
        mutex: &'m async_lock::Mutex<T>,
    ) -> Result<async_lock::MutexGuard<'m, T>, ErrorCode> {
        if let Some(guard) = mutex.try_lock() {
            return Ok(guard);
        }
        let mut locking = std::pin::pin!(mutex.lock());
        let locked = std::future::poll_fn(|context| match locking.as_mut().poll(context) {
            Poll::Ready(guard) => Poll::Ready(Ok(guard)),
            Poll::Pending if self.context.waits(context.waker()).is_err() => {
                Poll::Ready(Err(ErrorCode::Interrupted))
            }
            Poll::Pending => Poll::Pending,
        });
        let locked = locked.await;
        self.context.waits_no_more();
        locked
    }
}

#[cfg(test)]
mod tests;
