//! The context of an operation: its trace, its deadline, whether a caller waits for it, and its
//! cancellation.
//!
//! The start of an operation makes its context: a kernel request, a program's call, or a round of
//! the client's own work. The context goes down to each request and each wait by reference
//! ([`crate::client::ClientCall`]); no thread keeps any of it.
//!
//! # Deadline of an operation
//!
//! Each request is retried until its own deadline. The first request without an answer starts the
//! operation's deadline: one request's deadline and a fifth for everything that remains. An answer
//! of that server ends it. (The fifth is for requests to other servers.)
//!
//! A brief part of an operation has a fixed end instead ([`OperationContext::brief`]).
//!
//! An endless operation has no deadline: each attempt waits its time, and another follows. Only its
//! cancellation ends it. It begins no silence, because no later operation gives up either.
//!
//! An operation whose servers answer has no deadline of its own. After a wait in vain for a server,
//! later operations wait for it only briefly ([`crate::transport::silent_servers`]).

use crate::transport::mutex::lock;
use crate::transport::net::NetFailure;
use crate::transport::silent_servers::{SilentServers, brief_ms};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
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
    /// It has a fixed end, at which it gives up.
    is_brief: bool,
    /// It has no deadline.
    is_endless: bool,
    /// It is a stat that belongs to a listing of the root.
    is_of_listing: bool,
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
            is_brief: false,
            is_endless: false,
            is_of_listing: false,
            patience_ms: deadline_ms + deadline_ms / 5,
            trouble: Mutex::new(None),
            cancellation,
        }
    }

    /// The context of a part of an operation that ends at `end`, answered or not. It begins no
    /// silence.
    pub(crate) fn brief(trace: TraceId, cancellation: Cancellation, end: Instant) -> Self {
        // No server has this name, so no answer ends the deadline.
        let trouble = UnansweredServer {
            server: String::new(),
            unheard: end,
            ends: OperationEnds {
                repeats: end,
                all: end,
            },
        };
        Self {
            is_brief: true,
            trouble: Mutex::new(Some(trouble)),
            ..Self::new(trace, false, 0, cancellation)
        }
    }

    /// Takes the deadline from an operation, or gives it back.
    pub(crate) fn set_endless(&mut self, is_endless: bool) {
        self.is_endless = is_endless;
    }

    /// Whether it has no deadline.
    pub(crate) fn is_endless(&self) -> bool {
        self.is_endless
    }

    /// Marks the operation as a stat that belongs to a listing of the root.
    pub(crate) fn set_of_listing(&mut self) {
        self.is_of_listing = true;
    }

    /// Whether it is a stat that belongs to a listing of the root.
    pub(crate) fn is_of_listing(&self) -> bool {
        self.is_of_listing
    }

    /// Whether it has a fixed end, at which it gives up.
    pub(crate) fn is_brief(&self) -> bool {
        self.is_brief
    }

    /// The trace that all its requests carry into logs.
    #[must_use]
    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// Whether a caller waits for the operation.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited
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
    pub(crate) fn limit(
        &self,
        silences: &SilentServers,
        server: &str,
        at: Instant,
        deadline_ms: u32,
    ) -> u32 {
        if !self.is_awaited || self.is_endless || !silences.is_silent(server, at) {
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
    pub(crate) fn note_answer(
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
        if self.is_endless {
            return;
        }
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

#[cfg(test)]
mod tests;
