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

/// Addresses of this machine in its network namespace that tell it from other machines: not those
/// of loopback, nor link-local ones of IPv6. `towards`: an address that it may reach, which finds
/// the source address also where the kernel's tables cannot be read.
#[must_use]
pub fn own_addresses(towards: SocketAddr) -> Vec<IpAddr> {
    let read = |file| std::fs::read_to_string(file).unwrap_or_default();
    let mut all = listed_ipv4(&read("/proc/net/fib_trie"));
    all.extend(listed_ipv6(&read("/proc/net/if_inet6")));
    all.extend(source_address(towards));
    all.retain(|ip| !ip.is_loopback() && !ip.is_unspecified() && !is_link_local(*ip));
    all.sort_unstable();
    all.dedup();
    all
}

/// The address from which this machine sends to `towards`. Nothing is sent.
fn source_address(towards: SocketAddr) -> Option<IpAddr> {
    let any = match towards {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0; 16]),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(towards).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Addresses of the machine in the text of `/proc/net/fib_trie`: `|-- ADDRESS`, and a line
/// `/32 host LOCAL` below it.
fn listed_ipv4(text: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut last: Option<IpAddr> = None;
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last);
        }
    }
    found
}

/// Addresses of the machine in the text of `/proc/net/if_inet6`: 32 hexadecimal digits, then other
/// fields.
fn listed_ipv6(text: &str) -> Vec<IpAddr> {
    let first = text.lines().filter_map(|line| line.split(' ').next());
    let digits = first.filter(|digits| digits.len() == 32);
    let numbers = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok());
    numbers.map(|number| IpAddr::V6(number.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_list_the_machines_addresses() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.0\n        /24 link UNICAST\n     |-- 192.0.2.2\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(listed_ipv4(trie), [ip("127.0.0.1"), ip("192.0.2.2")]);
        let inet6 = "fd000000000000000000000000000002 04 40 00 82     eth0\nnonsense\n";
        assert_eq!(listed_ipv6(inet6), [ip("fd00::2")]);
        assert!(listed_ipv4("nonsense\n/32 host LOCAL\n").is_empty());
    }

    #[test]
    fn own_addresses_are_the_machines_and_not_of_loopback() {
        let own = own_addresses("127.0.0.1:1".parse().unwrap());
        assert!(own.iter().all(|ip| !ip.is_loopback() && is_own(*ip)));
    }

    #[test]
    fn loopback_belongs_to_this_machine_and_the_documentation_range_does_not() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.1".parse().unwrap()));
    }
}
