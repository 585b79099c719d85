//! What runs beside the workers: events of shards, housekeeping, notifications to the kernel.
//!
//! - One thread a shard polls events and tells the kernel what to drop *before* it acknowledges. It serves no request, so
//!   it may wait for pages that workers are reading.
//! - One housekeeping thread sends closes and flushes old writes; it sleeps while there is nothing.
//! - One notifier thread drops pages for workers, which must not wait for pages themselves, and takes back lock
//!   requests that a signal ended.

use crate::block::block_on;
use crate::caller::is_dying;
use crate::fs::ZonalFs;
use crate::tails::Stale;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zonal_client::{Net as _, POLL_WAIT_MS, QueuedAgain};
use zonal_fuse::{Notifier, ReplyEmpty};
use zonal_types::{Ino, ShardId};
use zonal_wire::{Event, LockRange};

/// How long closes are gathered, and how often old writes are looked for.
const HOUSEKEEPING: Duration = Duration::from_millis(100);
/// Pause after a shard did not answer a poll.
const POLL_PAUSE: Duration = Duration::from_millis(200);
/// Jobs that wait for the notifier.
pub const JOBS_MAX: usize = 65_536;

/// A lock request to be taken back (or, where it was granted, released).
#[derive(Debug, Clone, Copy)]
pub struct Cancel {
    /// The inode.
    pub ino: Ino,
    /// The range asked for.
    pub range: LockRange,
    /// Its number at the shard.
    pub waiter: u64,
}

enum Job {
    Drop {
        notifier: Notifier,
        ino: u64,
    },
    DropThenAnswer {
        notifier: Notifier,
        ino: u64,
        reply: ReplyEmpty,
    },
    DropThen {
        notifier: Notifier,
        ino: u64,
        pages: Stale,
        then: Box<dyn FnOnce() + Send>,
    },
    Cancel(Cancel),
    Interrupted(u64),
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    is_ended: bool,
}

/// How workers reach the other threads.
#[derive(Default)]
pub struct Signal {
    queue: Mutex<Queue>,
    has_jobs: Condvar,
    has_work: AtomicBool,
    house: Mutex<bool>,
    wakes_house: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signal {
    /// False where the queue is full.
    fn push(&self, job: Job) -> bool {
        self.offer(job).is_ok()
    }

    /// Gives the job back where the queue is full.
    fn offer(&self, job: Job) -> Result<(), Job> {
        let mut queue = lock(&self.queue);
        if queue.jobs.len() >= JOBS_MAX {
            return Err(job);
        }
        queue.jobs.push(job);
        drop(queue);
        self.has_jobs.notify_one();
        Ok(())
    }

    /// Jobs that wait now.
    pub fn queued(&self) -> usize {
        lock(&self.queue).jobs.len()
    }

    /// There is something to flush or to close. Cheap where that is known already.
    pub fn wake(&self) {
        if !self.has_work.swap(true, Ordering::SeqCst) {
            *lock(&self.house) = true;
            self.wakes_house.notify_one();
        }
    }

    /// Drops an inode's pages soon.
    pub fn later(&self, notifier: &Notifier, ino: u64) {
        self.push(Job::Drop {
            notifier: notifier.clone(),
            ino,
        });
    }

    /// Drops an inode's pages, then answers.
    pub fn answer_after_drop(&self, notifier: &Notifier, ino: u64, reply: ReplyEmpty) {
        self.push(Job::DropThenAnswer {
            notifier: notifier.clone(),
            ino,
            reply,
        });
    }

    /// Takes a lock request back; false where the queue is full.
    #[must_use]
    pub fn cancel(&self, cancel: Cancel) -> bool {
        self.push(Job::Cancel(cancel))
    }

    /// A signal hit the caller of a request that a worker has.
    pub fn interrupted(&self, unique: u64) {
        self.push(Job::Interrupted(unique));
    }

    fn end(&self) {
        lock(&self.queue).is_ended = true;
        self.has_jobs.notify_all();
        self.wake();
        *lock(&self.house) = true;
        self.wakes_house.notify_all();
    }

    fn is_ended(&self) -> bool {
        lock(&self.queue).is_ended
    }
}

/// The threads of a mount.
pub struct Background {
    fs: Arc<ZonalFs>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts the threads.
    ///
    /// # Errors
    /// Where no thread can be made.
    pub fn start(fs: &Arc<ZonalFs>) -> std::io::Result<Self> {
        let mut background = Self {
            fs: fs.clone(),
            threads: Vec::new(),
        };
        background.spawn("housekeeping", keep_house)?;
        background.spawn("notifier", run_jobs)?;
        background.spawn("listings", crate::listings::run)?;
        let watched = Mutex::new(BTreeSet::new());
        // The core must not keep alive what it is a part of.
        let weak = Arc::downgrade(fs);
        fs.client.watch_map(move |map| {
            if let Some(fs) = weak.upgrade() {
                let shards = map.shards.iter().map(|shard| shard.id);
                watch_new(&mut lock(&watched), shards, |shard| start_watch(&fs, shard));
            }
        });
        Ok(background)
    }

    fn spawn(&mut self, name: &str, run: fn(&ZonalFs)) -> std::io::Result<()> {
        let fs = self.fs.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&fs))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Ends housekeeping and notifier, flushes everything.
    pub fn end(self) {
        self.fs.signal.end();
        self.fs.listings.end();
        for thread in self.threads {
            let _ = thread.join();
        }
        if let Err(error) = block_on(self.fs.client.close()) {
            tracing::warn!(%error, "not everything was flushed at the end");
        }
    }
}

fn keep_house(fs: &ZonalFs) {
    let signal = &fs.signal;
    while !signal.is_ended() {
        {
            let mut is_due = lock(&signal.house);
            while !*is_due {
                is_due = signal
                    .wakes_house
                    .wait(is_due)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            *is_due = false;
        }
        signal.has_work.store(false, Ordering::SeqCst);
        std::thread::sleep(HOUSEKEEPING);
        if block_on(fs.client.keep_house()) {
            signal.wake();
        }
    }
}

fn run_jobs(fs: &ZonalFs) {
    loop {
        let jobs = {
            let mut queue = lock(&fs.signal.queue);
            while queue.jobs.is_empty() {
                if queue.is_ended {
                    return;
                }
                queue = fs
                    .signal
                    .has_jobs
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            std::mem::take(&mut queue.jobs)
        };
        jobs.into_iter().for_each(|job| run_job(fs, job));
    }
}

fn run_job(fs: &ZonalFs, job: Job) {
    match job {
        Job::Drop { notifier, ino } => drop_pages(&notifier, ino, true),
        Job::DropThenAnswer {
            notifier,
            ino,
            reply,
        } => {
            drop_pages(&notifier, ino, true);
            reply.ok();
        }
        Job::DropThen {
            notifier,
            ino,
            pages,
            then,
        } => {
            drop_range(&notifier, ino, pages.from, pages.to);
            fs.tails.dropped(Ino(ino), pages);
            then();
        }
        Job::Cancel(cancel) => {
            fs.client.net().begin();
            block_on(fs.client.take_back(cancel.ino, cancel.range, cancel.waiter));
            fs.signal.wake();
        }
        Job::Interrupted(unique) => {
            if let Some(tid) = fs.callers.tid_of(unique)
                && is_dying(tid)
            {
                fs.client.net().cancel(unique);
            }
        }
    }
}

impl ZonalFs {
    /// Calls `then`, which tells the kernel a size, when no page is left that would show zeros with it.
    pub(crate) fn after_size(&self, ino: Ino, size: u64, then: impl FnOnce() + Send + 'static) {
        match self.tails.show(ino, size) {
            None => then(),
            Some(pages) => self.after_drop(ino, pages, then),
        }
    }

    /// Drops pages, then calls `then`: on another thread, as a page that is being read waits for a worker. Where the queue is full the
    /// pages are dropped later.
    pub(crate) fn after_drop(&self, ino: Ino, pages: Stale, then: impl FnOnce() + Send + 'static) {
        let Some(notifier) = self.notifier.get() else {
            return then();
        };
        let job = Job::DropThen {
            notifier: notifier.clone(),
            ino: ino.0,
            pages,
            then: Box::new(then),
        };
        if let Err(Job::DropThen { then, .. }) = self.signal.offer(job) {
            self.signal.later(notifier, ino.0);
            then();
        }
    }

    /// Makes the kernel drop all names and attributes that it caches. False where that is not sure.
    pub(crate) fn drop_all_cached(&self) -> bool {
        let Some(notifier) = self.notifier.get() else {
            return false;
        };
        let drop_known = || {
            let cached = self.hints.forget_all();
            for ino in cached.iter().flatten() {
                drop_pages(notifier, ino.0, false);
            }
            notifier.inc_epoch().is_ok() && cached.is_some()
        };
        let is_sure = drop_known();
        // What the kernel was taking over just then: once more.
        std::thread::sleep(crate::listings::SETTLE);
        is_sure && drop_known()
    }
}

/// The pages of `from..to`.
fn drop_range(notifier: &Notifier, ino: u64, from: u64, to: u64) {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let length = i64::try_from(to).unwrap_or(i64::MAX) - from;
    if let Err(error) = notifier.inval_inode(ino, from, length) {
        tracing::debug!(ino, %error, "the kernel refused an invalidation");
    }
}

/// Absent inodes are no error: then the kernel holds nothing.
fn drop_pages(notifier: &Notifier, ino: u64, data: bool) {
    let offset = if data { 0 } else { -1 };
    if let Err(error) = notifier.inval_inode(ino, offset, 0) {
        tracing::debug!(ino, %error, "the kernel refused an invalidation");
    }
}

/// Starts a thread for each shard that has none; one that cannot be made is tried again with the next map.
fn watch_new(
    watched: &mut BTreeSet<ShardId>,
    shards: impl Iterator<Item = ShardId>,
    mut start: impl FnMut(ShardId) -> std::io::Result<()>,
) {
    for shard in shards {
        if watched.contains(&shard) {
            continue;
        }
        match start(shard) {
            Ok(()) => drop(watched.insert(shard)),
            Err(error) => tracing::error!(%shard, %error, "no thread for the events of a shard"),
        }
    }
}

/// The thread ends with the process: its poll may be under way for as long as a shard holds one.
fn start_watch(fs: &Arc<ZonalFs>, shard: ShardId) -> std::io::Result<()> {
    let fs = fs.clone();
    std::thread::Builder::new()
        .name(format!("events-{shard}"))
        .spawn(move || watch(&fs, shard))
        .map(drop)
}

/// Polls one shard's events for as long as the process lives.
fn watch(fs: &ZonalFs, shard: ShardId) {
    let link = fs.client.link_to(shard);
    let mut are_locks_queued = true;
    while !fs.signal.is_ended() {
        let wait_ms = if are_locks_queued { POLL_WAIT_MS } else { 0 };
        match block_on(fs.client.poll_events(&link, wait_ms)) {
            Ok(polled) => {
                polled.events.iter().for_each(|event| carry_out(fs, event));
                if polled.restarted || !are_locks_queued {
                    are_locks_queued = queue_locks_again(fs, shard);
                }
            }
            Err(_told_already) => std::thread::sleep(POLL_PAUSE),
        }
    }
}

/// Queues again the locks that a restarted shard has forgotten; false where it did not answer.
fn queue_locks_again(fs: &ZonalFs, shard: ShardId) -> bool {
    let (over, are_all_queued) = block_on(fs.client.queue_locks_again(shard));
    for queued in over {
        match queued {
            QueuedAgain::Granted { ino, waiter } => fs.lock_was_granted(ino, waiter),
            QueuedAgain::Refused { waiter, code } => fs.lock_was_refused(waiter, code),
        }
    }
    are_all_queued
}

fn carry_out(fs: &ZonalFs, event: &Event) {
    drop_cached(fs, event);
    match event {
        Event::Invalidate { .. } => fs.listings.carried_out(event),
        Event::LockGranted { ino, waiter } => fs.lock_was_granted(*ino, *waiter),
    }
}

/// Makes the kernel drop what an event says is old.
pub(crate) fn drop_cached(fs: &ZonalFs, event: &Event) {
    match event {
        Event::Invalidate {
            entries,
            inodes,
            data,
        } => {
            fs.hints.forget(inodes);
            let Some(notifier) = fs.notifier.get() else {
                return;
            };
            if entries.0 != 0
                && let Err(error) = notifier.inc_epoch()
            {
                tracing::warn!(%error, "the kernel keeps names for their whole time");
            }
            for ino in inodes {
                drop_pages(notifier, ino.0, *data);
            }
        }
        Event::LockGranted { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_wire::LockKind;

    #[test]
    fn a_lock_that_finds_the_queue_full_is_not_forgotten() {
        let signal = Signal::default();
        let cancel = Cancel {
            ino: Ino(5),
            range: LockRange {
                whole_file: true,
                owner: 1,
                pid: 1,
                kind: LockKind::Exclusive,
                start: 0,
                end: u64::MAX,
            },
            waiter: 9,
        };
        let taken = (0..=JOBS_MAX).filter(|_| signal.cancel(cancel)).count();
        assert_eq!(taken, JOBS_MAX);
        assert!(!signal.cancel(cancel), "its caller must remember it");
    }

    #[test]
    fn a_shard_that_joins_later_is_watched_once() {
        let mut watched = BTreeSet::new();
        let mut started = Vec::new();
        let mut fails = true;
        for shards in 1..4 {
            watch_new(&mut watched, (0..shards).map(ShardId), |shard| {
                if shard.0 == 1 && std::mem::take(&mut fails) {
                    return Err(std::io::ErrorKind::OutOfMemory.into());
                }
                started.push(shard.0);
                Ok(())
            });
        }
        assert_eq!(started, [0, 1, 2]);
    }
}
