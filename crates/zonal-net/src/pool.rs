//! A client's connections: a stack of idle ones per server, made when needed, one request at a time
//! on each.
//!
//! A call is 2 system calls (`sendmsg`, `recvmsg`), 3 where the reply's payload is longer than 8
//! KiB. It runs on the calling thread and wakes no other thread of this process. To call several
//! servers in parallel: [`Pool::start`] for each, then [`InFlight::finish`] for each.
//!
//! *Invariants*:
//! 1. A connection returns to its stack only after a complete, matching reply; after an error or an
//!    unfinished call it is closed.
//! 2. Every step has the call's deadline.
//! 3. A request is sent a second time only where an idle connection turned out to be dead before
//!    the first byte of a reply. The reply then says so.
//! 4. No lock is held while a socket is used.
//!
//! *Lock order*: `Pool::hosts`, alone. A call's `Cancel::stream`, alone.

mod connect;

pub use connect::CONNECTING;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use zonal_region::{Memory, Regions};
use zonal_types::limits::REQUEST_DEADLINE_MS;

use crate::address::{Address, Endpoint};
use crate::error::NetError;
use crate::frame_io::{Conn, IoFail, TimeLimit};
use crate::identity::{Identity, Peer};
use crate::in_flight::{Canceller, InFlight, PayloadInto, Reply, Request};
use crate::metrics::{PoolMetrics, add};

/// Options of a pool.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Deadline of a call whose header has none.
    pub deadline: Duration,
    /// Limit for connecting and the handshake (the call's deadline holds too).
    pub connect_limit: Duration,
    /// Idle connections kept per server.
    pub idle_max: usize,
    /// Idle connections older than this are closed when the pool is next used.
    pub idle_limit: Duration,
    /// Back-off: after a failed connection attempt, calls to that server fail at once for this
    /// long.
    pub backoff: Duration,
    /// Socket buffers in bytes, each way; 0: the system's.
    pub buffer_bytes: usize,
    /// Try the Unix socket of a server on this machine first.
    pub is_unix_tried: bool,
    /// Checksum payloads also on Unix sockets.
    pub is_unix_checked: bool,
    /// Memory shared with servers on this machine: payloads that lie in it are not sent.
    pub regions: Option<Regions>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(REQUEST_DEADLINE_MS),
            connect_limit: Duration::from_secs(5),
            idle_max: 64,
            idle_limit: Duration::from_secs(60),
            backoff: Duration::from_millis(200),
            buffer_bytes: 4 << 20,
            is_unix_tried: true,
            is_unix_checked: false,
            regions: None,
        }
    }
}

/// One connection with its handshake done.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) conn: Conn,
    pub(crate) peer: Peer,
    pub(crate) next_request: u32,
    /// Number of the region that was sent to the server last; 0: none.
    pub(crate) region: u64,
}

#[derive(Debug, Default)]
struct Host {
    /// Oldest first; taken from and returned to the back.
    idle: VecDeque<(Link, Instant)>,
    failed: Option<(Instant, io::ErrorKind)>,
    /// Time of the last complete reply.
    answered: Option<Instant>,
    is_own: Option<bool>,
    /// Last time that another process than the server answered on the Unix socket.
    unix_failed: Option<Instant>,
}

#[derive(Debug)]
struct Hosts {
    by_address: BTreeMap<Address, Host>,
    swept: Instant,
    /// Calls that wait for a connection to come back.
    waiting: usize,
}

/// A client's connections to any number of servers. Threads share it.
#[derive(Debug)]
pub struct Pool {
    pub(crate) identity: Identity,
    pub(crate) config: PoolConfig,
    pub(crate) metrics: Arc<PoolMetrics>,
    hosts: Mutex<Hosts>,
    /// Signalled when a connection comes back while calls wait for one.
    came_back: Condvar,
}

impl Pool {
    /// A pool without connections.
    #[must_use]
    pub fn new(identity: Identity, config: PoolConfig) -> Self {
        Self {
            identity,
            config,
            metrics: Arc::default(),
            hosts: Mutex::new(Hosts {
                by_address: BTreeMap::new(),
                swept: Instant::now(),
                waiting: 0,
            }),
            came_back: Condvar::new(),
        }
    }

    /// The identity that its connections show to servers.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The pool's counters.
    #[must_use]
    pub fn metrics(&self) -> &Arc<PoolMetrics> {
        &self.metrics
    }

    /// Sends a request and waits for its reply.
    ///
    /// # Errors
    /// Any that names the server.
    pub fn call(
        &self,
        to: Address,
        request: Request<'_>,
        into: PayloadInto<'_>,
    ) -> Result<Reply, NetError> {
        self.start(to, request)?.finish(into)
    }

    /// Sends a request; [`InFlight::finish`] waits for the reply. Dropping the call closes its
    /// connection.
    ///
    /// # Errors
    /// Any that names the server.
    pub fn start<'a>(
        &'a self,
        to: Address,
        request: Request<'a>,
    ) -> Result<InFlight<'a>, NetError> {
        add(&self.metrics.calls, 1);
        InFlight::launch(self, to, request, None)
    }

    /// As [`Self::start`], on an idle connection alone: `None` where there is none. It neither
    /// connects nor sends a second time.
    ///
    /// # Errors
    /// Any that names the server.
    pub fn start_on_idle<'a>(
        &'a self,
        to: Address,
        request: Request<'a>,
        limit: Duration,
    ) -> Result<Option<InFlight<'a>>, NetError> {
        let started = InFlight::launch_on_idle(self, to, request, limit)?;
        if started.is_some() {
            add(&self.metrics.calls, 1);
        }
        Ok(started)
    }

    /// As [`Self::start`]; `canceller` ends the call from another thread at any time: while it
    /// connects, shakes hands, sends, or waits.
    ///
    /// # Errors
    /// Any that names the server.
    pub fn start_cancellable<'a>(
        &'a self,
        to: Address,
        request: Request<'a>,
        canceller: &Canceller,
    ) -> Result<InFlight<'a>, NetError> {
        add(&self.metrics.calls, 1);
        InFlight::launch(self, to, request, Some(canceller))
    }

    /// Returns the peer that answers at `to`; connects if needed.
    ///
    /// # Errors
    /// Any that names the server.
    pub fn probe(&self, to: Address) -> Result<Peer, NetError> {
        let link = self.connect(to, &TimeLimit::start(self.config.deadline), None)?;
        let peer = link.peer.clone();
        self.give_back(to, link);
        Ok(peer)
    }

    /// Closes all idle connections.
    pub fn close_idle(&self) {
        let mut dropped = Vec::new();
        for host in self.hosts().by_address.values_mut() {
            dropped.extend(host.idle.drain(..));
        }
        // Sockets are closed here, after the lock is released.
        drop(dropped);
    }

    /// Number of idle connections.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        let hosts = self.hosts();
        hosts.by_address.values().map(|host| host.idle.len()).sum()
    }

    /// Bound on idle connections for the servers known now.
    #[must_use]
    pub fn idle_limit_count(&self) -> usize {
        self.hosts().by_address.len() * self.config.idle_max
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        // No code that can panic runs under this lock, so a poisoned one is still consistent.
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an idle connection.
    pub(crate) fn take_idle(&self, to: Address) -> Option<Link> {
        let now = Instant::now();
        let limit = self.config.idle_limit;
        let mut dropped = Vec::new();
        let mut hosts = self.hosts();
        if now.duration_since(hosts.swept) >= limit {
            hosts.swept = now;
            for host in hosts.by_address.values_mut() {
                drop_old(host, now, limit, &mut dropped);
            }
        }
        let host = hosts.by_address.entry(to).or_default();
        drop_old(host, now, limit, &mut dropped);
        let link = host.idle.pop_back().map(|(link, _since)| link);
        drop(hosts);
        drop(dropped);
        link
    }

    /// Used bytes of the memory shared with servers, and its size.
    #[must_use]
    pub fn shared_bytes(&self) -> (usize, usize) {
        let regions = self.config.regions.as_ref();
        regions.map_or((0, 0), Regions::used)
    }

    /// Memory for data to be sent: shared with servers on this machine, where some is left.
    #[must_use]
    pub fn memory(&self, length: usize) -> Memory {
        self.shared_memory(length)
            .unwrap_or_else(|| Memory::own(vec![0; length]))
    }

    /// Shared memory for data to be sent; `None` where none is left.
    #[must_use]
    pub fn shared_memory(&self, length: usize) -> Option<Memory> {
        self.config.regions.as_ref()?.take_shared(length)
    }

    /// The regions shared over a connection to `peer`, if any.
    pub(crate) fn regions_with(&self, peer: &Peer) -> Option<&Regions> {
        let shares = peer.shares_regions() && !self.config.is_unix_checked;
        self.config.regions.as_ref().filter(|_| shares)
    }

    /// True where the last idle connection to this server shares memory.
    #[must_use]
    pub fn shares_with(&self, to: Address) -> bool {
        let hosts = self.hosts();
        let host = hosts.by_address.get(&to);
        host.and_then(|host| host.idle.back())
            .is_some_and(|(link, _since)| self.regions_with(&link.peer).is_some())
    }

    /// Returns a connection after a complete reply.
    pub(crate) fn give_back(&self, to: Address, link: Link) {
        let mut hosts = self.hosts();
        let host = hosts.by_address.entry(to).or_default();
        let now = Instant::now();
        host.answered = Some(now);
        let surplus = if host.idle.len() >= self.config.idle_max {
            Some(link)
        } else {
            host.idle.push_back((link, now));
            None
        };
        let is_awaited = hosts.waiting > 0;
        drop(hosts);
        if is_awaited {
            self.came_back.notify_all();
        }
        drop(surplus);
    }

    /// Time of the last complete reply of a server.
    pub(crate) fn last_answer(&self, to: Address) -> Option<Instant> {
        self.hosts().by_address.get(&to)?.answered
    }

    /// Closes the idle connections to a server after one of them turned out to be dead.
    pub(crate) fn forget_idle(&self, to: Address) {
        let dropped = self
            .hosts()
            .by_address
            .get_mut(&to)
            .map(|host| std::mem::take(&mut host.idle));
        drop(dropped);
    }
}

fn drop_old(host: &mut Host, now: Instant, limit: Duration, dropped: &mut Vec<Link>) {
    while let Some((_, since)) = host.idle.front() {
        if now.duration_since(*since) < limit {
            break;
        }
        dropped.extend(host.idle.pop_front().map(|(link, _since)| link));
    }
}

/// The error of a failed step of a call.
pub(crate) fn named(
    fail: &IoFail,
    server: Endpoint,
    operation: &'static str,
    time_limit: &TimeLimit,
) -> NetError {
    match fail {
        IoFail::TimedOut => NetError::TimedOut {
            server,
            operation,
            ms: time_limit.limit_ms(),
        },
        IoFail::Fault(crate::Fault::Cut) => NetError::Lost {
            peer: server,
            operation,
            source: io::ErrorKind::UnexpectedEof.into(),
        },
        // Bytes changed on the way count as a broken connection.
        IoFail::Fault(crate::Fault::Tls(_)) => NetError::Lost {
            peer: server,
            operation,
            source: io::ErrorKind::InvalidData.into(),
        },
        IoFail::Fault(crate::Fault::Version) => NetError::WrongVersion { peer: server },
        IoFail::Fault(fault) => NetError::Protocol {
            peer: server,
            fault: *fault,
        },
        IoFail::TooLong { what, bytes, max } => NetError::TooLong {
            what,
            bytes: *bytes,
            max: *max,
        },
        fail => NetError::Lost {
            peer: server,
            operation,
            source: fail.to_io(),
        },
    }
}
