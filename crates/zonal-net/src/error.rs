//! What can go wrong between two processes, always with the peer named.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use zonal_region::MapError;
use zonal_types::{CellId, CodecError, ErrorCode, NodeId};

use crate::address::Endpoint;

/// Why a call, a handshake or a listener failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No (complete) answer within the deadline; the request may have been executed.
    #[error("{server} did not answer {operation} within {ms} ms")]
    TimedOut {
        /// Who did not answer.
        server: Endpoint,
        /// What was asked.
        operation: &'static str,
        /// The deadline.
        ms: u64,
    },
    /// No connection could be made; nothing was executed.
    #[error("{server} cannot be reached")]
    Unreachable {
        /// Who.
        server: Endpoint,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The connection broke after the request was sent; it may have been executed.
    #[error("the connection to {peer} broke during {operation}")]
    Lost {
        /// The other side.
        peer: Endpoint,
        /// What was asked.
        operation: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The peer sent what the protocol does not allow; the connection is closed.
    #[error("{peer} broke the protocol: {fault}")]
    Protocol {
        /// The other side.
        peer: Endpoint,
        /// How.
        fault: Fault,
    },
    /// One side has no credential, or one that the other does not take, or it claims to be another
    /// one than that says.
    #[error("{peer} is not authenticated: {fault}")]
    Unauthenticated {
        /// The other side.
        peer: Endpoint,
        /// Why.
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
    /// There is no protocol version that both sides speak.
    #[error("{peer} speaks other protocol versions than this program")]
    WrongVersion {
        /// The other side.
        peer: Endpoint,
    },
    /// Another node answers at this address.
    #[error("{peer} is node {found}, not node {expected}")]
    WrongNode {
        /// The other side.
        peer: Endpoint,
        /// The node dialled.
        expected: NodeId,
        /// The node that answered.
        found: NodeId,
    },
    /// The server did not take the request; nothing was executed.
    #[error("{server} refused: {code}")]
    Refused {
        /// Who refused.
        server: Endpoint,
        /// Why.
        code: ErrorCode,
    },
    /// What was to be sent is past a bound of the frame; nothing was sent.
    #[error("{what} of {bytes} bytes is past the bound of {max}")]
    TooLong {
        /// Body, TLVs or payload.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        max: usize,
    },
    /// The call was ended by its [`crate::Canceller`]; it may have been executed.
    #[error("{operation} at {server} was cancelled")]
    Cancelled {
        /// Who was asked.
        server: Endpoint,
        /// What was asked.
        operation: &'static str,
    },
    /// Without a credential, a server listens on loopback only.
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
    /// The Unix socket of a server's address cannot be made.
    #[error("the Unix socket {}: {why}", path.display())]
    BindUnix {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// This machine refused a thread, a descriptor or random bytes.
    #[error("this machine refused {what}")]
    Local {
        /// What was wanted.
        what: &'static str,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
}

impl NetError {
    /// True where nobody answered: not within the deadline, or no machine at that address at all. A
    /// refused connection is an answer.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        match self {
            Self::TimedOut { .. } => true,
            // Also of a connection that is not tried again so soon.
            Self::Unreachable { source, .. } | Self::Lost { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
            ),
            _ => false,
        }
    }

    /// The number that stands for this error towards programs and other servers.
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

    /// True where another try may succeed without anybody changing a configuration.
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

    /// True where the server may have executed the request although this error came back.
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

/// What is wrong with memory that a peer names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionFault {
    /// None was sent on this connection, or none was offered for this reply.
    #[error("there is none")]
    None,
    /// The part is not all within it.
    #[error("the part is not within it")]
    Outside,
    /// What was sent is not mapped.
    #[error(transparent)]
    Refused(#[from] MapError),
}

/// Why two sides do not come to an encrypted connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// One side has a credential and the other has none.
    #[error("one of the two has a credential and the other has none")]
    Absent,
    /// The peer's certificate is of another authority, or not for this use.
    #[error("its certificate is not one of this cell's authority for this use")]
    Untrusted,
    /// The peer's certificate has expired.
    #[error("its certificate has expired, or a clock is wrong")]
    Expired,
    /// The peer's certificate is not valid yet.
    #[error("its certificate is not valid yet, or a clock is wrong")]
    NotYetValid,
    /// The peer's certificate has no subject of this program.
    #[error("its certificate names no subject of a cell")]
    Subject,
    /// The peer's certificate is revoked.
    #[error("its credential is revoked")]
    Revoked,
    /// The peer claims a role, a node or a cell that is not in its certificate.
    #[error("it claims what its certificate does not say")]
    Claim,
    /// The peer refuses the certificate of this process.
    #[error("it does not take the credential of this process")]
    Refused,
    /// A local process of another user.
    #[error("it belongs to another user")]
    User,
    /// A server whose credential is not a server's.
    #[error("the credential is not a server's")]
    NoServer,
    /// What came is no TLS, or was changed on its way.
    #[error("the encrypted connection is damaged, or the other side does not encrypt")]
    Broken,
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Magic, checksum, a length or a reserved field of the header is wrong.
    #[error("a frame header is not valid")]
    Header,
    /// The header is in order but speaks another version.
    #[error("a frame has an unknown version")]
    Version,
    /// A frame that has no place here (a reply for a request, another request's reply, a second
    /// hello).
    #[error("a frame came out of turn")]
    OutOfTurn,
    /// More bytes than this state of the connection allows.
    #[error("a frame has {bytes} bytes where {room} are allowed")]
    TooLong {
        /// Bytes announced.
        bytes: usize,
        /// Bytes allowed.
        room: usize,
    },
    /// The payload does not have the checksum that the header gives.
    #[error("a payload fails its checksum")]
    Checksum,
    /// A handshake message cannot be decoded.
    #[error("a handshake message cannot be decoded")]
    Message(#[from] CodecError),
    /// The cell id of a frame is not the connection's.
    #[error("a frame names another cell")]
    Cell,
    /// A frame was begun and not completed in time.
    #[error("a frame was not completed in time")]
    Stalled,
    /// A region that cannot be used, or a part outside of it.
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
        // Not tried again so soon after nobody took the connection.
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
