//! Idle connections and the threads that wait for them: an idle connection costs no thread.
//!
//! The thread that received a request runs it and sends the reply, then stays with its connection for
//! [`STAY`], as the next request of a busy client comes soon. After that it puts the connection aside
//! here, and waits for any connection that is aside (epoll, one event a connection and wait). So a
//! request on a busy connection costs no system call more than with a thread a connection, and one on
//! an idle connection two more (`epoll_wait`, `epoll_ctl`).
//!
//! *Invariants*: (1) while a connection is aside some thread waits for it, or is about to; (2) a
//! connection is aside before it is watched, so that its event finds it; (3) at most [`FREE_MAX`]
//! threads wait, and one that frees buffers; others end.
//!
//! *Lock order*: `Idle::state` is taken last, and never held while a socket is used.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::conversation::Conversation;
use crate::error::NetError;
use crate::server::Shared;

/// How long a thread stays with a connection after a reply.
pub(crate) const STAY: Duration = Duration::from_millis(10);
/// Threads that wait for connections that are aside.
const FREE_MAX: usize = 4;
/// The event that ends all threads.
const END: u64 = u64::MAX;

/// Connections that are aside, and threads.
pub(crate) struct Idle {
    watched: OwnedFd,
    end: OwnedFd,
    state: Mutex<State>,
    /// A thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    aside: BTreeMap<u64, Aside>,
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
    conversation: Box<Conversation>,
    since: Instant,
    has_buffers: bool,
}

/// What a free thread goes on with.
enum Next {
    Conversation(Box<Conversation>),
    Nothing,
    End,
}

impl Idle {
    pub(crate) fn new() -> Result<Self, NetError> {
        let local = |errno: Errno| NetError::Local {
            what: "an event descriptor",
            source: errno.into(),
        };
        let watched = epoll::create(CreateFlags::CLOEXEC).map_err(local)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC).map_err(local)?;
        epoll::add(&watched, &end, EventData::new_u64(END), EventFlags::IN).map_err(local)?;
        Ok(Self {
            watched,
            end,
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a connection aside. Whoever calls waits for connections next, or sees to it that one does.
    fn put(&self, id: u64, mut conversation: Box<Conversation>) {
        let stream = Arc::clone(conversation.stream());
        let is_known = std::mem::replace(&mut conversation.is_watched, true);
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
        let data = EventData::new_u64(id);
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        let watched = match is_known {
            true => epoll::modify(&self.watched, &*stream, data, flags),
            false => epoll::add(&self.watched, &*stream, data, flags),
        };
        if let Err(errno) = watched {
            // Out of memory. Nobody would hear of it again.
            tracing::warn!(%errno, "a connection cannot be watched and ends");
            drop(self.take(id));
        }
    }

    fn take(&self, id: u64) -> Option<Box<Conversation>> {
        let mut state = self.state();
        let aside = state.aside.remove(&id)?;
        state.buffered -= usize::from(aside.has_buffers);
        Some(aside.conversation)
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
            Ok(Some(id)) => self.take(id).map_or(Next::Nothing, Next::Conversation),
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
        drop(state);
        drop(aside);
        left
    }
}

/// A thread that is counted.
struct Counted<'a>(&'a Idle);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
        self.0.ended.notify_all();
    }
}

/// Starts a thread that begins with `first`, and waits for connections that are aside afterwards.
pub(crate) fn start_thread(
    shared: &Arc<Shared>,
    first: impl FnOnce() -> Option<Box<Conversation>> + Send + 'static,
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

/// Serves one connection after the other, beginning with `left`, which was served before.
fn serve_all(shared: &Arc<Shared>, left: Option<Box<Conversation>>) {
    let idle = &shared.idle;
    if let Some(left) = left {
        idle.put(left.id(), left);
    }
    while idle.stays_free() {
        loop {
            let (next, is_alone) = idle.wait(shared.config.patience);
            match next {
                Next::Nothing => {}
                Next::End => return,
                Next::Conversation(conversation) => {
                    if is_alone && let Err(error) = start_thread(shared, || None) {
                        // The others wait until this one has its reply.
                        tracing::warn!(%error, "no thread for connections that wait");
                    }
                    if let Some(left) = conversation.serve() {
                        idle.put(left.id(), left);
                    }
                    break;
                }
            }
        }
    }
}
