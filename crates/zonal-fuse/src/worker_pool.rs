//! Worker pool: lets as few workers wait for requests as the load needs.
//!
//! The kernel wakes the worker that has waited longest. With eight idle workers and one client,
//! each request would wake another thread, mostly on another core. Waking a core costs several
//! times as much as the request. So one worker reads and the others are parked here. A parked
//! worker is called in when
//!
//! * a worker is about to answer a *long* request (it waited for something) and finds another one
//!   queued;
//! * several workers are active and one of them finds a request queued behind the answer to a long
//!   one. A single worker does not count: its one client has queued its next request by then, which
//!   needs no other worker;
//! * a worker finds a queue nearly every time behind its short requests without ever losing its
//!   processor (it is the bottleneck).
//!
//! After requests with much data only a request that was queued before the answer counts. Otherwise
//! all workers in turn would serve a program that writes a stream, each with memory that has left
//! the cache.
//!
//! A worker parks when over many requests all active workers were rarely busy at once. Parked
//! workers form a stack: the one that parked last is called first, as its memory is still in the
//! cache. In a queue 128 workers would take turns, and streams were a quarter slower.
//!
//! The lowest worker of the stack looks from time to time. When no worker reads and no request
//! moves (the reader is stuck in a request), it starts to read. [`WorkerPool::will_block`] does
//! that without delay.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::reply::AnswerTiming;

/// A request that took at least this long counts as one that waited.
pub(crate) const LONG: Duration = Duration::from_micros(60);
/// Requests between two decisions whether to park a worker.
const WINDOW: u32 = 32;
/// Samples of the queue between two decisions whether it is always filled.
const SAMPLES: u32 = 64;
/// How often the first parked worker looks: while requests flow, and while none do. The pause
/// doubles up to the last value.
const LOOK: Duration = Duration::from_millis(2);
const LOOK_IDLE: Duration = Duration::from_millis(20);
const LOOK_IDLE_MAX: Duration = Duration::from_millis(640);
/// Looks without progress after which a reader counts as stuck.
const STUCK: u32 = 5;

/// State shared by the workers.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerPool {
    /// Active workers.
    active: AtomicU32,
    /// Workers in read(2).
    reading: AtomicU32,
    /// Parked workers.
    parked: AtomicU32,
    /// Requests taken since the start.
    taken: AtomicU64,
    /// Requests of the present window, and how many of them left no worker reading.
    window: AtomicU32,
    needed: AtomicU32,
    stopped: AtomicBool,
    /// The parked workers, in the order in which they parked.
    stack: Mutex<Vec<Arc<ParkedWorker>>>,
}

/// A worker's samples of the queue.
#[derive(Debug, Default)]
pub(crate) struct QueueSamples {
    /// Samples, and how many of them found the queue filled.
    samples: u32,
    queued: u32,
    /// Preemptions of this thread when the samples began.
    preempted: u64,
}

/// Involuntary context switches of this thread: how often it lost its processor while it could run.
fn preemptions() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    #[expect(unsafe_code, reason = "no safe wrapper exists for getrusage")]
    // SAFETY: the pointer is to a whole rusage, which the call fills.
    let done = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    if done != 0 {
        return 0;
    }
    #[expect(unsafe_code, reason = "see above")]
    // SAFETY: all bit patterns are valid, zeroes at first, filled by the call.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_nivcsw).unwrap_or(0)
}

impl QueueSamples {
    /// Takes a sample; true where another worker would help.
    fn sample(&mut self, queue: impl FnOnce() -> bool) -> bool {
        self.queued += u32::from(queue());
        self.samples += 1;
        if self.samples < SAMPLES {
            return false;
        }
        let full = self.queued >= SAMPLES / 8 * 7;
        self.samples = 0;
        self.queued = 0;
        if !full {
            return false;
        }
        // A single client on this processor also fills the queue. The answer wakes it, it takes the
        // processor and sends its next request before this thread continues. Another worker gains
        // nothing then.
        let before = std::mem::replace(&mut self.preempted, preemptions());
        self.preempted.saturating_sub(before) < u64::from(SAMPLES / 2)
    }
}

/// A worker on the stack; all is used under the stack's mutex.
#[derive(Debug, Default)]
struct ParkedWorker {
    called: Condvar,
    /// It was taken off the stack, by a call.
    is_called: AtomicBool,
}

impl WorkerPool {
    fn stack(&self) -> MutexGuard<'_, Vec<Arc<ParkedWorker>>> {
        self.stack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calling worker starts to read. Returns true where no other worker reads: the kernel
    /// would wake that other worker for a request that this one takes.
    pub(crate) fn reads(&self) -> bool {
        self.reading.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// The read returned no request.
    pub(crate) fn missed(&self) {
        self.reading.fetch_sub(1, Ordering::AcqRel);
    }

    /// The read returned a request.
    pub(crate) fn took(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if self.reading.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.needed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The calling worker becomes active.
    pub(crate) fn joins(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// The calling worker stops being active, for a while.
    pub(crate) fn leaves(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// The calling worker has handled a request. Returns true where it shall park.
    pub(crate) fn handled(
        &self,
        pulse: &mut QueueSamples,
        answer: AnswerTiming,
        queue: impl FnOnce() -> bool,
    ) -> bool {
        let window = self.window.fetch_add(1, Ordering::Relaxed) + 1;
        if self.parked.load(Ordering::Relaxed) > 0 && self.reading.load(Ordering::Relaxed) == 0 {
            let wanted = match answer {
                AnswerTiming::Bulk { others_waited } => others_waited,
                AnswerTiming::Long { others_waited } => {
                    others_waited || (self.active.load(Ordering::Relaxed) > 1 && queue())
                }
                // One in four is a sample.
                AnswerTiming::Short => window.is_multiple_of(4) && pulse.sample(queue),
            };
            if wanted {
                self.call();
            }
        }
        if window < WINDOW {
            return false;
        }
        self.window.store(0, Ordering::Relaxed);
        // All were rarely busy: one worker too many, unless no other one would read.
        self.needed.swap(0, Ordering::Relaxed) < WINDOW / 2
            && self.reading.load(Ordering::Acquire) > 0
    }

    /// The caller is about to wait: calls in a parked worker where no worker reads.
    pub(crate) fn will_block(&self) {
        if self.reading.load(Ordering::Acquire) == 0 && self.parked.load(Ordering::Acquire) > 0 {
            self.call();
        }
    }

    /// Number of parked workers.
    pub(crate) fn parked_now(&self) -> u32 {
        self.parked.load(Ordering::Acquire)
    }

    /// Calls the worker that parked last.
    fn call(&self) {
        let mut stack = self.stack();
        if let Some(worker) = stack.pop() {
            self.parked.fetch_sub(1, Ordering::AcqRel);
            worker.is_called.store(true, Ordering::Relaxed);
            worker.called.notify_one();
        }
    }

    /// The mount is gone: all workers leave.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        for worker in &*self.stack() {
            worker.called.notify_one();
        }
    }

    /// Parks the calling worker until it is called. Returns false where the mount is gone.
    pub(crate) fn park(&self) -> bool {
        let worker = Arc::new(ParkedWorker::default());
        let mut stack = self.stack();
        stack.push(worker.clone());
        self.parked.fetch_add(1, Ordering::AcqRel);
        let mut seen = u64::MAX;
        let mut still = 0;
        let mut look = LOOK;
        loop {
            if worker.is_called.load(Ordering::Relaxed) {
                return true;
            }
            if self.stopped.load(Ordering::Acquire) {
                return false;
            }
            let is_lowest = stack.first().is_some_and(|low| Arc::ptr_eq(low, &worker));
            if !is_lowest {
                let waited = worker.called.wait(stack);
                stack = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            stack = match worker.called.wait_timeout(stack, look) {
                Ok((stack, _)) => stack,
                Err(poisoned) => poisoned.into_inner().0,
            };
            let taken = self.taken.load(Ordering::Relaxed);
            let reading = self.reading.load(Ordering::Acquire) > 0;
            // A reader that merely lost its processor for some milliseconds is not stuck.
            still = if !reading && taken == seen {
                still + 1
            } else {
                0
            };
            if still == STUCK && !worker.is_called.load(Ordering::Relaxed) {
                stack.remove(0);
                self.parked.fetch_sub(1, Ordering::AcqRel);
                // The next one looks now.
                if let Some(lowest) = stack.first() {
                    lowest.called.notify_one();
                }
                return true;
            }
            look = if reading && taken == seen {
                (look * 2).clamp(LOOK_IDLE, LOOK_IDLE_MAX)
            } else {
                LOOK
            };
            seen = taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    /// Parks a thread; the channel reports when it was called.
    fn parked(pool: &Arc<WorkerPool>) -> mpsc::Receiver<bool> {
        let (sender, receiver) = mpsc::channel();
        let before = pool.parked.load(Ordering::Acquire);
        let inside = pool.clone();
        std::thread::spawn(move || sender.send(inside.park()));
        while pool.parked.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
        receiver
    }

    #[test]
    fn a_stuck_reader_is_replaced() {
        let pool = Arc::new(WorkerPool::default());
        pool.reads();
        let spare = parked(&pool);
        assert!(spare.recv_timeout(LOOK_IDLE * 3).is_err(), "somebody reads");
        pool.took();
        assert_eq!(spare.recv(), Ok(true));
    }

    #[test]
    fn a_queue_behind_a_long_request_calls_a_worker_and_stop_ends_all() {
        let pool = Arc::new(WorkerPool::default());
        pool.reads();
        let first = parked(&pool);
        let second = parked(&pool);
        pool.took();
        let calls = |answer| {
            pool.reads();
            pool.took();
            assert!(!pool.handled(&mut QueueSamples::default(), answer, || true));
            2 - pool.parked_now()
        };
        let others_waited = false;
        pool.joins();
        let alone = calls(AnswerTiming::Long { others_waited });
        assert_eq!(alone, 0, "one client needs one worker");
        pool.joins();
        let stream = calls(AnswerTiming::Bulk { others_waited });
        assert_eq!(stream, 0, "a stream needs one worker");
        pool.leaves();
        calls(AnswerTiming::Long {
            others_waited: true,
        });
        pool.reads();
        assert_eq!(second.recv(), Ok(true));
        pool.stop();
        assert_eq!(first.recv(), Ok(false));
    }

    #[test]
    fn the_worker_that_parked_last_is_called_first() {
        let pool = Arc::new(WorkerPool::default());
        pool.reads();
        let workers: Vec<_> = (0..8).map(|_| parked(&pool)).collect();
        pool.took();
        for worker in workers.iter().rev() {
            pool.reads();
            pool.took();
            pool.will_block();
            assert_eq!(worker.recv(), Ok(true));
        }
        assert_eq!(pool.parked_now(), 0);
        pool.will_block();
    }

    #[test]
    fn a_superfluous_worker_parks() {
        let (pool, mut pulse) = (WorkerPool::default(), QueueSamples::default());
        pool.reads();
        let mut parks = 0;
        for _ in 0..WINDOW {
            pool.reads();
            pool.took();
            parks += u32::from(pool.handled(&mut pulse, AnswerTiming::Short, || false));
        }
        assert_eq!(parks, 1);
        // A single worker is not parked.
        pool.missed();
        for _ in 0..2 * WINDOW {
            pool.reads();
            pool.took();
            assert!(!pool.handled(&mut pulse, AnswerTiming::Short, || false));
        }
    }
}
