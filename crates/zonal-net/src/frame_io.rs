//! Frames on a stream: sending and receiving.
//!
//! Sending is one `sendmsg` of header, body, TLVs and payload slices; the payload is not copied.
//! Receiving first reads into a small buffer: header, body, and the part of the payload that came
//! along. The rest of the payload then goes straight to the caller's memory.
//!
//! | frame | system calls to receive it, when all of it has arrived |
//! | --- | --- |
//! | header, body and payload up to 8 KiB together | 1 |
//! | longer body | 2 |
//! | payload of any length (waits inside the kernel, MSG_WAITALL) | 2 |
//!
//! So a call is 2 system calls on the client and 2 on the server. The side that receives a payload
//! of more than 8 KiB makes 3. Time limits are set on the socket only when they change.
//!
//! *Invariants*:
//! 1. Nothing is allocated for a frame before its header is checked against the bounds of the
//!    connection's state.
//! 2. After any error the connection is not used again.
//! 3. A payload with a checksum is verified before the caller gets it.

mod socket;
mod time_limit;
mod tls;

pub use time_limit::TimeLimit;

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, Digest};
use rustix::io::Errno;
use rustls::ClientConfig;
use zonal_types::ErrorCode;
use zonal_types::limits::{BODY_BYTES_MAX, PAYLOAD_BYTES_MAX, TLV_BYTES_MAX};
use zonal_wire::frame::{HEADER_BYTES, Header, PayloadAt};

use crate::buffer::AlignedBuf;
use crate::credential::{Credential, Serial};
use crate::error::{Fault, TlsFault};
use crate::stream::Stream;
use crate::subject::Subject;
use socket::Socket;
use tls::Tls;

/// Bytes of the small receive buffer: a 4 KiB read or write with its header fits, and arrives by
/// one call.
const IN_BYTES: usize = 8192;

/// Why a frame could not be sent or received; callers add the peer and the operation.
#[derive(Debug)]
pub enum IoFail {
    /// The time limit passed.
    TimedOut,
    /// The peer closed or reset the connection before the first byte of the frame.
    Closed(Errno),
    /// The connection broke inside a frame.
    Broken(Errno),
    /// The frame breaks the protocol.
    Fault(Fault),
    /// The frame to send exceeds a bound; nothing was sent.
    TooLong {
        /// The part.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
}

impl IoFail {
    pub(crate) fn to_io(&self) -> io::Error {
        match self {
            Self::Closed(errno) | Self::Broken(errno) => (*errno).into(),
            Self::TimedOut => io::ErrorKind::TimedOut.into(),
            Self::Fault(_) | Self::TooLong { .. } => io::ErrorKind::InvalidData.into(),
        }
    }
}

/// Bounds of the next frame's parts.
#[derive(Debug, Clone, Copy)]
pub struct FrameBounds {
    /// Body and TLVs together.
    pub body: usize,
    /// Payload bytes.
    pub payload: usize,
}

impl FrameBounds {
    /// The bounds of the format.
    pub const FULL: Self = Self {
        body: BODY_BYTES_MAX + TLV_BYTES_MAX,
        payload: PAYLOAD_BYTES_MAX,
    };
    /// The bounds before the handshake is done.
    pub const HANDSHAKE: Self = Self {
        body: 1024,
        payload: 0,
    };
}

/// A frame to send.
#[derive(Debug, Clone, Copy)]
pub struct FrameOut<'a> {
    /// Header; sending fills in lengths and checksum.
    pub header: Header,
    /// Encoded message.
    pub body: &'a [u8],
    /// TLV area.
    pub tlv: &'a [u8],
    /// Payload.
    pub payload: PayloadOut<'a>,
    /// The region of the payload, or of the room for the reply's payload, where the peer does not
    /// have it yet.
    pub region: Option<BorrowedFd<'a>>,
}

impl<'a> FrameOut<'a> {
    /// A message without a payload.
    #[must_use]
    pub fn message(header: Header, body: &'a [u8]) -> Self {
        Self {
            header,
            body,
            tlv: &[],
            payload: PayloadOut::Slices(&[]),
            region: None,
        }
    }
}

/// The payload of a frame.
#[derive(Debug, Clone, Copy)]
pub enum PayloadOut<'a> {
    /// Any number of slices, sent behind the message.
    Slices(&'a [&'a [u8]]),
    /// The payload lies in the region that client and server share: nothing is sent.
    Region {
        /// First byte in the region (a request's), 0 in a reply.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
    },
}

/// A connection that carries frames.
#[derive(Debug)]
pub struct Conn {
    socket: Socket,
    tls: Option<Box<Tls>>,
    inbuf: Box<[u8]>,
    start: usize,
    end: usize,
    is_checked: bool,
    /// Bytes received so far.
    pub bytes_in: u64,
    /// Bytes sent so far.
    pub bytes_out: u64,
}

impl Conn {
    /// Frames on `stream`; `is_checked`: sent payloads carry a checksum.
    #[must_use]
    pub fn new(stream: Arc<Stream>, is_checked: bool) -> Self {
        Self {
            socket: Socket::new(stream),
            tls: None,
            inbuf: vec![0; IN_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            is_checked,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// The socket.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        &self.socket.stream
    }

    /// Encrypts all bytes from here on, and verifies that the peer is a server.
    pub(crate) fn encrypt_as_client(
        &mut self,
        credential: &Credential,
        time_limit: &TimeLimit,
    ) -> Result<(Subject, Serial), IoFail> {
        self.encrypt_with(Arc::clone(credential.client_config()), time_limit)
    }

    /// Encrypts all bytes from here on, as a client with this configuration.
    pub(crate) fn encrypt_with(
        &mut self,
        config: Arc<ClientConfig>,
        time_limit: &TimeLimit,
    ) -> Result<(Subject, Serial), IoFail> {
        let tls = self.tls.insert(Box::new(Tls::client(config)?));
        let server = tls.shake_hands(&mut self.socket, time_limit)?;
        server.ok_or(IoFail::Fault(Fault::Tls(TlsFault::Untrusted)))
    }

    /// Encrypts all bytes from here on, where the client begins with TLS. `None`: it has shown no
    /// certificate.
    pub(crate) fn encrypt_as_server(
        &mut self,
        credential: &Credential,
        time_limit: &TimeLimit,
    ) -> Result<Option<(Subject, Serial)>, IoFail> {
        self.await_bytes(time_limit)?;
        let arrived = &self.inbuf[self.start..self.end];
        let Some(tls) = Tls::server(credential, arrived)? else {
            return Err(IoFail::Fault(Fault::Tls(TlsFault::Absent)));
        };
        (self.start, self.end) = (0, 0);
        let tls = self.tls.insert(Box::new(tls));
        tls.shake_hands(&mut self.socket, time_limit)
    }

    /// Stops encrypting, after both sides agreed to continue in the clear and before anything else
    /// was sent.
    pub(crate) fn stop_encrypting(&mut self) {
        self.tls = None;
    }

    /// Frees buffers that an idle connection does not need.
    pub(crate) fn free(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.free();
        }
    }

    /// Allows the peer to send descriptors of regions from now on.
    pub fn take_regions(&mut self) {
        self.socket.takes_regions = self.stream().endpoint().is_unix();
    }

    /// Takes the region that arrived last, if it was not taken yet.
    pub(crate) fn new_region(&mut self) -> Option<OwnedFd> {
        self.socket.region.take()
    }

    /// True where bytes of the next frame are already buffered.
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        self.end > self.start
    }

    /// Sends one frame.
    ///
    /// # Errors
    /// `TooLong` before anything is sent; all others leave the connection unusable.
    pub fn send(&mut self, frame: &FrameOut<'_>, time_limit: &TimeLimit) -> Result<(), IoFail> {
        let mut header = frame.header;
        let (payload, payload_bytes) = match frame.payload {
            PayloadOut::Slices(slices) => (slices, slices.iter().map(|slice| slice.len()).sum()),
            PayloadOut::Region { offset, bytes } => {
                header.payload_at = PayloadAt::Region { offset };
                (&[][..], bytes as usize)
            }
        };
        header.body_bytes = bounded("body", frame.body.len(), BODY_BYTES_MAX)?;
        header.payload_bytes = bounded("payload", payload_bytes, PAYLOAD_BYTES_MAX)?;
        let tlv_bytes = bounded("TLV area", frame.tlv.len(), TLV_BYTES_MAX)?;
        #[expect(clippy::cast_possible_truncation, reason = "TLV_BYTES_MAX bounds it")]
        let tlv_bytes = tlv_bytes as u16;
        header.tlv_bytes = tlv_bytes;
        header.payload_crc = (self.is_checked && header.inline_bytes() > 0).then(|| {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            payload.iter().for_each(|slice| digest.update(slice));
            crc_of(&digest)
        });
        let head = header.encode();
        let mut slices = Vec::with_capacity(3 + payload.len());
        slices.push(IoSlice::new(&head));
        slices.extend(
            [frame.body, frame.tlv]
                .iter()
                .chain(payload)
                .filter(|slice| !slice.is_empty())
                .map(|slice| IoSlice::new(slice)),
        );
        self.send_all(&mut slices, frame.region, time_limit)?;
        self.bytes_out += (payload_bytes - header.inline_bytes()) as u64;
        Ok(())
    }

    /// Notes how much of the request has left, where nobody has waited for its reply so far.
    pub(crate) fn look_at_unsent(&mut self, time_limit: &TimeLimit) {
        self.socket.look_at_unsent(time_limit);
    }

    fn send_all(
        &mut self,
        slices: &mut [IoSlice<'_>],
        mut region: Option<BorrowedFd<'_>>,
        time_limit: &TimeLimit,
    ) -> Result<(), IoFail> {
        self.socket.begin_frame();
        if let Some(tls) = &mut self.tls {
            self.bytes_out += tls.send(&mut self.socket, slices, time_limit)?;
            return Ok(());
        }
        let mut rest = slices;
        let mut is_first = true;
        while !rest.is_empty() {
            let sent = self.socket.send_some(rest, region, time_limit);
            let count = sent.map_err(|fail| fail.named(is_first))?;
            region = None;
            self.bytes_out += count as u64;
            IoSlice::advance_slices(&mut rest, count);
            is_first = false;
        }
        Ok(())
    }

    /// Waits until at least one byte of the next frame is buffered.
    ///
    /// # Errors
    /// `TimedOut` leaves the connection usable.
    pub fn await_bytes(&mut self, time_limit: &TimeLimit) -> Result<(), IoFail> {
        if !self.has_bytes() {
            self.fill(time_limit, true)?;
        }
        Ok(())
    }

    /// Receives header and body (TLVs behind it) of one frame. The payload must be received next.
    ///
    /// # Errors
    /// Any; the connection must not be used again.
    pub fn receive_head(
        &mut self,
        bounds: FrameBounds,
        body: &mut Vec<u8>,
        time_limit: &TimeLimit,
    ) -> Result<Header, IoFail> {
        let mut is_first = !self.has_bytes();
        while self.end - self.start < HEADER_BYTES {
            self.fill(time_limit, is_first)?;
            is_first = false;
        }
        let mut head = [0; HEADER_BYTES];
        head.copy_from_slice(&self.inbuf[self.start..self.start + HEADER_BYTES]);
        self.start += HEADER_BYTES;
        let header = Header::decode(&head).map_err(|code| {
            IoFail::Fault(if code == ErrorCode::WrongVersion {
                Fault::Version
            } else {
                Fault::Header
            })
        })?;
        let body_bytes = header.body_bytes as usize + usize::from(header.tlv_bytes);
        fits(body_bytes, bounds.body)?;
        fits(header.payload_bytes as usize, bounds.payload)?;
        self.bytes_in += u64::from(header.payload_bytes) - header.inline_bytes() as u64;
        body.clear();
        let here = body_bytes.min(self.end - self.start);
        body.extend_from_slice(&self.inbuf[self.start..self.start + here]);
        self.start += here;
        if here < body_bytes {
            body.resize(body_bytes, 0);
            self.receive_all(&mut body[here..], time_limit)?;
        }
        Ok(header)
    }

    /// Receives the payload that follows `header` to the front of `into`, which may be longer.
    ///
    /// # Errors
    /// Any; the connection must not be used again.
    pub fn receive_payload(
        &mut self,
        header: &Header,
        into: &mut [u8],
        time_limit: &TimeLimit,
    ) -> Result<(), IoFail> {
        let bytes = header.inline_bytes();
        fits(bytes, into.len())?;
        if bytes == 0 {
            return Ok(());
        }
        let into = &mut into[..bytes];
        let (front, behind) = into.split_at_mut(bytes.min(self.end - self.start));
        front.copy_from_slice(&self.inbuf[self.start..self.start + front.len()]);
        self.start += front.len();
        if !behind.is_empty() {
            self.receive_all(behind, time_limit)?;
        }
        if let Some(crc) = header.payload_crc {
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            digest.update(into);
            if crc_of(&digest) != crc {
                return Err(IoFail::Fault(Fault::Checksum));
            }
        }
        Ok(())
    }

    /// Receives the payload into a reusable buffer.
    ///
    /// # Errors
    /// Any; the connection must not be used again.
    pub fn receive_payload_buf(
        &mut self,
        header: &Header,
        into: &mut AlignedBuf,
        time_limit: &TimeLimit,
    ) -> Result<(), IoFail> {
        into.set_len(header.inline_bytes());
        self.receive_payload(header, into.as_mut_slice(), time_limit)
    }

    fn receive_all(&mut self, into: &mut [u8], time_limit: &TimeLimit) -> Result<(), IoFail> {
        let mut rest = into;
        while !rest.is_empty() {
            let received = match &mut self.tls {
                Some(tls) => tls.receive(&mut self.socket, rest, time_limit, false)?,
                None => {
                    let received = self.socket.receive_long(rest, time_limit);
                    received.map_err(|fail| fail.named(false))?
                }
            };
            if received == 0 {
                return Err(IoFail::Fault(Fault::Cut));
            }
            self.bytes_in += received as u64;
            time_limit.received(received);
            rest = rest.get_mut(received..).unwrap_or_default();
        }
        Ok(())
    }

    /// Receives some of the next bytes into the small buffer.
    fn fill(&mut self, time_limit: &TimeLimit, is_first: bool) -> Result<(), IoFail> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0 {
            self.inbuf.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let free = &mut self.inbuf[self.end..];
        let received = match &mut self.tls {
            Some(tls) => tls.receive(&mut self.socket, free, time_limit, is_first)?,
            None => {
                let received = self.socket.receive_some(free, time_limit);
                received.map_err(|fail| fail.named(is_first))?
            }
        };
        match received {
            0 if is_first => Err(IoFail::Closed(Errno::CONNRESET)),
            0 => Err(IoFail::Fault(Fault::Cut)),
            count => {
                self.end += count;
                self.bytes_in += count as u64;
                time_limit.received(count);
                Ok(())
            }
        }
    }
}

/// The CRC-32C of a digest, which hands it out in 64 bits.
#[expect(clippy::cast_possible_truncation, reason = "CRC-32C has 32 bits")]
fn crc_of(digest: &Digest) -> u32 {
    digest.finalize() as u32
}

fn bounded(what: &'static str, bytes: usize, max: usize) -> Result<u32, IoFail> {
    match u32::try_from(bytes) {
        Ok(length) if bytes <= max => Ok(length),
        _ => Err(IoFail::TooLong { what, bytes, max }),
    }
}

fn fits(bytes: usize, room: usize) -> Result<(), IoFail> {
    if bytes > room {
        return Err(IoFail::Fault(Fault::TooLong { bytes, room }));
    }
    Ok(())
}
