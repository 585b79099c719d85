//! Addresses of a config: numeric where a server listens, numeric or a host name for the manager.

use super::ConfigError;
use super::check::Source;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use toml::Spanned;

impl Source<'_> {
    /// Parses a numeric address. An address that a server binds and advertises must mean the same
    /// everywhere.
    pub(super) fn address(
        &self,
        key: &'static str,
        value: &Spanned<String>,
    ) -> Result<SocketAddr, ConfigError> {
        value.get_ref().parse().map_err(|_error| {
            let allowed = "IP:PORT in numbers, such as 10.1.0.10:7100 or [fd00::10]:7100; host names are for manager_address";
            self.range_error(value.span().start, key, value.get_ref(), allowed)
        })
    }

    /// Parses the manager's address. Of the several addresses of a host, uses the first of the
    /// family that this server listens with.
    pub(super) fn manager_address(
        &self,
        value: &Spanned<String>,
        listen: SocketAddr,
    ) -> Result<SocketAddr, ConfigError> {
        let name = value.get_ref();
        if let Ok(address) = name.parse() {
            return Ok(address);
        }
        let at = value.span().start;
        let port = name.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) {
            let allowed = "IP:PORT or HOST:PORT";
            return Err(self.range_error(at, "manager_address", name, allowed));
        }
        let unknown = |source| ConfigError::Lookup {
            path: self.path.to_owned(),
            line: self.line(at),
            name: name.clone(),
            source,
        };
        let known = name.to_socket_addrs().map_err(unknown)?;
        let known = Vec::from_iter(known);
        let same = |address: &&SocketAddr| address.is_ipv4() == listen.is_ipv4();
        let chosen = known.iter().find(same).or(known.first());
        let none = || unknown(Error::new(ErrorKind::NotFound, "the host has no address"));
        chosen.copied().ok_or_else(none)
    }
}
