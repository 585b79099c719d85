//! How many workers wait for requests: as few as the load needs.
//!
//! The kernel wakes the worker that has waited longest. With eight idle workers and one client,
//! each request would wake another thread, mostly on another core, and waking a core costs several
//! times what the request does. So one worker reads, the others are parked in here, and
//!
//! * a worker that is about to answer a *long* request (it waited for something) and finds another
//!   one queued calls another worker in. Where several are at work, also one that finds it behind
//!   its answer; a single one does not, for its one client has queued its next request by then and
//!   needs nobody else;
//! * of requests with much data only one that was queued before the answer counts: a program that
//!   writes a stream would be served by all workers in turn, each with memory that has left the
//!   cache;
//! * so does one that finds a queue nearly every time behind its short requests without
//!   ever losing its processor (it is the bottleneck);
//! * when over many requests it was rare that all active workers were busy at once, one parks;
//! * the first of the parked looks up from time to time: when nobody reads and nothing moves (the
//!   reader is stuck in a request), it goes in. [`WorkerPool::will_block`] does that without delay.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::reply::Answer;

/// From here on a request counts as one that waited.
pub(crate) const LONG: Duration = Duration::from_micros(60);
/// Requests between two judgements whether a worker is too many.
const WINDOW: u32 = 32;
/// Samples of the queue between two judgements whether it is always full.
const SAMPLES: u32 = 64;
/// How often the first of the parked looks up while requests flow, and while none do: twice as
/// seldom each time, to the last one.
const LOOK: Duration = Duration::from_millis(2);
const LOOK_IDLE: Duration = Duration::from_millis(20);
const LOOK_IDLE_MAX: Duration = Duration::from_millis(640);
/// Looks without anything moving that make a reader stuck.
const STUCK: u32 = 5;

/// What the workers know of each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerPool {
    /// Workers that serve.
    active: AtomicU32,
    /// Workers in read(2).
    reading: AtomicU32,
    /// Workers parked.
    parked: AtomicU32,
    /// Requests taken, ever.
    taken: AtomicU64,
    /// Of the present window: requests taken, and those that left nobody reading.
    window: AtomicU32,
    needed: AtomicU32,
    stopped: AtomicBool,
    places: Mutex<Places>,
    called: Condvar,
}

/// What one worker observes of the queue.
#[derive(Debug, Default)]
pub(crate) struct QueueSamples {
    /// Samples of the queue, and those that found it filled.
    samples: u32,
    queued: u32,
    /// How often this thread had lost its processor when the samples began.
    preempted: u64,
}

/// How often this thread lost its processor without having to wait.
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
    /// Whether another worker would be of use.
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
        // One client on our processor also fills the queue: our answer wakes it, it takes the
        // processor and asks again before we go on. Nothing is won by another worker then.
        let before = std::mem::replace(&mut self.preempted, preemptions());
        self.preempted.saturating_sub(before) < u64::from(SAMPLES / 2)
    }
}

#[derive(Debug, Default)]
struct Places {
    /// Calls not yet followed.
    calls: u32,
    /// Somebody looks up from time to time.
    watched: bool,
}

impl WorkerPool {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes to read. Returns whether nobody else does: the kernel would wake the other one for a
    /// request that this one takes.
    pub(crate) fn reads(&self) -> bool {
        self.reading.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// Came back without a request.
    pub(crate) fn missed(&self) {
        self.reading.fetch_sub(1, Ordering::AcqRel);
    }

    /// Came back with a request.
    pub(crate) fn took(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if self.reading.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.needed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins to serve.
    pub(crate) fn joins(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends to serve, for a while.
    pub(crate) fn leaves(&self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }

    /// Handled a request. Returns whether to park.
    pub(crate) fn handled(
        &self,
        pulse: &mut QueueSamples,
        answer: Answer,
        queue: impl FnOnce() -> bool,
    ) -> bool {
        let window = self.window.fetch_add(1, Ordering::Relaxed) + 1;
        if self.parked.load(Ordering::Relaxed) > 0 && self.reading.load(Ordering::Relaxed) == 0 {
            let wanted = match answer {
                Answer::Bulk { others_waited } => others_waited,
                Answer::Long { others_waited } => {
                    others_waited || (self.active.load(Ordering::Relaxed) > 1 && queue())
                }
                // One in four is a sample.
                Answer::Short => window.is_multiple_of(4) && pulse.sample(queue),
            };
            if wanted {
                self.call();
            }
        }
        if window < WINDOW {
            return false;
        }
        self.window.store(0, Ordering::Relaxed);
        // Rarely all busy: one too many, unless nobody else would read.
        self.needed.swap(0, Ordering::Relaxed) < WINDOW / 2
            && self.reading.load(Ordering::Acquire) > 0
    }

    /// Calls a parked worker in when nobody reads: the caller is about to wait.
    pub(crate) fn will_block(&self) {
        if self.reading.load(Ordering::Acquire) == 0 && self.parked.load(Ordering::Acquire) > 0 {
            self.call();
        }
    }

    /// How many are parked.
    pub(crate) fn parked_now(&self) -> u32 {
        self.parked.load(Ordering::Acquire)
    }

    fn call(&self) {
        let mut places = self.places();
        if places.calls < self.parked.load(Ordering::Acquire) {
            places.calls += 1;
            self.called.notify_one();
        }
    }

    /// The mount is gone: everybody leaves.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        drop(self.places());
        self.called.notify_all();
    }

    /// Waits to be called. Returns false when the mount is gone.
    pub(crate) fn park(&self) -> bool {
        let mut places = self.places();
        self.parked.fetch_add(1, Ordering::AcqRel);
        let mut watching = false;
        let mut seen = u64::MAX;
        let mut still = 0;
        let mut look = LOOK;
        let stay = loop {
            if self.stopped.load(Ordering::Acquire) {
                break false;
            }
            if places.calls > 0 {
                places.calls -= 1;
                break true;
            }
            if !watching && !places.watched {
                places.watched = true;
                watching = true;
            }
            if !watching {
                places = self
                    .called
                    .wait(places)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            places = match self.called.wait_timeout(places, look) {
                Ok((places, _)) => places,
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
            if still == STUCK && places.calls == 0 {
                break true;
            }
            look = if reading && taken == seen {
                (look * 2).clamp(LOOK_IDLE, LOOK_IDLE_MAX)
            } else {
                LOOK
            };
            seen = taken;
        };
        self.parked.fetch_sub(1, Ordering::AcqRel);
        if watching {
            places.watched = false;
            // Somebody else watches now.
            self.called.notify_one();
        }
        drop(places);
        stay
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use super::*;

    /// Parks a thread and tells when it has been called.
    fn parked(crew: &Arc<WorkerPool>) -> mpsc::Receiver<bool> {
        let (sender, receiver) = mpsc::channel();
        let before = crew.parked.load(Ordering::Acquire);
        let inside = crew.clone();
        std::thread::spawn(move || sender.send(inside.park()));
        while crew.parked.load(Ordering::Acquire) == before {
            std::thread::yield_now();
        }
        receiver
    }

    #[test]
    fn a_stuck_reader_is_replaced() {
        let crew = Arc::new(WorkerPool::default());
        crew.reads();
        let spare = parked(&crew);
        assert!(spare.recv_timeout(LOOK_IDLE * 3).is_err(), "somebody reads");
        crew.took();
        assert_eq!(spare.recv(), Ok(true));
    }

    #[test]
    fn a_queue_behind_a_long_request_calls_help_and_stop_ends_all() {
        let crew = Arc::new(WorkerPool::default());
        crew.reads();
        let first = parked(&crew);
        let second = parked(&crew);
        crew.took();
        let calls = |answer| {
            crew.reads();
            crew.took();
            assert!(!crew.handled(&mut QueueSamples::default(), answer, || true));
            crew.places().calls
        };
        let others_waited = false;
        crew.joins();
        let alone = calls(Answer::Long { others_waited });
        assert_eq!(alone, 0, "one client needs one worker");
        crew.joins();
        let stream = calls(Answer::Bulk { others_waited });
        assert_eq!(stream, 0, "a stream needs one worker");
        crew.leaves();
        calls(Answer::Long {
            others_waited: true,
        });
        crew.reads();
        let called = first.recv_timeout(LOOK * 50).or_else(|_| second.recv());
        assert_eq!(called, Ok(true));
        crew.stop();
        assert!(matches!(
            (first.try_recv(), second.recv()),
            (_, Ok(false)) | (_, Err(mpsc::RecvError))
        ));
    }

    #[test]
    fn a_worker_too_many_parks() {
        let (crew, mut pulse) = (WorkerPool::default(), QueueSamples::default());
        crew.reads();
        let mut parks = 0;
        for _ in 0..WINDOW {
            crew.reads();
            crew.took();
            parks += u32::from(crew.handled(&mut pulse, Answer::Short, || false));
        }
        assert_eq!(parks, 1);
        // Alone it stays.
        crew.missed();
        for _ in 0..2 * WINDOW {
            crew.reads();
            crew.took();
            assert!(!crew.handled(&mut pulse, Answer::Short, || false));
        }
    }
}
