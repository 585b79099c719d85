//! The client at work for one operation: sends its requests and waits under its context.
//!
//! Methods that may wait are methods of [`Call`], in the layer of what they need.

use crate::cell::owner::SessionOwner;
use crate::cell::session::{Link, Slot};
use crate::transport::net::{Message, Net, NetFailure, ServerReply};
use crate::transport::operation::{Cancellation, OperationContext};
use std::future::Future;
use std::ops::Deref;
use std::task::Poll;
use zonal_types::{DataId, ErrorCode, Instant};

/// How often an operation whose wait has an end looks whether a lock is free, ms.
const LOCK_STEP_MS: u64 = 10;

/// The client `C` at work for one operation.
pub struct Call<'a, C> {
    client: &'a C,
    context: OperationContext,
}

impl<C> Deref for Call<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.client
    }
}

/// A request in flight, or why it could not be sent.
pub(crate) struct SentRequest<N: Net> {
    pending: Result<N::Pending, NetFailure>,
    pub(crate) at: Instant,
    /// Bytes of the request's payload.
    pub(crate) payload_bytes: usize,
    /// The file's data id, where the request is about an object.
    pub(crate) data_id: Option<DataId>,
}

impl<'a, C: SessionOwner> Call<'a, C> {
    /// Begins an operation. `is_awaited`: a caller waits for it.
    pub(crate) fn new(client: &'a C, is_awaited: bool, cancellation: Cancellation) -> Self {
        let cell = client.cell();
        let deadline_ms = cell.options.deadline_ms;
        let mut context =
            OperationContext::new(cell.next_trace(), is_awaited, deadline_ms, cancellation);
        context.set_endless(is_awaited && cell.options.waits);
        Self { client, context }
    }

    /// This operation with the deadline that it has where clients do not wait for servers
    /// ([`crate::ClientOptions::waits`]).
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.context.set_endless(false);
        self
    }

    /// Another operation for the same caller, with a new deadline and the same cancellation.
    #[must_use]
    pub fn another(&self) -> Self {
        let cancellation = self.context.cancellation().clone();
        let call = Self::new(self.client, self.context.is_awaited(), cancellation);
        match self.context.is_endless() {
            true => call,
            false => call.bounded(),
        }
    }

    /// A part of this operation that ends after `ms`, answered or not. A part of a part does not
    /// outlast it.
    pub(crate) fn briefly(&self, ms: u64) -> Self {
        let own = self.client.cell().net.now().plus_ms(ms);
        let outer = self.context.ends().filter(|_| self.context.is_brief());
        let end = outer.map_or(own, |outer| own.min(outer.all));
        let cancellation = self.context.cancellation().clone();
        Self {
            client: self.client,
            context: OperationContext::brief(self.context.trace(), cancellation, end),
        }
    }

    /// This operation as a stat that belongs to a listing of the root: of a server without an
    /// answer it learns soon.
    #[must_use]
    pub fn of_listing(mut self) -> Self {
        if !self.context.is_endless() {
            self.context.set_of_listing();
        }
        self
    }

    /// The operation's context.
    #[must_use]
    pub fn context(&self) -> &OperationContext {
        &self.context
    }

    /// Sends a request.
    pub(crate) fn start(&self, address: &str, message: Message<'_>) -> SentRequest<C::Net> {
        self.start_at(address, address, message)
    }

    /// Sends a request to one process of a server, at `address`. Silences are the server's.
    pub(crate) fn start_at(
        &self,
        server: &str,
        address: &str,
        mut message: Message<'_>,
    ) -> SentRequest<C::Net> {
        let at = self.client.cell().net.now();
        if self.context.cancellation().is_set() {
            let pending = Err(NetFailure::Refused(ErrorCode::Interrupted));
            return SentRequest {
                pending,
                at,
                payload_bytes: 0,
                data_id: None,
            };
        }
        let limit = &mut message.header.deadline_ms;
        *limit = self
            .context
            .limit(&self.client.cell().silent_servers, server, at, *limit);
        let pending = self
            .client
            .cell()
            .net
            .start(&self.context, address, &message);
        if let Err(failure) = &pending {
            self.note(server, at, Some(*failure));
        }
        SentRequest {
            pending,
            at,
            payload_bytes: message.payload.iter().map(|piece| piece.len()).sum(),
            data_id: None,
        }
    }

    /// Receives the reply of a request.
    pub(crate) async fn finish(
        &self,
        address: &str,
        sent: SentRequest<C::Net>,
        payload: Option<&mut [u8]>,
    ) -> Result<ServerReply, NetFailure> {
        let outcome = self
            .client
            .cell()
            .net
            .finish(&self.context, sent.pending?, payload)
            .await;
        self.note(address, sent.at, outcome.as_ref().err().copied());
        outcome
    }

    /// Waits until the request has its reply, or has failed. False where `ms` pass first.
    pub(crate) async fn has_reply(&self, sent: &SentRequest<C::Net>, ms: u64) -> bool {
        self.first_of(&[sent], ms).await.is_some()
    }

    /// Waits until one of the requests has its reply, or has failed; returns its place. `None`
    /// where `ms` pass first.
    pub(crate) async fn first_of(&self, sent: &[&SentRequest<C::Net>], ms: u64) -> Option<usize> {
        let failed = sent.iter().position(|one| one.pending.is_err());
        if failed.is_some() {
            return failed;
        }
        let pending = sent.iter().filter_map(|one| one.pending.as_ref().ok());
        let pending: Vec<_> = pending.collect();
        let net = &self.client.cell().net;
        net.await_first(&self.context, &pending, ms).await
    }

    /// As [`Self::finish`], for a caller that judges the reply: [`Self::note_received`] follows.
    pub(crate) async fn receive(
        &self,
        sent: SentRequest<C::Net>,
    ) -> (Option<Instant>, Result<ServerReply, NetFailure>) {
        match sent.pending {
            Ok(pending) => {
                let net = &self.client.cell().net;
                let outcome = net.finish(&self.context, pending, None).await;
                (Some(sent.at), outcome)
            }
            // Noted when it was to be sent.
            Err(failure) => (None, Err(failure)),
        }
    }

    /// Notes what a request that was sent at `at` says about its server.
    pub(crate) fn note_received(
        &self,
        server: &str,
        at: Option<Instant>,
        failure: Option<NetFailure>,
    ) {
        if let Some(at) = at {
            self.note(server, at, failure);
        }
    }

    /// As [`Self::finish`], into a sink.
    pub(crate) async fn finish_into(
        &self,
        address: &str,
        sent: SentRequest<C::Net>,
        sink: &mut <C::Net as Net>::Sink,
        bytes: usize,
    ) -> Result<ServerReply, NetFailure> {
        let finish = self
            .client
            .cell()
            .net
            .finish_into(&self.context, sent.pending?, sink, bytes);
        let outcome = finish.await;
        self.note(address, sent.at, outcome.as_ref().err().copied());
        outcome
    }

    fn note(&self, server: &str, at: Instant, failure: Option<NetFailure>) {
        let now = self.client.cell().net.now();
        self.context.note_answer(
            &self.client.cell().silent_servers,
            server,
            (at, now),
            failure,
        );
    }

    /// Pauses until the time has passed or the operation is cancelled.
    pub(crate) async fn sleep(&self, ms: u64) {
        self.client.cell().net.sleep(&self.context, ms).await;
    }

    /// Waits for an async lock until it is free or this operation is cancelled; a brief operation
    /// at most until its end. An endless operation may hold it, so that others wait at most until
    /// their deadline.
    ///
    /// # Errors
    /// `Interrupted` where this operation is cancelled; `TimedOut` where its time is over.
    pub(crate) async fn wait_for<'m, T>(
        &self,
        mutex: &'m async_lock::Mutex<T>,
    ) -> Result<async_lock::MutexGuard<'m, T>, ErrorCode> {
        if let Some(guard) = mutex.try_lock() {
            return Ok(guard);
        }
        if self.context.is_brief() {
            return self.wait_briefly_for(mutex).await;
        }
        self.wait_until_free(mutex.lock()).await
    }

    /// Takes a slot for a change, as [`Self::wait_for`] takes a lock.
    pub(crate) async fn take_slot<'l>(&self, link: &'l Link) -> Result<Slot<'l>, ErrorCode> {
        self.wait_until_free(link.take_slot()).await
    }

    async fn wait_until_free<T>(&self, taking: impl Future<Output = T>) -> Result<T, ErrorCode> {
        let mut taking = std::pin::pin!(taking);
        if self.client.cell().options.waits && !self.context.is_endless() {
            let deadline = self.deadline();
            loop {
                let looked = std::future::poll_fn(|context| {
                    Poll::Ready(match taking.as_mut().poll(context) {
                        Poll::Ready(taken) => Some(taken),
                        Poll::Pending => None,
                    })
                });
                if let Some(taken) = looked.await {
                    return Ok(taken);
                }
                if self.context.cancellation().is_set() {
                    return Err(ErrorCode::Interrupted);
                }
                if self.is_over(deadline) {
                    return Err(ErrorCode::TimedOut);
                }
                self.sleep(LOCK_STEP_MS).await;
            }
        }
        let taken = std::future::poll_fn(|context| match taking.as_mut().poll(context) {
            Poll::Ready(taken) => Poll::Ready(Ok(taken)),
            Poll::Pending if self.context.waits(context.waker()).is_err() => {
                Poll::Ready(Err(ErrorCode::Interrupted))
            }
            Poll::Pending => Poll::Pending,
        });
        let taken = taken.await;
        self.context.waits_no_more();
        taken
    }

    async fn wait_briefly_for<'m, T>(
        &self,
        mutex: &'m async_lock::Mutex<T>,
    ) -> Result<async_lock::MutexGuard<'m, T>, ErrorCode> {
        while !self.has_ended() {
            self.sleep(LOCK_STEP_MS).await;
            if self.context.cancellation().is_set() {
                return Err(ErrorCode::Interrupted);
            }
            if let Some(guard) = mutex.try_lock() {
                return Ok(guard);
            }
        }
        Err(ErrorCode::TimedOut)
    }
}
