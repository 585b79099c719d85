//! Idle connections and parked requests, and the threads that serve them: neither holds a thread.
//!
//! The thread that received a request runs it and sends the reply. It then stays with its
//! connection for [`STAY`], as a busy client's next request comes soon. After that it puts the
//! connection among the idle ones, and waits for an event of any idle connection (epoll, one event
//! for each wait). So a busy connection costs no more system calls than with a thread of its own. A
//! request on an idle connection costs two more (`epoll_wait`, `epoll_ctl`).
//!
//! A handler that would wait parks its request ([`crate::ReplyBuilder::park`]). The connection
//! stays here with it until [`Resumer::resume`], or until the peer goes away; then the handler is
//! called again.
//!
//! *Invariants*:
//! 1. While a connection is idle some thread waits for it, or is about to.
//! 2. A connection is put among the idle ones before it is watched, so that its event finds it.
//! 3. At most [`FREE_MAX`] threads wait, and one that frees buffers; others end.
//! 4. A parked request is resumed once for each time that it was parked, however often and whenever
//!    a [`Resumer`] is used.
//!
//! *Lock order*: `IdleConnections::state` is taken last, and never held while a socket is used.

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::error::NetError;
use crate::server::Shared;
use crate::server_connection::{ServeOutcome, ServerConnection};
use crate::stream::Stream;

/// How long a thread stays with a connection after a reply.
pub(crate) const STAY: Duration = Duration::from_millis(10);
/// Threads that wait for idle connections.
const FREE_MAX: usize = 4;
/// The event that ends all threads.
const END: u64 = u64::MAX;
/// The event of a resumed request.
const READY: u64 = u64::MAX - 1;

/// Idle connections and waiting threads.
pub(crate) struct IdleConnections {
    watched: OwnedFd,
    end: OwnedFd,
    /// Event descriptor that counts the entries of [`State::ready`].
    ready: OwnedFd,
    state: Mutex<State>,
    /// Signalled when a thread ends.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    idle: BTreeMap<u64, IdleConnection>,
    parked: BTreeMap<u64, ParkedRequest>,
    /// Connections with a resumed request.
    ready: VecDeque<Box<ServerConnection>>,
    /// How often a request was parked.
    rounds: u64,
    /// Idle connections that still have their buffers.
    buffered: usize,
    /// Threads that wait, or are about to.
    free: usize,
    /// One of the waiting threads wakes by itself, to free buffers.
    is_swept: bool,
    threads: usize,
    is_ending: bool,
}

struct IdleConnection {
    connection: Box<ServerConnection>,
    since: Instant,
    has_buffers: bool,
}

/// A parked request.
struct ParkedRequest {
    round: u64,
    /// `None`: its handler has not returned yet.
    connection: Option<Box<ServerConnection>>,
    is_resumed: bool,
}

/// Resumes a parked request.
#[derive(Debug, Clone)]
pub struct Resumer {
    shared: Weak<Shared>,
    id: u64,
    round: u64,
}

impl Resumer {
    /// Calls the handler again with the request. Without effect on a request that was resumed
    /// already.
    pub fn resume(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.idle.resume(self.id, self.round);
        }
    }
}

/// The next work of a waiting thread.
enum NextWork {
    Connection(Box<ServerConnection>),
    Nothing,
    End,
}

impl IdleConnections {
    pub(crate) fn new() -> Result<Self, NetError> {
        let local = |errno: Errno| NetError::Local {
            what: "an event descriptor",
            source: errno.into(),
        };
        let watched = epoll::create(CreateFlags::CLOEXEC).map_err(local)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(local)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let ready = eventfd(0, flags).map_err(local)?;
        for (event, number) in [(&end, END), (&ready, READY)] {
            epoll::add(&watched, event, EventData::new_u64(number), EventFlags::IN)
                .map_err(local)?;
        }
        Ok(Self {
            watched,
            end,
            ready,
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a connection among the idle ones. The caller waits for connections next, or ensures
    /// that another thread does.
    fn put(&self, connection: Box<ServerConnection>) {
        let (id, stream) = (connection.id(), Arc::clone(connection.stream()));
        let idle = IdleConnection {
            connection,
            since: Instant::now(),
            has_buffers: true,
        };
        {
            let mut state = self.state();
            state.buffered += 1;
            state.idle.insert(id, idle);
        }
        if let Err(errno) = self.watch(id, &stream, EventFlags::IN | EventFlags::RDHUP) {
            // Out of memory: an unwatched connection would never be served again.
            tracing::warn!(%errno, "cannot watch a connection, closing it");
            drop(self.take(id));
        }
    }

    /// Lets a connection's next event wake a thread.
    fn watch(&self, id: u64, stream: &Stream, flags: EventFlags) -> Result<(), Errno> {
        let (data, flags) = (EventData::new_u64(id), flags | EventFlags::ONESHOT);
        match epoll::modify(&self.watched, stream, data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.watched, stream, data, flags),
            watched => watched,
        }
    }

    /// Prepares a resumer for the request that `id` is about to park.
    pub(crate) fn park(&self, shared: &Weak<Shared>, id: u64) -> Resumer {
        let mut state = self.state();
        state.rounds += 1;
        let round = state.rounds;
        let parked = ParkedRequest {
            round,
            connection: None,
            is_resumed: false,
        };
        state.parked.insert(id, parked);
        let shared = Weak::clone(shared);
        Resumer { shared, id, round }
    }

    /// Drops the resumer: the request did not have to wait.
    pub(crate) fn unpark(&self, id: u64) {
        self.state().parked.remove(&id);
    }

    /// Keeps a connection whose request was parked. Returns it where the request was resumed
    /// meanwhile.
    fn keep(&self, connection: Box<ServerConnection>) -> Option<Box<ServerConnection>> {
        let (id, stream) = (connection.id(), Arc::clone(connection.stream()));
        {
            let mut state = self.state();
            match state.parked.get_mut(&id) {
                Some(parked) if !parked.is_resumed => parked.connection = Some(connection),
                _ => {
                    state.parked.remove(&id);
                    return Some(connection);
                }
            }
        }
        // An unwatched connection still goes on when its request is resumed.
        let _ = self.watch(id, &stream, EventFlags::RDHUP);
        None
    }

    fn resume(&self, id: u64, round: u64) {
        let mut state = self.state();
        let Some(parked) = state.parked.get_mut(&id) else {
            return;
        };
        if parked.round != round {
            return;
        }
        parked.is_resumed = true;
        if let Some(connection) = parked.connection.take() {
            state.parked.remove(&id);
            state.ready.push_back(connection);
            drop(state);
            // The small count of an eventfd cannot overflow, so this neither fails nor waits.
            let _ = rustix::io::write(&self.ready, &1_u64.to_le_bytes());
        }
    }

    /// Takes the next connection with a resumed request.
    fn take_ready(&self) -> Option<Box<ServerConnection>> {
        rustix::io::read(&self.ready, &mut [0_u8; 8]).ok()?;
        self.state().ready.pop_front()
    }

    fn take(&self, id: u64) -> Option<Box<ServerConnection>> {
        let mut state = self.state();
        if let Some(idle) = state.idle.remove(&id) {
            state.buffered -= usize::from(idle.has_buffers);
            return Some(idle.connection);
        }
        // The peer is gone.
        let connection = state.parked.get_mut(&id)?.connection.take();
        if connection.is_some() {
            state.parked.remove(&id);
        }
        connection
    }

    /// True where the calling thread shall wait for connections; else it ends.
    fn stays_free(&self) -> bool {
        let mut state = self.state();
        let sweeps = state.buffered > 0 && !state.is_swept;
        let stays = (state.free < FREE_MAX || sweeps) && !state.is_ending;
        state.free += usize::from(stays);
        stays
    }

    /// Waits for a connection. The flag is true where no other thread waits now.
    fn wait(&self, patience: Duration) -> (NextWork, bool) {
        let sweeps = {
            let mut state = self.state();
            let sweeps = state.buffered > 0 && !state.is_swept;
            state.is_swept |= sweeps;
            sweeps
        };
        let limit = sweeps.then(|| Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: patience.subsec_nanos().into(),
        });
        let mut events = [MaybeUninit::uninit(); 1];
        let found = epoll::wait(&self.watched, &mut events, limit.as_ref());
        let found = found.map(|(events, _rest)| events.first().map(|event| event.data.u64()));
        if sweeps {
            self.sweep(patience);
        }
        let next = match found {
            Ok(Some(END)) => NextWork::End,
            Ok(Some(READY)) => self
                .take_ready()
                .map_or(NextWork::Nothing, NextWork::Connection),
            Ok(Some(id)) => self
                .take(id)
                .map_or(NextWork::Nothing, NextWork::Connection),
            Ok(None) | Err(_) => NextWork::Nothing,
        };
        let mut state = self.state();
        if !matches!(next, NextWork::Nothing) {
            state.free -= 1;
        }
        (next, state.free == 0)
    }

    /// Frees the buffers of connections that have been idle for `patience`.
    fn sweep(&self, patience: Duration) {
        let mut state = self.state();
        let state = &mut *state;
        state.is_swept = false;
        for idle in state.idle.values_mut() {
            if idle.has_buffers && idle.since.elapsed() >= patience {
                idle.connection.free();
                idle.has_buffers = false;
                state.buffered -= 1;
            }
        }
    }

    /// Ends the waiting threads, and waits for all threads up to `limit`. Returns how many are
    /// left.
    pub(crate) fn end(&self, limit: Duration) -> usize {
        self.state().is_ending = true;
        // Eight bytes into an eventfd with a small count: cannot fail or wait.
        let _ = rustix::io::write(&self.end, &1_u64.to_le_bytes());
        let (mut state, _timeout) = self
            .ended
            .wait_timeout_while(self.state(), limit, |state| state.threads > 0)
            .unwrap_or_else(PoisonError::into_inner);
        let left = state.threads;
        let idle = std::mem::take(&mut state.idle);
        let parked = std::mem::take(&mut state.parked);
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop((idle, parked, ready));
        left
    }
}

/// A counted thread.
struct CountedThread<'a>(&'a IdleConnections);

impl Drop for CountedThread<'_> {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
        self.0.ended.notify_all();
    }
}

/// Starts a thread that begins with `first`, and then waits for idle connections.
pub(crate) fn start_thread(
    shared: &Arc<Shared>,
    first: impl FnOnce() -> ServeOutcome + Send + 'static,
) -> std::io::Result<()> {
    shared.idle.state().threads += 1;
    let for_thread = Arc::clone(shared);
    let spawned = thread::Builder::new()
        .name("connection".into())
        .stack_size(shared.config.stack_bytes)
        .spawn(move || {
            let shared = for_thread;
            let _counted = CountedThread(&shared.idle);
            serve_all(&shared, first());
        });
    if spawned.is_err() {
        drop(CountedThread(&shared.idle));
    }
    spawned.map(drop)
}

/// Serves connections one after the other, beginning with the outcome of one that was served
/// before.
fn serve_all(shared: &Arc<Shared>, left: ServeOutcome) {
    let idle = &shared.idle;
    settle(idle, left);
    while idle.stays_free() {
        loop {
            let (next, is_alone) = idle.wait(shared.config.patience);
            match next {
                NextWork::Nothing => {}
                NextWork::End => return,
                NextWork::Connection(connection) => {
                    if is_alone && let Err(error) = start_thread(shared, || ServeOutcome::Ended) {
                        // The other connections wait until this one has its reply.
                        tracing::warn!(%error, "cannot start a thread for waiting connections");
                    }
                    settle(idle, connection.serve());
                    break;
                }
            }
        }
    }
}

fn settle(idle: &IdleConnections, mut left: ServeOutcome) {
    loop {
        match left {
            ServeOutcome::Ended => return,
            ServeOutcome::Idle(connection) => return idle.put(connection),
            ServeOutcome::Parked(connection) => match idle.keep(connection) {
                Some(connection) => left = connection.serve(),
                None => return,
            },
        }
    }
}
