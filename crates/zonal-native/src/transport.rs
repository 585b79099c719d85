//! Transport, clock and randomness of the client core on a real machine.
//!
//! A request is sent and received on the calling thread (2 system calls, no wake-up in this
//! process). A thread may connect, send, or wait for a reply or for another thread. Each of these
//! ends when its operation is cancelled: a killed process must not wait for a dead server.

use crate::read_sink::ReadSink;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zonal_client::OperationContext;
use zonal_client::transport::ShellMemory;
use zonal_client::transport::{ClientNotice, Message, Net, NetFailure, ServerReply};
use zonal_net::{Address, Canceller, DetachedCall, NetError, PayloadInto, Pool, Request};
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_types::{ErrorCode, Instant, NodeId, ShardId, Timestamp};
use zonal_wait::Waiter;
use zonal_wire::Service;

/// Interval of complaints about one server.
const COMPLAINT_EVERY: Duration = Duration::from_secs(5);
/// How often a pause checks for cancellation.
const PAUSE_STEP: Duration = Duration::from_millis(20);

/// Sockets, clock and randomness.
pub struct RealNet {
    pool: Arc<Pool>,
    started: std::time::Instant,
    complaints: Mutex<BTreeMap<String, std::time::Instant>>,
    on_opened: OnceLock<Box<dyn Fn(ShardId) + Send + Sync>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request in flight.
pub struct RealPending {
    flight: DetachedCall,
    canceller: Canceller,
}

impl RealNet {
    /// A transport over `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            started: std::time::Instant::now(),
            complaints: Mutex::new(BTreeMap::new()),
            on_opened: OnceLock::new(),
        }
    }

    /// Sets a function to call when a session is opened at a shard where there was none. Only the
    /// first call counts.
    pub fn on_opened(&self, act: impl Fn(ShardId) + Send + Sync + 'static) {
        let _first = self.on_opened.set(Box::new(act));
    }

    /// The pool of connections.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Servers that recently gave no answer, by their names in the log.
    #[must_use]
    pub fn unanswered(&self) -> Vec<String> {
        let complaints = lock(&self.complaints);
        let lately = complaints
            .iter()
            .filter(|(_, last)| last.elapsed() < COMPLAINT_EVERY * 6);
        lately.map(|(server, _)| server.clone()).collect()
    }
}

fn operation(service: Service) -> &'static str {
    match service {
        Service::Meta => "a metadata request",
        Service::Storage => "a storage request",
        Service::Manager => "a request for the zone map",
        Service::Connection => "the handshake",
        Service::Admin => "a request to the server itself",
        Service::Agent => "a request to an agent",
        Service::Replica => "a request to a replica",
    }
}

fn failure(error: &NetError) -> NetFailure {
    match error {
        NetError::TimedOut { .. } => NetFailure::TimedOut,
        error if error.is_silence() => NetFailure::Silent,
        NetError::Cancelled { .. } => NetFailure::Refused(ErrorCode::Interrupted),
        NetError::WrongCell { .. } => NetFailure::Refused(ErrorCode::WrongCell),
        NetError::WrongVersion { .. } => NetFailure::Refused(ErrorCode::WrongVersion),
        NetError::Unauthenticated { .. } => NetFailure::Refused(ErrorCode::Unauthenticated),
        NetError::Protocol { .. } => NetFailure::Refused(ErrorCode::Protocol),
        NetError::Refused { code, .. } => NetFailure::Refused(*code),
        NetError::TooLong { .. } => NetFailure::Refused(ErrorCode::TooBig),
        _ => NetFailure::Unreachable,
    }
}

/// Waits for a reply until the operation is cancelled.
fn watched<T>(
    context: &OperationContext,
    pending: RealPending,
    finish: impl FnOnce(DetachedCall) -> Result<T, NetError>,
) -> Result<T, NetFailure> {
    context.waits(&pending.canceller.waker())?;
    let outcome = finish(pending.flight);
    context.waits_no_more();
    outcome.map_err(|error| {
        tracing::debug!(%error, "no reply");
        failure(&error)
    })
}

impl Net for RealNet {
    type Pending = RealPending;
    type Sink = ReadSink;

    fn memory(&self, bytes: usize) -> Option<Box<dyn ShellMemory>> {
        // Shorter ones would leave most of their buffer unused.
        let memory = (bytes >= REGION_PAYLOAD_MIN).then(|| self.pool.shared_memory(bytes));
        Some(Box::new(memory??))
    }

    fn now(&self) -> Instant {
        Instant(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn wall(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        }
    }

    fn random(&self) -> u64 {
        // Without the kernel's randomness the clock must do: the number names a client and is not a
        // secret.
        getrandom::u64().unwrap_or(self.wall().nanos.into())
    }

    async fn sleep(&self, context: &OperationContext, ms: u64) {
        let mut left = Duration::from_millis(ms);
        while !left.is_zero() && !context.cancellation().is_set() {
            let step = left.min(PAUSE_STEP);
            std::thread::sleep(step);
            left = left.saturating_sub(step);
        }
    }

    fn start(
        &self,
        context: &OperationContext,
        address: &str,
        message: &Message<'_>,
    ) -> Result<RealPending, NetFailure> {
        let tcp = address.parse::<SocketAddr>();
        let tcp = tcp.map_err(|_error| NetFailure::Unreachable)?;
        let request = Request {
            operation: operation(message.header.service),
            header: message.header,
            body: message.body,
            payload: message.payload,
            room: message.room,
        };
        let canceller = Canceller::default();
        // Sending may have to connect first.
        context.waits(&canceller.waker())?;
        let to = Address::new(tcp, message.node);
        let started = self.pool.start_cancellable(to, request, &canceller);
        context.waits_no_more();
        match started {
            Ok(flight) => Ok(RealPending {
                flight: flight.detach(self.pool.clone()),
                canceller,
            }),
            Err(error) => {
                tracing::debug!(%error, "request not sent");
                Err(failure(&error))
            }
        }
    }

    async fn finish(
        &self,
        context: &OperationContext,
        pending: RealPending,
        payload: Option<&mut [u8]>,
    ) -> Result<ServerReply, NetFailure> {
        let into = payload.map_or(PayloadInto::Owned, PayloadInto::One);
        watched(context, pending, |flight| flight.finish(into)).map(|reply| ServerReply {
            header: reply.header,
            body: reply.body,
            payload_bytes: reply.payload_bytes,
        })
    }

    async fn await_first(
        &self,
        context: &OperationContext,
        pending: &[&RealPending],
        ms: u64,
    ) -> Option<usize> {
        let first = pending.first()?;
        if context.waits(&first.canceller.waker()).is_err() {
            return Some(0);
        }
        let flights = pending.iter().map(|one| &one.flight);
        let limit = Duration::from_millis(ms);
        let found = DetachedCall::await_first(flights, &mut Waiter::default(), limit);
        context.waits_no_more();
        found
    }

    fn suits_sink(&self, address: &str, node: NodeId) -> bool {
        let address = address.parse::<SocketAddr>();
        address.is_ok_and(|tcp| self.pool.shares_with(Address::new(tcp, node)))
    }

    async fn finish_into(
        &self,
        context: &OperationContext,
        pending: RealPending,
        sink: &mut ReadSink,
        bytes: usize,
    ) -> Result<ServerReply, NetFailure> {
        let reply = watched(context, pending, |flight| {
            flight.finish(PayloadInto::Memory)
        })?;
        if reply.payload_bytes == bytes {
            sink.0 = reply.memory;
        }
        Ok(ServerReply {
            header: reply.header,
            body: reply.body,
            payload_bytes: reply.payload_bytes,
        })
    }

    fn complain(&self, context: &OperationContext, server: &str, doing: &str, failure: NetFailure) {
        let mut complaints = lock(&self.complaints);
        let now = std::time::Instant::now();
        let is_due = complaints
            .get(server)
            .is_none_or(|last| now.duration_since(*last) >= COMPLAINT_EVERY);
        if is_due {
            complaints.insert(server.to_owned(), now);
            let trace = format_args!("{:016x}", context.trace().0);
            tracing::warn!(server, doing, ?failure, trace, "no answer");
        }
    }

    fn tell(&self, news: ClientNotice) {
        match news {
            ClientNotice::Opened(shard) => {
                if let Some(on_opened) = self.on_opened.get() {
                    on_opened(shard);
                }
            }
            ClientNotice::Session(shard, identity) => {
                let client = format_args!("{:016x}", identity.client.0);
                let incarnation = identity.incarnation.0;
                tracing::info!(shard = shard.0, %client, incarnation, "a session is opened");
            }
            ClientNotice::Forfeited(ino) => {
                tracing::error!(%ino, "others have got the locks that were held on a file: unsent writes under them are dropped, \
                    and each open of the file gets EIO");
            }
            ClientNotice::Incarnation(identity) => {
                let client = format_args!("{:016x}", identity.client.0);
                let incarnation = identity.incarnation.0;
                tracing::info!(%client, incarnation, "a session was lost, or its server started anew: a new incarnation begins");
            }
        }
    }
}
