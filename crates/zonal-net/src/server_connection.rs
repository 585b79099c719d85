//! One connection of a server: the handshake, then requests one after the other on the thread that
//! has it.
//!
//! *Invariants*: (1) the handler gets only complete requests of this cell, with verified checksums;
//! (2) a panic of the handler does not leave this module.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zonal_region::{MapError, Mapping, RegionPart};
use zonal_types::ErrorCode;
use zonal_types::limits::REGION_BYTES_MAX;
use zonal_wire::frame::{Header, PayloadAt, Service};

use crate::buffer::AlignedBuf;
use crate::error::{Fault, NetError, RegionFault};
use crate::frame_io::{Conn, FrameBounds, IoFail, TimeLimit};
use crate::handler::ReplyBuilder;
use crate::handshake::{answer, refuse};
use crate::identity::Peer;
use crate::idle_connections::STAY;
use crate::join_token::TokenClaim;
use crate::metrics::add;
use crate::pool::named;
use crate::server::{ConnectionPlace, Shared};
use crate::stream::Stream;

/// Runs the handshake, and serves the requests that follow at once.
pub(crate) fn begin(place: ConnectionPlace, stream: Arc<Stream>) -> ServeOutcome {
    let shared = Arc::clone(&place.shared);
    let is_checked = !stream.endpoint().is_unix() || shared.config.is_unix_checked;
    let mut conn = Conn::new(stream, is_checked);
    let time_limit = TimeLimit::start(shared.config.handshake_limit);
    let admit = |peer: &Peer| place.take(peer);
    let claim = |claim: &TokenClaim| shared.handler.claim(claim);
    match answer(
        &mut conn,
        &shared.config.identity,
        &time_limit,
        admit,
        claim,
    ) {
        Ok(Some(peer)) => Box::new(ServerConnection::new(place, conn, peer)).serve(),
        Ok(None) => {
            end(&shared, &mut conn, Ok(()));
            ServeOutcome::Ended
        }
        Err(error) => {
            end(&shared, &mut conn, Err(error));
            ServeOutcome::Ended
        }
    }
}

fn end(shared: &Shared, conn: &mut Conn, outcome: Result<(), NetError>) {
    count_bytes(shared, conn);
    if let Err(error) = outcome
        && !shared.is_stopping.load(Ordering::SeqCst)
    {
        shared.warn(&error);
    }
    // The registry may still hold the socket for a moment, so shut it.
    conn.stream().shut();
}

fn count_bytes(shared: &Shared, conn: &mut Conn) {
    add(&shared.metrics.bytes_in, std::mem::take(&mut conn.bytes_in));
    add(
        &shared.metrics.bytes_out,
        std::mem::take(&mut conn.bytes_out),
    );
}

/// A connection whose handshake is done.
pub(crate) struct ServerConnection {
    shared: Arc<Shared>,
    conn: Conn,
    peer: Peer,
    /// The parked request.
    parked: Option<Arrived>,
    body: Vec<u8>,
    payload: AlignedBuf,
    /// The client's region that arrived last.
    region: Option<Arc<Mapping>>,
    reply: ReplyBuilder,
    /// Declared last, so that it is freed last, also where a thread panics.
    place: ConnectionPlace,
}

/// State of a connection after a thread served it.
pub(crate) enum ServeOutcome {
    /// It has ended.
    Ended,
    /// No request came for a while.
    Idle(Box<ServerConnection>),
    /// Its request is parked.
    Parked(Box<ServerConnection>),
}

/// The next step of a connection.
enum NextStep {
    Idle,
    Parked,
    Ended(Result<(), NetError>),
}

/// A request that was received.
struct Arrived {
    header: Header,
    /// The payload, where it is not in the connection's buffer.
    payload: Option<RegionPart>,
}

impl ServerConnection {
    fn new(place: ConnectionPlace, mut conn: Conn, peer: Peer) -> Self {
        let stream = Arc::clone(conn.stream());
        if peer.shares_regions() {
            conn.take_regions();
        }
        let head = Header::request(Service::Connection, peer.cell);
        let (shared, id) = (Arc::downgrade(&place.shared), place.id());
        let reply = ReplyBuilder::new(head, stream, (shared, id));
        Self {
            shared: Arc::clone(&place.shared),
            conn,
            place,
            peer,
            parked: None,
            body: Vec::new(),
            payload: AlignedBuf::new(),
            region: None,
            reply,
        }
    }

    /// Number of its place.
    pub(crate) fn id(&self) -> u64 {
        self.place.id()
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        self.conn.stream()
    }

    /// Serves requests, beginning with a resumed one, until none comes for a while.
    pub(crate) fn serve(mut self: Box<Self>) -> ServeOutcome {
        loop {
            let rest = match self.parked.take() {
                Some(request) => {
                    self.reply.resume();
                    self.answer(request)
                }
                None => self.answer_next(),
            };
            match rest {
                None => {}
                Some(NextStep::Idle) => return ServeOutcome::Idle(self),
                Some(NextStep::Parked) => return ServeOutcome::Parked(self),
                Some(NextStep::Ended(outcome)) => {
                    end(&self.shared, &mut self.conn, outcome);
                    return ServeOutcome::Ended;
                }
            }
        }
    }

    /// Frees the buffers.
    pub(crate) fn free(&mut self) {
        self.body = Vec::new();
        self.payload.free();
        self.reply.free();
        self.conn.free();
    }

    /// Receives a request and answers it. `None`: serve the next one.
    fn answer_next(&mut self) -> Option<NextStep> {
        self.place.activity.ends(&self.shared);
        match self.conn.await_bytes(&TimeLimit::in_steps(STAY, STAY)) {
            Ok(()) => self.place.activity.begins(),
            Err(IoFail::TimedOut) => return Some(NextStep::Idle),
            Err(IoFail::Closed(_)) => return Some(NextStep::Ended(Ok(()))),
            Err(fail) => return Some(NextStep::Ended(Err(self.named(&fail)))),
        }
        // A TCP socket still receives after its receiving end was shut.
        if self.shared.is_stopping.load(Ordering::SeqCst) {
            return Some(NextStep::Ended(Ok(())));
        }
        let patience = self.shared.config.patience;
        let (arrived, room) = match self.receive(&TimeLimit::of_request(patience, STAY)) {
            Ok(arrived) => arrived,
            Err(IoFail::Closed(_)) => return Some(NextStep::Ended(Ok(()))),
            Err(fail) => return Some(NextStep::Ended(Err(self.give_up(&fail)))),
        };
        add(&self.shared.metrics.frames_in, 1);
        self.reply.reset(arrived.header.reply(), room);
        self.answer(arrived)
    }

    /// Executes a request and sends the reply, unless the handler parks the request.
    fn answer(&mut self, arrived: Arrived) -> Option<NextStep> {
        let patience = self.shared.config.patience;
        if !self.execute(&arrived) {
            return Some(NextStep::Ended(Ok(())));
        }
        if self.reply.is_parked() {
            self.parked = Some(arrived);
            return Some(NextStep::Parked);
        }
        self.reply.end_waits();
        match self
            .reply
            .send(&mut self.conn, &TimeLimit::of_reply(patience))
        {
            Ok(()) => add(&self.shared.metrics.frames_out, 1),
            Err(fail) => {
                if matches!(fail, IoFail::TooLong { .. }) {
                    refuse(&mut self.conn, arrived.header, ErrorCode::TooBig);
                }
                return Some(NextStep::Ended(Err(self.named(&fail))));
            }
        }
        count_bytes(&self.shared, &mut self.conn);
        self.reply.is_last().then_some(NextStep::Ended(Ok(())))
    }

    /// Receives a request; the part is the room for its reply's payload.
    fn receive(&mut self, time_limit: &TimeLimit) -> Result<(Arrived, Option<RegionPart>), IoFail> {
        let header = self
            .conn
            .receive_head(FrameBounds::FULL, &mut self.body, time_limit)?;
        if !header.is_request || header.service == Service::Connection {
            return Err(IoFail::Fault(Fault::OutOfTurn));
        }
        if header.cell != self.peer.cell {
            return Err(IoFail::Fault(Fault::Cell));
        }
        self.conn
            .receive_payload_buf(&header, &mut self.payload, time_limit)?;
        self.body.truncate(header.body_bytes as usize);
        let (payload, room) = self
            .parts(&header)
            .map_err(|fault| IoFail::Fault(Fault::Region(fault)))?;
        Ok((Arrived { header, payload }, room))
    }

    /// The parts of the client's region that a request names: its payload, and room for the reply's
    /// payload.
    fn parts(
        &mut self,
        header: &Header,
    ) -> Result<(Option<RegionPart>, Option<RegionPart>), RegionFault> {
        if let Some(file) = self.conn.new_region() {
            self.region = Some(self.shared.regions.of(&file, REGION_BYTES_MAX)?);
        }
        let part = |offset, length| {
            let region = self.region.as_ref().ok_or(RegionFault::None)?;
            region.part(offset, length).ok_or(RegionFault::Outside)
        };
        let payload = match header.payload_at {
            PayloadAt::Region { offset } => Some(part(offset, header.payload_bytes)?),
            PayloadAt::Inline => None,
        };
        let room = header.room.map(|room| part(room.offset, room.length));
        Ok((payload, room.transpose()?))
    }

    /// Calls the handler; false where it panicked.
    fn execute(&mut self, arrived: &Arrived) -> bool {
        let header = &arrived.header;
        let payload = match &arrived.payload {
            Some(part) => part.as_slice(),
            None => self.payload.as_slice(),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.shared
                .handler
                .handle(&self.peer, header, &self.body, payload, &mut self.reply);
        }));
        if let Err(panic) = outcome {
            add(&self.shared.metrics.handler_panics, 1);
            tracing::error!(
                peer = %self.peer.endpoint,
                service = ?header.service,
                trace = %header.trace,
                "a request's handler panicked: {}",
                panic_text(&*panic)
            );
            return false;
        }
        true
    }

    /// Tells the peer what is wrong with its frame.
    fn give_up(&mut self, fail: &IoFail) -> NetError {
        let code = match fail {
            IoFail::Fault(Fault::Version) => ErrorCode::WrongVersion,
            IoFail::Fault(Fault::Cell) => ErrorCode::WrongCell,
            // A frame that a slow link holds up is no violation: its sender tries again.
            IoFail::Fault(Fault::Cut)
            | IoFail::Broken(_)
            | IoFail::Closed(_)
            | IoFail::TimedOut => return self.named(fail),
            // This process may have been out of descriptors or address space, so the peer may try
            // again.
            IoFail::Fault(Fault::Region(
                RegionFault::None | RegionFault::Refused(MapError::System(_)),
            )) => ErrorCode::Overloaded,
            _ => ErrorCode::Protocol,
        };
        let head = Header::request(Service::Connection, self.peer.cell);
        refuse(&mut self.conn, head, code);
        self.named(fail)
    }

    fn named(&self, fail: &IoFail) -> NetError {
        named(
            fail,
            self.peer.endpoint,
            "a request",
            &TimeLimit::start(self.shared.config.patience),
        )
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no text)")
}
