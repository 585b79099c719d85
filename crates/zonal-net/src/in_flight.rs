//! A call in flight: the request was sent, its reply is awaited; and cancelling it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zonal_region::Memory;
use zonal_types::Codec;
use zonal_wait::Waiter;
use zonal_wire::frame::{Header, PayloadAt, Service};

use crate::address::{Address, Endpoint};
use crate::error::{Fault, NetError, RegionFault, TlsFault};
use crate::frame_io::{FrameBounds, FrameOut, IoFail, PayloadOut, TimeLimit};
use crate::handshake::{Handshake, refusal};
use crate::metrics::add;
use crate::pool::{Link, Pool, named};
use crate::region_loan::RegionLoan;
use crate::stream::Stream;

/// Time for taking a reply that has already arrived when the call's time is over.
const ARRIVED: Duration = Duration::from_millis(20);

/// A request to send.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Name of the operation for errors, such as "storage Read".
    pub operation: &'static str,
    /// The header; sending fills in cell, request id and lengths. `deadline_ms` 0: the pool's.
    pub header: Header,
    /// Encoded message.
    pub body: &'a [u8],
    /// Payload, in any number of slices.
    pub payload: &'a [&'a [u8]],
    /// Largest payload of the reply that [`PayloadInto::Memory`] may take.
    pub room: usize,
}

/// Destination of a reply's payload.
#[derive(Debug, Default)]
pub enum PayloadInto<'a> {
    /// Into a new `Vec` ([`Reply::payload`]).
    #[default]
    Owned,
    /// Into this slice, without a copy in between. A longer payload is an error; a shorter one
    /// fills the front.
    One(&'a mut [u8]),
    /// Into [`Reply::memory`]. A server on this machine writes it there itself, where the request
    /// offered room.
    Memory,
}

/// A reply.
#[derive(Debug)]
pub struct Reply {
    /// The header.
    pub header: Header,
    /// Encoded message.
    pub body: Vec<u8>,
    /// Bytes of its payload.
    pub payload_bytes: usize,
    /// The payload, unless the caller's slice or memory took it.
    pub payload: Vec<u8>,
    /// The payload, where [`PayloadInto::Memory`] took it: the first `payload_bytes` bytes.
    pub memory: Option<Memory>,
    /// True where the request was sent twice, because an idle connection died after it took the
    /// request: the server may have executed it twice.
    pub is_resent: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Cancel {
    is_set: AtomicBool,
    stream: Mutex<Option<Arc<Stream>>>,
}

impl Cancel {
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    /// Sets the stream that a cancel shuts from now on.
    pub(crate) fn watch(&self, stream: Option<&Arc<Stream>>) {
        let mut slot = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = stream.cloned();
        if let (Some(stream), true) = (stream, self.is_set()) {
            stream.shut();
        }
    }
}

impl Wake for Cancel {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_set.store(true, Ordering::SeqCst);
        let slot = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = slot.as_ref() {
            stream.shut();
        }
    }
}

/// Cancels a call from another thread.
#[derive(Debug, Clone, Default)]
pub struct Canceller(Arc<Cancel>);

impl Canceller {
    /// Cancels the call, also while it connects: it returns [`NetError::Cancelled`]. Without effect
    /// on a finished call.
    pub fn cancel(&self) {
        self.0.wake_by_ref();
    }

    /// A waker that cancels the call.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }
}

/// A request that was sent and not yet answered.
#[derive(Debug)]
pub struct InFlight<'a> {
    pool: &'a Pool,
    to: Address,
    request: Request<'a>,
    time_limit: TimeLimit,
    link: Link,
    /// The connection was idle before: it may have died unnoticed.
    was_idle: bool,
    is_resent: bool,
    loan: Option<RegionLoan>,
    cancel: Option<Arc<Cancel>>,
}

impl<'a> InFlight<'a> {
    pub(crate) fn launch(
        pool: &'a Pool,
        to: Address,
        mut request: Request<'a>,
        canceller: Option<&Canceller>,
    ) -> Result<Self, NetError> {
        let cancel = canceller.map(|canceller| Arc::clone(&canceller.0));
        let limit = if request.header.deadline_ms == 0 {
            pool.config.deadline
        } else {
            Duration::from_millis(u64::from(request.header.deadline_ms))
        };
        request.header.deadline_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let time_limit = TimeLimit::of_call(limit);
        let (link, was_idle) = match pool.take_idle(to) {
            Some(link) => (link, true),
            None => pool.obtain(to, &time_limit, cancel.as_deref())?,
        };
        if let Some(cancel) = &cancel {
            cancel.watch(Some(link.conn.stream()));
        }
        let mut flight = Self {
            pool,
            to,
            request,
            time_limit,
            link,
            was_idle,
            is_resent: false,
            loan: None,
            cancel,
        };
        flight.check_server()?;
        flight.lend();
        match flight.send() {
            Ok(()) => Ok(flight),
            Err(_) if flight.is_cancelled() => Err(flight.cancelled()),
            // The server did not take all of it, so it was not executed: another attempt is not a
            // second execution.
            Err(fail @ (IoFail::Closed(_) | IoFail::Broken(_))) if flight.was_idle => {
                if let (IoFail::Closed(_), Some(loan)) = (fail, flight.loan.take()) {
                    // The server took no byte of the request.
                    loan.end();
                }
                flight.renew()?;
                flight.lend();
                flight.send().map_err(|fail| flight.named(&fail))?;
                Ok(flight)
            }
            Err(fail) => Err(flight.named(&fail)),
        }
    }

    /// Sends a request on an idle connection; `None` where there is none. Never connects, so that
    /// it does not wait for a server that is gone.
    pub(crate) fn launch_on_idle(
        pool: &'a Pool,
        to: Address,
        mut request: Request<'a>,
        limit: Duration,
    ) -> Result<Option<Self>, NetError> {
        let Some(link) = pool.take_idle(to) else {
            return Ok(None);
        };
        request.header.deadline_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        let mut flight = Self {
            pool,
            to,
            request,
            time_limit: TimeLimit::of_call(limit),
            link,
            was_idle: false,
            is_resent: false,
            loan: None,
            cancel: None,
        };
        flight.check_server()?;
        if let Err(fail) = flight.send() {
            // The others to this server are probably dead, too.
            pool.forget_idle(to);
            return Err(flight.named(&fail));
        }
        Ok(Some(flight))
    }

    /// The server that was called.
    #[must_use]
    pub fn server(&self) -> Endpoint {
        self.link.peer.endpoint
    }

    /// A handle that cancels this call from another thread.
    pub fn canceller(&mut self) -> Canceller {
        let cancel = self.cancel.get_or_insert_default();
        cancel.watch(Some(self.link.conn.stream()));
        Canceller(Arc::clone(cancel))
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// Any that names the server; the connection is then closed.
    pub fn finish(mut self, into: PayloadInto<'_>) -> Result<Reply, NetError> {
        self.catch_up();
        let outcome = self.receive(into);
        if outcome.is_ok()
            && let Some(loan) = self.loan.take()
        {
            loan.end();
        }
        if let Some(cancel) = &self.cancel {
            cancel.watch(None);
        }
        if self.is_cancelled() {
            // The cancel may have shut the socket although the reply was complete.
            return outcome.map_err(|_error| self.cancelled());
        }
        if outcome.is_ok() {
            self.pool.give_back(self.to, self.link);
        } else if matches!(outcome, Err(NetError::TimedOut { .. })) {
            add(&self.pool.metrics.timed_out, 1);
            // The server's idle threads may be stuck, too.
            self.pool.forget_idle(self.to);
        }
        outcome
    }

    /// Looks at a late call whose caller has waited for another call until now. On a slow link its
    /// request may have stood behind the other's, up to the server's answer to the other.
    fn catch_up(&mut self) {
        if self.time_limit.has_left(ARRIVED) {
            return;
        }
        self.link.conn.look_at_unsent(&self.time_limit);
        if let Some(answered) = self.pool.last_answer(self.to) {
            self.time_limit.counts_from(answered);
        }
        self.time_limit.leave_at_least(ARRIVED);
    }

    fn receive(&mut self, into: PayloadInto<'_>) -> Result<Reply, NetError> {
        let mut body = Vec::new();
        let bytes_before = self.link.conn.bytes_in;
        let mut head = self.receive_head(&mut body);
        if let Err(IoFail::Closed(errno)) = head
            && self.was_idle
            && !self.is_cancelled()
        {
            // The server went away (restarted) while the connection was idle, or just now.
            self.renew().map_err(|error| match error {
                NetError::Unreachable { .. } => self.named(&IoFail::Closed(errno)),
                error => error,
            })?;
            self.is_resent = true;
            add(&self.pool.metrics.resent, 1);
            self.send().map_err(|fail| self.named(&fail))?;
            head = self.receive_head(&mut body);
        }
        let header = head.map_err(|fail| self.named(&fail))?;
        self.check(&header, &body)?;
        let payload_bytes = header.payload_bytes as usize;
        let mut payload = Vec::new();
        let mut memory = None;
        let takes_memory = matches!(into, PayloadInto::Memory);
        if header.payload_at != PayloadAt::Inline {
            let loan = self.loan.as_ref();
            if !takes_memory || !loan.is_some_and(|loan| loan.has_room_for(payload_bytes)) {
                let fault = Fault::Region(RegionFault::None);
                return Err(self.named(&IoFail::Fault(fault)));
            }
        }
        let conn = &mut self.link.conn;
        let received = match into {
            PayloadInto::Owned => {
                payload.resize(payload_bytes, 0);
                conn.receive_payload(&header, &mut payload, &self.time_limit)
            }
            PayloadInto::One(slice) => conn.receive_payload(&header, slice, &self.time_limit),
            PayloadInto::Memory => {
                let room = self.loan.as_mut().and_then(RegionLoan::take_room);
                let room = room.filter(|room| payload_bytes <= room.len());
                let room = room.unwrap_or_else(|| Memory::own(vec![0; payload_bytes]));
                let room = memory.insert(room);
                conn.receive_payload(&header, room, &self.time_limit)
            }
        };
        received.map_err(|fail| self.named(&fail))?;
        body.truncate(header.body_bytes as usize);
        let bytes_in = self.link.conn.bytes_in.saturating_sub(bytes_before);
        add(&self.pool.metrics.bytes_in, bytes_in);
        Ok(Reply {
            header,
            body,
            payload_bytes,
            payload,
            memory,
            is_resent: self.is_resent,
        })
    }

    fn receive_head(&mut self, body: &mut Vec<u8>) -> Result<Header, IoFail> {
        let conn = &mut self.link.conn;
        conn.receive_head(FrameBounds::FULL, body, &self.time_limit)
    }

    /// Refuses a reply that does not belong to the request.
    fn check(&self, header: &Header, body: &[u8]) -> Result<(), NetError> {
        let server = self.server();
        if header.service == Service::Connection {
            return Err(match Handshake::from_bytes(body) {
                Ok(Handshake::Refused { code }) => {
                    refusal(server, code, self.link.peer.cell, header.cell)
                }
                _ => self.named(&IoFail::Fault(Fault::OutOfTurn)),
            });
        }
        let belongs = !header.is_request
            && header.service == self.request.header.service
            && header.request_id == self.request.header.request_id;
        if !belongs {
            return Err(self.named(&IoFail::Fault(Fault::OutOfTurn)));
        }
        if header.cell != self.link.peer.cell {
            return Err(self.named(&IoFail::Fault(Fault::Cell)));
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), IoFail> {
        let link = &mut self.link;
        self.request.header.cell = link.peer.cell;
        self.request.header.request_id = link.next_request;
        link.next_request = link.next_request.wrapping_add(1);
        let mut frame = FrameOut::message(self.request.header, self.request.body);
        frame.payload = PayloadOut::Slices(self.request.payload);
        if let Some(loan) = &self.loan {
            loan.announce(&mut frame, link.region);
        }
        let bytes_before = link.conn.bytes_out;
        let outcome = link.conn.send(&frame, &self.time_limit);
        if let Some(loan) = &self.loan {
            link.region = loan.region();
        }
        add(
            &self.pool.metrics.bytes_out,
            link.conn.bytes_out - bytes_before,
        );
        outcome
    }

    /// Lends the server the memory of the call that it can use in place.
    fn lend(&mut self) {
        let regions = self.pool.regions_with(&self.link.peer);
        self.loan = regions
            .and_then(|regions| RegionLoan::of(regions, self.request.payload, self.request.room));
    }

    /// Replaces a dead connection, and all idle ones that probably died with it. The old peer may
    /// still use the memory that it was lent.
    fn renew(&mut self) -> Result<(), NetError> {
        self.loan = None;
        self.pool.forget_idle(self.to);
        let cancel = self.cancel.as_deref();
        self.link = self.pool.connect(self.to, &self.time_limit, cancel)?;
        self.was_idle = false;
        if let Some(cancel) = &self.cancel {
            cancel.watch(Some(self.link.conn.stream()));
        }
        self.check_server()
    }

    /// Refuses to send a request to a server whose certificate does not have the needed role.
    fn check_server(&self) -> Result<(), NetError> {
        match self.link.peer.may_serve(self.request.header.service) {
            true => Ok(()),
            false => Err(NetError::Unauthenticated {
                peer: self.server(),
                fault: TlsFault::Claim,
            }),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.is_set())
    }

    fn cancelled(&self) -> NetError {
        NetError::Cancelled {
            server: self.server(),
            operation: self.request.operation,
        }
    }

    fn named(&self, fail: &IoFail) -> NetError {
        named(
            fail,
            self.server(),
            self.request.operation,
            &self.time_limit,
        )
    }
}

/// A call in flight that borrows nothing. It is not sent again where an idle connection turns out
/// to be dead: it fails with [`NetError::Lost`], and the caller repeats it.
#[derive(Debug)]
pub struct DetachedCall {
    pool: Arc<Pool>,
    to: Address,
    operation: &'static str,
    header: Header,
    time_limit: TimeLimit,
    link: Link,
    loan: Option<RegionLoan>,
    cancel: Option<Arc<Cancel>>,
}

impl InFlight<'_> {
    /// Releases the request's bytes. `pool` must be the pool that the request was started on.
    #[must_use]
    pub fn detach(self, pool: Arc<Pool>) -> DetachedCall {
        DetachedCall {
            pool,
            to: self.to,
            operation: self.request.operation,
            header: self.request.header,
            time_limit: self.time_limit,
            link: self.link,
            loan: self.loan,
            cancel: self.cancel,
        }
    }
}

impl DetachedCall {
    /// The address that was called.
    #[must_use]
    pub fn address(&self) -> Address {
        self.to
    }

    /// Waits until a reply begins to arrive, or a connection ends: of the first of these calls for
    /// which that holds. `None` where `limit` passes first. Polls for a moment before it sleeps.
    pub fn await_first<'a>(
        calls: impl IntoIterator<Item = &'a Self>,
        waiter: &mut Waiter,
        limit: Duration,
    ) -> Option<usize> {
        let streams = calls.into_iter().map(|call| call.link.conn.stream());
        let mut watched: Vec<PollFd<'_>> = streams
            .map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN))
            .collect();
        let mut arrived = |limit: Duration| {
            let limit = Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: limit.subsec_nanos().into(),
            };
            // A signal, or no memory: the caller asks again.
            let found = poll(&mut watched, Some(&limit)).unwrap_or(0);
            let is_there = |one: &PollFd<'_>| !one.revents().is_empty();
            (found > 0)
                .then(|| watched.iter().position(is_there))
                .flatten()
        };
        waiter.look(|| arrived(Duration::ZERO)).or_else(|| {
            let first = arrived(limit);
            waiter.slept();
            first
        })
    }

    /// A handle that cancels this call from another thread.
    pub fn canceller(&mut self) -> Canceller {
        let cancel = self.cancel.get_or_insert_default();
        cancel.watch(Some(self.link.conn.stream()));
        Canceller(Arc::clone(cancel))
    }

    /// Waits for the reply.
    ///
    /// # Errors
    /// Any that names the server; the connection is then closed.
    pub fn finish(self, into: PayloadInto<'_>) -> Result<Reply, NetError> {
        let request = Request {
            operation: self.operation,
            header: self.header,
            body: &[],
            payload: &[],
            room: 0,
        };
        let flight = InFlight {
            pool: &self.pool,
            to: self.to,
            request,
            time_limit: self.time_limit,
            link: self.link,
            was_idle: false,
            is_resent: false,
            loan: self.loan,
            cancel: self.cancel,
        };
        flight.finish(into)
    }
}
