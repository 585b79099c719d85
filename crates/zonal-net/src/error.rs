//! Errors between two processes; each names the peer.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use zonal_region::MapError;
use zonal_types::{CellId, CodecError, ErrorCode, NodeId};

use crate::address::Endpoint;

/// Why a call, a handshake or a listener failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No complete answer arrived within the deadline; the request may have been executed.
    #[error("{server} did not answer {operation} within {ms} ms")]
    TimedOut {
        /// The silent server.
        server: Endpoint,
        /// The operation of the call.
        operation: &'static str,
        /// The deadline.
        ms: u64,
    },
    /// No connection could be made; nothing was executed.
    #[error("{server} cannot be reached")]
    Unreachable {
        /// The server.
        server: Endpoint,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The connection broke after the request was sent; the request may have been executed.
    #[error("the connection to {peer} broke during {operation}")]
    Lost {
        /// The other side.
        peer: Endpoint,
        /// The operation of the call.
        operation: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The peer broke the protocol; the connection is closed.
    #[error("{peer} broke the protocol: {fault}")]
    Protocol {
        /// The other side.
        peer: Endpoint,
        /// The violation.
        fault: Fault,
    },
    /// One side has no credential, has one that the other refuses, or claims another identity than
    /// its credential's.
    #[error("{peer} is not authenticated: {fault}")]
    Unauthenticated {
        /// The other side.
        peer: Endpoint,
        /// The reason.
        fault: TlsFault,
    },
    /// The peer belongs to another cell.
    #[error("{peer} belongs to cell {found}, not to cell {expected}")]
    WrongCell {
        /// The other side.
        peer: Endpoint,
        /// This process's cell.
        expected: CellId,
        /// The peer's cell.
        found: CellId,
    },
    /// The two sides have no protocol version in common.
    #[error("{peer} speaks other protocol versions than this program")]
    WrongVersion {
        /// The other side.
        peer: Endpoint,
    },
    /// Another node answered at this address.
    #[error("{peer} is node {found}, not node {expected}")]
    WrongNode {
        /// The other side.
        peer: Endpoint,
        /// The node that was dialled.
        expected: NodeId,
        /// The node that answered.
        found: NodeId,
    },
    /// The server refused the request; nothing was executed.
    #[error("{server} refused: {code}")]
    Refused {
        /// The server.
        server: Endpoint,
        /// The reason.
        code: ErrorCode,
    },
    /// The frame to send exceeds a bound; nothing was sent.
    #[error("{what} of {bytes} bytes is past the bound of {max}")]
    TooLong {
        /// The part: body, TLVs or payload.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// A [`crate::Canceller`] ended the call; the request may have been executed.
    #[error("{operation} at {server} was cancelled")]
    Cancelled {
        /// The server that was called.
        server: Endpoint,
        /// The operation of the call.
        operation: &'static str,
    },
    /// Without a credential a server listens on loopback only.
    #[error(
        "will not listen on {address} without a credential. Hint: set `key_file`, or listen on 127.0.0.1"
    )]
    KeylessBind {
        /// The address.
        address: SocketAddr,
    },
    /// A listener could not be made.
    #[error("listening on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The Unix socket of a server's address cannot be created.
    #[error("the Unix socket {}: {why}", path.display())]
    BindUnix {
        /// Its path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// This machine refused a thread, a descriptor or random bytes.
    #[error("this machine refused {what}")]
    Local {
        /// The resource that was refused.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl NetError {
    /// True where nothing answered: no reply within the deadline, or no machine at that address. A
    /// refused connection is an answer.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            // Also where back-off skipped the connection attempt.
            Self::Unreachable { source, .. } | Self::Lost { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
            ),
            _ => false,
        }
    }

    /// The error code for programs and other servers.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            silence if silence.is_silence() => ErrorCode::TimedOut,
            Self::TimedOut { .. } => ErrorCode::TimedOut,
            Self::Unreachable { .. } | Self::Lost { .. } => ErrorCode::Unreachable,
            Self::Protocol { .. } => ErrorCode::Protocol,
            Self::Unauthenticated { .. } => ErrorCode::Unauthenticated,
            Self::WrongCell { .. } => ErrorCode::WrongCell,
            Self::WrongVersion { .. } => ErrorCode::WrongVersion,
            Self::WrongNode { .. } => ErrorCode::WrongTarget,
            Self::Refused { code, .. } => *code,
            Self::TooLong { .. } => ErrorCode::TooBig,
            Self::Cancelled { .. } => ErrorCode::Interrupted,
            Self::KeylessBind { .. } | Self::Bind { .. } | Self::BindUnix { .. } => {
                ErrorCode::Invalid
            }
            Self::Local { .. } => ErrorCode::NoMemory,
        }
    }

    /// True where another attempt may succeed without a change of any configuration.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::TimedOut { .. }
            | Self::Unreachable { .. }
            | Self::Lost { .. }
            | Self::Local { .. }
            | Self::Protocol {
                fault: Fault::Checksum,
                ..
            } => true,
            Self::Refused { code, .. } => {
                matches!(code, ErrorCode::Overloaded | ErrorCode::NotReady)
            }
            _ => false,
        }
    }

    /// True where the server may have executed the request despite this error.
    #[must_use]
    pub fn may_have_executed(&self) -> bool {
        matches!(
            self,
            Self::TimedOut { .. }
                | Self::Lost { .. }
                | Self::Protocol { .. }
                | Self::Cancelled { .. }
        )
    }
}

/// Why shared memory that a peer names is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionFault {
    /// No region was sent on this connection, or no room was offered for this reply.
    #[error("no region is shared")]
    None,
    /// The part is not entirely inside the region.
    #[error("the part is outside of the region")]
    Outside,
    /// The region that was sent cannot be mapped.
    #[error(transparent)]
    Refused(#[from] MapError),
}

/// Why an encrypted connection was not established.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// One side has a credential and the other has none.
    #[error("one of the two has a credential and the other has none")]
    Absent,
    /// The peer's certificate is from another authority, or not for this use.
    #[error("its certificate is not one of this cell's authority for this use")]
    Untrusted,
    /// The peer's certificate has expired.
    #[error("its certificate has expired, or a clock is wrong")]
    Expired,
    /// The peer's certificate is not valid yet.
    #[error("its certificate is not valid yet, or a clock is wrong")]
    NotYetValid,
    /// The peer's certificate has no subject of this program.
    #[error("its certificate has no subject of a cell")]
    Subject,
    /// The peer's certificate is revoked.
    #[error("its credential is revoked")]
    Revoked,
    /// The peer claims a role, a node or a cell that its certificate does not have.
    #[error("it claims an identity that its certificate does not have")]
    Claim,
    /// The peer refused this process's certificate.
    #[error("it refuses the credential of this process")]
    Refused,
    /// The peer is a local process of another user.
    #[error("it belongs to another user")]
    User,
    /// The credential of the server is not a server's.
    #[error("the credential is not a server's")]
    NoServer,
    /// The peer's bytes are not TLS, or were changed on the way.
    #[error("the encrypted connection is damaged, or the other side does not encrypt")]
    Broken,
}

/// A violation of the protocol by a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The header's magic, checksum, a length or a reserved field is wrong.
    #[error("a frame header is not valid")]
    Header,
    /// The header is valid but has another version.
    #[error("a frame has an unknown version")]
    Version,
    /// A frame out of turn (a reply for a request, another request's reply, a second hello).
    #[error("a frame came out of turn")]
    OutOfTurn,
    /// The frame announces more bytes than this state of the connection allows.
    #[error("a frame has {bytes} bytes where {room} are allowed")]
    TooLong {
        /// Bytes announced.
        bytes: usize,
        /// Bytes allowed.
        room: usize,
    },
    /// The payload does not match the checksum in the header.
    #[error("a payload fails its checksum")]
    Checksum,
    /// A handshake message cannot be decoded.
    #[error("a handshake message cannot be decoded")]
    Message(#[from] CodecError),
    /// The frame's cell id is not the connection's.
    #[error("a frame names another cell")]
    Cell,
    /// The peer began a frame and did not complete it in time.
    #[error("a frame was not completed in time")]
    Stalled,
    /// A region cannot be used, or the peer named a part outside of it.
    #[error("a frame names memory that is not shared: {0}")]
    Region(#[from] RegionFault),
    /// The connection ended inside a frame.
    #[error("the connection ended inside a frame")]
    Cut,
    /// The encryption of the connection failed.
    #[error(transparent)]
    Tls(#[from] TlsFault),
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn silence_is_one_error_whatever_the_connection_was() {
        let server = Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 7000)));
        let unreachable = |errno: Errno| NetError::Unreachable {
            server,
            source: errno.into(),
        };
        let lost = |errno: Errno| NetError::Lost {
            peer: server,
            operation: "a storage request",
            source: errno.into(),
        };
        let timed_out = NetError::TimedOut {
            server,
            operation: crate::CONNECTING,
            ms: 1,
        };
        // Back-off skips attempts for a while after a connection failed.
        let backed_off = NetError::Unreachable {
            server,
            source: io::ErrorKind::TimedOut.into(),
        };
        for error in [
            timed_out,
            backed_off,
            unreachable(Errno::TIMEDOUT),
            unreachable(Errno::HOSTUNREACH),
            unreachable(Errno::NETUNREACH),
            lost(Errno::TIMEDOUT),
            lost(Errno::HOSTUNREACH),
        ] {
            assert_eq!(error.code(), ErrorCode::TimedOut, "{error:?}");
            assert!(error.is_retryable(), "{error:?}");
        }
        for error in [unreachable(Errno::CONNREFUSED), lost(Errno::CONNRESET)] {
            assert_eq!(error.code(), ErrorCode::Unreachable, "{error:?}");
        }
    }
}
