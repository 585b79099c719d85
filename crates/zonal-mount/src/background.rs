//! The threads beside the workers: one for [`housekeeping`], one for [`recalls`], three for [`jobs`], some for expiries, one a shard for its [`events`].

mod drops;
mod events;
mod housekeeping;
mod jobs;
mod recalls;

pub use jobs::{Cancel, JOBS_MAX, LastByte, Seek};

use crate::block::block_on;
use crate::fs::ZonalFs;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// How workers reach the other threads.
#[derive(Default)]
pub struct Signal {
    jobs: jobs::Jobs,
    /// Of files whose servers do not answer, and of what others have changed: these may wait for pages for long.
    doubts: jobs::Jobs,
    /// Questions for holes, which wait for pages and servers.
    seeks: jobs::Jobs,
    /// Writes that are answered when pages are dropped.
    held: Arc<AtomicUsize>,
    house: housekeeping::House,
    recalls: recalls::Recalls,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signal {
    fn end(&self) {
        self.jobs.end();
        self.doubts.end();
        self.seeks.end();
        self.wake();
        self.house.end();
        self.recalls.end();
    }

    fn is_ended(&self) -> bool {
        self.jobs.is_ended()
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
        background.spawn("housekeeping", housekeeping::run)?;
        background.spawn("recalls", recalls::run)?;
        background.spawn("notifier", |fs| jobs::run(fs, &fs.signal.jobs))?;
        background.spawn("doubts", |fs| jobs::run(fs, &fs.signal.doubts))?;
        background.spawn("seeks", |fs| jobs::run(fs, &fs.signal.seeks))?;
        background.spawn("listings", crate::listings::run)?;
        for _ in 0..crate::expiries::THREADS {
            background.spawn("expiries", crate::expiries::run)?;
        }
        let watched = Mutex::new(BTreeSet::new());
        // The core must not keep alive what it is a part of.
        let weak = Arc::downgrade(fs);
        fs.client.watch_map(move |map| {
            if let Some(fs) = weak.upgrade() {
                let shards = map.shards.iter().map(|shard| shard.id);
                events::watch_new(&mut lock(&watched), shards, |shard| {
                    events::start_watch(&fs, shard)
                });
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
        self.fs.expiries.end();
        for thread in self.threads {
            let _ = thread.join();
        }
        if let Err(error) = block_on(self.fs.client.close()) {
            tracing::warn!(%error, "not everything was flushed at the end");
        }
    }
}
