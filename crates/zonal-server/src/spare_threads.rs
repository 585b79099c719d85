//! Spare threads: for short work now and then that may wait for another server. A thread that has
//! nothing to do waits for the next work, and ends after [`SPARE`]. So work that comes each second
//! starts no threads.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread without work stays.
const SPARE: Duration = Duration::from_secs(5);

/// A piece of work.
pub(crate) type SpareWork = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    work: VecDeque<SpareWork>,
    /// Threads that wait for work.
    idle: usize,
}

/// The threads.
pub(crate) struct SpareThreads {
    name: &'static str,
    waiting: Mutex<Waiting>,
    added: Condvar,
}

impl SpareThreads {
    /// None yet; they get this name.
    pub(crate) fn named(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            waiting: Mutex::default(),
            added: Condvar::new(),
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs work on a thread that has none, or on a new one; false where the system refuses it.
    pub(crate) fn run(self: &Arc<Self>, work: SpareWork) -> bool {
        let mut waiting = self.waiting();
        if waiting.idle > waiting.work.len() {
            waiting.work.push_back(work);
            drop(waiting);
            self.added.notify_one();
            return true;
        }
        drop(waiting);
        let threads = Arc::clone(self);
        let thread = std::thread::Builder::new().name(self.name.into());
        thread.spawn(move || threads.work(work)).is_ok()
    }

    fn work(&self, first: SpareWork) {
        first();
        while let Some(next) = self.next() {
            next();
        }
    }

    fn next(&self) -> Option<SpareWork> {
        let mut waiting = self.waiting();
        waiting.idle += 1;
        let idle = |waiting: &mut Waiting| waiting.work.is_empty();
        let waited = self.added.wait_timeout_while(waiting, SPARE, idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        waiting.idle -= 1;
        waiting.work.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::thread::ThreadId;

    #[test]
    fn work_that_comes_later_finds_the_thread_and_work_at_once_gets_its_own() {
        let threads = SpareThreads::named("spare");
        let (told, heard) = mpsc::channel::<ThreadId>();
        let tell = |told: &mpsc::Sender<ThreadId>| {
            let told = told.clone();
            threads.run(Box::new(move || {
                told.send(std::thread::current().id()).unwrap();
            }))
        };
        let mut seen = BTreeSet::new();
        for _round in 0..20 {
            assert!(tell(&told));
            seen.insert(format!("{:?}", heard.recv().unwrap()));
            while threads.waiting().idle == 0 {
                std::thread::yield_now();
            }
        }
        assert_eq!(seen.len(), 1);
        // A second piece of work does not wait for the first.
        let (go_on, gate) = mpsc::channel::<()>();
        assert!(threads.run(Box::new(move || gate.recv().unwrap())));
        assert!(tell(&told));
        heard.recv().unwrap();
        go_on.send(()).unwrap();
    }
}
