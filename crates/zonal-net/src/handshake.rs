//! The first frames of every connection: both sides exchange identity, cell and version.
//!
//! ```text
//!  client                                   server
//!    Hello {versions, cell, role, node, zone, features}  ->
//!                            <-  HelloReply {version, cell, role, node, features}
//!                                (or, at any point, Refused {code} and the end)
//! ```
//! A new node without a credential sends Claim {id, proof} in place of Hello; the server answers
//! Claimed {outcome} and ends the connection.
//!
//! | connection | proof of identity before the first frame |
//! | --- | --- |
//! | TCP, both have credentials | TLS 1.3 with both certificates: each may claim its subject |
//! | TCP, neither has one | none: loopback only |
//! | TCP, a new node at a manager | TLS 1.3 with the manager's certificate, for one Claim |
//! | Unix socket | the kernel names the peer's user id: root and the own user may claim anything |
//!
//! *Invariants*:
//! 1. Only these messages are accepted before the handshake is complete, and none after.
//! 2. The whole handshake, TLS included, ends within the caller's time limit.
//! 3. A stranger makes the server allocate at most 32 KiB.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustix::io::Errno;
use rustls::ClientConfig;
use zonal_types::limits::SEALED_BYTES_MAX;
use zonal_types::{CellId, Codec, ErrorCode, NodeId, ZoneId, codec_enum, codec_struct};
use zonal_wire::frame::{FEATURE_PLAIN, Header, Service};

use crate::address::Endpoint;
use crate::error::{Fault, NetError, TlsFault};
use crate::frame_io::{Conn, FrameBounds, FrameOut, IoFail, TimeLimit};
use crate::identity::{Identity, Peer, PeerCertificate, Role};
use crate::join_token::{ClaimOutcome, TokenClaim};

codec_struct! {
    /// The first message of a connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hello {
        /// Oldest protocol version that the sender speaks.
        version_min: u16,
        /// Newest protocol version that the sender speaks.
        version_max: u16,
        /// The sender's cell; all zero: it wants to learn the server's.
        cell: CellId,
        /// Role of the sender.
        role: Role,
        /// The sender's node; 0: none.
        node: NodeId,
        /// The zone of the sender's machine, for statistics alone; 0: none.
        zone: ZoneId,
        /// Bits of optional features; both sides use those that both have.
        features: u64,
    }
}

codec_struct! {
    /// The server's answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HelloReply {
        /// The protocol version of the connection.
        version: u16,
        /// The server's cell.
        cell: CellId,
        /// Role of the server.
        role: Role,
        /// The server's node.
        node: NodeId,
        /// The server's features.
        features: u64,
    }
}

codec_enum! {
    /// Bodies of frames with `Service::Connection`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Handshake {
        /// Client to server, first.
        Hello = 1 {
            /// The client's hello.
            hello: Hello,
        },
        /// Server to client: requests may follow.
        HelloReply = 2 {
            /// The server's answer.
            reply: HelloReply,
        },
        /// Client to server, first and last: a new node claims its credential.
        Claim = 6 {
            /// The claim.
            claim: TokenClaim,
        },
        /// Server to client: the end of the connection.
        Claimed = 7 {
            /// The answer.
            outcome: ClaimOutcome,
        },
        /// Server to client at any time, also in place of a reply: the number of an `ErrorCode`.
        /// The server then closes the connection.
        Refused = 5 {
            /// The error code.
            code: u16,
        },
    }
}

/// The client's side: identifies as `own` and expects `node` (0: any).
///
/// # Errors
/// Any that names the peer.
pub fn dial(
    conn: &mut Conn,
    own: &Identity,
    node: NodeId,
    time_limit: &TimeLimit,
) -> Result<Peer, NetError> {
    let endpoint = conn.stream().endpoint();
    let failed = |fail| name(fail, endpoint, time_limit);
    let certified = match &own.credential {
        Some(credential) if !endpoint.is_unix() => {
            let (subject, serial) = conn
                .encrypt_as_client(credential, time_limit)
                .map_err(failed)?;
            Some(Arc::new(PeerCertificate { subject, serial }))
        }
        _ => None,
    };
    let hello = Hello {
        version_min: own.versions.0,
        version_max: own.versions.1,
        cell: own.cell,
        role: own.role,
        node: own.node,
        zone: own.zone,
        features: own.features,
    };
    let head = Header::request(Service::Connection, own.cell);
    say(conn, head, &Handshake::Hello { hello }, time_limit).map_err(failed)?;
    let (head, message) = hear(conn, FrameBounds::HANDSHAKE, time_limit).map_err(failed)?;
    let reply = match message {
        Handshake::HelloReply { reply } => reply,
        Handshake::Refused { code } => {
            return Err(match refusal(endpoint, code, own.cell, head.cell) {
                NetError::Unauthenticated { .. } if own.credential.is_none() => {
                    unauthenticated(endpoint, TlsFault::Absent)
                }
                error => error,
            });
        }
        Handshake::Hello { .. } | Handshake::Claim { .. } | Handshake::Claimed { .. } => {
            return Err(out_of_turn(endpoint));
        }
    };
    check_reply(own, &reply, certified.as_deref(), node, endpoint)?;
    let features = reply.features & own.features;
    if features & FEATURE_PLAIN != 0 {
        conn.stop_encrypting();
    }
    Ok(Peer {
        endpoint,
        cell: reply.cell,
        role: reply.role,
        node: reply.node,
        zone: ZoneId::default(),
        version: reply.version,
        features,
        offers_plain: reply.features & FEATURE_PLAIN != 0,
        certified,
    })
}

/// Checks that a server is of the cell, is `node` (0: any) and is what its certificate says.
fn check_reply(
    own: &Identity,
    reply: &HelloReply,
    certified: Option<&PeerCertificate>,
    node: NodeId,
    endpoint: Endpoint,
) -> Result<(), NetError> {
    if own.cell != CellId::default() && reply.cell != own.cell {
        return Err(NetError::WrongCell {
            peer: endpoint,
            expected: own.cell,
            found: reply.cell,
        });
    }
    if reply.version < own.versions.0 || reply.version > own.versions.1 {
        return Err(NetError::WrongVersion { peer: endpoint });
    }
    if reply.role != Role::Server {
        return Err(out_of_turn(endpoint));
    }
    if let Some(certified) = certified {
        let subject = &certified.subject;
        if subject.cell != reply.cell || !subject.may_be(reply.role, reply.node) {
            return Err(unauthenticated(endpoint, TlsFault::Claim));
        }
    }
    if node != NodeId(0) && reply.node != node {
        return Err(NetError::WrongNode {
            peer: endpoint,
            expected: node,
            found: reply.node,
        });
    }
    Ok(())
}

/// The side of a new node without a credential, which has a token: claims its credential, and
/// nothing else.
///
/// # Errors
/// Any that names the peer.
pub(crate) fn claim(
    conn: &mut Conn,
    (config, cell): (Arc<ClientConfig>, CellId),
    claim: TokenClaim,
    endpoint: Endpoint,
    time_limit: &TimeLimit,
) -> Result<ClaimOutcome, NetError> {
    let failed = |fail| name(fail, endpoint, time_limit);
    conn.encrypt_with(config, time_limit).map_err(failed)?;
    let head = Header::request(Service::Connection, cell);
    say(conn, head, &Handshake::Claim { claim }, time_limit).map_err(failed)?;
    let bounds = FrameBounds {
        body: SEALED_BYTES_MAX + 64,
        payload: 0,
    };
    match hear(conn, bounds, time_limit).map_err(failed)? {
        (_, Handshake::Claimed { outcome }) => Ok(outcome),
        (head, Handshake::Refused { code }) => Err(refusal(endpoint, code, cell, head.cell)),
        _ => Err(out_of_turn(endpoint)),
    }
}

/// The server's part of a claim: the peer has no certificate, so it may send nothing else.
fn answer_claim(
    conn: &mut Conn,
    endpoint: Endpoint,
    time_limit: &TimeLimit,
    claim: impl FnOnce(&TokenClaim) -> ClaimOutcome,
) -> Result<(), NetError> {
    let failed = |fail| name(fail, endpoint, time_limit);
    let (head, message) = hear(conn, FrameBounds::HANDSHAKE, time_limit).map_err(failed)?;
    let Handshake::Claim { claim: made } = message else {
        return Err(unauthenticated(endpoint, TlsFault::Absent));
    };
    let outcome = claim(&made);
    say(
        conn,
        head.reply(),
        &Handshake::Claimed { outcome },
        time_limit,
    )
    .map_err(failed)
}

/// The server's side. `admit` decides about a client that has proved its identity. `claim` answers
/// a new node, which has none yet; then there is no peer. A refusal was already sent when this
/// returns an error that calls for one.
///
/// # Errors
/// Any that names the peer; those of `admit`.
pub fn answer(
    conn: &mut Conn,
    own: &Identity,
    time_limit: &TimeLimit,
    admit: impl FnOnce(&Peer) -> Result<(), NetError>,
    claim: impl FnOnce(&TokenClaim) -> ClaimOutcome,
) -> Result<Option<Peer>, NetError> {
    let outcome = answer_inner(conn, own, time_limit, admit, claim);
    if let Err(error) = &outcome {
        match error {
            NetError::Lost { .. } | NetError::Local { .. } => {}
            _ => refuse(
                conn,
                Header::request(Service::Connection, own.cell),
                error.code(),
            ),
        }
    }
    outcome
}

fn answer_inner(
    conn: &mut Conn,
    own: &Identity,
    time_limit: &TimeLimit,
    admit: impl FnOnce(&Peer) -> Result<(), NetError>,
    claim: impl FnOnce(&TokenClaim) -> ClaimOutcome,
) -> Result<Option<Peer>, NetError> {
    let endpoint = conn.stream().endpoint();
    let failed = |fail| name(fail, endpoint, time_limit);
    let certified = match (endpoint, &own.credential) {
        (Endpoint::Tcp(_), Some(credential)) => {
            let shown = conn
                .encrypt_as_server(credential, time_limit)
                .map_err(failed)?;
            let Some((subject, serial)) = shown else {
                answer_claim(conn, endpoint, time_limit, claim)?;
                return Ok(None);
            };
            Some(Arc::new(PeerCertificate { subject, serial }))
        }
        (Endpoint::Local { uid, .. }, _) if !is_trusted(uid) => {
            return Err(unauthenticated(endpoint, TlsFault::User));
        }
        _ => None,
    };
    let (head, message) = hear(conn, FrameBounds::HANDSHAKE, time_limit).map_err(failed)?;
    let Handshake::Hello { hello } = message else {
        return Err(out_of_turn(endpoint));
    };
    let version = hello.version_max.min(own.versions.1);
    if version < hello.version_min || version < own.versions.0 {
        return Err(NetError::WrongVersion { peer: endpoint });
    }
    if hello.cell != CellId::default() && hello.cell != own.cell {
        return Err(NetError::WrongCell {
            peer: endpoint,
            expected: own.cell,
            found: hello.cell,
        });
    }
    if let Some(certified) = &certified {
        let subject = &certified.subject;
        if subject.cell != own.cell || !subject.may_be(hello.role, hello.node) {
            return Err(unauthenticated(endpoint, TlsFault::Claim));
        }
    }
    let peer = Peer {
        endpoint,
        cell: own.cell,
        role: hello.role,
        node: hello.node,
        zone: hello.zone,
        version,
        features: hello.features & own.features,
        offers_plain: hello.features & FEATURE_PLAIN != 0,
        certified,
    };
    admit(&peer)?;
    let reply = HelloReply {
        version,
        cell: own.cell,
        role: Role::Server,
        node: own.node,
        features: own.features,
    };
    let mut head = head.reply();
    head.cell = own.cell;
    say(conn, head, &Handshake::HelloReply { reply }, time_limit).map_err(failed)?;
    if peer.features & FEATURE_PLAIN != 0 {
        conn.stop_encrypting();
    }
    Ok(Some(peer))
}

/// True where a process of this user id may claim anything on a Unix socket: it could read this
/// process's memory and files anyway.
pub(crate) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn unauthenticated(peer: Endpoint, fault: TlsFault) -> NetError {
    NetError::Unauthenticated { peer, fault }
}

/// Tells the peer why the connection ends, as far as that is possible without waiting for long.
pub(crate) fn refuse(conn: &mut Conn, head: Header, code: ErrorCode) {
    let time_limit = TimeLimit::start(std::time::Duration::from_millis(200));
    let message = Handshake::Refused {
        code: code.number(),
    };
    let mut head = head.reply();
    head.service = Service::Connection;
    // The peer may be gone; the connection ends in any case.
    let _ = say(conn, head, &message, &time_limit);
    conn.stream().discard_arrived();
}

/// Converts a server's refusal into an error.
pub(crate) fn refusal(server: Endpoint, code: u16, expected: CellId, found: CellId) -> NetError {
    match ErrorCode::from_number(code).unwrap_or(ErrorCode::Io) {
        ErrorCode::Unauthenticated => unauthenticated(server, TlsFault::Refused),
        ErrorCode::WrongVersion => NetError::WrongVersion { peer: server },
        ErrorCode::WrongCell => NetError::WrongCell {
            peer: server,
            expected,
            found,
        },
        code => NetError::Refused { server, code },
    }
}

fn say(
    conn: &mut Conn,
    header: Header,
    message: &Handshake,
    time_limit: &TimeLimit,
) -> Result<(), IoFail> {
    conn.send(&FrameOut::message(header, &message.to_bytes()), time_limit)
}

fn hear(
    conn: &mut Conn,
    bounds: FrameBounds,
    time_limit: &TimeLimit,
) -> Result<(Header, Handshake), IoFail> {
    let mut body = Vec::new();
    let header = conn.receive_head(bounds, &mut body, time_limit)?;
    if header.service != Service::Connection || header.tlv_bytes != 0 {
        return Err(IoFail::Fault(Fault::OutOfTurn));
    }
    let message =
        Handshake::from_bytes(&body).map_err(|error| IoFail::Fault(Fault::Message(error)))?;
    let is_from_client = matches!(message, Handshake::Hello { .. } | Handshake::Claim { .. });
    if header.is_request != is_from_client {
        return Err(IoFail::Fault(Fault::OutOfTurn));
    }
    Ok((header, message))
}

fn out_of_turn(peer: Endpoint) -> NetError {
    NetError::Protocol {
        peer,
        fault: Fault::OutOfTurn,
    }
}

fn name(fail: IoFail, peer: Endpoint, time_limit: &TimeLimit) -> NetError {
    match fail {
        IoFail::TimedOut => NetError::TimedOut {
            server: peer,
            operation: "the handshake",
            ms: time_limit.limit_ms(),
        },
        IoFail::Fault(Fault::Version) => NetError::WrongVersion { peer },
        IoFail::Fault(Fault::Cut) => NetError::Lost {
            peer,
            operation: "the handshake",
            source: Errno::CONNRESET.into(),
        },
        IoFail::Fault(Fault::Tls(fault)) => unauthenticated(peer, fault),
        IoFail::Fault(fault) => NetError::Protocol { peer, fault },
        fail => NetError::Lost {
            peer,
            operation: "the handshake",
            source: fail.to_io(),
        },
    }
}
