//! Idle connections, requests that wait, and the threads that serve them: neither costs a thread.
//!
//! The thread that received a request runs it and sends the reply, then stays with its connection
//! for [`STAY`], as the next request of a busy client comes soon. After that it puts the connection
//! aside here, and waits for any connection that is aside (epoll, one event a connection and wait).
//! So a request on a busy connection costs no system call more than with a thread a connection, and
//! one on an idle connection two more (`epoll_wait`, `epoll_ctl`).
//!
//! A handler that would wait parks its request ([`crate::ReplyBuilder::park`]): the connection is
//! kept here with it until [`Resumer::resume`], or until the peer goes away. Then the handler is
//! called again.
//!
//! *Invariants*: (1) while a connection is aside some thread waits for it, or is about to; (2) a
//! connection is aside before it is watched, so that its event finds it; (3) at most [`FREE_MAX`]
//! threads wait, and one that frees buffers; others end; (4) a parked request is resumed once for
//! each time that it was parked, however many resume it and whenever they do.
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
use crate::server_connection::{Left, ServerConnection};
use crate::stream::Stream;

/// How long a thread stays with a connection after a reply.
pub(crate) const STAY: Duration = Duration::from_millis(10);
/// Threads that wait for connections that are aside.
const FREE_MAX: usize = 4;
/// The event that ends all threads.
const END: u64 = u64::MAX;
/// The event of a request that goes on.
const READY: u64 = u64::MAX - 1;

/// Connections that are aside, and threads.
pub(crate) struct IdleConnections {
    watched: OwnedFd,
    end: OwnedFd,
    /// Counts what is in [`State::ready`].
    ready: OwnedFd,
    state: Mutex<State>,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    aside: BTreeMap<u64, Aside>,
    parked: BTreeMap<u64, Parked>,
    /// Requests that go on.
    ready: VecDeque<Box<ServerConnection>>,
    /// Times that a request was parked.
    rounds: u64,
    /// Connections aside that keep their buffers.
    buffered: usize,
    /// Threads that wait, or are about to.
    free: usize,
    /// One of them wakes by itself, to free buffers.
    is_swept: bool,
    threads: usize,
    is_ending: bool,
}

struct Aside {
    conversation: Box<ServerConnection>,
    since: Instant,
    has_buffers: bool,
}

/// A request that waits.
struct Parked {
    round: u64,
    /// `None`: its handler has not returned yet.
    conversation: Option<Box<ServerConnection>>,
    is_resumed: bool,
}

/// Lets a parked request go on.
#[derive(Debug, Clone)]
pub struct Resumer {
    shared: Weak<Shared>,
    id: u64,
    round: u64,
}

impl Resumer {
    /// The handler is called again with the request. Without effect on one that went on already.
    pub fn resume(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.idle.resume(self.id, self.round);
        }
    }
}

/// What a free thread goes on with.
enum Next {
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

    /// Puts a connection aside. Whoever calls waits for connections next, or sees to it that one
    /// does.
    fn put(&self, conversation: Box<ServerConnection>) {
        let (id, stream) = (conversation.id(), Arc::clone(conversation.stream()));
        let aside = Aside {
            conversation,
            since: Instant::now(),
            has_buffers: true,
        };
        {
            let mut state = self.state();
            state.buffered += 1;
            state.aside.insert(id, aside);
        }
        if let Err(errno) = self.watch(id, &stream, EventFlags::IN | EventFlags::RDHUP) {
            // Out of memory. Nobody would hear of it again.
            tracing::warn!(%errno, "a connection cannot be watched and ends");
            drop(self.take(id));
        }
    }

    /// Has a connection's next event wake a thread.
    fn watch(&self, id: u64, stream: &Stream, flags: EventFlags) -> Result<(), Errno> {
        let (data, flags) = (EventData::new_u64(id), flags | EventFlags::ONESHOT);
        match epoll::modify(&self.watched, stream, data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.watched, stream, data, flags),
            watched => watched,
        }
    }

    /// Names a wait of the request that `id` is about to park.
    pub(crate) fn park(&self, shared: &Weak<Shared>, id: u64) -> Resumer {
        let mut state = self.state();
        state.rounds += 1;
        let round = state.rounds;
        let parked = Parked {
            round,
            conversation: None,
            is_resumed: false,
        };
        state.parked.insert(id, parked);
        let shared = Weak::clone(shared);
        Resumer { shared, id, round }
    }

    /// The request did not have to wait.
    pub(crate) fn unpark(&self, id: u64) {
        self.state().parked.remove(&id);
    }

    /// Keeps a connection whose request was parked, unless it was resumed meanwhile.
    fn keep(&self, conversation: Box<ServerConnection>) -> Option<Box<ServerConnection>> {
        let (id, stream) = (conversation.id(), Arc::clone(conversation.stream()));
        {
            let mut state = self.state();
            match state.parked.get_mut(&id) {
                Some(parked) if !parked.is_resumed => parked.conversation = Some(conversation),
                _ => {
                    state.parked.remove(&id);
                    return Some(conversation);
                }
            }
        }
        // One that cannot be watched goes on when it is resumed.
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
        if let Some(conversation) = parked.conversation.take() {
            state.parked.remove(&id);
            state.ready.push_back(conversation);
            drop(state);
            // As above.
            let _ = rustix::io::write(&self.ready, &1_u64.to_le_bytes());
        }
    }

    /// The next request that goes on.
    fn take_ready(&self) -> Option<Box<ServerConnection>> {
        rustix::io::read(&self.ready, &mut [0_u8; 8]).ok()?;
        self.state().ready.pop_front()
    }

    fn take(&self, id: u64) -> Option<Box<ServerConnection>> {
        let mut state = self.state();
        if let Some(aside) = state.aside.remove(&id) {
            state.buffered -= usize::from(aside.has_buffers);
            return Some(aside.conversation);
        }
        // Its peer is gone.
        let conversation = state.parked.get_mut(&id)?.conversation.take();
        if conversation.is_some() {
            state.parked.remove(&id);
        }
        conversation
    }

    /// Whether the calling thread is to wait for connections: else it ends.
    fn stays_free(&self) -> bool {
        let mut state = self.state();
        let sweeps = state.buffered > 0 && !state.is_swept;
        let stays = (state.free < FREE_MAX || sweeps) && !state.is_ending;
        state.free += usize::from(stays);
        stays
    }

    /// Waits for a connection. True in the second place: nobody else waits now.
    fn wait(&self, patience: Duration) -> (Next, bool) {
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
            Ok(Some(END)) => Next::End,
            Ok(Some(READY)) => self.take_ready().map_or(Next::Nothing, Next::Connection),
            Ok(Some(id)) => self.take(id).map_or(Next::Nothing, Next::Connection),
            Ok(None) | Err(_) => Next::Nothing,
        };
        let mut state = self.state();
        if !matches!(next, Next::Nothing) {
            state.free -= 1;
        }
        (next, state.free == 0)
    }

    /// Frees the buffers of connections that are aside for long.
    fn sweep(&self, patience: Duration) {
        let mut state = self.state();
        let state = &mut *state;
        state.is_swept = false;
        for aside in state.aside.values_mut() {
            if aside.has_buffers && aside.since.elapsed() >= patience {
                aside.conversation.free();
                aside.has_buffers = false;
                state.buffered -= 1;
            }
        }
    }

    /// Ends the threads that wait, and waits for all at most so long. How many are left.
    pub(crate) fn end(&self, limit: Duration) -> usize {
        self.state().is_ending = true;
        // Eight bytes into an eventfd with a small count: cannot fail or wait.
        let _ = rustix::io::write(&self.end, &1_u64.to_le_bytes());
        let (mut state, _timeout) = self
            .ended
            .wait_timeout_while(self.state(), limit, |state| state.threads > 0)
            .unwrap_or_else(PoisonError::into_inner);
        let left = state.threads;
        let aside = std::mem::take(&mut state.aside);
        let parked = std::mem::take(&mut state.parked);
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop((aside, parked, ready));
        left
    }
}

/// A thread that is counted.
struct Counted<'a>(&'a IdleConnections);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
        self.0.ended.notify_all();
    }
}

/// Starts a thread that begins with `first`, and waits for connections that are aside afterwards.
pub(crate) fn start_thread(
    shared: &Arc<Shared>,
    first: impl FnOnce() -> Left + Send + 'static,
) -> std::io::Result<()> {
    shared.idle.state().threads += 1;
    let for_thread = Arc::clone(shared);
    let spawned = thread::Builder::new()
        .name("connection".into())
        .stack_size(shared.config.stack_bytes)
        .spawn(move || {
            let shared = for_thread;
            let _counted = Counted(&shared.idle);
            serve_all(&shared, first());
        });
    if spawned.is_err() {
        drop(Counted(&shared.idle));
    }
    spawned.map(drop)
}

/// Serves one connection after the other, beginning with what is left of one that was served
/// before.
fn serve_all(shared: &Arc<Shared>, left: Left) {
    let idle = &shared.idle;
    settle(idle, left);
    while idle.stays_free() {
        loop {
            let (next, is_alone) = idle.wait(shared.config.patience);
            match next {
                Next::Nothing => {}
                Next::End => return,
                Next::Connection(conversation) => {
                    if is_alone && let Err(error) = start_thread(shared, || Left::Nothing) {
                        // The others wait until this one has its reply.
                        tracing::warn!(%error, "no thread for connections that wait");
                    }
                    settle(idle, conversation.serve());
                    break;
                }
            }
        }
    }
}

fn settle(idle: &IdleConnections, mut left: Left) {
    loop {
        match left {
            Left::Nothing => return,
            Left::Aside(conversation) => return idle.put(conversation),
            Left::Parked(conversation) => match idle.keep(conversation) {
                Some(conversation) => left = conversation.serve(),
                None => return,
            },
        }
    }
}
