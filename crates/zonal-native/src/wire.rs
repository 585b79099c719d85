//! The core's transport, clock and randomness, for a real machine.
//!
//! A request is sent and received on the calling thread (2 system calls, no wake-up in this process). While a thread
//! connects, sends, or waits for a reply or for another thread it can be freed by [`RealNet::cancel`]: a killed process must
//! not wait for a dead server.
//!
//! *How long an operation takes at most*: each request is tried until its deadline. From the first that gets no answer the
//! operation has one deadline and a fifth for everything that it still has to do, until that server answers. (The fifth is
//! for asking the servers that live.) An operation whose servers answer has no end of its own. A server for which one has
//! waited in vain is given little time by those that follow ([`crate::silence`]).

use crate::silence::{Silences, brief_ms};
use crate::sink::Sink;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zonal_client::net::{Ends, Message, Net, NetFailure, News, Reply};
use zonal_client::run::Brought;
use zonal_net::{Address, Canceller, Flight, NetError, PayloadInto, Pool, Request};
use zonal_types::limits::{REGION_PAYLOAD_MIN, REQUEST_DEADLINE_MS};
use zonal_types::{ErrorCode, Instant, NodeId, ShardId, Timestamp, TraceId};
use zonal_wire::Service;

/// At most one complaint about a server in this time.
const COMPLAINT_EVERY: Duration = Duration::from_secs(5);
/// How often a pause looks whether it was cancelled.
const PAUSE_STEP: Duration = Duration::from_millis(20);

/// What one worker thread is doing.
struct Work {
    thread: std::thread::Thread,
    unique: AtomicU64,
    /// It works for somebody who waits; else by itself.
    is_call: AtomicBool,
    cancelled: AtomicBool,
    flight: Mutex<Option<Canceller>>,
}

/// A server that did not answer the present operation.
struct Trouble {
    server: SocketAddr,
    /// Nothing was heard of it since then.
    unheard: Instant,
    ends: Ends,
}

thread_local! {
    static WORK: RefCell<Option<Arc<Work>>> = const { RefCell::new(None) };
    static TROUBLE: RefCell<Option<Trouble>> = const { RefCell::new(None) };
    static TRACE: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// Sockets, clock and randomness.
pub struct RealNet {
    pool: Arc<Pool>,
    started: std::time::Instant,
    /// From the first request without an answer to the end of its operation.
    patience_ms: u64,
    silences: Silences,
    workers: Mutex<Vec<Arc<Work>>>,
    complaints: Mutex<BTreeMap<String, std::time::Instant>>,
    on_opened: OnceLock<Box<dyn Fn(ShardId) + Send + Sync>>,
    /// With the number of a call added it is the trace of what is asked for it.
    first_trace: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request under way.
struct Sent {
    flight: Flight,
    canceller: Canceller,
    server: SocketAddr,
    at: Instant,
}

/// A request under way, or why it could not be sent.
pub struct RealPending(Result<Sent, NetFailure>);

impl RealNet {
    /// A transport over `pool`, for a client with the default deadline.
    #[must_use]
    pub fn new(pool: Arc<Pool>) -> Self {
        Self {
            pool,
            started: std::time::Instant::now(),
            patience_ms: REQUEST_DEADLINE_MS + REQUEST_DEADLINE_MS / 5,
            silences: Silences::default(),
            workers: Mutex::new(Vec::new()),
            complaints: Mutex::new(BTreeMap::new()),
            on_opened: OnceLock::new(),
            first_trace: getrandom::u64().unwrap_or(0),
        }
    }

    /// The same for a client whose requests have so long a deadline.
    #[must_use]
    pub fn with_deadline(mut self, deadline_ms: u64) -> Self {
        self.patience_ms = deadline_ms + deadline_ms / 5;
        self
    }

    /// Has `act` called whenever a session is opened at a shard where there was none. Only the first counts.
    pub fn on_opened(&self, act: impl Fn(ShardId) + Send + Sync + 'static) {
        let _first = self.on_opened.set(Box::new(act));
    }

    /// The connections.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Notes which call the calling thread works on (a request of the kernel, or a program's), until the next note.
    pub fn working_on(&self, unique: u64) {
        self.work_on(unique, true);
        self.begin();
        TRACE.set(Some(TraceId(self.first_trace.wrapping_add(unique))));
    }

    /// Notes what the calling thread works on by itself, so that [`Self::cancel`] ends it.
    pub fn watching(&self, unique: u64) {
        self.work_on(unique, false);
    }

    fn work_on(&self, unique: u64, is_call: bool) {
        WORK.with_borrow_mut(|work| {
            let work = work.get_or_insert_with(|| {
                let work = Arc::new(Work {
                    thread: std::thread::current(),
                    unique: AtomicU64::new(0),
                    is_call: AtomicBool::new(true),
                    cancelled: AtomicBool::new(false),
                    flight: Mutex::new(None),
                });
                let mut workers = lock(&self.workers);
                // Threads that have ended let go of theirs.
                workers.retain(|work| Arc::strong_count(work) > 1);
                workers.push(work.clone());
                work
            });
            work.cancelled.store(false, Ordering::Relaxed);
            work.is_call.store(is_call, Ordering::Relaxed);
            work.unique.store(unique, Ordering::SeqCst);
        });
    }

    /// Servers that lately gave no answer, by what the log calls them.
    #[must_use]
    pub fn unanswered(&self) -> Vec<String> {
        let complaints = lock(&self.complaints);
        let lately = complaints
            .iter()
            .filter(|(_, last)| last.elapsed() < COMPLAINT_EVERY * 6);
        lately.map(|(server, _)| server.clone()).collect()
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
        // It may wait for another thread.
        work.thread.unpark();
        true
    }

    /// Notes what the calling thread has under way, so that [`Self::cancel`] finds it; refuses where it has been cancelled.
    fn watch(canceller: Option<&Canceller>) -> Result<(), NetFailure> {
        WORK.with_borrow(|work| {
            let Some(work) = work else { return Ok(()) };
            *lock(&work.flight) = canceller.cloned();
            if canceller.is_some() && work.cancelled.load(Ordering::SeqCst) {
                *lock(&work.flight) = None;
                return Err(NetFailure::Refused(ErrorCode::Interrupted));
            }
            Ok(())
        })
    }

    /// What the outcome of a request that was sent `at` says of its server.
    fn note_outcome(&self, server: SocketAddr, at: Instant, failure: Option<&NetFailure>) {
        let now = self.now();
        let unheard = match failure {
            Some(NetFailure::TimedOut) => at,
            // There was one until now, to which the connection was.
            Some(NetFailure::Unreachable | NetFailure::Silent) => now,
            // Not waited for, or not sent.
            Some(NetFailure::Refused(ErrorCode::Interrupted | ErrorCode::TooBig)) => return,
            None | Some(NetFailure::Refused(_)) => {
                self.silences.end(server);
                TROUBLE.with_borrow_mut(|trouble| {
                    trouble.take_if(|known| known.server == server);
                });
                return;
            }
        };
        let unheard = TROUBLE.with_borrow_mut(|trouble| {
            let end = at.plus_ms(self.patience_ms);
            let known = trouble.get_or_insert(Trouble {
                server,
                unheard,
                ends: Ends {
                    repeats: end,
                    all: end,
                },
            });
            let is_known = known.server == server;
            if is_known { known.unheard } else { unheard }
        });
        if Self::is_call() && now.ms_since(unheard) >= self.patience_ms * 3 / 4 {
            self.silences.begin(server, now, self.patience_ms);
        }
    }

    /// Whether the calling thread works for somebody who waits, not for the client itself.
    fn is_call() -> bool {
        WORK.with_borrow(|work| {
            let is_call = |work: &Arc<Work>| work.is_call.load(Ordering::Relaxed);
            work.as_ref().is_some_and(is_call)
        })
    }

    /// How long the calling thread waits for a reply of a server that was asked `at` and may take `deadline_ms`. As long again is left for
    /// the servers that live.
    fn limit(&self, server: SocketAddr, at: Instant, deadline_ms: u32) -> u32 {
        if !Self::is_call() || !self.silences.is_silent(server, at) {
            return deadline_ms;
        }
        let brief = brief_ms(self.patience_ms);
        TROUBLE.with_borrow_mut(|trouble| {
            trouble.get_or_insert(Trouble {
                server,
                unheard: at,
                ends: Ends {
                    repeats: at.plus_ms(brief),
                    all: at.plus_ms(2 * brief),
                },
            });
        });
        deadline_ms.min(u32::try_from(brief).unwrap_or(u32::MAX))
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

/// Waits for a reply so that [`RealNet::cancel`] can end it.
fn watched<T>(
    net: &RealNet,
    pending: RealPending,
    finish: impl FnOnce(Flight) -> Result<T, NetError>,
) -> Result<T, NetFailure> {
    let sent = pending.0?;
    RealNet::watch(Some(&sent.canceller))?;
    let outcome = finish(sent.flight);
    RealNet::watch(None)?;
    let outcome = outcome.map_err(|error| {
        tracing::debug!(%error, "no reply");
        failure(&error)
    });
    net.note_outcome(sent.server, sent.at, outcome.as_ref().err());
    outcome
}

impl Net for RealNet {
    type Pending = RealPending;
    type Sink = Sink;

    fn memory(&self, bytes: usize) -> Option<Box<dyn Brought>> {
        // Shorter ones would leave most of their slot empty.
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
        // Without the kernel's randomness the clock must do: the number names a client, it keeps no secret.
        getrandom::u64().unwrap_or(self.wall().nanos.into())
    }

    async fn sleep(&self, ms: u64) {
        let mut left = Duration::from_millis(ms);
        while !left.is_zero() && !self.is_cancelled() {
            let step = left.min(PAUSE_STEP);
            std::thread::sleep(step);
            left = left.saturating_sub(step);
        }
    }

    fn start(&self, address: &str, message: &Message<'_>) -> RealPending {
        let at = self.now();
        let canceller = Canceller::default();
        if let Err(failure) = Self::watch(Some(&canceller)) {
            return RealPending(Err(failure));
        }
        let Ok(tcp) = address.parse::<SocketAddr>() else {
            return RealPending(Err(NetFailure::Unreachable));
        };
        let mut header = message.header;
        header.deadline_ms = self.limit(tcp, at, header.deadline_ms);
        let request = Request {
            operation: operation(header.service),
            header,
            body: message.body,
            payload: message.payload,
            room: message.room,
        };
        let to = Address::new(tcp, message.node);
        let started = self.pool.start_cancellable(to, request, &canceller);
        RealPending(match started {
            Ok(flight) => Ok(Sent {
                flight: flight.detach(self.pool.clone()),
                canceller,
                server: tcp,
                at,
            }),
            Err(error) => {
                tracing::debug!(%error, "request not sent");
                let failure = failure(&error);
                self.note_outcome(tcp, at, Some(&failure));
                Err(failure)
            }
        })
    }

    async fn finish(
        &self,
        pending: RealPending,
        payload: Option<&mut [u8]>,
    ) -> Result<Reply, NetFailure> {
        let into = payload.map_or(PayloadInto::Owned, PayloadInto::One);
        watched(self, pending, |flight| flight.finish(into)).map(|reply| Reply {
            header: reply.header,
            body: reply.body,
            payload_bytes: reply.payload_bytes,
        })
    }

    fn suits_sink(&self, address: &str, node: NodeId) -> bool {
        let address = address.parse::<SocketAddr>();
        address.is_ok_and(|tcp| self.pool.shares_with(Address::new(tcp, node)))
    }

    async fn finish_into(
        &self,
        pending: RealPending,
        sink: &mut Sink,
        bytes: usize,
    ) -> Result<Reply, NetFailure> {
        let reply = watched(self, pending, |flight| flight.finish(PayloadInto::Memory))?;
        if reply.payload_bytes == bytes {
            sink.0 = reply.memory;
        }
        Ok(Reply {
            header: reply.header,
            body: reply.body,
            payload_bytes: reply.payload_bytes,
        })
    }

    fn begin(&self) {
        TROUBLE.set(None);
        TRACE.set(None);
    }

    fn trace(&self) -> Option<TraceId> {
        TRACE.get()
    }

    fn operation_ends(&self) -> Option<Ends> {
        TROUBLE.with_borrow(|trouble| trouble.as_ref().map(|known| known.ends))
    }

    fn is_cancelled(&self) -> bool {
        WORK.with_borrow(|work| {
            work.as_ref()
                .is_some_and(|work| work.cancelled.load(Ordering::SeqCst))
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
            let trace = format_args!("{:016x}", TRACE.get().map_or(0, |trace| trace.0));
            tracing::warn!(server, doing, ?failure, trace, "no answer");
        }
    }

    fn tell(&self, news: News) {
        match news {
            News::Opened(shard) => {
                if let Some(on_opened) = self.on_opened.get() {
                    on_opened(shard);
                }
            }
            News::Session(shard, identity) => {
                let client = format_args!("{:016x}", identity.client.0);
                let incarnation = identity.incarnation.0;
                tracing::info!(shard = shard.0, %client, incarnation, "a session is opened");
            }
            News::Forfeited(ino) => {
                tracing::error!(%ino, "others have got the locks that were held on a file: what was written under them and not sent is dropped, \
                    and who has the file open gets EIO");
            }
            News::Incarnation(identity) => {
                let client = format_args!("{:016x}", identity.client.0);
                let incarnation = identity.incarnation.0;
                tracing::info!(%client, incarnation, "a session was lost, or its server started anew: a new incarnation begins");
            }
        }
    }
}

#[cfg(test)]
mod tests;
