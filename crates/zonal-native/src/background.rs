//! Background threads of a client: one for [`housekeeping`], one for [`recalls`], and one for the
//! [`events`] of each shard with a session.
//!
//! The [`Listener`] carries out events beyond the client core: pages and names in a kernel, and
//! callers that wait for a lock.

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

/// The user of a client: a mount, or a program that links it.
pub trait Listener: Send + Sync + 'static {
    /// The client core.
    fn client(&self) -> &Client<RealNet>;

    /// How to reach the threads.
    fn signal(&self) -> &Signal;

    /// Begins to carry out an event beyond the client core. Returns the directories to pass to
    /// [`Self::settle`].
    fn carry_out(&self, event: &Event) -> Vec<Ino>;

    /// Waits until events about these directories may be acknowledged; false where the leases
    /// expired first.
    fn settle(&self, dirs: &[Ino]) -> bool;

    /// A waiting lock request was granted, under this number.
    fn lock_was_granted(&self, call: &ClientCall<'_, RealNet>, ino: Ino, waiter: u64);

    /// A restarted shard refused to queue a lock request again.
    fn lock_was_refused(&self, waiter: u64, code: ErrorCode);

    /// Called by each round of housekeeping.
    fn keep_house(&self) {}
}

/// A thread that watches a shard, and its cancellation.
struct Watch {
    cancellation: Cancellation,
    thread: JoinHandle<()>,
}

/// How to reach the threads.
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
    /// Ends the threads.
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
    /// Starts housekeeping and recalls. [`watch_all`] watches the shards.
    ///
    /// # Errors
    /// The system cannot start a thread.
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

    /// Ends the threads that watch shards, in a process that continues: a poll after the end of its
    /// session would open another one. From here on recalls of shards are not received.
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
    /// The last failure of a flush; the rest is done all the same.
    pub fn end(self, call: &ClientCall<'_, RealNet>) -> Result<(), ErrorCode> {
        self.listener.signal().end();
        for thread in self.threads {
            let _ = thread.join();
        }
        block_on(call.close())
    }
}

/// Watches the events of the root's shard for ever, and of each other shard while it has a session.
pub fn watch_all<L: Listener>(listener: &Arc<L>) {
    // A weak reference: the core must not own the listener that owns it.
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
