//! The first frames of every connection: who is who, in which cell, in which version, with which key.
//!
//! ```text
//!  client                                   server
//!    Hello {versions, cell, role, node, features, nonce, keyed}  ->
//!                            <-  HelloReply {version, cell, role, node, features, nonce, proof}
//!    Proof {proof}  ->
//!                            <-  Welcome          (or, at any point, Refused {code} and the end)
//! ```
//! A proof is HMAC-SHA256 with the cell key over: label, direction ("server" or "client"), version, cell id, role and
//! node of both sides, features of both sides, both nonces. The direction keeps a proof from being played back to
//! its sender; the nonces (32 random bytes each) from being played again. Proofs are compared in constant time.
//! Without a key, both sides must be without one, and proofs are empty.
//!
//! Frames after the handshake are not authenticated one by one: who can change packets on the wire can change
//! requests. Encryption is a later step (a feature bit).
//!
//! *Invariants*: (1) nothing but these messages is accepted before the handshake is complete, none after;
//! (2) the whole handshake ends within the caller's clock; (3) a stranger makes the server allocate at most 1 KiB.

mod proof;
#[cfg(test)]
mod tests;

use rustix::io::Errno;
use zonal_types::{CellId, Codec, ErrorCode, NodeId, codec_enum, codec_struct};
use zonal_wire::frame::{Header, Service};

use crate::address::Endpoint;
use crate::error::{Fault, NetError};
use crate::frame_io::{Clock, Conn, FrameBounds, FrameOut, IoFail};
use crate::identity::{Identity, Peer, Role};

use proof::Transcript;

codec_struct! {
    /// Opens a connection.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Hello {
        /// Oldest protocol version that the sender speaks.
        version_min: u16,
        /// Newest.
        version_max: u16,
        /// The sender's cell; all zero: it wants to learn the server's.
        cell: CellId,
        /// What the sender is.
        role: Role,
        /// The sender's node; 0: none.
        node: NodeId,
        /// Bits of optional features; both sides use what both have.
        features: u64,
        /// Random.
        nonce: [u8; 32],
        /// True where the sender has a key.
        is_keyed: bool,
    }
}

codec_struct! {
    /// The server's answer.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct HelloReply {
        /// The version to speak.
        version: u16,
        /// The server's cell.
        cell: CellId,
        /// What the server is.
        role: Role,
        /// The server's node.
        node: NodeId,
        /// The server's features.
        features: u64,
        /// Random.
        nonce: [u8; 32],
        /// That the server has the key; `None`: it has none.
        proof: Option<[u8; 32]>,
    }
}

codec_enum! {
    /// The bodies of frames with `Service::Connection`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Handshake {
        /// Client to server, first.
        Hello = 1 {
            /// Who calls.
            hello: Hello,
        },
        /// Server to client.
        HelloReply = 2 {
            /// Who answers.
            reply: HelloReply,
        },
        /// Client to server: that it has the key.
        Proof = 3 {
            /// `None`: the client has no key.
            proof: Option<[u8; 32]>,
        },
        /// Server to client: requests may follow.
        Welcome = 4,
        /// Server to client at any time, also in place of a reply: the number of an `ErrorCode`; the end follows.
        Refused = 5 {
            /// Why.
            code: u16,
        },
    }
}

/// The client's side: dials as `own`, expecting `node` (0: any).
///
/// # Errors
/// Any that names the peer.
pub fn dial(
    conn: &mut Conn,
    own: &Identity,
    node: NodeId,
    clock: &Clock,
) -> Result<Peer, NetError> {
    let endpoint = conn.stream().endpoint();
    let nonce = nonce()?;
    let hello = Hello {
        version_min: own.versions.0,
        version_max: own.versions.1,
        cell: own.cell,
        role: own.role,
        node: own.node,
        features: own.features,
        nonce,
        is_keyed: own.key.is_some(),
    };
    let head = Header::request(Service::Connection, own.cell);
    let failed = |fail| name(fail, endpoint, clock);
    say(conn, head, &Handshake::Hello { hello }, clock).map_err(failed)?;
    let (head, message) = hear(conn, clock).map_err(failed)?;
    let reply = match message {
        Handshake::HelloReply { reply } => reply,
        Handshake::Refused { code } => return Err(refusal(endpoint, code, own.cell, head.cell)),
        _ => return Err(out_of_turn(endpoint)),
    };
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
    let transcript = Transcript {
        version: reply.version,
        cell: reply.cell,
        client: (own.role, own.node, own.features, &nonce),
        server: (reply.role, reply.node, reply.features, &reply.nonce),
    };
    if !transcript.holds(own.key.as_ref(), b"server", reply.proof.as_ref()) {
        // An empty proof, so that the server counts and logs the attempt too. It may be gone already.
        let head = Header::request(Service::Connection, reply.cell);
        let _ = say(conn, head, &Handshake::Proof { proof: None }, clock);
        return Err(NetError::Unauthenticated { peer: endpoint });
    }
    if node != NodeId(0) && reply.node != node {
        return Err(NetError::WrongNode {
            peer: endpoint,
            expected: node,
            found: reply.node,
        });
    }
    let proof = transcript.prove(own.key.as_ref(), b"client");
    let head = Header::request(Service::Connection, reply.cell);
    say(conn, head, &Handshake::Proof { proof }, clock).map_err(failed)?;
    match hear(conn, clock).map_err(failed)?.1 {
        Handshake::Welcome => Ok(Peer {
            endpoint,
            cell: reply.cell,
            role: reply.role,
            node: reply.node,
            version: reply.version,
            features: reply.features & own.features,
        }),
        Handshake::Refused { code } => Err(refusal(endpoint, code, own.cell, reply.cell)),
        _ => Err(out_of_turn(endpoint)),
    }
}

/// The server's side. `admit` is asked about a client that has proved who it is. A refusal has been sent when this returns an error that
/// calls for one.
///
/// # Errors
/// Any that names the peer; those of `admit`.
pub fn answer(
    conn: &mut Conn,
    own: &Identity,
    clock: &Clock,
    admit: impl FnOnce(&Peer) -> Result<(), NetError>,
) -> Result<Peer, NetError> {
    let outcome = answer_inner(conn, own, clock, admit);
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
    clock: &Clock,
    admit: impl FnOnce(&Peer) -> Result<(), NetError>,
) -> Result<Peer, NetError> {
    let endpoint = conn.stream().endpoint();
    let failed = |fail| name(fail, endpoint, clock);
    let (head, message) = hear(conn, clock).map_err(failed)?;
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
    // Before the server proves anything: a stranger without a key gets no HMAC to work on.
    if hello.is_keyed != own.key.is_some() {
        return Err(NetError::Unauthenticated { peer: endpoint });
    }
    let nonce = nonce()?;
    let transcript = Transcript {
        version,
        cell: own.cell,
        client: (hello.role, hello.node, hello.features, &hello.nonce),
        server: (Role::Server, own.node, own.features, &nonce),
    };
    let reply = HelloReply {
        version,
        cell: own.cell,
        role: Role::Server,
        node: own.node,
        features: own.features,
        nonce,
        proof: transcript.prove(own.key.as_ref(), b"server"),
    };
    let mut head = head.reply();
    head.cell = own.cell;
    say(conn, head, &Handshake::HelloReply { reply }, clock).map_err(failed)?;
    let (head, message) = hear(conn, clock).map_err(failed)?;
    let Handshake::Proof { proof } = message else {
        return Err(out_of_turn(endpoint));
    };
    if !transcript.holds(own.key.as_ref(), b"client", proof.as_ref()) {
        return Err(NetError::Unauthenticated { peer: endpoint });
    }
    let peer = Peer {
        endpoint,
        cell: own.cell,
        role: hello.role,
        node: hello.node,
        version,
        features: hello.features & own.features,
    };
    admit(&peer)?;
    say(conn, head.reply(), &Handshake::Welcome, clock).map_err(failed)?;
    Ok(peer)
}

/// Tells the peer why the connection ends, as far as that goes without waiting for long.
pub(crate) fn refuse(conn: &mut Conn, head: Header, code: ErrorCode) {
    let clock = Clock::start(std::time::Duration::from_millis(200));
    let message = Handshake::Refused {
        code: code.number(),
    };
    let mut head = head.reply();
    head.service = Service::Connection;
    // The peer may be gone; the connection ends in any case.
    let _ = say(conn, head, &message, &clock);
    conn.stream().discard_arrived();
}

/// The error for a refusal that came from a server.
pub(crate) fn refusal(server: Endpoint, code: u16, expected: CellId, found: CellId) -> NetError {
    match ErrorCode::from_number(code).unwrap_or(ErrorCode::Io) {
        ErrorCode::Unauthenticated => NetError::Unauthenticated { peer: server },
        ErrorCode::WrongVersion => NetError::WrongVersion { peer: server },
        ErrorCode::WrongCell => NetError::WrongCell {
            peer: server,
            expected,
            found,
        },
        code => NetError::Refused { server, code },
    }
}

fn say(conn: &mut Conn, header: Header, message: &Handshake, clock: &Clock) -> Result<(), IoFail> {
    conn.send(&FrameOut::message(header, &message.to_bytes()), clock)
}

fn hear(conn: &mut Conn, clock: &Clock) -> Result<(Header, Handshake), IoFail> {
    let mut body = Vec::new();
    let header = conn.receive_head(FrameBounds::HANDSHAKE, &mut body, clock)?;
    if header.service != Service::Connection || header.tlv_bytes != 0 {
        return Err(IoFail::Fault(Fault::OutOfTurn));
    }
    let message =
        Handshake::from_bytes(&body).map_err(|error| IoFail::Fault(Fault::Message(error)))?;
    let is_from_client = matches!(message, Handshake::Hello { .. } | Handshake::Proof { .. });
    if header.is_request != is_from_client {
        return Err(IoFail::Fault(Fault::OutOfTurn));
    }
    Ok((header, message))
}

fn nonce() -> Result<[u8; 32], NetError> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| NetError::Local {
        what: "random bytes",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(nonce)
}

fn out_of_turn(peer: Endpoint) -> NetError {
    NetError::Protocol {
        peer,
        fault: Fault::OutOfTurn,
    }
}

fn name(fail: IoFail, peer: Endpoint, clock: &Clock) -> NetError {
    match fail {
        IoFail::TimedOut => NetError::TimedOut {
            server: peer,
            operation: "the handshake",
            ms: clock.limit_ms(),
        },
        IoFail::Fault(Fault::Version) => NetError::WrongVersion { peer },
        IoFail::Fault(Fault::Cut) => NetError::Lost {
            peer,
            operation: "the handshake",
            source: Errno::CONNRESET.into(),
        },
        IoFail::Fault(fault) => NetError::Protocol { peer, fault },
        fail => NetError::Lost {
            peer,
            operation: "the handshake",
            source: fail.to_io(),
        },
    }
}
