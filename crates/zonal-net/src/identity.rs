//! Who a process is, and what it knows of its peer.

use std::sync::Arc;

use zonal_types::{CellId, NodeId, Scope, codec_enum};
use zonal_wire::frame::{FEATURE_PLAIN, FEATURE_REGION, Service, VERSION};

use crate::address::Endpoint;
use crate::credential::{Credential, Serial};
use crate::subject::Subject;

codec_enum! {
    /// What a process is on a connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Role {
        /// A mount.
        Client = 1,
        /// A server, also where it calls another one.
        Server = 2,
        /// A command.
        Tool = 3,
    }
}

/// What protects the frames of a TCP connection both of whose sides have credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// TLS from the first byte to the last.
    #[default]
    Tls,
    /// TLS until both have proved who they are, then nothing, where the other side is configured so
    /// too.
    Plain,
}

/// What this process says of itself.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its cell; all zero (clients only): learn the server's.
    pub cell: CellId,
    /// What it is.
    pub role: Role,
    /// Its node; 0: none.
    pub node: NodeId,
    /// How it proves that.
    pub credential: Option<Arc<Credential>>,
    /// Optional features.
    pub features: u64,
    /// Protocol versions spoken, oldest and newest.
    pub versions: (u16, u16),
}

impl Identity {
    /// An identity with this program's versions. A cell that is not known is the credential's.
    #[must_use]
    pub fn new(
        cell: CellId,
        role: Role,
        node: NodeId,
        credential: Option<Arc<Credential>>,
    ) -> Self {
        let known = credential.as_ref().filter(|_| cell == CellId::default());
        Self {
            cell: known.map_or(cell, |credential| credential.subject().cell),
            role,
            node,
            credential,
            features: FEATURE_REGION,
            versions: (VERSION, VERSION),
        }
    }

    /// The same with a transport.
    #[must_use]
    pub fn with_transport(mut self, transport: Transport) -> Self {
        match transport {
            Transport::Tls => self.features &= !FEATURE_PLAIN,
            Transport::Plain => self.features |= FEATURE_PLAIN,
        }
        self
    }

    /// What its connections are protected by, where both sides can.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.features & FEATURE_PLAIN {
            0 => Transport::Tls,
            _ => Transport::Plain,
        }
    }

    /// True where its credential has a scope: it would be trusted with everything on a Unix socket.
    pub(crate) fn is_scoped(&self) -> bool {
        let credential = self.credential.as_ref();
        credential.is_some_and(|credential| credential.subject().scope().is_some())
    }
}

/// Who is at the other end, after the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Where it is.
    pub endpoint: Endpoint,
    /// The cell of the connection.
    pub cell: CellId,
    /// What the peer is.
    pub role: Role,
    /// Its node; 0: none.
    pub node: NodeId,
    /// The version spoken.
    pub version: u16,
    /// Features that both sides have.
    pub features: u64,
    /// It is configured to go in the clear with those who are, too.
    pub offers_plain: bool,
    /// What its certificate says, where it has shown one.
    pub certified: Option<Arc<Certified>>,
}

/// A certificate that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certified {
    /// Whose it is.
    pub subject: Subject,
    /// Its number.
    pub serial: Serial,
}

impl Peer {
    /// Whether payloads may lie in memory that the client shares with the server.
    pub(crate) fn shares_regions(&self) -> bool {
        self.endpoint.is_unix() && self.features & FEATURE_REGION != 0
    }

    /// Whether the peer, a server, may answer requests of a service. One that has shown no
    /// certificate may.
    #[must_use]
    pub fn may_serve(&self, service: Service) -> bool {
        let Some(certified) = &self.certified else {
            return true;
        };
        let roles = certified.subject.roles();
        match service {
            Service::Manager => roles.manager,
            // The root's shard is beside the manager.
            Service::Meta => roles.meta || roles.manager,
            Service::Storage => roles.storage,
            Service::Admin | Service::Connection => true,
        }
    }

    /// What a client is restricted to; `None`: to nothing.
    #[must_use]
    pub fn scope(&self) -> Option<&Scope> {
        self.certified.as_ref()?.subject.scope()
    }
}
