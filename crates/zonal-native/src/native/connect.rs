//! Connecting and closing, and the start of each call.
//!
//! A forked process shares the sockets of its parent: two processes that read one reply would each
//! get a part. So every call and every destructor compares the process id first.

use crate::background::{Background, Listener, Signal, watch_all};
use crate::block_on::block_on;
use crate::error::{ConnectError, Error};
use crate::lock_waiters::LockWaiters;
use crate::transport::RealNet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use zonal_client::{Client, ClientCall, LockOutcome};
use zonal_net::{Identity, Pool, PoolConfig};
use zonal_region::Regions;
use zonal_types::limits::{REGION_BUFFER_BYTES, REGION_BUFFERS, SECOND_COPY_MS_MAX};
use zonal_types::{ErrorCode, Ino, NodeId, ZoneId};
use zonal_wire::Event;

/// Options of a connection.
///
/// ```
/// use zonal_native::{ConnectOptions, ZoneId};
/// let options = ConnectOptions::new(ZoneId(1)).named("nightly import").with_deadline_ms(5_000);
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    core: zonal_client::ClientOptions,
}

impl ConnectOptions {
    /// Default options for a program on a machine of `zone`: the home of its new first-level
    /// directories.
    #[must_use]
    pub fn new(zone: ZoneId) -> Self {
        let mut core = zonal_client::ClientOptions::new("", zone, zonal_types::ClientId(0));
        core.name = format!("process {}", std::process::id());
        Self { core }
    }

    /// The node of the cell that the program's machine is, on which its new files lie in
    /// directories with the placement `node`. None by default.
    #[must_use]
    pub fn at_node(mut self, node: NodeId) -> Self {
        self.core.node = node;
        self
    }

    /// The name of its sessions, for people (`zonal session ls`), at most 255 bytes.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.core.name);
        self
    }

    /// Deadline of a request to a server, ms. 10 s by default.
    #[must_use]
    pub fn with_deadline_ms(mut self, ms: u64) -> Self {
        (self.core.deadline_ms, self.core.attempt_ms) = (ms, ms);
        self
    }

    /// A call waits for a server without an answer as long as it takes, instead of an error at the
    /// deadline. Only the end of the process ends the wait. [`Native::close`] keeps the deadline.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.core.waits = true;
        self
    }

    /// How long a read waits for one copy before it asks another one, too, ms; 0: it never does. 50
    /// by default, at most 500.
    #[must_use]
    pub fn with_second_copy_ms(mut self, ms: u64) -> Self {
        self.core.second_copy_ms = ms.min(SECOND_COPY_MS_MAX);
        self
    }

    /// Idle time after which a shard's session ends, where nothing of the shard is open or locked,
    /// ms. 60 s by default, and at least 6 s, the longest lease of a shard.
    #[must_use]
    pub fn with_idle_ms(mut self, ms: u64) -> Self {
        self.core.leave_idle_ms = ms.max(6_000);
        self.core.keep_leases_ms = self.core.leave_idle_ms;
        self
    }

    /// Bound of gathered writes, bytes. 64 MiB by default.
    #[must_use]
    pub fn with_write_behind_bytes(mut self, bytes: usize) -> Self {
        self.core.write_behind_bytes = bytes;
        self.core.write_behind_file_bytes = self.core.write_behind_file_bytes.min(bytes);
        self
    }
}

/// The client core at work for one call of the program.
pub(crate) type Call<'a> = ClientCall<'a, RealNet>;

/// Sends the outcome to a call that waits for a lock.
pub(crate) type GrantSender = SyncSender<Result<(), ErrorCode>>;

/// The process that connected.
#[derive(Debug, Clone, Copy)]
struct Process(u32);

impl Process {
    fn this() -> Self {
        Self(std::process::id())
    }

    /// One system call, without memory that a fork copies.
    fn is_this(self) -> bool {
        self.0 == std::process::id()
    }
}

/// State that files and listings share with their connection.
pub(crate) struct Inner {
    pub(crate) client: Client<RealNet>,
    pub(crate) signal: Signal,
    pub(crate) waiters: LockWaiters<GrantSender>,
    /// Numbers of lock requests and of handles.
    numbers: AtomicU64,
    process: Process,
    is_closed: AtomicBool,
}

impl Listener for Inner {
    fn client(&self) -> &Client<RealNet> {
        &self.client
    }

    fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Nothing is cached beyond the client core.
    fn carry_out(&self, _event: &Event) -> Vec<Ino> {
        Vec::new()
    }

    fn settle(&self, _dirs: &[Ino]) -> bool {
        true
    }

    fn lock_was_granted(&self, call: &Call<'_>, ino: Ino, waiter: u64) {
        if let Some(waiter) = self.waiters.take_granted(waiter) {
            let held = block_on(call.lock_granted(ino, waiter.range));
            // The channel of the waiting call has room for it.
            let _ = waiter.reply.try_send(granted(held));
        }
    }

    fn lock_was_refused(&self, waiter: u64, code: ErrorCode) {
        if let Some(waiter) = self.waiters.take(waiter) {
            let _ = waiter.reply.try_send(Err(code));
        }
    }
}

/// Result of a lock request that does not wait any more.
pub(crate) fn granted(outcome: Result<LockOutcome, ErrorCode>) -> Result<(), ErrorCode> {
    match outcome? {
        LockOutcome::Granted { .. } => Ok(()),
        LockOutcome::Queued => Err(ErrorCode::Io),
    }
}

impl Inner {
    /// A number unique among handles and lock requests.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// True in the process that connected.
    pub(crate) fn is_own(&self) -> bool {
        self.process.is_this()
    }

    /// Begins a call.
    pub(crate) fn begin(&self) -> Result<Call<'_>, Error> {
        if !self.is_own() {
            return Err(Error::Forked);
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(self.client.begin())
    }
}

/// Runs a request to servers.
pub(crate) fn ask<T>(asked: impl Future<Output = Result<T, ErrorCode>>) -> Result<T, Error> {
    Ok(block_on(asked)?)
}

/// A connection to a cell. Dropping it closes it.
///
/// ```no_run
/// use zonal_native::{Identity, Native, NodeId, OpenOptions, ConnectOptions, Role, User, ZoneId};
/// let identity = Identity::new(Default::default(), Role::Client, NodeId(0), None);
/// let cell = Native::connect("127.0.0.1:7100", identity, ConnectOptions::new(ZoneId(1)))?;
/// let me = User::new(1000, 1000);
/// cell.mkdir(&me, "/data/anna", 0o755)?;
/// let file = cell.open(&me, "/data/anna/hello", OpenOptions::new().write(true).create(0o644))?;
/// file.write(b"hello")?;
/// file.close()?;
/// for entry in cell.read_dir(&me, "/data")? {
///     println!("{}", entry?.name().display());
/// }
/// cell.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Native {
    pub(crate) inner: Arc<Inner>,
    background: Mutex<Option<Background<Inner>>>,
}

impl Native {
    /// Connects to the cell whose managers listen at `managers` (IP:PORT, with commas between
    /// them; one is enough), with this identity.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        managers: &str,
        identity: Identity,
        options: ConnectOptions,
    ) -> Result<Self, ConnectError> {
        let mut core = options.core;
        core.managers = managers.split(',').map(str::to_owned).collect();
        core.cell = identity.cell;
        let regions = Regions::new(REGION_BUFFER_BYTES, REGION_BUFFERS);
        let pool = Pool::new(
            identity.in_zone(core.zone),
            PoolConfig {
                regions: Some(regions),
                ..PoolConfig::default()
            },
        );
        let net = RealNet::new(Arc::new(pool));
        core.client = zonal_types::ClientId(zonal_client::Net::random(&net));
        let zone = core.zone;
        let client = block_on(Client::connect(net, core)).map_err(ConnectError::Refused)?;
        if client.map().zone(zone).is_none() {
            return Err(ConnectError::NoZone(zone));
        }
        // Only the core caches, and it has dropped everything by then.
        client.when_to_drop(|| true);
        let inner = Arc::new(Inner {
            client,
            signal: Signal::default(),
            waiters: LockWaiters::default(),
            numbers: AtomicU64::new(1),
            process: Process::this(),
            is_closed: AtomicBool::new(false),
        });
        let background = Background::start(&inner).map_err(ConnectError::Threads)?;
        watch_all(&inner);
        Ok(Self {
            inner,
            background: Mutex::new(Some(background)),
        })
    }

    /// Sends all written bytes, releases locks and leases, and ends the sessions. Later calls fail
    /// with [`Error::Closed`], also on files that are still open.
    ///
    /// # Errors
    /// A failure of a flush that was not reported before.
    pub fn close(self) -> Result<(), Error> {
        self.end()
    }

    fn end(&self) -> Result<(), Error> {
        if !self.inner.is_own() {
            return Err(Error::Forked);
        }
        let taken = {
            let background = self.background.lock();
            background.unwrap_or_else(PoisonError::into_inner).take()
        };
        self.inner.is_closed.store(true, Ordering::Relaxed);
        let Some(background) = taken else {
            return Ok(());
        };
        background.end_watches();
        Ok(background.end(&self.inner.client.begin().bounded())?)
    }

    /// The client core, for gauges.
    #[must_use]
    pub fn client(&self) -> &Client<RealNet> {
        &self.inner.client
    }

    /// Sends all bytes written through this connection and makes them durable, with the names that
    /// it made.
    ///
    /// # Errors
    /// The last failure; the rest is done all the same.
    pub fn sync_all(&self) -> Result<(), Error> {
        let call = self.inner.begin()?;
        Ok(block_on(call.sync_all())?)
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        if let Err(error) = self.end()
            && error != Error::Forked
        {
            tracing::warn!(%error, "not everything was flushed at the end");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_not_the_process_that_connected() {
        assert!(Process::this().is_this());
        // The parent has another id than this process.
        assert!(!Process(std::os::unix::process::parent_id()).is_this());
    }
}
