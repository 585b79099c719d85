//! The threads beside the workers: those of the client ([`zonal_native::background`]), three for
//! [`jobs`], several for expiries, one for listings.

mod invalidation;
mod jobs;

pub use jobs::{JOBS_MAX, LastByte, LockCancel, SeekRequest};

use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use zonal_client::Client;
use zonal_native::RealNet;
use zonal_native::background::{Listener, watch_all};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::Event;

/// How workers reach the other threads.
#[derive(Default)]
pub struct MountSignal {
    jobs: jobs::Jobs,
    /// Jobs that may wait long for pages: of files whose servers do not answer, and of files that
    /// others have changed.
    doubts: jobs::Jobs,
    /// Requests for holes, which wait for pages and servers.
    seeks: jobs::Jobs,
    /// Writes that are answered after pages are dropped.
    held: Arc<AtomicUsize>,
    /// The client's own threads.
    native: zonal_native::Signal,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MountSignal {
    fn end(&self) {
        self.jobs.end();
        self.doubts.end();
        self.seeks.end();
    }

    /// Signals work for housekeeping: a flush or a close. Cheap where it is known already.
    pub fn wake(&self) {
        self.native.wake();
    }
}

impl Listener for ZonalFs {
    fn client(&self) -> &Client<RealNet> {
        &self.client
    }

    fn signal(&self) -> &zonal_native::Signal {
        &self.signal.native
    }

    fn carry_out(&self, event: &Event) -> Vec<Ino> {
        let dirs = self.drop_named(event);
        if matches!(event, Event::Invalidate { .. }) {
            self.listings.carried_out(event);
        }
        dirs
    }

    /// Waits until the kernel has expired names, as long as [`crate::expiries`] says. Pages that
    /// the kernel keeps locked are dropped in parallel, and waited for only briefly.
    fn settle(&self, dirs: &[Ino]) -> bool {
        self.settle_names(dirs)
    }

    fn lock_was_granted(&self, call: &KernelCall<'_>, ino: Ino, waiter: u64) {
        self.finish_waiter(call, ino, waiter);
    }

    fn lock_was_refused(&self, waiter: u64, code: ErrorCode) {
        self.refuse_waiter(waiter, code);
    }

    fn keep_house(&self) {
        self.touch_opened();
    }
}

/// The threads of a mount.
pub struct MountThreads {
    fs: Arc<ZonalFs>,
    native: zonal_native::Background<ZonalFs>,
    threads: Vec<JoinHandle<()>>,
}

impl MountThreads {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(fs: &Arc<ZonalFs>) -> std::io::Result<Self> {
        let mut background = Self {
            fs: fs.clone(),
            native: zonal_native::Background::start(fs)?,
            threads: Vec::new(),
        };
        background.spawn("notifier", |fs| jobs::run(fs, &fs.signal.jobs))?;
        background.spawn("doubts", |fs| jobs::run(fs, &fs.signal.doubts))?;
        background.spawn("seeks", |fs| jobs::run(fs, &fs.signal.seeks))?;
        background.spawn("listings", crate::listing_cache::run)?;
        for _ in 0..crate::expiries::THREADS {
            background.spawn("expiries", crate::expiries::run)?;
        }
        watch_all(fs);
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

    /// Ends all threads and flushes everything.
    pub fn end(self) {
        self.fs.signal.end();
        self.fs.signal.native.end();
        self.fs.listings.end();
        self.fs.expiries.end();
        for thread in self.threads {
            let _ = thread.join();
        }
        if let Err(error) = self.native.end(&self.fs.client.background()) {
            tracing::warn!(%error, "not everything was flushed at the end");
        }
    }
}
