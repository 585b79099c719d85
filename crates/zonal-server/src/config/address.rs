//! Addresses of a config: numeric where a server listens, numeric or a host name for managers.

use super::ConfigError;
use super::check::Source;
use super::raw::RawNode;
use std::io::{Error, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use toml::Spanned;

/// Addresses of managers in a config.
const MANAGER_ADDRESSES_MAX: usize = 16;

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

    /// The addresses of managers: of `manager_addresses` or `manager_address`; without both, a
    /// manager's own.
    pub(super) fn managers(
        &self,
        raw: &RawNode,
        listen: SocketAddr,
        advertise: SocketAddr,
    ) -> Result<Vec<SocketAddr>, ConfigError> {
        let list = match (&raw.manager_address, &raw.manager_addresses) {
            (Some(_), Some(_)) => {
                return Err(self.together(
                    "`manager_address` and `manager_addresses` exclude one another: write all in the second",
                ));
            }
            (Some(one), None) => return Ok(vec![self.manager_address(one, listen)?]),
            (None, None) if raw.manager.is_some() => return Ok(vec![advertise]),
            (None, None) => {
                return Err(self.together("`manager_address` or `manager_addresses` is missing"));
            }
            (None, Some(list)) => list,
        };
        if !(1..=MANAGER_ADDRESSES_MAX).contains(&list.get_ref().len()) {
            let found = format!("a list of {}", list.get_ref().len());
            let allowed = format!("1 to {MANAGER_ADDRESSES_MAX} addresses");
            let at = list.span().start;
            return Err(self.range_error(at, "manager_addresses", &found, allowed));
        }
        let addresses = list.get_ref().iter();
        addresses
            .map(|address| self.manager_address(address, listen))
            .collect()
    }

    /// Parses a manager's address. Of the several addresses of a host, uses the first of the
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
