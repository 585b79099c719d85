//! The name of a cell on a command line: its folder, or addresses of its managers.

use crate::exit::{Failure, UNREACHABLE, USAGE};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for each of a host's addresses to accept a connection.
const PROBE: Duration = Duration::from_secs(2);

/// A parsed name of a cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellLocator {
    /// The cell's folder.
    Folder(PathBuf),
    /// Addresses of managers, one at least.
    Managers(Vec<SocketAddr>),
}

/// Whether a text has the form of an address: IP:PORT, or HOST:PORT if no folder has that name.
fn is_host(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
    !host.is_empty()
        && host.chars().all(is_name)
        && port.parse::<u16>().is_ok()
        && !Path::new(text).exists()
}

impl CellLocator {
    /// Whether a text names addresses, which need not resolve.
    pub fn is_address(text: &str) -> bool {
        text.split(',')
            .all(|part| part.parse::<SocketAddr>().is_ok() || is_host(part))
    }

    /// Parses a name: a folder, or addresses with commas between them.
    pub fn of(text: &str) -> anyhow::Result<Self> {
        if text.is_empty() {
            let failure = Failure::new(USAGE, "a cell's name is empty");
            return Err(failure
                .hint("--cell takes a folder, or addresses of managers")
                .into());
        }
        if !Self::is_address(text) {
            return Ok(Self::Folder(text.into()));
        }
        let (mut managers, mut failed) = (Vec::new(), None);
        for part in text.split(',') {
            match address(part) {
                Ok(address) => managers.push(address),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            // One host name that resolves is enough.
            Some(error) if managers.is_empty() => Err(error),
            _ => Ok(Self::Managers(managers)),
        }
    }
}

/// An address. Of a host with several it is the first that accepts a connection.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let known = text.to_socket_addrs().map(Vec::from_iter);
    let known = known.map_err(|error| Failure::new(UNREACHABLE, format!("{text}: {error}")));
    let known = known.map_err(|failure| {
        failure.hint("--cell takes a folder, IP:PORT, or HOST:PORT with a host name that resolves on this machine")
    })?;
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, PROBE).is_ok();
    let chosen = match known.as_slice() {
        [only] => Some(only),
        several => several.iter().find(answers).or(several.first()),
    };
    chosen
        .copied()
        .ok_or_else(|| Failure::new(UNREACHABLE, format!("{text}: the host has no address")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_addresses_are_told_apart() {
        for text in [
            "127.0.0.1:7100",
            "[::1]:7100",
            "manager:7100",
            "a-b.example.org:1",
            "10.0.0.1:7100,10.0.0.2:7100,manager:7100",
        ] {
            assert!(CellLocator::is_address(text), "{text}");
        }
        for text in [
            "/a/b:7100",
            "cell",
            "host:port",
            "host:70000",
            ":7100",
            "./a:1",
            "10.0.0.1:7100,",
            "10.0.0.1:7100,/a",
        ] {
            assert!(!CellLocator::is_address(text), "{text}");
            assert_eq!(
                CellLocator::of(text).unwrap(),
                CellLocator::Folder(text.into())
            );
        }
        assert!(!CellLocator::is_address("") && CellLocator::of("").is_err());
    }

    #[test]
    fn a_host_name_is_resolved() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let named = format!("localhost:{port},127.0.0.1:7100");
        let CellLocator::Managers(managers) = CellLocator::of(&named).unwrap() else {
            panic!("taken for a folder");
        };
        let other = "127.0.0.1:7100".parse().unwrap();
        assert_eq!(managers, [listener.local_addr().unwrap(), other]);
    }
}
