//! The listening sockets of a server.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

use crate::error::NetError;
use crate::identity::Identity;
use crate::stream::set_buffers;
use crate::unix_socket::{UnixListener, listen_at};

pub(crate) const BACKLOG: i32 = 1024;

/// Addresses and options of the listening sockets.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// TCP addresses; port 0: any free one.
    pub addresses: Vec<SocketAddr>,
    /// The addresses that clients dial, where they differ (listening on 0.0.0.0); they name the
    /// Unix sockets.
    pub advertised: Vec<SocketAddr>,
    /// Also listen on a Unix socket per address.
    pub has_unix: bool,
    /// Socket buffers in bytes, each way; 0: the system's.
    pub buffer_bytes: usize,
}

impl ListenConfig {
    /// Listens on one address, and on its Unix socket.
    #[must_use]
    pub fn one(address: SocketAddr) -> Self {
        Self {
            addresses: vec![address],
            advertised: Vec::new(),
            has_unix: true,
            buffer_bytes: 4 << 20,
        }
    }
}

/// Listening sockets. Connections queue from here on; [`crate::serve`] serves them.
#[derive(Debug)]
pub struct Listeners {
    tcp: Vec<OwnedFd>,
    unix: Vec<UnixListener>,
    addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// Opens the sockets.
    ///
    /// # Errors
    /// `KeylessBind`, `Bind`, `BindUnix`.
    pub fn bind(config: &ListenConfig, identity: &Identity) -> Result<Self, NetError> {
        if identity.credential.is_none()
            && let Some(address) = config.addresses.iter().find(|a| !a.ip().is_loopback())
        {
            return Err(NetError::KeylessBind { address: *address });
        }
        let mut listeners = Self {
            tcp: Vec::new(),
            unix: Vec::new(),
            addresses: Vec::new(),
        };
        for address in &config.addresses {
            let failed = |errno: Errno| NetError::Bind {
                address: *address,
                source: errno.into(),
            };
            let (socket, bound) = bind_tcp(*address, config.buffer_bytes).map_err(failed)?;
            listeners.tcp.push(socket);
            listeners.addresses.push(bound);
        }
        if config.has_unix {
            let dialled = if config.advertised.is_empty() {
                &listeners.addresses
            } else {
                &config.advertised
            };
            for address in dialled.clone() {
                let listener = listen_at(identity.cell, address, config.buffer_bytes)?;
                listeners.unix.push(listener);
            }
        }
        // Listen on TCP last: a client on this machine that finds no Unix socket would stay with
        // TCP.
        for (socket, address) in listeners.tcp.iter().zip(&listeners.addresses) {
            listen(socket, BACKLOG).map_err(|errno| NetError::Bind {
                address: *address,
                source: errno.into(),
            })?;
        }
        Ok(listeners)
    }

    /// All sockets, and whether each is a Unix socket.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let tcp = self.tcp.iter().map(|socket| (socket.as_fd(), false));
        let unix = self.unix.iter();
        tcp.chain(unix.map(|listener| (listener.socket.as_fd(), true)))
    }

    /// The TCP addresses, with the assigned ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

/// Binds a socket to its address, without listening yet.
fn bind_tcp(address: SocketAddr, buffer_bytes: usize) -> Result<(OwnedFd, SocketAddr), Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets inherit these options; the window scale is fixed before accept returns.
    set_buffers(socket.as_fd(), false, buffer_bytes);
    bind(&socket, &address)?;
    let bound = getsockname(&socket)?.try_into()?;
    Ok((socket, bound))
}
