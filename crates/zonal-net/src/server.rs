//! The server: one thread accepts, one thread per connection receives, executes and replies.
//!
//! An idle connection costs a thread's stack and no CPU: its thread sleeps in `recvmsg`. It wakes once, after
//! [`ServerConfig::patience`], to give its buffers back, and then sleeps without a limit; a peer that vanished is
//! noticed by TCP keep-alive. A request on a busy connection is 2 system calls (`recvmsg`, `sendmsg`), 3 with a
//! payload of more than 8 KiB.
//!
//! *Invariants*: (1) at most `connections_max` connection threads; (2) a stranger holds one for at most
//! `handshake_limit`; (3) no byte from a peer and no panic of the handler ends another connection or the server;
//! (4) after [`ServerHandle::shutdown`] no handler call runs, unless one did not return within 10 s (logged).
//!
//! *Lock order*: `Shared::registry`, alone; never held while a socket is used (but for shutting it) or a handler runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{SocketFlags, acceptfrom_with};
use zonal_region::Mappings;
use zonal_types::ErrorCode;
use zonal_types::limits::CONNECTIONS_MAX;
use zonal_wire::frame::{Header, Service};

use crate::address::Endpoint;
use crate::conversation::converse;
use crate::error::{Fault, NetError};
use crate::frame_io::Conn;
use crate::handler::Handler;
use crate::handshake::refuse;
use crate::identity::{Identity, Peer};
use crate::listen::Listeners;
use crate::metrics::{ServerMetrics, WarnLimit, add};
use crate::shares::{Party, Shares};
use crate::stream::Stream;

/// How long `shutdown` waits for handler calls.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// How a server behaves.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Who the server is.
    pub identity: Identity,
    /// Connections served at once; one more is told `Overloaded`, and before that one more of a client that has its share (`shares.rs`).
    pub connections_max: usize,
    /// Bound on the handshake.
    pub handshake_limit: Duration,
    /// Bound on receiving a frame that was begun and on sending a reply; also after how long an idle connection
    /// gives its buffers back.
    pub patience: Duration,
    /// Stack of a connection's thread.
    pub stack_bytes: usize,
    /// Socket buffers, each way; 0: the system's.
    pub buffer_bytes: usize,
    /// Checksum reply payloads also on Unix sockets.
    pub is_unix_checked: bool,
}

impl ServerConfig {
    /// The defaults.
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
    open: BTreeMap<u64, (Arc<Stream>, Option<JoinHandle<()>>)>,
    ended: Vec<JoinHandle<()>>,
    shares: Shares,
}

pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) metrics: Arc<ServerMetrics>,
    /// Of the clients on this machine.
    pub(crate) regions: Arc<Mappings>,
    warnings: WarnLimit,
    pub(crate) is_stopping: AtomicBool,
    registry: Mutex<Registry>,
    changed: Condvar,
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
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
            // A peer that went away is nothing to report.
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

    /// What the server has done.
    #[must_use]
    pub fn metrics(&self) -> &Arc<ServerMetrics> {
        &self.shared.metrics
    }

    /// Memory that clients on this machine share with it.
    #[must_use]
    pub fn regions(&self) -> &Arc<Mappings> {
        &self.shared.regions
    }

    /// Stops accepting and receiving, waits for the handler calls that run (their replies are sent), closes all
    /// connections. Not to be called by a handler.
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
        // First no more requests, so that replies under way are delivered; then no mercy.
        for end in [Stream::shut_receiving, Stream::shut] {
            for (stream, _thread) in registry.open.values() {
                end(stream);
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
        let ended = std::mem::take(&mut registry.ended);
        drop(registry);
        for thread in ended {
            let _ = thread.join();
        }
        if left > 0 {
            tracing::error!(left, "requests still run after shutdown");
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
    let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
    fds.extend(
        listeners
            .sockets
            .iter()
            .map(|(socket, _is_unix)| PollFd::new(socket, PollFlags::IN)),
    );
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
        for (fd, (socket, is_unix)) in fds.iter().skip(1).zip(&listeners.sockets) {
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
                    // Out of descriptors or memory: the connection stays queued, so do not spin.
                    if shared.warnings.pass().is_some() {
                        tracing::warn!(%errno, "cannot accept");
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// Where a connection comes from; the process behind a Unix socket is filled in by [`admit`].
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
    let mut registry = shared.registry();
    let ended = std::mem::take(&mut registry.ended);
    let is_full = registry.open.len() >= shared.config.connections_max;
    let id = registry.next;
    if !is_full {
        registry.next += 1;
        registry.open.insert(id, (Arc::clone(&stream), None));
    }
    drop(registry);
    for thread in ended {
        let _ = thread.join();
    }
    if is_full {
        overloaded(shared, stream);
        return;
    }
    add(&shared.metrics.connections, 1);
    let place = Place {
        shared: Arc::clone(shared),
        id,
        party: OnceLock::new(),
    };
    let for_thread = Arc::clone(&stream);
    let spawned = thread::Builder::new()
        .name("connection".into())
        .stack_size(shared.config.stack_bytes)
        .spawn(move || {
            // Dropped last, also when this thread panics.
            let place = place;
            converse(&place, for_thread);
        });
    match spawned {
        Ok(thread) => {
            let mut registry = shared.registry();
            match registry.open.get_mut(&id) {
                Some((_stream, slot)) => *slot = Some(thread),
                None => registry.ended.push(thread),
            }
        }
        // Its closure was dropped, and with it the place.
        Err(_) => overloaded(shared, stream),
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
pub(crate) struct Place {
    pub(crate) shared: Arc<Shared>,
    id: u64,
    party: OnceLock<Party>,
}

impl Place {
    /// Whose connection it is, as the handshake has shown.
    ///
    /// # Errors
    /// `Refused` where a client has its share.
    pub(crate) fn take(&self, peer: &Peer) -> Result<(), NetError> {
        let party = Party::of(peer);
        let mut registry = self.shared.registry();
        let open = registry.open.len();
        let max = self.shared.config.connections_max;
        if !registry.shares.join(party, open, max) {
            return Err(NetError::Refused {
                server: peer.endpoint,
                code: ErrorCode::Overloaded,
            });
        }
        let _ = self.party.set(party);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut registry = self.shared.registry();
        if let Some(party) = self.party.get() {
            registry.shares.leave(*party);
        }
        if let Some((_stream, Some(thread))) = registry.open.remove(&self.id) {
            registry.ended.push(thread);
        }
        self.shared
            .metrics
            .connections
            .fetch_sub(1, Ordering::Relaxed);
        drop(registry);
        self.shared.changed.notify_all();
    }
}
