//! A mounted file system: worker threads between the kernel and a [`FileSystem`].
//!
//! Each worker has a descriptor and a buffer of its own and carries a request to its end, without a
//! hand-over between threads. See [`crate`] for the number of workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use rustix::io::Errno;
use zonal_wait::Waiter;

use crate::abi;
use crate::channel::Channel;
use crate::dispatch::dispatch;
use crate::fs::{Context, FileSystem, Slot};
use crate::init::{self, KernelInfo, SessionConfig};
use crate::mount::{self, MountError, MountOptions};
use crate::notify::Notifier;
use crate::reply::{self, PendingReply, ReplyWrite};
use crate::request::{FuseRequest, Operation, Protocol, RequestHeader};
use crate::worker_pool::{QueueSamples, WorkerPool};
use crate::write_data::RequestBuffer;

/// Period of the check for requests that take long.
const LOOK: Duration = Duration::from_millis(250);

/// A request of this many bytes is worth a worker whose memory is in the processor's cache.
const BULK: usize = 64 << 10;

/// State shared by the workers.
struct Shared<F> {
    fs: Arc<F>,
    protocol: Protocol,
    channels: Vec<Arc<Channel>>,
    slots: Vec<Slot>,
    running: AtomicUsize,
    pool: WorkerPool,
    buffer: usize,
    /// The thread that checks for requests that take long.
    watch: OnceLock<Thread>,
}

/// A running mount. Dropping it unmounts (lazily) and does not wait.
#[derive(Debug)]
pub struct FuseSession {
    path: PathBuf,
    threads: Vec<JoinHandle<()>>,
    notifier: Notifier,
    kernel: KernelInfo,
    mounted: bool,
}

impl FuseSession {
    /// Mounts `fs` on `path` and starts the workers. The mount answers when this returns.
    pub fn mount<F: FileSystem>(
        fs: Arc<F>,
        path: &Path,
        options: &MountOptions,
        config: &SessionConfig,
    ) -> Result<Self, MountError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let fd = mount::mount(&path, options)?;
        Self::start(fs, &path, Channel::new(fd), config).inspect_err(|_| {
            let _ = mount::abort(&path);
        })
    }

    fn start<F: FileSystem>(
        fs: Arc<F>,
        path: &Path,
        main: Channel,
        config: &SessionConfig,
    ) -> Result<Self, MountError> {
        let kernel = init::negotiate(&main, config)?;
        crate::readahead::set(path, config.max_readahead);
        let workers = config.workers.max(1);
        let main = Arc::new(main);
        let mut channels = vec![main.clone()];
        while channels.len() < workers {
            channels.push(Arc::new(main.try_clone().map_err(MountError::Device)?));
        }
        let notifier = Notifier::new(main, kernel);
        fs.init(&kernel, &notifier);
        let shared = Arc::new(Shared {
            fs,
            protocol: kernel.protocol(),
            slots: channels.iter().map(|_| Slot::default()).collect(),
            running: AtomicUsize::new(channels.len()),
            pool: WorkerPool::default(),
            channels,
            buffer: init::buffer_size(&kernel),
            watch: OnceLock::new(),
        });
        let pin = config.pin_workers;
        let watched = shared.clone();
        let watch = std::thread::Builder::new()
            .name("fuse-watch".to_owned())
            .spawn(move || watch(&watched))
            .map_err(MountError::Threads)?;
        let _ = shared.watch.set(watch.thread().clone());
        let mut threads = (0..workers)
            .map(|index| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("fuse-{index}"))
                    .spawn(move || {
                        if pin {
                            pin_to(index);
                        }
                        run(&shared, index);
                    })
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(MountError::Threads)?;
        threads.push(watch);
        Ok(Self {
            path: path.to_path_buf(),
            threads,
            notifier,
            kernel,
            mounted: true,
        })
    }

    /// The handle that tells the kernel about changes made elsewhere.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// The outcome of the negotiation with the kernel.
    #[must_use]
    pub fn kernel(&self) -> &KernelInfo {
        &self.kernel
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True where the mount was removed (umount(8), abort) and all workers have ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until another process removes the mount.
    pub fn wait(mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        self.mounted = false;
    }

    /// Unmounts, waits up to `patience` for open files to be closed, then aborts. All workers have
    /// ended when this returns. A worker must not call it.
    pub fn unmount(mut self, patience: Duration) -> Result<(), MountError> {
        self.mounted = false;
        if self.is_ended() {
            return Ok(());
        }
        match rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // A detached mount cannot be reached by name to be aborted: wait first.
            Err(Errno::BUSY) => {
                let mut left = patience;
                let step = Duration::from_millis(10);
                let mut busy = true;
                while busy && !left.is_zero() {
                    std::thread::sleep(step.min(left));
                    left = left.saturating_sub(step);
                    busy =
                        rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::NOFOLLOW)
                            .is_err();
                }
                if busy {
                    mount::abort(&self.path)?;
                }
            }
            Err(_) if self.is_ended() => {}
            Err(_) => mount::unmount(&self.path)?,
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        Ok(())
    }
}

impl Drop for FuseSession {
    fn drop(&mut self) {
        if self.mounted && !self.is_ended() {
            let _ = mount::unmount(&self.path);
        }
    }
}

fn pin_to(index: usize) {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let mut set = rustix::thread::CpuSet::new();
    set.set(index % count);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Main loop of a worker.
fn run<F: FileSystem>(shared: &Shared<F>, index: usize) {
    if let (Some(channel), Some(slot)) = (shared.channels.get(index), shared.slots.get(index)) {
        // One worker reads, the others wait until they are needed.
        if index == 0 || shared.pool.park() {
            serve(shared, channel, slot);
        }
    }
    if shared.running.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.fs.destroy();
        if let Some(watch) = shared.watch.get() {
            watch.unpark();
        }
    }
}

/// Tells the file system about requests that take long: no worker may be left to read the kernel's
/// interrupts.
fn watch<F: FileSystem>(shared: &Shared<F>) {
    let mut seen = vec![0; shared.slots.len()];
    while shared.running.load(Ordering::Acquire) > 0 {
        std::thread::park_timeout(LOOK);
        if shared.channels.first().is_some_and(|one| one.is_ended()) {
            let _ = catch_unwind(AssertUnwindSafe(|| shared.fs.connection_ended()));
        }
        for (slot, before) in shared.slots.iter().zip(&mut seen) {
            let current = slot.current.load(Ordering::SeqCst);
            if std::mem::replace(before, current) == current && current != 0 {
                // No request is answered here, so a panic affects this check only; the hook has
                // logged it.
                let _ = catch_unwind(AssertUnwindSafe(|| shared.fs.lingers(current)));
            }
        }
    }
}

fn serve<F: FileSystem>(shared: &Shared<F>, channel: &Arc<Channel>, slot: &Slot) {
    let mut buffer = RequestBuffer::new(shared.buffer);
    let pool = &shared.pool;
    let mut pulse = QueueSamples::default();
    pool.joins();
    let mut waiter = Waiter::default();
    let mut failures = 0;
    loop {
        let is_alone = pool.reads();
        // Only a check: another worker may take the request first, and then this one sleeps in the
        // read.
        let look = || channel.has_request().then_some(());
        let is_there = is_alone && waiter.look(look).is_some();
        let taken = channel.read(buffer.room());
        if !is_there {
            // With other readers nobody spun: the time taken tells nothing, and a worker that is
            // alone next sleeps at first.
            waiter.slept();
        }
        match taken {
            Ok(count) => {
                pool.took();
                failures = 0;
                reply::began(count >= BULK);
                one(shared, channel, slot, &mut buffer, count);
                let queue = || channel.has_request();
                if pool.handled(&mut pulse, reply::answer(), queue) {
                    pool.leaves();
                    if !pool.park() {
                        return;
                    }
                    pool.joins();
                }
            }
            // ENOENT: the caller gave up before this worker took the request.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => pool.missed(),
            Err(error) => {
                pool.missed();
                failures += 1;
                let gone = matches!(error, Errno::NODEV | Errno::CONNABORTED);
                if !gone {
                    tracing::error!(%error, "reading the FUSE device failed");
                }
                if gone || failures > 100 {
                    pool.stop();
                    return;
                }
            }
        }
    }
}

/// Handles one message read from the device.
fn one<F: FileSystem>(
    shared: &Shared<F>,
    channel: &Arc<Channel>,
    slot: &Slot,
    buffer: &mut RequestBuffer,
    count: usize,
) {
    let data = buffer.message(count);
    let header = match RequestHeader::decode(data) {
        Ok(header) => header,
        Err(error) => {
            tracing::error!(%error, "the kernel sent an unreadable header");
            return;
        }
    };
    let request = match FuseRequest::decode(header, data, &shared.protocol) {
        Ok(request) => request,
        Err(error) => {
            tracing::error!(%error, opcode = header.opcode, "the kernel sent a bad request");
            if wants_reply(header.opcode) {
                let _ = channel.status(header.unique, Errno::IO.raw_os_error());
            }
            return;
        }
    };
    let fs = &*shared.fs;
    let result = match request.operation {
        Operation::Forget { nlookup } => {
            catch_unwind(AssertUnwindSafe(|| fs.forget(header.nodeid, nlookup)))
        }
        Operation::BatchForget(forgets) => {
            catch_unwind(AssertUnwindSafe(|| fs.batch_forget(forgets)))
        }
        Operation::NotifyReply => Ok(()),
        Operation::Interrupt { unique } => {
            catch_unwind(AssertUnwindSafe(|| interrupt(shared, unique)))
        }
        operation => {
            slot.current.store(header.unique, Ordering::SeqCst);
            let context = Context {
                unique: header.unique,
                uid: header.uid,
                gid: header.gid,
                pid: header.pid,
                supplementary_group: request.supplementary_group,
                slot,
                pool: &shared.pool,
            };
            let raw = PendingReply::new(channel.clone(), header.unique);
            // A panic drops the reply, which answers EIO.
            let result = if let Operation::Write(write) = operation {
                let data = buffer.data(write.size);
                let reply = ReplyWrite::new(raw);
                catch_unwind(AssertUnwindSafe(|| {
                    fs.write(&context, header.nodeid, &write, data, reply);
                }))
            } else {
                catch_unwind(AssertUnwindSafe(|| {
                    dispatch(fs, &context, header.nodeid, operation, raw);
                }))
            };
            slot.current.store(0, Ordering::SeqCst);
            result
        }
    };
    if result.is_err() {
        tracing::error!(
            opcode = header.opcode,
            nodeid = header.nodeid,
            "a request panicked"
        );
    }
}

fn wants_reply(opcode: u32) -> bool {
    use abi::op;
    !matches!(
        opcode,
        op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::NOTIFY_REPLY
    )
}

/// Handles INTERRUPT: a signal hit the caller of request `unique`. It has no reply, except EAGAIN,
/// which makes the kernel send it again (and ENOSYS, which would end interrupts for ever).
fn interrupt<F: FileSystem>(shared: &Shared<F>, unique: u64) {
    // Mark first: a worker that parks the request now sees the mark, or it is found parked here.
    let mut handled = false;
    for slot in &shared.slots {
        if slot.current.load(Ordering::SeqCst) == unique {
            slot.interrupted.store(unique, Ordering::SeqCst);
            handled = true;
        }
    }
    if shared.fs.interrupt(unique) || handled {
        return;
    }
    // Neither parked nor at work: the request was answered meanwhile, or a worker has taken it and
    // not marked it yet. Only the descriptor that the request was read from knows it.
    std::thread::sleep(Duration::from_micros(100));
    let again = unique | abi::INTERRUPT_BIT;
    for channel in &shared.channels {
        if channel.status(again, Errno::AGAIN.raw_os_error()) != Err(Errno::NOENT) {
            return;
        }
    }
}
