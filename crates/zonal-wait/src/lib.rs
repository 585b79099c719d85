//! How a thread waits for what comes soon: it looks for a moment, then sleeps.
//!
//! To wake a thread on an idle core costs several times what a short request does (on a virtual machine, where that is an
//! interrupt through the hypervisor, 85 us for a question and its answer instead of 9). So who waits for a reply or the next
//! request looks again and again for [`LOOK`], and leaves its core to anybody who wants it between two looks. The bounds:
//!
//! * it looks only where the wait before was short, so that who waits for something rare sleeps at once and an idle process costs
//!   nothing;
//! * at most half as many threads of a process look as there are cores, so that none of them is kept from work by looking.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a thread looks before it sleeps.
pub const LOOK: Duration = Duration::from_micros(50);
/// A sleep of up to this long, its wake-up included, would have been met by looking.
const SHORT: Duration = Duration::from_micros(150);

/// Threads that look now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Threads that may look at once.
fn looking_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| std::thread::available_parallelism().map_or(0, usize::from) / 2)
}

/// What one waiter knows of its last wait.
#[derive(Debug, Default)]
pub struct Waiter {
    is_worth: bool,
    began: Option<Instant>,
}

impl Waiter {
    /// Looks for what is waited for, if that promises anything. `None`: the caller sleeps until it comes, and says so by
    /// [`Self::slept`].
    pub fn look<T>(&mut self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let began = Instant::now();
        self.began = Some(began);
        if !std::mem::take(&mut self.is_worth) {
            return None;
        }
        let mut found = None;
        if LOOKING.fetch_add(1, Ordering::Relaxed) < looking_max() {
            while found.is_none() && began.elapsed() < LOOK {
                found = attempt();
                if found.is_none() {
                    std::thread::yield_now();
                }
            }
        }
        LOOKING.fetch_sub(1, Ordering::Relaxed);
        self.is_worth = found.is_some();
        found
    }

    /// What was waited for has come after a sleep.
    pub fn slept(&mut self) {
        self.is_worth = self.began.is_some_and(|began| began.elapsed() < SHORT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_slept_long_sleeps_at_once_the_next_time() {
        let mut waiter = Waiter::default();
        assert_eq!(waiter.look(|| Some(1)), None);
        std::thread::sleep(SHORT);
        waiter.slept();
        assert_eq!(waiter.look(|| Some(2)), None);
    }

    #[test]
    fn who_found_it_by_looking_looks_again_and_who_did_not_sleeps() {
        // The number of lookers is the process's: nobody else may look meanwhile, so this is all in one test.
        if looking_max() == 0 {
            return;
        }
        let mut waiter = Waiter {
            is_worth: true,
            began: None,
        };
        let mut looks = 0;
        let mut third = || {
            looks += 1;
            (looks % 3 == 0).then_some(looks)
        };
        assert_eq!(waiter.look(&mut third), Some(3));
        assert_eq!(waiter.look(&mut third), Some(6));
        let begin = Instant::now();
        assert_eq!(waiter.look(|| None::<()>), None);
        assert!(begin.elapsed() >= LOOK);
        // Not worth it a second time, until a sleep was short.
        assert_eq!(waiter.look(|| Some(())), None);
        waiter.began = Some(Instant::now());
        waiter.slept();
        waiter.is_worth |= begin.elapsed() > SHORT;
        LOOKING.fetch_add(looking_max(), Ordering::Relaxed);
        assert_eq!(waiter.look(|| Some(())), None, "enough others look");
        LOOKING.fetch_sub(looking_max(), Ordering::Relaxed);
        assert_eq!(LOOKING.load(Ordering::Relaxed), 0);
    }
}
