//! How a pool makes a connection: back-off after a failure, then the Unix socket of a server on
//! this machine, then TCP.

use super::{Hosts, Link, Pool};
use crate::address::{Address, Endpoint, is_own};
use crate::error::NetError;
use crate::frame_io::{Conn, TimeLimit};
use crate::handshake::dial;
use crate::in_flight::Cancel;
use crate::metrics::add;
use crate::stream::Stream;
use crate::unix_socket;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::{CellId, ErrorCode};

/// Operation of a [`NetError::TimedOut`] where not even the connection was accepted.
pub const CONNECTING: &str = "connecting";
/// How long a Unix socket is not tried after another process than the server answered there.
const UNIX_BACKOFF: Duration = Duration::from_secs(10);

/// How long a call waits for a connection of its own pool where the server's quota is used up. A
/// caller that holds those connections itself waits in vain.
const SHARE_WAIT: Duration = Duration::from_millis(500);
/// How often that wait checks whether the call was cancelled.
const SHARE_STEP: Duration = Duration::from_millis(20);

impl Pool {
    /// Makes a new connection. Where the server's quota for this client is used up, waits for one
    /// that comes back (the flag is true).
    pub(crate) fn obtain(
        &self,
        to: Address,
        time_limit: &TimeLimit,
        cancel: Option<&Cancel>,
    ) -> Result<(Link, bool), NetError> {
        let refused = match self.connect(to, time_limit, cancel) {
            Err(error) if is_overloaded(&error) => error,
            connected => return connected.map(|link| (link, false)),
        };
        add(&self.metrics.waited_for_share, 1);
        let until = Instant::now() + SHARE_WAIT;
        while Instant::now() < until
            && time_limit.left().is_ok()
            && !cancel.is_some_and(Cancel::is_set)
        {
            let mut hosts = self.hosts();
            let idle = |hosts: &mut Hosts| hosts.by_address.entry(to).or_default().idle.pop_back();
            if let Some((link, _since)) = idle(&mut hosts) {
                return Ok((link, true));
            }
            hosts.waiting += 1;
            let waited = self.came_back.wait_timeout(hosts, SHARE_STEP);
            let (mut hosts, _is_over) = waited.unwrap_or_else(PoisonError::into_inner);
            hosts.waiting -= 1;
        }
        // Other clients may have returned some.
        match self.connect(to, time_limit, cancel) {
            Err(error) if is_overloaded(&error) => Err(refused),
            connected => connected.map(|link| (link, false)),
        }
    }

    /// Makes a new connection, with the handshake done.
    pub(crate) fn connect(
        &self,
        to: Address,
        time_limit: &TimeLimit,
        cancel: Option<&Cancel>,
    ) -> Result<Link, NetError> {
        self.check_backoff(to)?;
        let outcome = self.connect_now(to, time_limit, cancel);
        if outcome.is_err() && cancel.is_some_and(Cancel::is_set) {
            // A cancel says nothing about the server.
            return Err(NetError::Cancelled {
                server: Endpoint::Tcp(to.tcp),
                operation: CONNECTING,
            });
        }
        let failed = match &outcome {
            Ok(_) => None,
            Err(NetError::Unreachable { source, .. }) => Some((Instant::now(), source.kind())),
            Err(NetError::TimedOut { .. }) => Some((Instant::now(), io::ErrorKind::TimedOut)),
            // The server answered with a refusal; another attempt costs it little.
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
        time_limit: &TimeLimit,
        cancel: Option<&Cancel>,
    ) -> Result<Link, NetError> {
        let limit = match time_limit.left() {
            Ok(left) => left.map_or(self.config.connect_limit, |left| {
                left.min(self.config.connect_limit)
            }),
            Err(_) => return Err(timed_out(to.tcp, time_limit.limit_ms())),
        };
        let time_limit = TimeLimit::start(limit);
        if let Some(link) = self.connect_unix(to, limit, cancel)? {
            return Ok(link);
        }
        let limit = match time_limit.left() {
            Ok(left) => left.unwrap_or(limit),
            Err(_) => return Err(timed_out(to.tcp, time_limit.limit_ms())),
        };
        let goes_on = || !cancel.is_some_and(Cancel::is_set);
        let stream = Stream::connect_tcp(to.tcp, limit, self.config.buffer_bytes, &goes_on);
        let stream = stream.map_err(|errno| match errno {
            // Connecting and handshake share one time limit.
            rustix::io::Errno::TIMEDOUT => timed_out(to.tcp, time_limit.limit_ms()),
            errno => unreachable(to.tcp, errno.into()),
        })?;
        let link = self.shake_hands(stream, to, true, &time_limit, cancel)?;
        add(&self.metrics.connected_tcp, 1);
        Ok(link)
    }

    /// Tries the Unix socket with a quarter of the time. Any failure there means TCP, except where
    /// the trusted server has no more connections for this client: then TCP has none either.
    fn connect_unix(
        &self,
        to: Address,
        limit: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<Option<Link>, NetError> {
        let is_known = self.identity.cell != CellId::default();
        let may = self.config.is_unix_tried && is_known && !self.identity.is_scoped();
        if !may || !self.is_unix_hopeful(to) {
            return Ok(None);
        }
        let Some(socket) = unix_socket::find(self.identity.cell, to.tcp) else {
            return Ok(None);
        };
        let time_limit = TimeLimit::start(limit / 4);
        let goes_on = || !cancel.is_some_and(Cancel::is_set);
        let buffer = self.config.buffer_bytes;
        let address = &socket.address;
        let Ok(stream) = Stream::connect_unix(address, to.tcp, limit / 4, buffer, &goes_on) else {
            return Ok(None);
        };
        let link = match stream.peer_uid() == Some(socket.uid) {
            true => {
                let is_checked = self.config.is_unix_checked;
                match self.shake_hands(stream, to, is_checked, &time_limit, cancel) {
                    Err(error) if is_overloaded(&error) => return Err(error),
                    link => link.ok(),
                }
            }
            false => None,
        };
        if !goes_on() {
            return Ok(None);
        }
        if link.is_some() {
            add(&self.metrics.connected_unix, 1);
        } else {
            let failed = Some(Instant::now());
            self.hosts().by_address.entry(to).or_default().unix_failed = failed;
        }
        Ok(link)
    }

    fn shake_hands(
        &self,
        stream: Stream,
        to: Address,
        is_checked: bool,
        time_limit: &TimeLimit,
        cancel: Option<&Cancel>,
    ) -> Result<Link, NetError> {
        let mut conn = Conn::new(Arc::new(stream), is_checked);
        if let Some(cancel) = cancel {
            cancel.watch(Some(conn.stream()));
        }
        let peer =
            dial(&mut conn, &self.identity, to.node, time_limit).map_err(|error| match error {
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

    /// True where the server is on this machine and its Unix socket has not failed lately.
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

/// True where the server has no more connections for this client.
fn is_overloaded(error: &NetError) -> bool {
    let code = match error {
        NetError::Refused { code, .. } => *code,
        _ => return false,
    };
    code == ErrorCode::Overloaded
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
