//! The context of an operation: for whom it is done, its trace, its deadline, and what gives it up.
//!
//! Whoever begins an operation makes its context: a request of the kernel, a program's call, a
//! round of the client's own work. It goes down to each request and each wait by reference
//! ([`ClientCall`]); nothing of it is kept by a thread.
//!
//! *How long an operation takes at most*: each request is tried until its deadline. From the first
//! that gets no answer the operation has one deadline and a fifth for everything that it still has
//! to do, until that server answers. (The fifth is for asking the servers that live.) An operation
//! whose servers answer has no end of its own. A server for which one has waited in vain is given
//! little time by those that follow ([`crate::silent_servers`]).

use crate::client::Client;
use crate::net::{Message, Net, NetFailure, ServerReply};
use crate::session::lock;
use crate::silent_servers::{SilentServers, brief_ms};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use zonal_types::{ErrorCode, Instant, TraceId};

/// Gives an operation up from elsewhere. It stays given up.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_set: AtomicBool,
    /// What the operation waits for.
    wakes: Mutex<Option<Waker>>,
}

impl Cancellation {
    /// Ends what the operation waits for, now and later: that is `Interrupted`.
    pub fn cancel(&self) {
        self.0.is_set.store(true, Ordering::SeqCst);
        let wakes = lock(&self.0.wakes).take();
        if let Some(waker) = wakes {
            waker.wake();
        }
    }

    /// Whether it was given up.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::SeqCst)
    }
}

/// The end of an operation that meets a server without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperationEnds {
    /// From then on nothing is asked again; servers that were not asked before still are.
    pub(crate) repeats: Instant,
    /// Nobody is waited for any more.
    pub(crate) all: Instant,
}

/// A server that did not answer the operation.
#[derive(Debug)]
struct UnansweredServer {
    server: String,
    /// Nothing was heard of it since then.
    unheard: Instant,
    ends: OperationEnds,
}

/// For whom an operation is done, its trace, its deadline, and what gives it up.
#[derive(Debug)]
pub struct OperationContext {
    trace: TraceId,
    is_awaited: bool,
    /// From the first request without an answer to the end.
    patience_ms: u64,
    trouble: Mutex<Option<UnansweredServer>>,
    cancellation: Cancellation,
}

impl OperationContext {
    /// `deadline_ms`: of one request.
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

    /// What its requests have in common, for whoever reads logs.
    #[must_use]
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// What gives it up.
    #[must_use]
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// It waits, and `waker` is woken where it is given up meanwhile. Until
    /// [`Self::waits_no_more`], or the next wait.
    ///
    /// # Errors
    /// It has been given up.
    pub fn waits(&self, waker: &Waker) -> Result<(), NetFailure> {
        *lock(&self.cancellation.0.wakes) = Some(waker.clone());
        match self.cancellation.is_set() {
            true => Err(NetFailure::Refused(ErrorCode::Interrupted)),
            false => Ok(()),
        }
    }

    /// It waits for nothing.
    pub fn waits_no_more(&self) {
        *lock(&self.cancellation.0.wakes) = None;
    }

    /// When it must have ended, because a server that it needs does not answer.
    pub(crate) fn ends(&self) -> Option<OperationEnds> {
        lock(&self.trouble).as_ref().map(|known| known.ends)
    }

    /// How long a reply of a server that is asked now is waited for, which may take `deadline_ms`.
    /// As long again is left for the servers that live.
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

    /// What the outcome of a request that was sent `at` says `now` of its server.
    fn note_answer(
        &self,
        silences: &SilentServers,
        server: &str,
        (at, now): (Instant, Instant),
        failure: Option<NetFailure>,
    ) {
        let unheard = match failure {
            Some(NetFailure::TimedOut) => at,
            // There was one until now, to which the connection was.
            Some(NetFailure::Unreachable | NetFailure::Silent) => now,
            // Not waited for.
            Some(NetFailure::Refused(ErrorCode::Interrupted)) => {
                zonal_types::mark!(OperationGivenUp);
                return;
            }
            // Not sent.
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

/// A client at work for one operation: everything that may wait is asked of this.
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

/// A request under way, or why it could not be sent.
pub(crate) struct SentRequest<N: Net> {
    pending: Result<N::Pending, NetFailure>,
    at: Instant,
}

impl<N: Net> Client<N> {
    /// Begins an operation for somebody who waits.
    pub fn begin(&self) -> ClientCall<'_, N> {
        self.call(true, Cancellation::default())
    }

    /// Begins an operation of the client's own: it has all its patience with servers that are
    /// silent.
    pub fn background(&self) -> ClientCall<'_, N> {
        self.background_until(&Cancellation::default())
    }

    /// The same, given up from elsewhere. One operation at a time waits under a cancellation.
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
    /// Another operation for the same caller: what went wrong before does not concern it. It is
    /// given up with this one.
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

    /// Receives the reply from where the request was sent.
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

    /// Pauses, until the operation is given up.
    pub(crate) async fn sleep(&self, ms: u64) {
        self.net.sleep(&self.context, ms).await;
    }

    /// Waits for another operation's lock, until this one is given up.
    ///
    /// # Errors
    /// `Interrupted`.
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
