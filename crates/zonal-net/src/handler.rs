//! Interface between the connections and a server's roles: [`Handler`] executes requests and fills
//! in replies.

use std::any::Any;
use std::sync::{Arc, Weak};

use zonal_region::RegionPart;
use zonal_types::Codec;
use zonal_wire::frame::Header;

use crate::buffer::AlignedBuf;
use crate::frame_io::{Conn, FrameOut, IoFail, PayloadOut, TimeLimit};
use crate::identity::Peer;
use crate::idle_connections::Resumer;
use crate::join_token::{ClaimOutcome, TokenClaim};
use crate::server::Shared;
use crate::stream::Stream;

/// Executes requests. Many threads call it at once, one for each connection.
pub trait Handler: Send + Sync + 'static {
    /// Executes one request and fills in the reply. Or parks the request ([`ReplyBuilder::park`])
    /// and returns; then it is called again later with the same request.
    ///
    /// A panic closes the connection; the server goes on. The payload is page-aligned in the
    /// connection's own buffer, or lies in the client's region, where the client may change it
    /// meanwhile.
    fn handle(
        &self,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    );

    /// Answers the claim of a new node, which has a token and no credential yet. Called on the
    /// stranger's thread, within the handshake's time limit.
    fn claim(&self, _claim: &TokenClaim) -> ClaimOutcome {
        ClaimOutcome::Unknown
    }

    /// The server stops: calls that wait (long polls) must return soon.
    fn stopping(&self) {}
}

/// The reply under construction. The connection's next request reuses its memory.
#[derive(Debug)]
pub struct ReplyBuilder {
    /// Header of the reply; sending fills in lengths and checksum.
    pub header: Header,
    body: Vec<u8>,
    payload: AlignedBuf,
    /// The part of the client's region that may take the payload, and the payload's length in it.
    room: Option<RegionPart>,
    in_room: usize,
    is_last: bool,
    stream: Arc<Stream>,
    /// The server and the number of this connection.
    place: (Weak<Shared>, u64),
    /// A [`Resumer`] of this request exists.
    has_resumer: bool,
    /// State that the handler keeps with a request that it parks.
    parked: Option<ParkedState>,
    /// That state once the request is resumed.
    resumed: Option<ParkedState>,
}

/// State that a handler keeps with a parked request.
pub type ParkedState = Box<dyn Any + Send>;

impl ReplyBuilder {
    pub(crate) fn new(header: Header, stream: Arc<Stream>, place: (Weak<Shared>, u64)) -> Self {
        Self {
            header,
            body: Vec::new(),
            payload: AlignedBuf::new(),
            room: None,
            in_room: 0,
            is_last: false,
            stream,
            place,
            has_resumer: false,
            parked: None,
            resumed: None,
        }
    }

    pub(crate) fn reset(&mut self, header: Header, room: Option<RegionPart>) {
        self.header = header;
        self.room = room;
        self.parked = None;
        self.clear();
        self.resumed = None;
    }

    fn clear(&mut self) {
        self.in_room = 0;
        self.body.clear();
        self.payload.set_len(0);
        self.has_resumer = false;
        self.resumed = self.parked.take();
    }

    /// Resumes the request after it was parked.
    pub(crate) fn resume(&mut self) {
        self.clear();
    }

    /// Creates the handle that resumes this request. The handler calls it before it checks whether
    /// it has to wait. `None` where the server is ending.
    pub fn resumer(&mut self) -> Option<Resumer> {
        let (server, id) = &self.place;
        let shared = server.upgrade()?;
        self.has_resumer = true;
        Some(shared.idle.park(server, *id))
    }

    /// Parks the request without a thread and sends no reply now. The handler is called again once
    /// the [`Resumer`] is used or the peer has gone away ([`Self::is_peer_gone`]);
    /// [`Self::take_kept`] then returns `kept`.
    pub fn park(&mut self, kept: ParkedState) {
        self.parked = Some(kept);
    }

    /// Takes the state that the request was parked with.
    pub fn take_kept(&mut self) -> Option<ParkedState> {
        self.resumed.take()
    }

    /// The handler has returned and did not park.
    pub(crate) fn end_waits(&mut self) {
        let (server, id) = &self.place;
        if std::mem::take(&mut self.has_resumer)
            && let Some(shared) = server.upgrade()
        {
            shared.idle.unpark(*id);
        }
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }

    pub(crate) fn free(&mut self) {
        self.body = Vec::new();
        self.payload.free();
    }

    pub(crate) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Sets the message.
    pub fn message<T: Codec>(&mut self, message: &T) {
        self.body.clear();
        message.put(&mut self.body);
    }

    /// The encoded message, to be filled in directly.
    pub fn body_mut(&mut self) -> &mut Vec<u8> {
        &mut self.body
    }

    /// Makes a payload of `len` bytes (at most `PAYLOAD_BYTES_MAX`), page-aligned. The caller fills
    /// all of it: before that it may hold bytes of an earlier reply on this connection.
    pub fn payload_mut(&mut self, len: usize) -> &mut [u8] {
        self.in_room = 0;
        if let Some(room) = &mut self.room
            && let Some(part) = room.as_mut_slice().get_mut(..len)
        {
            self.payload.set_len(0);
            self.in_room = len;
            return part;
        }
        self.payload.set_len(len);
        self.payload.as_mut_slice()
    }

    /// Moves the payload into memory of this process, where no other process can change it.
    pub fn leave_room(&mut self) {
        self.room = None;
        self.in_room = 0;
    }

    /// Shortens the payload to `len` bytes.
    pub fn truncate_payload(&mut self, len: usize) {
        self.in_room = self.in_room.min(len);
        self.payload.set_len(len.min(self.payload.len()));
    }

    /// Bytes of the payload.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.in_room.max(self.payload.len())
    }

    /// Closes the connection after this reply.
    pub fn close_after(&mut self) {
        self.is_last = true;
    }

    /// True where the requester has closed the connection, so that no client waits for this reply;
    /// also where this stopping server has ended receiving. One system call: for handlers that wait
    /// long, or must not change anything any more.
    #[must_use]
    pub fn is_peer_gone(&self) -> bool {
        !self.stream.is_open()
    }

    pub(crate) fn send(&self, conn: &mut Conn, time_limit: &TimeLimit) -> Result<(), IoFail> {
        let slices = &[self.payload.as_slice()];
        let mut frame = FrameOut::message(self.header, &self.body);
        frame.payload = match u32::try_from(self.in_room) {
            Ok(bytes) if bytes > 0 => PayloadOut::Region { offset: 0, bytes },
            _ => PayloadOut::Slices(slices),
        };
        conn.send(&frame, time_limit)
    }
}
