//! Simulated time and tasks: a single-threaded executor whose clock jumps to the next timer.
//!
//! Tasks run in the order in which they were woken. Timers fire in the order of their times, equal
//! ones in the order of their creation. So a run depends on nothing but its seed. A task belongs to
//! a group (a process); killing a group drops its tasks at once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use zonal_types::Instant;

/// The process that a task belongs to.
pub type Group = u64;

/// Polls at one instant after which a run counts as stuck.
const POLLS_MAX: u64 = 200_000;

type Task = Pin<Box<dyn Future<Output = ()>>>;
type ReadyQueue = Arc<Mutex<VecDeque<u64>>>;

struct TaskWaker {
    id: u64,
    ready: ReadyQueue,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push_back(self.id);
    }
}

/// The clock and its tasks. Clones share them.
#[derive(Clone)]
pub struct VirtualClock {
    inner: Rc<Inner>,
}

struct Inner {
    now: Cell<u64>,
    next_task: Cell<u64>,
    next_timer: Cell<u64>,
    tasks: RefCell<BTreeMap<u64, (Group, Option<Task>)>>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    ready: ReadyQueue,
    /// Tasks of paused processes that were woken during the pause.
    paused: RefCell<BTreeMap<Group, Vec<u64>>>,
    steps: Cell<u64>,
    stuck: Cell<bool>,
    pauses: Cell<u64>,
}

impl Default for VirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl VirtualClock {
    /// Makes a clock at one second, without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Rc::new(Inner {
                now: Cell::new(1_000_000_000),
                next_task: Cell::new(0),
                next_timer: Cell::new(0),
                tasks: RefCell::default(),
                timers: RefCell::default(),
                ready: ReadyQueue::default(),
                paused: RefCell::default(),
                steps: Cell::new(0),
                stuck: Cell::new(false),
                pauses: Cell::new(0),
            }),
        }
    }

    /// The simulated time.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant(self.inner.now.get())
    }

    /// Whether tasks wake one another without end while no time passes.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        self.inner.stuck.get()
    }

    /// Polls made so far: a measure of the run, and part of its trace.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.inner.steps.get()
    }

    /// Adds a task.
    pub fn spawn(&self, group: Group, task: impl Future<Output = ()> + 'static) {
        let id = self.inner.next_task.get();
        self.inner.next_task.set(id + 1);
        let mut tasks = self.inner.tasks.borrow_mut();
        tasks.insert(id, (group, Some(Box::pin(task))));
        self.push_ready(id);
    }

    /// Drops all tasks of a group. No task of the group may call this.
    pub fn kill(&self, group: Group) {
        let mut tasks = self.inner.tasks.borrow_mut();
        let ids: Vec<u64> = tasks
            .iter()
            .filter(|(_id, (of, _task))| *of == group)
            .map(|(id, _)| *id)
            .collect();
        let gone: Vec<_> = ids.iter().filter_map(|id| tasks.remove(id)).collect();
        drop(tasks);
        self.inner.paused.borrow_mut().remove(&group);
        // Dropping a task may wake others.
        drop(gone);
    }

    /// Stops the tasks of a group until [`Self::resume`].
    pub fn pause(&self, group: Group) {
        self.inner.paused.borrow_mut().entry(group).or_default();
        self.inner.pauses.set(self.inner.pauses.get() + 1);
    }

    /// How often a group was paused.
    #[must_use]
    pub fn pauses(&self) -> u64 {
        self.inner.pauses.get()
    }

    /// Resumes a paused group; its tasks run in the order of their wake-ups.
    pub fn resume(&self, group: Group) {
        let woken = self.inner.paused.borrow_mut().remove(&group);
        woken
            .unwrap_or_default()
            .into_iter()
            .for_each(|id| self.push_ready(id));
    }

    /// Drops all tasks. This frees a world, whose tasks refer to it.
    pub fn clear(&self) {
        let tasks = std::mem::take(&mut *self.inner.tasks.borrow_mut());
        // Dropping a task may wake others, and touches timers.
        drop(tasks);
        self.inner.timers.borrow_mut().clear();
        self.inner.paused.borrow_mut().clear();
    }

    /// Waits until the time `until`.
    #[must_use]
    pub fn sleep_until(&self, until: Instant) -> Sleep {
        Sleep {
            clock: self.clone(),
            until: until.0,
            registered: None,
        }
    }

    /// Waits for `nanos` nanoseconds.
    #[must_use]
    pub fn sleep(&self, nanos: u64) -> Sleep {
        self.sleep_until(Instant(self.inner.now.get().saturating_add(nanos)))
    }

    /// Runs tasks until `done` returns true, which makes the result true. Gives up where no task is
    /// left, where the clock would pass `limit`, or where the run is stuck.
    pub fn run(&self, limit: Instant, mut done: impl FnMut() -> bool) -> bool {
        loop {
            let mut polls = 0;
            while let Some(id) = self.pop_ready() {
                self.poll_task(id);
                polls += 1;
                if polls > POLLS_MAX {
                    self.inner.stuck.set(true);
                    return done();
                }
                if done() {
                    return true;
                }
            }
            let waker = {
                let mut timers = self.inner.timers.borrow_mut();
                let Some(first) = timers
                    .first_entry()
                    .filter(|first| first.key().0 <= limit.0)
                else {
                    drop(timers);
                    return done();
                };
                let now = self.inner.now.get().max(first.key().0);
                self.inner.now.set(now);
                first.remove()
            };
            waker.wake();
        }
    }

    fn pop_ready(&self) -> Option<u64> {
        let mut ready = self
            .inner
            .ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ready.pop_front()
    }

    fn push_ready(&self, id: u64) {
        let mut ready = self
            .inner
            .ready
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        ready.push_back(id);
    }

    fn poll_task(&self, id: u64) {
        let taken = {
            let mut tasks = self.inner.tasks.borrow_mut();
            let mut paused = self.inner.paused.borrow_mut();
            tasks.get_mut(&id).and_then(|(group, task)| {
                if let Some(woken) = paused.get_mut(group) {
                    woken.push(id);
                    return None;
                }
                task.take()
            })
        };
        let Some(mut task) = taken else {
            return;
        };
        self.inner.steps.set(self.inner.steps.get() + 1);
        let waker = Waker::from(Arc::new(TaskWaker {
            id,
            ready: self.inner.ready.clone(),
        }));
        let outcome = task.as_mut().poll(&mut Context::from_waker(&waker));
        let mut tasks = self.inner.tasks.borrow_mut();
        if outcome.is_ready() {
            tasks.remove(&id);
        } else if let Some((_group, place)) = tasks.get_mut(&id) {
            *place = Some(task);
        }
    }
}

/// See [`VirtualClock::sleep_until`].
pub struct Sleep {
    clock: VirtualClock,
    until: u64,
    registered: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let inner = self.clock.inner.clone();
        if let Some(key) = self.registered.take() {
            inner.timers.borrow_mut().remove(&key);
        }
        if inner.now.get() >= self.until {
            return Poll::Ready(());
        }
        let key = (self.until, inner.next_timer.get());
        inner.next_timer.set(key.1 + 1);
        inner
            .timers
            .borrow_mut()
            .insert(key, context.waker().clone());
        self.registered = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.registered.take() {
            self.clock.inner.timers.borrow_mut().remove(&key);
        }
    }
}

/// Wakes all tasks that wait for a change.
#[derive(Default)]
pub struct ChangeSignal {
    raised: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl ChangeSignal {
    /// How often the signal was raised.
    #[must_use]
    pub fn raised(&self) -> u64 {
        self.raised.get()
    }

    /// Wakes all waiting tasks.
    pub fn raise(&self) {
        self.raised.set(self.raised.get() + 1);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits until the signal was raised more often than `seen`, or until the time `until`.
    pub async fn wait(&self, clock: &VirtualClock, seen: u64, until: Instant) {
        let mut sleep = clock.sleep_until(until);
        std::future::poll_fn(|context| {
            if self.raised.get() > seen {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Pin::new(&mut sleep).poll(context)
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_jumps_and_order_is_fixed() {
        let clock = VirtualClock::new();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for (name, wait) in [("late", 50), ("early", 20), ("same", 20)] {
            let (seen, clock2) = (seen.clone(), clock.clone());
            clock.spawn(1, async move {
                clock2.sleep(wait * 1_000_000).await;
                seen.borrow_mut().push((name, clock2.now().0));
            });
        }
        clock.run(Instant(u64::MAX), || false);
        let ms = |ms: u64| 1_000_000_000 + ms * 1_000_000;
        assert_eq!(
            *seen.borrow(),
            [("early", ms(20)), ("same", ms(20)), ("late", ms(50))]
        );
    }

    #[test]
    fn a_paused_group_runs_later_and_a_cleared_clock_holds_nothing() {
        let clock = VirtualClock::new();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for group in [1, 2] {
            let (seen, clock2) = (seen.clone(), clock.clone());
            clock.spawn(group, async move {
                clock2.sleep(1_000).await;
                seen.borrow_mut().push(group);
            });
        }
        clock.pause(1);
        clock.run(Instant(u64::MAX), || false);
        assert_eq!(*seen.borrow(), [2]);
        clock.resume(1);
        clock.run(Instant(u64::MAX), || false);
        assert_eq!(*seen.borrow(), [2, 1]);
        let held = Rc::new(());
        let (inside, clock2) = (held.clone(), clock.clone());
        clock.spawn(3, async move {
            clock2.sleep(1_000).await;
            drop(inside);
        });
        clock.clear();
        assert_eq!(Rc::strong_count(&held), 1);
    }

    #[test]
    fn killed_groups_do_nothing_more_and_signals_wake() {
        let clock = VirtualClock::new();
        let signal = Rc::new(ChangeSignal::default());
        let count = Rc::new(Cell::new(0));
        for group in [1, 2] {
            let (clock2, signal, count) = (clock.clone(), signal.clone(), count.clone());
            clock.spawn(group, async move {
                signal.wait(&clock2, 0, Instant(u64::MAX)).await;
                count.set(count.get() + group);
            });
        }
        clock.run(Instant(2_000_000_000), || false);
        clock.kill(1);
        signal.raise();
        clock.run(Instant(2_000_000_000), || false);
        assert_eq!(count.get(), 2);
    }
}
