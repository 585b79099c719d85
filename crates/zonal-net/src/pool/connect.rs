//! How a pool makes a connection: back-off after a failure, the Unix socket of a server on this machine first, then TCP.

use super::{Link, Pool};
use crate::address::{Address, Endpoint, is_own, unix_name};
use crate::error::NetError;
use crate::flight::Cancel;
use crate::frame_io::{Clock, Conn};
use crate::handshake::dial;
use crate::metrics::add;
use crate::stream::Stream;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_types::CellId;

/// What a [`NetError::TimedOut`] names where not even the connection was taken.
pub const CONNECTING: &str = "connecting";
/// How long a Unix socket is left alone after somebody else answered there.
const UNIX_BACKOFF: Duration = Duration::from_secs(10);

impl Pool {
    /// A new connection with its handshake done.
    pub(crate) fn connect(
        &self,
        to: Address,
        clock: &Clock,
        cancel: Option<&Cancel>,
    ) -> Result<Link, NetError> {
        self.check_backoff(to)?;
        let outcome = self.connect_now(to, clock, cancel);
        if outcome.is_err() && cancel.is_some_and(Cancel::is_set) {
            // It says nothing about the server.
            return Err(NetError::Cancelled {
                server: Endpoint::Tcp(to.tcp),
                operation: CONNECTING,
            });
        }
        let failed = match &outcome {
            Ok(_) => None,
            Err(NetError::Unreachable { source, .. }) => Some((Instant::now(), source.kind())),
            Err(NetError::TimedOut { .. }) => Some((Instant::now(), io::ErrorKind::TimedOut)),
            // The server is there and said no; asking again costs it little.
            Err(_) => None,
        };
        if outcome.is_err() {
            add(&self.metrics.connect_failures, 1);
        }
        self.hosts().by_address.entry(to).or_default().failed = failed;
        outcome
    }

    fn check_backoff(&self, to: Address) -> Result<(), NetError> {
        let failed = self
            .hosts()
            .by_address
            .get(&to)
            .and_then(|host| host.failed);
        match failed {
            Some((when, kind)) if when.elapsed() < self.config.backoff => {
                Err(NetError::Unreachable {
                    server: Endpoint::Tcp(to.tcp),
                    source: kind.into(),
                })
            }
            _ => Ok(()),
        }
    }

    fn connect_now(
        &self,
        to: Address,
        clock: &Clock,
        cancel: Option<&Cancel>,
    ) -> Result<Link, NetError> {
        let limit = match clock.left() {
            Ok(left) => left.map_or(self.config.connect_limit, |left| {
                left.min(self.config.connect_limit)
            }),
            Err(_) => return Err(timed_out(to.tcp, clock.limit_ms())),
        };
        let clock = Clock::start(limit);
        if let Some(link) = self.connect_unix(to, limit, cancel) {
            return Ok(link);
        }
        let limit = match clock.left() {
            Ok(left) => left.unwrap_or(limit),
            Err(_) => return Err(timed_out(to.tcp, clock.limit_ms())),
        };
        let goes_on = || !cancel.is_some_and(Cancel::is_set);
        let stream = Stream::connect_tcp(to.tcp, limit, self.config.buffer_bytes, &goes_on);
        let stream = stream.map_err(|errno| match errno {
            // The handshake's share of the limit is part of the same clock.
            rustix::io::Errno::TIMEDOUT => timed_out(to.tcp, clock.limit_ms()),
            errno => unreachable(to.tcp, errno.into()),
        })?;
        let link = self.shake_hands(stream, to, true, &clock, cancel)?;
        add(&self.metrics.connected_tcp, 1);
        Ok(link)
    }

    /// Any trouble on the Unix socket means TCP: the name may be another process's. It gets a quarter of the time.
    fn connect_unix(&self, to: Address, limit: Duration, cancel: Option<&Cancel>) -> Option<Link> {
        let is_known = self.identity.cell != CellId::default();
        if !self.config.is_unix_tried || !is_known || !self.is_unix_hopeful(to) {
            return None;
        }
        let clock = Clock::start(limit / 4);
        let name = unix_name(self.identity.cell, to.tcp);
        let goes_on = || !cancel.is_some_and(Cancel::is_set);
        let buffer = self.config.buffer_bytes;
        let stream = Stream::connect_unix(&name, to.tcp, limit / 4, buffer, &goes_on).ok()?;
        let link = self.trust_unix(stream, to, &clock, cancel);
        if !goes_on() {
            return None;
        }
        if link.is_some() {
            add(&self.metrics.connected_unix, 1);
        } else {
            let failed = Some(Instant::now());
            self.hosts().by_address.entry(to).or_default().unix_failed = failed;
        }
        link
    }

    fn trust_unix(
        &self,
        stream: Stream,
        to: Address,
        clock: &Clock,
        cancel: Option<&Cancel>,
    ) -> Option<Link> {
        if self.identity.key.is_none() {
            let uid = stream.peer_uid()?;
            if uid != 0 && uid != rustix::process::geteuid().as_raw() {
                return None;
            }
        }
        let is_checked = self.config.is_unix_checked;
        self.shake_hands(stream, to, is_checked, clock, cancel).ok()
    }

    fn shake_hands(
        &self,
        stream: Stream,
        to: Address,
        is_checked: bool,
        clock: &Clock,
        cancel: Option<&Cancel>,
    ) -> Result<Link, NetError> {
        let mut conn = Conn::new(Arc::new(stream), is_checked);
        if let Some(cancel) = cancel {
            cancel.watch(Some(conn.stream()));
        }
        let peer =
            dial(&mut conn, &self.identity, to.node, clock).map_err(|error| match error {
                // No request was sent yet.
                NetError::Lost { peer, source, .. } => NetError::Unreachable {
                    server: peer,
                    source,
                },
                error => error,
            })?;
        Ok(Link {
            conn,
            peer,
            next_request: 1,
            region: 0,
        })
    }

    /// True where the server is on this machine and its Unix socket has not disappointed lately.
    fn is_unix_hopeful(&self, to: Address) -> bool {
        let known = self
            .hosts()
            .by_address
            .get(&to)
            .map(|host| (host.is_own, host.unix_failed));
        let (known, failed) = known.unwrap_or_default();
        if failed.is_some_and(|when| when.elapsed() < UNIX_BACKOFF) {
            return false;
        }
        known.unwrap_or_else(|| {
            let answer = is_own(to.tcp.ip());
            self.hosts().by_address.entry(to).or_default().is_own = Some(answer);
            answer
        })
    }
}

fn unreachable(server: SocketAddr, source: io::Error) -> NetError {
    NetError::Unreachable {
        server: Endpoint::Tcp(server),
        source,
    }
}

fn timed_out(server: SocketAddr, ms: u64) -> NetError {
    NetError::TimedOut {
        server: Endpoint::Tcp(server),
        operation: CONNECTING,
        ms,
    }
}
