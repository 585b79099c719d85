//! Who a process is, what it knows of its peer, and the secret that both share.

use zonal_types::{CellId, NodeId, codec_enum};
use zonal_wire::frame::{FEATURE_REGION, VERSION};

use crate::address::Endpoint;
use crate::error::NetError;

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

/// The secret that all processes of a cell share.
#[derive(Clone, PartialEq, Eq)]
pub struct CellKey(pub(crate) Vec<u8>);

impl CellKey {
    /// A key of 16 to 1024 bytes.
    ///
    /// # Errors
    /// `KeyLength`.
    pub fn new(bytes: &[u8]) -> Result<Self, NetError> {
        if (16..=1024).contains(&bytes.len()) {
            Ok(Self(bytes.to_vec()))
        } else {
            Err(NetError::KeyLength { bytes: bytes.len() })
        }
    }
}

impl std::fmt::Debug for CellKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CellKey(..)")
    }
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
    /// The cell key.
    pub key: Option<CellKey>,
    /// Optional features.
    pub features: u64,
    /// Protocol versions spoken, oldest and newest.
    pub versions: (u16, u16),
}

impl Identity {
    /// An identity with this program's versions.
    #[must_use]
    pub fn new(cell: CellId, role: Role, node: NodeId, key: Option<CellKey>) -> Self {
        Self {
            cell,
            role,
            node,
            key,
            features: FEATURE_REGION,
            versions: (VERSION, VERSION),
        }
    }
}

/// Who is at the other end, after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
}

impl Peer {
    /// Whether payloads may lie in memory that the client shares with the server.
    pub(crate) fn shares_regions(&self) -> bool {
        self.endpoint.is_unix() && self.features & FEATURE_REGION != 0
    }
}
