//! The server: one thread accepts, others receive, execute and reply, as many as there are busy
//! connections (`idle_connections.rs`).
//!
//! An idle connection costs its sockets' memory, and after [`ServerConfig::patience`] no buffers.
//! TCP keep-alive notices a peer that vanished. A request on a busy connection is 2 system calls
//! (`recvmsg`, `sendmsg`), 3 with a payload of more than 8 KiB.
//!
//! Connections whose handshake is not done are strangers. They have places of their own
//! ([`STRANGERS_MAX`]) and take none from known connections. Where those places are used up, a new
//! stranger displaces the oldest one of the address or user that has most.
//!
//! *Invariants*:
//! 1. At most `connections_max` known connections and [`STRANGERS_MAX`] strangers are served.
//! 2. A stranger holds its place for at most `handshake_limit`.
//! 3. No byte from a peer and no panic of the handler ends another connection or the server.
//! 4. After [`ServerHandle::shutdown`] no handler call runs, unless one did not return within 10 s
//!    (logged).
//!
//! *Lock order*: `Shared::registry`, then `Shared::revoked`; never held while a socket is used (but
//! for shutting it) or a handler runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{SocketFlags, acceptfrom_with};
use zonal_region::Mappings;
use zonal_types::ErrorCode;
use zonal_types::limits::CONNECTIONS_MAX;
use zonal_wire::frame::{Header, Service};

use crate::address::Endpoint;
use crate::connection_quota::{ConnectionQuota, Party};
use crate::credential::Serial;
use crate::error::{Fault, NetError, TlsFault};
use crate::frame_io::Conn;
use crate::handler::Handler;
use crate::handshake::refuse;
use crate::identity::{Identity, Peer};
use crate::idle_connections::{IdleConnections, start_thread};
use crate::listeners::Listeners;
use crate::metrics::{ServerMetrics, WarnLimit, add};
use crate::server_connection::begin;
use crate::strangers::{Source, Strangers};
use crate::stream::Stream;

/// Connections whose handshake is not done.
pub const STRANGERS_MAX: usize = 64;
/// Where all places are taken, a known connection that was idle for this long makes room for a new
/// one.
const IDLE_ENOUGH: Duration = Duration::from_secs(1);
/// How long `shutdown` waits for handler calls.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Its identity.
    pub identity: Identity,
    /// Connections served at once; the next one is refused with `Overloaded`. A client past its
    /// quota is refused earlier (`connection_quota.rs`).
    pub connections_max: usize,
    /// Time limit of the handshake.
    pub handshake_limit: Duration,
    /// Time limit for receiving the rest of a frame and for sending a reply. Also: how long an idle
    /// connection keeps its buffers.
    pub patience: Duration,
    /// Stack of a connection's thread, in bytes.
    pub stack_bytes: usize,
    /// Socket buffers in bytes, each way; 0: the system's.
    pub buffer_bytes: usize,
    /// Checksum reply payloads also on Unix sockets.
    pub is_unix_checked: bool,
}

impl ServerConfig {
    /// The default options.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            connections_max: CONNECTIONS_MAX,
            handshake_limit: Duration::from_secs(5),
            patience: Duration::from_secs(20),
            stack_bytes: 512 * 1024,
            buffer_bytes: 4 << 20,
            is_unix_checked: false,
        }
    }
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    /// Open connections by age.
    open: BTreeMap<u64, OpenConnection>,
    strangers: Strangers,
    known: usize,
    shares: ConnectionQuota,
}

#[derive(Debug)]
struct OpenConnection {
    stream: Arc<Stream>,
    activity: Arc<Activity>,
    /// Certificate of a known connection.
    serial: Option<Serial>,
    /// It was shut to make room.
    is_ending: bool,
}

/// Last activity of a connection.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Since when the connection is idle, in milliseconds of the server's clock; 0: it is busy.
    idle_since: AtomicU64,
}

impl Activity {
    /// A request begins.
    pub(crate) fn begins(&self) {
        self.idle_since.store(0, Ordering::Relaxed);
    }

    /// The reply was sent.
    pub(crate) fn ends(&self, shared: &Shared) {
        self.idle_since.store(shared.now_ms(), Ordering::Relaxed);
    }
}

impl Registry {
    /// Shuts the known connection that was idle for longest, if it was idle for long enough. False
    /// where there is none.
    fn make_room(&mut self, now_ms: u64) -> bool {
        let enough = u64::try_from(IDLE_ENOUGH.as_millis()).unwrap_or(u64::MAX);
        let idle = self.open.values_mut().filter(|open| !open.is_ending);
        let idle = idle.filter_map(
            |open| match open.activity.idle_since.load(Ordering::Relaxed) {
                0 => None,
                since => Some((since, open)),
            },
        );
        let longest = idle.min_by_key(|(since, _open)| *since);
        let Some((_since, open)) = longest.filter(|(since, _)| since + enough <= now_ms) else {
            return false;
        };
        open.is_ending = true;
        open.stream.shut();
        true
    }
}

pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) metrics: Arc<ServerMetrics>,
    /// Regions of the clients on this machine.
    pub(crate) regions: Arc<Mappings>,
    warnings: WarnLimit,
    pub(crate) is_stopping: AtomicBool,
    registry: Mutex<Registry>,
    changed: Condvar,
    started: Instant,
    revoked: RwLock<BTreeSet<Serial>>,
    pub(crate) idle: IdleConnections,
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_revoked(&self, serial: Serial) -> bool {
        let revoked = self.revoked.read().unwrap_or_else(PoisonError::into_inner);
        revoked.contains(&serial)
    }

    /// Milliseconds since the server started, plus one.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).map_or(u64::MAX, |ms| ms + 1)
    }

    pub(crate) fn warn(&self, error: &NetError) {
        let counter = match error {
            NetError::Unauthenticated { .. } => &self.metrics.refused_unauthenticated,
            NetError::WrongCell { .. }
            | NetError::Protocol {
                fault: Fault::Cell, ..
            } => &self.metrics.refused_wrong_cell,
            NetError::WrongVersion { .. } => &self.metrics.refused_wrong_version,
            NetError::TimedOut { .. } => &self.metrics.refused_slow,
            NetError::Refused { .. } => &self.metrics.refused_overloaded,
            // A peer that went away needs no warning.
            NetError::Lost { .. } => return,
            _ => &self.metrics.refused_protocol,
        };
        add(counter, 1);
        if let Some(held) = self.warnings.pass() {
            tracing::warn!(held_back = held, "connection closed: {error}");
        }
    }
}

/// A running server. Dropping it shuts it down.
pub struct ServerHandle {
    shared: Arc<Shared>,
    stop: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
    addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerHandle")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl ServerHandle {
    /// The TCP addresses.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The server's counters.
    #[must_use]
    pub fn metrics(&self) -> &Arc<ServerMetrics> {
        &self.shared.metrics
    }

    /// Memory that clients on this machine share with the server.
    #[must_use]
    pub fn regions(&self) -> &Arc<Mappings> {
        &self.shared.regions
    }

    /// The handle that ends connections of revoked credentials.
    #[must_use]
    pub fn revoker(&self) -> Revoker {
        Revoker(Arc::clone(&self.shared))
    }

    /// Stops accepting and receiving, waits for running handler calls (their replies are sent), and
    /// closes all connections. A handler must not call it.
    pub fn shutdown(mut self) {
        self.stop_now();
    }

    fn stop_now(&mut self) {
        let Some(acceptor) = self.acceptor.take() else {
            return;
        };
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        // Eight bytes into an eventfd with a small count: cannot fail or wait.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_le_bytes());
        let _ = acceptor.join();
        self.shared.handler.stopping();
        let mut registry = self.shared.registry();
        // First end receiving, so that replies under way are delivered; then shut all connections.
        for end in [Stream::shut_receiving, Stream::shut] {
            for open in registry.open.values() {
                end(&open.stream);
            }
            let (guard, _timeout) = self
                .shared
                .changed
                .wait_timeout_while(registry, SHUTDOWN_LIMIT / 2, |registry| {
                    !registry.open.is_empty()
                })
                .unwrap_or_else(PoisonError::into_inner);
            registry = guard;
        }
        let left = registry.open.len();
        drop(registry);
        if left > 0 {
            tracing::error!(left, "requests still run after shutdown");
        }
        self.shared.idle.end(SHUTDOWN_LIMIT / 10);
    }
}

/// Ends connections of revoked credentials.
#[derive(Clone)]
pub struct Revoker(Arc<Shared>);

impl std::fmt::Debug for Revoker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Revoker")
    }
}

impl Revoker {
    /// Refuses these certificates from now on, and ends connections that were made with them.
    pub fn revoke(&self, serials: &BTreeSet<Serial>) {
        let mut revoked = self
            .0
            .revoked
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if *revoked == *serials {
            return;
        }
        revoked.clone_from(serials);
        drop(revoked);
        for open in self.0.registry().open.values() {
            if open.serial.is_some_and(|serial| serials.contains(&serial)) {
                open.stream.shut();
            }
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop_now();
    }
}

/// Serves connections until the handle is shut down or dropped.
///
/// # Errors
/// `Local` where the thread or the event descriptor is refused.
pub fn serve(
    listeners: Listeners,
    config: ServerConfig,
    handler: Arc<dyn Handler>,
) -> Result<ServerHandle, NetError> {
    let stop = eventfd(0, EventfdFlags::CLOEXEC)
        .map(Arc::new)
        .map_err(|errno| NetError::Local {
            what: "an event descriptor",
            source: errno.into(),
        })?;
    let shared = Arc::new(Shared {
        config,
        handler,
        metrics: Arc::default(),
        regions: Arc::default(),
        warnings: WarnLimit::new(),
        is_stopping: AtomicBool::new(false),
        registry: Mutex::default(),
        changed: Condvar::new(),
        started: Instant::now(),
        revoked: RwLock::default(),
        idle: IdleConnections::new()?,
    });
    let addresses = listeners.addresses().to_vec();
    let acceptor = {
        let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
        thread::Builder::new()
            .name("accept".into())
            .stack_size(256 * 1024)
            .spawn(move || accept_loop(&shared, &listeners, &stop))
            .map_err(|source| NetError::Local {
                what: "a thread",
                source,
            })?
    };
    Ok(ServerHandle {
        shared,
        stop,
        acceptor: Some(acceptor),
        addresses,
    })
}

fn accept_loop(shared: &Arc<Shared>, listeners: &Listeners, stop: &OwnedFd) {
    let sockets: Vec<(BorrowedFd<'_>, bool)> = listeners.sockets().collect();
    let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
    let waited = sockets.iter();
    fds.extend(waited.map(|(socket, _is_unix)| PollFd::new(socket, PollFlags::IN)));
    loop {
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "accepting has ended");
                return;
            }
        }
        if shared.is_stopping.load(Ordering::SeqCst) {
            return;
        }
        for (fd, (socket, is_unix)) in fds.iter().skip(1).zip(&sockets) {
            if fd.revents().is_empty() {
                continue;
            }
            match acceptfrom_with(socket, SocketFlags::CLOEXEC) {
                Ok((accepted, from)) => {
                    let from = from.and_then(|any| SocketAddr::try_from(any).ok());
                    admit(shared, accepted, endpoint(from, *is_unix));
                }
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => {
                    // Out of descriptors or memory: the connection stays queued, so pause.
                    if shared.warnings.pass().is_some() {
                        tracing::warn!(%errno, "cannot accept");
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// The endpoint of a new connection; [`admit`] fills in the process behind a Unix socket.
fn endpoint(from: Option<SocketAddr>, is_unix: bool) -> Endpoint {
    match from {
        Some(address) if !is_unix => Endpoint::Tcp(address),
        _ => Endpoint::Local { uid: 0, pid: 0 },
    }
}

fn admit(shared: &Arc<Shared>, accepted: OwnedFd, mut endpoint: Endpoint) {
    add(&shared.metrics.accepted, 1);
    if endpoint.is_unix()
        && let Ok(credentials) = sockopt::socket_peercred(&accepted)
    {
        endpoint = Endpoint::Local {
            uid: credentials.uid.as_raw(),
            pid: credentials.pid.as_raw_pid(),
        };
    }
    let stream = Arc::new(Stream::accepted(
        accepted,
        endpoint,
        shared.config.buffer_bytes,
    ));
    let source = Source::of(endpoint);
    let activity = Arc::new(Activity::default());
    let mut registry = shared.registry();
    let id = registry.next;
    registry.next += 1;
    if let Some(oldest) = registry.strangers.join(source, id)
        && let Some(open) = registry.open.get_mut(&oldest)
    {
        open.is_ending = true;
        open.stream.shut();
        add(&shared.metrics.strangers_ended, 1);
    }
    let open = OpenConnection {
        stream: Arc::clone(&stream),
        activity: Arc::clone(&activity),
        serial: None,
        is_ending: false,
    };
    registry.open.insert(id, open);
    drop(registry);
    add(&shared.metrics.connections, 1);
    let place = ConnectionPlace {
        shared: Arc::clone(shared),
        id,
        source,
        party: OnceLock::new(),
        activity,
    };
    let for_thread = Arc::clone(&stream);
    // Where no thread starts, its closure is dropped and frees the place.
    if start_thread(shared, move || begin(place, for_thread)).is_err() {
        overloaded(shared, stream);
    }
}

fn overloaded(shared: &Shared, stream: Arc<Stream>) {
    let server = stream.endpoint();
    let mut conn = Conn::new(stream, false);
    let head = Header::request(Service::Connection, shared.config.identity.cell);
    refuse(&mut conn, head, ErrorCode::Overloaded);
    shared.warn(&NetError::Refused {
        server,
        code: ErrorCode::Overloaded,
    });
}

/// A connection's place in the registry.
pub(crate) struct ConnectionPlace {
    pub(crate) shared: Arc<Shared>,
    id: u64,
    source: Source,
    party: OnceLock<Party>,
    pub(crate) activity: Arc<Activity>,
}

impl ConnectionPlace {
    /// Number of its connection.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Turns a stranger into a known connection, which counts for its client's quota.
    ///
    /// # Errors
    /// `Refused` where all places are taken or the client's quota is used up; `Unauthenticated`
    /// where its credential is revoked.
    pub(crate) fn take(&self, peer: &Peer) -> Result<(), NetError> {
        let party = Party::of(peer);
        let serial = peer.certified.as_ref().map(|certified| certified.serial);
        let mut registry = self.shared.registry();
        // Under the registry's lock: a credential that is revoked now is either refused here or
        // found there.
        if serial.is_some_and(|serial| self.shared.is_revoked(serial)) {
            return Err(NetError::Unauthenticated {
                peer: peer.endpoint,
                fault: TlsFault::Revoked,
            });
        }
        let refused = || NetError::Refused {
            server: peer.endpoint,
            code: ErrorCode::Overloaded,
        };
        let max = self.shared.config.connections_max;
        if registry.known >= max && !registry.make_room(self.shared.now_ms()) {
            return Err(refused());
        }
        let known = registry.known + 1;
        if !registry.shares.join(party, known.min(max), max) {
            return Err(refused());
        }
        registry.known = known;
        registry.strangers.leave(self.source, self.id);
        if let Some(open) = registry.open.get_mut(&self.id) {
            open.serial = serial;
        }
        let _ = self.party.set(party);
        Ok(())
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut registry = self.shared.registry();
        match self.party.get() {
            Some(party) => {
                registry.shares.leave(*party);
                registry.known -= 1;
            }
            None => registry.strangers.leave(self.source, self.id),
        }
        registry.open.remove(&self.id);
        self.shared
            .metrics
            .connections
            .fetch_sub(1, Ordering::Relaxed);
        drop(registry);
        self.shared.changed.notify_all();
    }
}
