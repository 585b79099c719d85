//! A client's connections: a stack of idle ones per server, made when needed, one request at a time
//! on each.
//!
//! A call is 2 system calls (`sendmsg`, `recvmsg`), 3 where a reply's payload is longer than 8 KiB;
//! it runs on the calling thread and wakes no other thread of this process. To ask several servers
//! at once: [`Pool::start`] for each, then [`InFlight::finish`] for each.
//!
//! *Invariants*: (1) a connection goes back to its stack only after a complete, matching reply;
//! after any error or an unfinished call it is closed; (2) every step has the call's deadline; (3)
//! a request is sent twice only where an idle connection turned out to be dead before the first
//! byte of a reply, once, and the reply says so; (4) no lock is held while a socket is used.
//!
//! *Lock order*: `Pool::hosts`, alone. A flight's `Cancel::stream`, alone.

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

/// How a pool behaves.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Deadline of a call whose header does not give one.
    pub deadline: Duration,
    /// Bound on connecting and the handshake (the call's deadline binds too).
    pub connect_limit: Duration,
    /// Idle connections kept per server.
    pub idle_max: usize,
    /// An idle connection older than this is closed when the pool is next used.
    pub idle_limit: Duration,
    /// After a failure to connect, calls to that server fail at once for this long.
    pub backoff: Duration,
    /// Socket buffers, each way; 0: the system's.
    pub buffer_bytes: usize,
    /// Try the Unix socket of a server on this machine first.
    pub is_unix_tried: bool,
    /// Checksum payloads also on Unix sockets.
    pub is_unix_checked: bool,
    /// Memory that is shared with servers on this machine: payloads that lie in it are not sent.
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
    /// Number of the region that the server was sent last on it; 0: none.
    pub(crate) region: u64,
}

#[derive(Debug, Default)]
struct Host {
    /// Oldest first; taken and returned at the back.
    idle: VecDeque<(Link, Instant)>,
    failed: Option<(Instant, io::ErrorKind)>,
    is_own: Option<bool>,
    /// When somebody answered on the Unix socket who was not the server.
    unix_failed: Option<Instant>,
}

#[derive(Debug)]
struct Hosts {
    by_address: BTreeMap<Address, Host>,
    swept: Instant,
    /// Calls that wait for a connection to come back.
    waiting: usize,
}

/// A client's connections to any number of servers. Shared by threads.
#[derive(Debug)]
pub struct Pool {
    pub(crate) identity: Identity,
    pub(crate) config: PoolConfig,
    pub(crate) metrics: Arc<PoolMetrics>,
    hosts: Mutex<Hosts>,
    /// Told when a connection came back, where calls wait for one.
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

    /// What the pool has done.
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

    /// Sends a request; [`InFlight::finish`] waits for the reply. A flight that is dropped closes
    /// its connection.
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

    /// As [`Self::start`], and `canceller` ends the call from another thread from now on: while it
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

    /// Who answers at `to` (connects if need be).
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
        // The sockets are closed here, after the lock.
        drop(dropped);
    }

    /// Idle connections at this moment.
    #[must_use]
    pub fn idle_count(&self) -> usize {
        let hosts = self.hosts();
        hosts.by_address.values().map(|host| host.idle.len()).sum()
    }

    /// Bound on the idle connections, with the servers known at this moment.
    #[must_use]
    pub fn idle_limit_count(&self) -> usize {
        self.hosts().by_address.len() * self.config.idle_max
    }

    fn hosts(&self) -> MutexGuard<'_, Hosts> {
        // No code that can panic runs under this lock; a poisoned one is still whole.
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An idle connection.
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

    /// Bytes in use of the memory that is shared with servers, and how many there may be.
    #[must_use]
    pub fn shared_bytes(&self) -> (usize, usize) {
        let regions = self.config.regions.as_ref();
        regions.map_or((0, 0), Regions::used)
    }

    /// Memory for data that will be sent: such as is shared with servers on this machine, where
    /// there is some.
    #[must_use]
    pub fn memory(&self, length: usize) -> Memory {
        self.shared_memory(length)
            .unwrap_or_else(|| Memory::own(vec![0; length]))
    }

    /// The same, where it is shared.
    #[must_use]
    pub fn shared_memory(&self, length: usize) -> Option<Memory> {
        self.config.regions.as_ref()?.take_shared(length)
    }

    /// Memory that is shared over a connection to `peer`, if any is.
    pub(crate) fn regions_with(&self, peer: &Peer) -> Option<&Regions> {
        let shares = peer.shares_regions() && !self.config.is_unix_checked;
        self.config.regions.as_ref().filter(|_| shares)
    }

    /// True where memory is shared over the last idle connection to this server.
    #[must_use]
    pub fn shares_with(&self, to: Address) -> bool {
        let hosts = self.hosts();
        let host = hosts.by_address.get(&to);
        host.and_then(|host| host.idle.back())
            .is_some_and(|(link, _since)| self.regions_with(&link.peer).is_some())
    }

    /// Takes a connection back after a complete reply.
    pub(crate) fn give_back(&self, to: Address, link: Link) {
        let mut hosts = self.hosts();
        let host = hosts.by_address.entry(to).or_default();
        let surplus = if host.idle.len() >= self.config.idle_max {
            Some(link)
        } else {
            host.idle.push_back((link, Instant::now()));
            None
        };
        let is_awaited = hosts.waiting > 0;
        drop(hosts);
        if is_awaited {
            self.came_back.notify_all();
        }
        drop(surplus);
    }

    /// Closes what is idle towards a server whose connections turned out to be dead.
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

/// The error for a failed step of a call.
pub(crate) fn named(
    fail: &IoFail,
    server: Endpoint,
    operation: &'static str,
    clock: &TimeLimit,
) -> NetError {
    match fail {
        IoFail::TimedOut => NetError::TimedOut {
            server,
            operation,
            ms: clock.limit_ms(),
        },
        IoFail::Fault(crate::Fault::Cut) => NetError::Lost {
            peer: server,
            operation,
            source: io::ErrorKind::UnexpectedEof.into(),
        },
        // Changed on its way: as a connection that breaks.
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
