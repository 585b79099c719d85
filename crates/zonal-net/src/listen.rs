//! The sockets that a server accepts on.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, listen, socket_with,
};

use crate::address::unix_name;
use crate::error::NetError;
use crate::identity::Identity;
use crate::stream::set_buffers;

const BACKLOG: i32 = 1024;

/// Where to listen.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// TCP addresses; port 0: any free one.
    pub addresses: Vec<SocketAddr>,
    /// The addresses that clients dial, where these differ (listening on 0.0.0.0); they name the Unix sockets.
    pub advertised: Vec<SocketAddr>,
    /// Also listen on a Unix socket per address.
    pub has_unix: bool,
    /// Socket buffers, each way; 0: the system's.
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

/// Listening sockets; connections queue from here on, and are served after [`crate::serve`].
#[derive(Debug)]
pub struct Listeners {
    pub(crate) sockets: Vec<(OwnedFd, bool)>,
    addresses: Vec<SocketAddr>,
}

impl Listeners {
    /// Opens the sockets.
    ///
    /// # Errors
    /// `KeylessBind`, `Bind`.
    pub fn bind(config: &ListenConfig, identity: &Identity) -> Result<Self, NetError> {
        if identity.key.is_none()
            && let Some(address) = config.addresses.iter().find(|a| !a.ip().is_loopback())
        {
            return Err(NetError::KeylessBind { address: *address });
        }
        let mut listeners = Self {
            sockets: Vec::new(),
            addresses: Vec::new(),
        };
        for address in &config.addresses {
            let failed = |errno: Errno| NetError::Bind {
                address: *address,
                source: errno.into(),
            };
            let (socket, bound) = listen_tcp(*address, config.buffer_bytes).map_err(failed)?;
            listeners.sockets.push((socket, false));
            listeners.addresses.push(bound);
        }
        if config.has_unix {
            let dialled = if config.advertised.is_empty() {
                &listeners.addresses
            } else {
                &config.advertised
            };
            for address in dialled.clone() {
                let name = unix_name(identity.cell, address);
                match listen_unix(&name, config.buffer_bytes) {
                    Ok(socket) => listeners.sockets.push((socket, true)),
                    // Clients come by TCP then.
                    Err(errno) => {
                        tracing::warn!(name, %errno, "no Unix socket for local clients");
                    }
                }
            }
        }
        Ok(listeners)
    }

    /// The TCP addresses, with the ports that were given.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

fn listen_tcp(address: SocketAddr, buffer_bytes: usize) -> Result<(OwnedFd, SocketAddr), Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets inherit these; the window's scale is settled before accept returns.
    set_buffers(socket.as_fd(), false, buffer_bytes);
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    let bound = getsockname(&socket)?.try_into()?;
    Ok((socket, bound))
}

fn listen_unix(name: &str, buffer_bytes: usize) -> Result<OwnedFd, Errno> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_buffers(socket.as_fd(), true, buffer_bytes);
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}
