//! The threads beside those that call: one for [`housekeeping`], one for [`recalls`], one for the
//! [`events`] of each shard with a session.
//!
//! What an event means beyond the client core (pages and names that a kernel keeps, callers that
//! wait for a lock) is the [`Listener`]'s.

mod events;
mod housekeeping;
mod recalls;

use crate::block_on::block_on;
use crate::transport::RealNet;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zonal_client::{Cancellation, Client, ClientCall};
use zonal_types::{ErrorCode, Ino, ShardId};
use zonal_wire::Event;

/// Who uses a client: a mount, or a program that links it.
pub trait Listener: Send + Sync + 'static {
    /// The client core.
    fn client(&self) -> &Client<RealNet>;

    /// How the threads are reached.
    fn signal(&self) -> &Signal;

    /// Begins what an event asks for beyond the client core. Returns the directories that
    /// [`Self::settle`] is asked about.
    fn carry_out(&self, event: &Event) -> Vec<Ino>;

    /// Waits until what was begun for these directories may be acknowledged; false where the leases
    /// were over before.
    fn settle(&self, dirs: &[Ino]) -> bool;

    /// A lock that was waited for under this number is held.
    fn lock_was_granted(&self, call: &ClientCall<'_, RealNet>, ino: Ino, waiter: u64);

    /// A restarted shard did not queue it again.
    fn lock_was_refused(&self, waiter: u64, code: ErrorCode);

    /// Housekeeping comes by.
    fn keep_house(&self) {}
}

/// A thread that watches a shard, and what gives up that for which it waits.
struct Watch {
    cancellation: Cancellation,
    thread: JoinHandle<()>,
}

/// How the threads are reached.
#[derive(Default)]
pub struct Signal {
    house: housekeeping::HousekeepingSignal,
    recalls: recalls::Recalls,
    watched: Mutex<BTreeSet<ShardId>>,
    watches: Mutex<Vec<Watch>>,
    are_watches_ended: AtomicBool,
    is_ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signal {
    /// The threads are to end.
    pub fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        self.wake();
        self.house.end();
        self.recalls.end();
    }

    fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn are_watches_ended(&self) -> bool {
        self.is_ended() || self.are_watches_ended.load(Ordering::SeqCst)
    }
}

/// The threads of a client.
pub struct Background<L: Listener> {
    listener: Arc<L>,
    threads: Vec<JoinHandle<()>>,
}

impl<L: Listener> Background<L> {
    /// Starts housekeeping and recalls. Shards are watched by [`watch_all`].
    ///
    /// # Errors
    /// Where no thread can be made.
    pub fn start(listener: &Arc<L>) -> std::io::Result<Self> {
        let mut background = Self {
            listener: listener.clone(),
            threads: Vec::new(),
        };
        background.spawn("housekeeping", housekeeping::run)?;
        background.spawn("recalls", recalls::run)?;
        Ok(background)
    }

    fn spawn(&mut self, name: &str, run: fn(&L)) -> std::io::Result<()> {
        let listener = self.listener.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&listener))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Ends the threads that watch shards, for a process that goes on: a poll after the end of its
    /// session would open another one. What shards want back is not heard of from here on.
    pub fn end_watches(&self) {
        let signal = self.listener.signal();
        signal.are_watches_ended.store(true, Ordering::SeqCst);
        // No thread is started from here on.
        drop(lock(&signal.watched));
        let watches = std::mem::take(&mut *lock(&signal.watches));
        for watch in &watches {
            watch.cancellation.cancel();
        }
        for watch in watches {
            let _ = watch.thread.join();
        }
    }

    /// Ends housekeeping and recalls, then flushes everything and ends the sessions.
    ///
    /// # Errors
    /// The first failure; the rest is done all the same.
    pub fn end(self, call: &ClientCall<'_, RealNet>) -> Result<(), ErrorCode> {
        self.listener.signal().end();
        for thread in self.threads {
            let _ = thread.join();
        }
        block_on(call.close())
    }
}

/// Watches the events of the root's shard for good, and of each other shard as long as there is a
/// session.
pub fn watch_all<L: Listener>(listener: &Arc<L>) {
    // The core must not keep alive what it is a part of.
    let weak = Arc::downgrade(listener);
    listener.client().net().on_opened(move |shard| {
        if let Some(listener) = weak.upgrade() {
            watch(&listener, [shard].into_iter());
        }
    });
    let client = listener.client();
    let open = client.map().shards.clone().into_iter();
    let open = open.map(|shard| shard.id);
    let open = open.filter(|shard| *shard == ShardId(0) || client.link_to(*shard).is_open());
    watch(listener, open);
}

fn watch<L: Listener>(listener: &Arc<L>, shards: impl Iterator<Item = ShardId>) {
    let mut watched = lock(&listener.signal().watched);
    if listener.signal().are_watches_ended() {
        return;
    }
    events::watch_new(&mut watched, shards, |shard| {
        let watch = events::start_watch(listener, shard)?;
        lock(&listener.signal().watches).push(watch);
        Ok(())
    });
}
