//! The name of a cell on a command line: its folder, or the address of its manager.

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
    /// The manager's address.
    Address(SocketAddr),
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
    /// Whether a text names an address, which need not resolve.
    pub fn is_address(text: &str) -> bool {
        text.parse::<SocketAddr>().is_ok() || is_host(text)
    }

    /// Parses a name. Of a host with several addresses it takes the first that accepts a
    /// connection.
    pub fn of(text: &str) -> anyhow::Result<Self> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        if text.is_empty() {
            let failure = Failure::new(USAGE, "a cell's name is empty");
            return Err(failure
                .hint("--cell takes a folder, or the address of a manager")
                .into());
        }
        if !is_host(text) {
            return Ok(Self::Folder(text.into()));
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
        chosen.copied().map(Self::Address).ok_or_else(|| {
            Failure::new(UNREACHABLE, format!("{text}: the host has no address")).into()
        })
    }
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
        let CellLocator::Address(address) = CellLocator::of(&format!("localhost:{port}")).unwrap()
        else {
            panic!("taken for a folder");
        };
        assert_eq!(address, listener.local_addr().unwrap());
    }
}
