//! How a thread waits for an event that comes soon: it polls for a moment, then sleeps.
//!
//! Waking a thread on an idle core costs several times as much as a short request. On a virtual
//! machine the wake-up is an interrupt through the hypervisor: a request and its reply take 85 us
//! instead of 9. So a thread that waits for a reply or for the next request polls for up to
//! [`LOOK`], and yields its core between two polls. The bounds:
//!
//! * A thread polls only where its last wait was short. So a wait for a rare event sleeps at once,
//!   and an idle process costs nothing.
//! * It stops where another thread uses the core meanwhile and the event does not come.
//! * At most half as many threads of a process poll as there are cores, so that polling keeps no
//!   thread from work.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a thread polls before it sleeps.
pub const LOOK: Duration = Duration::from_micros(50);
/// A sleep of up to this length, including the wake-up, would have been avoided by polling.
const SHORT: Duration = Duration::from_micros(150);

/// A yield takes less than this where no other thread wants the core.
const OWN: Duration = Duration::from_micros(5);

/// Threads that poll now.
static LOOKING: AtomicUsize = AtomicUsize::new(0);

/// Most threads that may poll at once.
fn looking_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| std::thread::available_parallelism().map_or(0, usize::from) / 2)
}

/// Yields the core; returns whether another thread used it.
fn gives_way() -> bool {
    let before = Instant::now();
    std::thread::yield_now();
    before.elapsed() > OWN
}

/// History of one waiter's last wait.
#[derive(Debug, Default)]
pub struct Waiter {
    is_worth: bool,
    began: Option<Instant>,
}

impl Waiter {
    /// Polls for the event, if that promises anything. `None`: the caller sleeps until the event
    /// comes, and then calls [`Self::slept`].
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
                // If the event did not come, the core has other work, and is awake anyway.
                is_shared = gives_way();
            }
        }
        LOOKING.fetch_sub(1, Ordering::Relaxed);
        self.is_worth = found.is_some();
        found
    }

    /// Notes the end of a sleep that [`Self::look`] began: its length decides whether to poll the
    /// next time. A sleep without a call of [`Self::look`] proves nothing, and the next wait sleeps
    /// at once.
    pub fn slept(&mut self) {
        let took = self.began.take().map(|began| began.elapsed());
        self.is_worth = took.is_some_and(|took| took < SHORT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_long_sleep_the_next_wait_sleeps_at_once() {
        let mut waiter = Waiter::default();
        assert_eq!(waiter.look(|| Some(1)), None);
        std::thread::sleep(SHORT);
        waiter.slept();
        assert_eq!(waiter.look(|| Some(2)), None);
    }

    #[test]
    fn a_sleep_without_a_poll_does_not_start_polling() {
        let mut waiter = Waiter {
            is_worth: true,
            began: Some(Instant::now()),
        };
        waiter.slept();
        // For example beside other pollers: nobody polled.
        waiter.slept();
        assert!(!waiter.is_worth, "the look was that of another wait");
    }

    #[test]
    fn polling_continues_after_success_and_stops_after_failure() {
        // The number of polling threads belongs to the process. So all of this is in one test, and
        // no other test polls meanwhile.
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
