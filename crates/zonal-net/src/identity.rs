//! Identity of this process, and of the peer of a connection.

use std::sync::Arc;

use zonal_types::{CellId, NodeId, Scope, ZoneId, codec_enum};
use zonal_wire::frame::{FEATURE_PLAIN, FEATURE_REGION, Service, VERSION};

use crate::address::Endpoint;
use crate::credential::{Credential, Serial};
use crate::subject::Subject;

codec_enum! {
    /// Role of a process on a connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Role {
        /// A mount.
        Client = 1,
        /// A server, also where it calls another server.
        Server = 2,
        /// A command.
        Tool = 3,
    }
}

/// Protection of a TCP connection whose two sides have credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// TLS from the first byte to the last.
    #[default]
    Tls,
    /// TLS until both sides have proved their identity, then in the clear, where both sides are
    /// configured so.
    Plain,
}

/// Identity that this process presents.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its cell; all zero (clients only): learn the server's.
    pub cell: CellId,
    /// Its role.
    pub role: Role,
    /// Its node; 0: none.
    pub node: NodeId,
    /// The zone of its machine, for statistics of servers; 0: none.
    pub zone: ZoneId,
    /// Its proof.
    pub credential: Option<Arc<Credential>>,
    /// Optional features.
    pub features: u64,
    /// Protocol versions spoken, oldest and newest.
    pub versions: (u16, u16),
}

impl Identity {
    /// An identity with this program's versions. An unknown cell is taken from the credential.
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
            zone: ZoneId::default(),
            credential,
            features: FEATURE_REGION,
            versions: (VERSION, VERSION),
        }
    }

    /// Sets the zone that it claims, for statistics of servers.
    #[must_use]
    pub fn in_zone(mut self, zone: ZoneId) -> Self {
        self.zone = zone;
        self
    }

    /// Sets the transport.
    #[must_use]
    pub fn with_transport(mut self, transport: Transport) -> Self {
        match transport {
            Transport::Tls => self.features &= !FEATURE_PLAIN,
            Transport::Plain => self.features |= FEATURE_PLAIN,
        }
        self
    }

    /// The transport of its connections, where both sides support it.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match self.features & FEATURE_PLAIN {
            0 => Transport::Tls,
            _ => Transport::Plain,
        }
    }

    /// True where its credential has a scope. On a Unix socket that client would be trusted with
    /// everything.
    pub(crate) fn is_scoped(&self) -> bool {
        let credential = self.credential.as_ref();
        credential.is_some_and(|credential| credential.subject().scope().is_some())
    }
}

/// The peer after the handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its endpoint.
    pub endpoint: Endpoint,
    /// The cell of the connection.
    pub cell: CellId,
    /// Its role.
    pub role: Role,
    /// Its node; 0: none.
    pub node: NodeId,
    /// The zone that a client claims, for statistics; 0: none.
    pub zone: ZoneId,
    /// The protocol version of the connection.
    pub version: u16,
    /// Features that both sides have.
    pub features: u64,
    /// It is configured to continue in the clear with peers that are, too.
    pub offers_plain: bool,
    /// Its certificate, where it has shown one.
    pub certified: Option<Arc<PeerCertificate>>,
}

/// A certificate that was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its subject.
    pub subject: Subject,
    /// Its serial number.
    pub serial: Serial,
}

impl Peer {
    /// True where payloads may lie in memory that the client shares with the server.
    pub(crate) fn shares_regions(&self) -> bool {
        self.endpoint.is_unix() && self.features & FEATURE_REGION != 0
    }

    /// True where the peer, a server, may answer requests of a service. A peer without a
    /// certificate may.
    #[must_use]
    pub fn may_serve(&self, service: Service) -> bool {
        let Some(certified) = &self.certified else {
            return true;
        };
        let roles = certified.subject.roles();
        match service {
            Service::Manager => roles.manager,
            // The manager's node also has the root's shard.
            Service::Meta | Service::Replica => roles.meta || roles.manager,
            Service::Storage => roles.storage,
            Service::Agent => roles.agent,
            Service::Admin | Service::Connection => true,
        }
    }

    /// The scope of a client; `None`: no restriction.
    #[must_use]
    pub fn scope(&self) -> Option<&Scope> {
        self.certified.as_ref()?.subject.scope()
    }
}
