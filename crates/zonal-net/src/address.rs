//! Address of a server: a TCP address. On the same machine a Unix socket stands for it
//! ([`crate::unix_socket`]).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use zonal_types::NodeId;

/// A server as the zone map names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Its TCP address.
    pub tcp: SocketAddr,
    /// The node expected there; 0: any.
    pub node: NodeId,
}

impl Address {
    /// Address of any node that answers there.
    #[must_use]
    pub fn any_node(tcp: SocketAddr) -> Self {
        Self {
            tcp,
            node: NodeId(0),
        }
    }

    /// Address of this node.
    #[must_use]
    pub fn new(tcp: SocketAddr, node: NodeId) -> Self {
        Self { tcp, node }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.node == NodeId(0) {
            write!(f, "{}", self.tcp)
        } else {
            write!(f, "node {} at {}", self.node, self.tcp)
        }
    }
}

/// The other end of a connection, for errors and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Reached by TCP.
    Tcp(SocketAddr),
    /// A server reached by the Unix socket that stands for its TCP address.
    Unix(SocketAddr),
    /// A client on this machine, connected by the Unix socket.
    Local {
        /// Its user id.
        uid: u32,
        /// Its process id.
        pid: i32,
    },
}

impl Endpoint {
    /// True for a Unix socket.
    #[must_use]
    pub fn is_unix(self) -> bool {
        !matches!(self, Self::Tcp(_))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(address) => write!(f, "{address} (Unix socket)"),
            Self::Local { uid, pid } => write!(f, "local process {pid} of user {uid}"),
        }
    }
}

/// True where `ip` belongs to this machine: only then can a socket be bound to it.
#[must_use]
pub fn is_own(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_belongs_to_this_machine_and_the_documentation_range_does_not() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.1".parse().unwrap()));
    }
}
