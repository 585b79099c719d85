//! The core's transport, clock and randomness, for a real machine.
//!
//! A request is sent and received on the calling thread (2 system calls, no wake-up in this process). While a thread
//! waits for a reply it can be freed by [`RealNet::cancel`]: a killed process must not wait for a dead server.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zonal_client::net::{Message, Net, NetFailure, Reply};
use zonal_fuse::{ReplyData, ReplyPipe};
use zonal_net::{Address, Canceller, Flight, NetError, PayloadInto, Pool, Request};
use zonal_types::{ErrorCode, Instant, Timestamp};
use zonal_wire::Service;

/// At most one complaint about a server in this time.
const COMPLAINT_EVERY: Duration = Duration::from_secs(5);
/// How often a pause looks whether it was cancelled.
const PAUSE_STEP: Duration = Duration::from_millis(20);

/// What one worker thread is doing.
#[derive(Default)]
struct Work {
    unique: AtomicU64,
    cancelled: AtomicBool,
    flight: Mutex<Option<Canceller>>,
}

thread_local! {
    static WORK: RefCell<Option<Arc<Work>>> = const { RefCell::new(None) };
}

/// Sockets, clock and randomness.
pub struct RealNet {
    pool: Arc<Pool>,
    started: std::time::Instant,
    workers: Mutex<Vec<Arc<Work>>>,
    complaints: Mutex<BTreeMap<String, std::time::Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request under way, or why it could not be sent.
pub struct RealPending(Result<Flight, NetFailure>);

impl RealNet {
    /// A transport over `pool`.
    #[must_use]
    pub fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            started: std::time::Instant::now(),
            workers: Mutex::new(Vec::new()),
            complaints: Mutex::new(BTreeMap::new()),
        }
    }

    /// The connections.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Notes which request of the kernel the calling thread works on, until the next note.
    pub fn working_on(&self, unique: u64) {
        WORK.with_borrow_mut(|work| {
            let work = work.get_or_insert_with(|| {
                let work = Arc::new(Work::default());
                lock(&self.workers).push(work.clone());
                work
            });
            work.cancelled.store(false, Ordering::Relaxed);
            work.unique.store(unique, Ordering::SeqCst);
        });
    }

    /// Ends what the thread that works on `unique` waits for; false where none does.
    pub fn cancel(&self, unique: u64) -> bool {
        let workers = lock(&self.workers);
        let Some(work) = workers
            .iter()
            .find(|work| work.unique.load(Ordering::SeqCst) == unique)
        else {
            return false;
        };
        work.cancelled.store(true, Ordering::SeqCst);
        if let Some(flight) = &*lock(&work.flight) {
            flight.cancel();
        }
        true
    }

    fn is_cancelled() -> bool {
        WORK.with_borrow(|work| {
            work.as_ref()
                .is_some_and(|work| work.cancelled.load(Ordering::SeqCst))
        })
    }
}

fn operation(service: Service) -> &'static str {
    match service {
        Service::Meta => "a metadata request",
        Service::Storage => "a storage request",
        Service::Manager => "a request for the zone map",
        Service::Connection => "the handshake",
        Service::Admin => "a request to the server itself",
    }
}

fn failure(error: &NetError) -> NetFailure {
    match error {
        NetError::TimedOut { .. } => NetFailure::TimedOut,
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

/// Where the data of a read go on their way to the kernel: a pipe of the worker.
#[derive(Default)]
pub struct Sink {
    pipe: Option<ReplyPipe>,
    unique: u64,
    /// This process may not have such pipes.
    is_refused: bool,
}

impl Sink {
    /// Ready for the data of request `unique`; `None` where there are no pipes.
    pub fn prepare(&mut self, unique: u64) -> Option<&mut Self> {
        if self.pipe.is_none() && !self.is_refused {
            self.pipe = ReplyPipe::new()
                .inspect_err(|error| tracing::debug!(%error, "reads are copied"))
                .ok();
            self.is_refused = self.pipe.is_none();
        }
        self.unique = unique;
        (!self.is_refused).then_some(self)
    }

    /// Answers with what it was filled with.
    pub fn answer(&mut self, reply: ReplyData) {
        if let Some(pipe) = self.pipe.take()
            && reply.piped(&pipe)
        {
            self.pipe = Some(pipe);
        }
    }
}

/// Waits for a reply so that [`RealNet::cancel`] can end it.
fn watched<T>(
    pending: RealPending,
    finish: impl FnOnce(Flight) -> Result<T, NetError>,
) -> Result<T, NetFailure> {
    let mut flight = pending.0?;
    let work = WORK.with_borrow(Clone::clone);
    if let Some(work) = &work {
        *lock(&work.flight) = Some(flight.canceller());
        if work.cancelled.load(Ordering::SeqCst) {
            return Err(NetFailure::Refused(ErrorCode::Interrupted));
        }
    }
    let outcome = finish(flight);
    if let Some(work) = &work {
        *lock(&work.flight) = None;
    }
    outcome.map_err(|error| {
        tracing::debug!(%error, "no reply");
        failure(&error)
    })
}

impl Net for RealNet {
    type Pending = RealPending;
    type Sink = Sink;

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
        // Without the kernel's randomness the clock must do: the number names a client, it keeps no secret.
        getrandom::u64().unwrap_or(self.wall().nanos.into())
    }

    async fn sleep(&self, ms: u64) {
        let mut left = Duration::from_millis(ms);
        while !left.is_zero() && !Self::is_cancelled() {
            let step = left.min(PAUSE_STEP);
            std::thread::sleep(step);
            left = left.saturating_sub(step);
        }
    }

    fn start(&self, address: &str, message: &Message<'_>) -> RealPending {
        if Self::is_cancelled() {
            return RealPending(Err(NetFailure::Refused(ErrorCode::Interrupted)));
        }
        let Ok(tcp) = address.parse::<SocketAddr>() else {
            return RealPending(Err(NetFailure::Unreachable));
        };
        let request = Request {
            operation: operation(message.header.service),
            header: message.header,
            body: message.body,
            payload: message.payload,
        };
        let started = self.pool.start(Address::any_node(tcp), request);
        RealPending(match started {
            Ok(flight) => Ok(flight.detach(self.pool.clone())),
            Err(error) => {
                tracing::debug!(%error, "request not sent");
                Err(failure(&error))
            }
        })
    }

    async fn finish(
        &self,
        pending: RealPending,
        payload: Option<&mut [u8]>,
    ) -> Result<Reply, NetFailure> {
        let into = payload.map_or(PayloadInto::Owned, PayloadInto::One);
        watched(pending, |flight| flight.finish(into)).map(|reply| Reply {
            header: reply.header,
            body: reply.body,
            payload_bytes: reply.payload_bytes,
        })
    }

    fn suits_sink(&self, address: &str) -> bool {
        let address = address.parse::<SocketAddr>();
        address.is_ok_and(|tcp| self.pool.is_local(Address::any_node(tcp)))
    }

    async fn finish_into(
        &self,
        pending: RealPending,
        sink: &mut Sink,
        bytes: usize,
    ) -> Result<Reply, NetFailure> {
        let pipe = sink.pipe.take();
        let mut pipe = pipe.ok_or(NetFailure::Refused(ErrorCode::NotSupported))?;
        // A pipe that is not put back is closed, with what may be left in it.
        if pipe.begin(sink.unique, bytes).is_err() {
            return Err(NetFailure::Refused(ErrorCode::Io));
        }
        let into = PayloadInto::Pipe(pipe.entrance());
        let reply = watched(pending, |flight| flight.finish(into))?;
        if reply.payload_bytes == bytes {
            sink.pipe = Some(pipe);
        }
        Ok(Reply {
            header: reply.header,
            body: reply.body,
            payload_bytes: reply.payload_bytes,
        })
    }

    fn complain(&self, server: &str, doing: &str, failure: NetFailure) {
        let mut complaints = lock(&self.complaints);
        let now = std::time::Instant::now();
        let is_due = complaints
            .get(server)
            .is_none_or(|last| now.duration_since(*last) >= COMPLAINT_EVERY);
        if is_due {
            complaints.insert(server.to_owned(), now);
            tracing::warn!(server, doing, ?failure, "no answer");
        }
    }
}
