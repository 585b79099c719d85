//! One connection of a server: handshake, then request after request on the thread that owns it.
//!
//! *Invariants*: (1) the handler sees only requests of this cell, complete, with their checksum verified; (2) a panic
//! of the handler ends here.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zonal_types::ErrorCode;
use zonal_wire::frame::{Header, Service};

use crate::buffer::AlignedBuf;
use crate::error::{Fault, NetError};
use crate::frame_io::{Clock, Conn, FrameBounds, IoFail, Take};
use crate::handler::ReplyBuilder;
use crate::handshake::{answer, refuse};
use crate::identity::Peer;
use crate::metrics::add;
use crate::pool::named;
use crate::server::Shared;
use crate::stream::Stream;

/// One connection from handshake to end.
pub(crate) fn converse(shared: &Shared, stream: Arc<Stream>) {
    let is_checked = !stream.endpoint().is_unix() || shared.config.is_unix_checked;
    let mut conn = Conn::new(stream, is_checked);
    let clock = Clock::start(shared.config.handshake_limit);
    let outcome = answer(&mut conn, &shared.config.identity, &clock)
        .and_then(|peer| Conversation::new(shared, &mut conn, peer).run());
    count_bytes(shared, &mut conn);
    if let Err(error) = outcome
        && !shared.is_stopping.load(Ordering::SeqCst)
    {
        shared.warn(&error);
    }
    // Also where the registry still holds the socket for a moment.
    conn.stream().shut();
}

fn count_bytes(shared: &Shared, conn: &mut Conn) {
    add(&shared.metrics.bytes_in, std::mem::take(&mut conn.bytes_in));
    add(
        &shared.metrics.bytes_out,
        std::mem::take(&mut conn.bytes_out),
    );
}

struct Conversation<'a> {
    shared: &'a Shared,
    conn: &'a mut Conn,
    peer: Peer,
    body: Vec<u8>,
    payload: AlignedBuf,
    reply: ReplyBuilder,
}

impl<'a> Conversation<'a> {
    fn new(shared: &'a Shared, conn: &'a mut Conn, peer: Peer) -> Self {
        let stream = Arc::clone(conn.stream());
        Self {
            shared,
            conn,
            peer,
            body: Vec::new(),
            payload: AlignedBuf::new(),
            reply: ReplyBuilder::new(Header::request(Service::Connection, peer.cell), stream),
        }
    }

    fn run(&mut self) -> Result<(), NetError> {
        loop {
            match self.await_request() {
                Ok(()) => {}
                Err(IoFail::Closed(_)) => return Ok(()),
                Err(fail) => return Err(self.named(&fail)),
            }
            // TCP goes on receiving after its end was asked for.
            if self.shared.is_stopping.load(Ordering::SeqCst) {
                return Ok(());
            }
            let clock = Clock::start(self.shared.config.patience);
            let header = match self.receive(&clock) {
                Ok(header) => header,
                Err(IoFail::Closed(_)) => return Ok(()),
                Err(fail) => return Err(self.give_up(&fail)),
            };
            add(&self.shared.metrics.frames_in, 1);
            if !self.execute(&header) {
                return Ok(());
            }
            let clock = Clock::start(self.shared.config.patience);
            match self.reply.send(self.conn, &clock) {
                Ok(()) => add(&self.shared.metrics.frames_out, 1),
                Err(fail) => {
                    if matches!(fail, IoFail::TooLong { .. }) {
                        refuse(self.conn, header, ErrorCode::TooBig);
                    }
                    return Err(self.named(&fail));
                }
            }
            count_bytes(self.shared, self.conn);
            if self.reply.is_last() {
                return Ok(());
            }
        }
    }

    /// Sleeps until a request begins; on the way, gives the buffers back once.
    fn await_request(&mut self) -> Result<(), IoFail> {
        match self
            .conn
            .await_bytes(&Clock::start(self.shared.config.patience))
        {
            Err(IoFail::TimedOut) => {
                self.body = Vec::new();
                self.payload.free();
                self.reply.free();
                self.conn.await_bytes(&Clock::endless())
            }
            other => other,
        }
    }

    fn receive(&mut self, clock: &Clock) -> Result<Header, IoFail> {
        let header =
            self.conn
                .receive_head(FrameBounds::FULL, Take::WhatCame, &mut self.body, clock)?;
        if !header.is_request || header.service == Service::Connection {
            return Err(IoFail::Fault(Fault::OutOfTurn));
        }
        if header.cell != self.peer.cell {
            return Err(IoFail::Fault(Fault::Cell));
        }
        self.conn
            .receive_payload_buf(&header, &mut self.payload, clock)?;
        self.body.truncate(header.body_bytes as usize);
        Ok(header)
    }

    /// False where the handler panicked.
    fn execute(&mut self, header: &Header) -> bool {
        self.reply.reset(header.reply());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.shared.handler.handle(
                &self.peer,
                header,
                &self.body,
                &mut self.payload,
                &mut self.reply,
            );
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

    /// Tells the peer what was wrong with its frame.
    fn give_up(&mut self, fail: &IoFail) -> NetError {
        let code = match fail {
            IoFail::Fault(Fault::Version) => ErrorCode::WrongVersion,
            IoFail::Fault(Fault::Cell) => ErrorCode::WrongCell,
            IoFail::Fault(Fault::Cut) | IoFail::Broken(_) | IoFail::Closed(_) => {
                return self.named(fail);
            }
            _ => ErrorCode::Protocol,
        };
        let head = Header::request(Service::Connection, self.peer.cell);
        refuse(self.conn, head, code);
        self.named(fail)
    }

    fn named(&self, fail: &IoFail) -> NetError {
        named(
            fail,
            self.peer.endpoint,
            "a request",
            &Clock::start(self.shared.config.patience),
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
