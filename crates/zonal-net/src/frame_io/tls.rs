//! TLS 1.3 between the frames and the socket of a TCP connection.
//!
//! Copies of a payload beyond those of a plain connection:
//! * sending, one: it is encrypted into records;
//! * receiving, three: the records as they arrive, the assembled records, the plain bytes to the
//!   caller's memory.
//!
//! System calls: one `sendmsg` for each [`RECORDS_BYTES`]; one `recvmsg` for the bytes that are
//! there, at most [`RECORDS_BYTES`].
//!
//! *Invariant*: no byte reaches a frame before the authentication of its record was checked.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use rustix::io::Errno;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection,
    ServerConnection,
};

use super::socket::{Socket, SocketFail};
use super::{IoFail, TimeLimit};
use crate::credential::{Credential, Serial, server_name, subject_of};
use crate::error::{Fault, TlsFault};
use crate::subject::Subject;

/// Encrypted bytes that are kept before they are sent, or received by one call.
const RECORDS_BYTES: usize = 256 << 10;
/// Encrypted bytes received by one call during the handshake and for short requests.
const FIRST_BYTES: usize = 16 << 10;
/// First byte of a TLS handshake's record (RFC 8446, 5.1); a frame begins with `Z`.
const HANDSHAKE_RECORD: u8 = 22;

/// One side of a TLS connection.
#[derive(Debug)]
pub(super) struct Tls {
    session: Connection,
    /// Received records: `start..end` is not yet processed by the session.
    raw: Vec<u8>,
    start: usize,
    end: usize,
}

impl Tls {
    /// The client's side; its first bytes carry the handshake.
    pub(super) fn client(config: Arc<ClientConfig>) -> Result<Self, IoFail> {
        let session = ClientConnection::new(config, server_name());
        Self::new(session.map(Connection::from))
    }

    /// The server's side. `arrived`: the bytes that have arrived already. `None`: they are not TLS.
    pub(super) fn server(credential: &Credential, arrived: &[u8]) -> Result<Option<Self>, IoFail> {
        if arrived.first() != Some(&HANDSHAKE_RECORD) {
            return Ok(None);
        }
        let Some(config) = credential.server_config() else {
            return Err(IoFail::Fault(Fault::Tls(TlsFault::NoServer)));
        };
        let session = ServerConnection::new(Arc::clone(config));
        let mut tls = Self::new(session.map(Connection::from))?;
        tls.raw.resize(FIRST_BYTES.max(arrived.len()), 0);
        tls.raw[..arrived.len()].copy_from_slice(arrived);
        tls.end = arrived.len();
        Ok(Some(tls))
    }

    fn new(session: Result<Connection, rustls::Error>) -> Result<Self, IoFail> {
        let mut session = session.map_err(|error| fault(&error))?;
        session.set_buffer_limit(Some(RECORDS_BYTES));
        Ok(Self {
            session,
            raw: Vec::new(),
            start: 0,
            end: 0,
        })
    }

    /// Runs the handshake; returns the peer's certificate. `None`: a client without one.
    pub(super) fn shake_hands(
        &mut self,
        socket: &mut Socket,
        time_limit: &TimeLimit,
    ) -> Result<Option<(Subject, Serial)>, IoFail> {
        while self.session.is_handshaking() {
            self.flush(socket, time_limit)
                .map_err(|fail| fail.named(true))?;
            if self.session.is_handshaking() {
                self.take_records(socket, time_limit, true)?;
            }
        }
        self.flush(socket, time_limit)
            .map_err(|fail| fail.named(true))?;
        let certificates = self.session.peer_certificates().unwrap_or_default();
        let subject = certificates.first().map(subject_of).transpose();
        subject.map_err(|_error| IoFail::Fault(Fault::Tls(TlsFault::Subject)))
    }

    /// Sends all of the bytes, encrypted.
    pub(super) fn send(
        &mut self,
        socket: &mut Socket,
        slices: &mut [IoSlice<'_>],
        time_limit: &TimeLimit,
    ) -> Result<u64, IoFail> {
        let mut rest = slices;
        let mut sent = 0;
        while !rest.is_empty() {
            let taken = self.session.writer().write_vectored(rest);
            let taken = taken.map_err(|_error| IoFail::Fault(Fault::Tls(TlsFault::Broken)))?;
            IoSlice::advance_slices(&mut rest, taken);
            sent += self
                .flush(socket, time_limit)
                .map_err(|fail| fail.named(sent == 0))?;
        }
        Ok(sent)
    }

    /// Receives some decrypted bytes; 0: the peer has ended.
    pub(super) fn receive(
        &mut self,
        socket: &mut Socket,
        into: &mut [u8],
        time_limit: &TimeLimit,
        is_first: bool,
    ) -> Result<usize, IoFail> {
        loop {
            match self.session.reader().read(into) {
                Ok(count) => return Ok(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_cut) => return Ok(0),
            }
            if !self.take_records(socket, time_limit, is_first)? {
                return Ok(0);
            }
        }
    }

    /// Receives more records into the session. False: the peer has ended.
    fn take_records(
        &mut self,
        socket: &mut Socket,
        time_limit: &TimeLimit,
        is_first: bool,
    ) -> Result<bool, IoFail> {
        if self.start == self.end {
            // A peer that sends much gets a long buffer.
            let room = match self.end == self.raw.len() && self.end > 0 {
                true => RECORDS_BYTES,
                false => self.raw.len().max(FIRST_BYTES),
            };
            self.raw.resize(room, 0);
            self.start = 0;
            self.end = 0;
            let received = socket.receive_some(&mut self.raw, time_limit);
            self.end = received.map_err(|fail| fail.named(is_first))?;
        }
        if self.start == self.end {
            if self.session.is_handshaking() {
                return Err(IoFail::Closed(Errno::CONNRESET));
            }
            return Ok(false);
        }
        let mut records = &self.raw[self.start..self.end];
        let taken = self.session.read_tls(&mut records);
        let taken = taken.map_err(|_error| IoFail::Fault(Fault::Tls(TlsFault::Broken)))?;
        self.start += taken;
        if let Err(error) = self.session.process_new_packets() {
            // Sends the alert that tells the peer the reason. The peer may be gone.
            let _ = self.flush(socket, time_limit);
            return Err(fault(&error));
        }
        Ok(true)
    }

    fn flush(&mut self, socket: &mut Socket, time_limit: &TimeLimit) -> Result<u64, SocketFail> {
        let mut out = Records {
            socket,
            time_limit,
            failed: None,
        };
        let mut sent = 0;
        while self.session.wants_write() {
            match self.session.write_tls(&mut out) {
                Ok(count) => sent += count as u64,
                Err(_error) => return Err(out.failed.take().unwrap_or(SocketFail::TimedOut)),
            }
        }
        Ok(sent)
    }

    /// Frees the long buffer.
    pub(super) fn free(&mut self) {
        if self.start == self.end {
            self.raw = Vec::new();
            self.start = 0;
            self.end = 0;
        }
    }
}

/// Destination of encrypted records.
struct Records<'a> {
    socket: &'a mut Socket,
    time_limit: &'a TimeLimit,
    failed: Option<SocketFail>,
}

impl Records<'_> {
    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket
            .send_some(slices, None, self.time_limit)
            .map_err(|fail| {
                self.failed = Some(fail);
                io::Error::other("the socket failed")
            })
    }
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn fault(error: &rustls::Error) -> IoFail {
    let fault = match error {
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => TlsFault::Expired,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => TlsFault::NotYetValid,
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            TlsFault::Untrusted
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateExpired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError,
        ) => TlsFault::Refused,
        _ => TlsFault::Broken,
    };
    IoFail::Fault(Fault::Tls(fault))
}
