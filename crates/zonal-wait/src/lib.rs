//! How a thread waits for what comes soon: it looks for a moment, then sleeps.
//!
//! To wake a thread on an idle core costs several times what a short request does (on a virtual
//! machine, where that is an interrupt through the hypervisor, 85 us for a question and its answer
//! instead of 9). So who waits for a reply or the next request looks again and again for [`LOOK`],
//! and leaves its core to anybody who wants it between two looks. The bounds:
//!
//! * it looks only where the wait before was short, so that who waits for something rare sleeps at
//!   once and an idle process costs nothing;
//! * it stops where somebody else uses the core meanwhile and that does not bring what it waits
//!   for;
//! * at most half as many threads of a process look as there are cores, so that none of them is
//!   kept from work by looking.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a thread looks before it sleeps.
pub const LOOK: Duration = Duration::from_micros(50);
/// A sleep of up to this long, its wake-up included, would have been met by looking.
const SHORT: Duration = Duration::from_micros(150);

/// To give the core away takes less where nobody wants it.
const OWN: Duration = Duration::from_micros(5);

/// Threads that look now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Threads that may look at once.
fn looking_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| std::thread::available_parallelism().map_or(0, usize::from) / 2)
}

/// Leaves the core to who wants it. Returns whether somebody did.
fn gives_way() -> bool {
    let before = Instant::now();
    std::thread::yield_now();
    before.elapsed() > OWN
}

/// What one waiter knows of its last wait.
#[derive(Debug, Default)]
pub struct Waiter {
    is_worth: bool,
    began: Option<Instant>,
}

impl Waiter {
    /// Looks for what is waited for, if that promises anything. `None`: the caller sleeps until it
    /// comes, and says so by [`Self::slept`].
    pub fn look<T>(&mut self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let began = Instant::now();
        self.began = Some(began);
        self.look_while(|| began.elapsed() < LOOK, gives_way, attempt)
    }

    fn look_while<T>(
        &mut self,
        mut goes_on: impl FnMut() -> bool,
        mut gives_way: impl FnMut() -> bool,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if !std::mem::take(&mut self.is_worth) {
            return None;
        }
        let mut found = None;
        if LOOKING.fetch_add(1, Ordering::Relaxed) < looking_max() {
            let mut is_shared = false;
            while goes_on() {
                found = attempt();
                if found.is_some() || is_shared {
                    break;
                }
                // If it was not who we wait for, the core has other work, and is awake anyway.
                is_shared = gives_way();
            }
        }
        LOOKING.fetch_sub(1, Ordering::Relaxed);
        self.is_worth = found.is_some();
        found
    }

    /// What was waited for has come after a sleep that [`Self::look`] began: its length tells
    /// whether to look the next time. One that began without it tells nothing, and who waits next
    /// sleeps at once.
    pub fn slept(&mut self) {
        let took = self.began.take().map(|began| began.elapsed());
        self.is_worth = took.is_some_and(|took| took < SHORT);
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
    fn a_sleep_that_nobody_looked_before_says_nothing_of_the_next() {
        let mut waiter = Waiter {
            is_worth: true,
            began: Some(Instant::now()),
        };
        waiter.slept();
        // Beside others, say: nobody looked.
        waiter.slept();
        assert!(!waiter.is_worth, "the look was that of another wait");
    }

    #[test]
    fn who_found_it_by_looking_looks_again_and_who_did_not_sleeps() {
        // The number of lookers is the process's, so this is all in one test: nobody else looks
        // meanwhile.
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
        assert_eq!(waiter.look_while(|| true, || false, &mut third), Some(3));
        assert_eq!(waiter.look_while(|| true, || false, &mut third), Some(6));
        let mut left = 5;
        let goes_on = || {
            left -= 1;
            left > 0
        };
        assert_eq!(waiter.look_while(goes_on, || false, || None::<()>), None);
        assert_eq!(left, 0);
        waiter.is_worth = true;
        let mut looks = 0;
        let busy = || {
            looks += 1;
            None::<()>
        };
        assert_eq!(waiter.look_while(|| true, || true, busy), None);
        assert_eq!(looks, 2, "once more after somebody else used the core");
        let vain = waiter.look_while(|| true, || false, || Some(()));
        assert_eq!(vain, None, "not worth it, until a sleep was short");
        waiter.is_worth = true;
        LOOKING.fetch_add(looking_max(), Ordering::Relaxed);
        let crowded = waiter.look_while(|| true, || false, || Some(()));
        assert_eq!(crowded, None, "enough others look");
        LOOKING.fetch_sub(looking_max(), Ordering::Relaxed);
        assert_eq!(LOOKING.load(Ordering::Relaxed), 0);
    }
}
