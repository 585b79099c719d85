//! Size replies: answers with a size on their way into the kernel.
//!
//! A read behind the kernel's known end asks for attributes once. The kernel ignores the answer if
//! the inode was invalidated between the request and the takeover of the answer by the asking
//! thread. Then the read ends at the old end. So an invalidation of an open file first checks for
//! attribute requests in flight, or answered a moment before with another size, and waits. A read
//! or a write of the asking thread shows that it has taken over the answer.

use std::time::{Duration, Instant};

/// Time within which a thread that others kept from running takes over an answer.
const SETTLE: Duration = Duration::from_millis(20);

/// Size replies of one file.
#[derive(Debug, Default)]
pub struct SizeReplies {
    /// Requests in flight.
    asked: u32,
    /// The last answer with a new size: the asking thread, and the time.
    told: Option<(u32, Instant)>,
}

impl SizeReplies {
    /// Begins a request for attributes.
    pub fn ask_begins(&mut self) {
        self.asked += 1;
    }

    /// Ends a request; `is_news`: with another size than the kernel had.
    pub fn ask_ends(&mut self, thread: u32, is_news: bool, now: Instant) {
        self.asked = self.asked.saturating_sub(1);
        if is_news {
            self.told = Some((thread, now));
        }
    }

    /// Notes a read or a write of a thread.
    pub fn goes_on(&mut self, thread: u32) {
        self.told.take_if(|(asker, _at)| *asker == thread);
    }

    /// Whether an invalidation now may make the kernel ignore a size.
    #[must_use]
    pub fn are_awaited(&self, now: impl FnOnce() -> Instant) -> bool {
        let is_recent = |at| now().saturating_duration_since(at) < SETTLE;
        self.asked > 0 || self.told.is_some_and(|(_asker, at)| is_recent(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_reply_is_in_flight_until_its_thread_continues_or_time_passes() {
        let (mut sizes, start) = (SizeReplies::default(), Instant::now());
        let at = |ms| move || start + Duration::from_millis(ms);
        assert!(!sizes.are_awaited(at(0)));
        sizes.ask_begins();
        sizes.ask_begins();
        assert!(sizes.are_awaited(at(60_000)));
        sizes.ask_ends(7, true, start);
        sizes.ask_ends(8, false, start);
        assert!(sizes.are_awaited(at(19)) && !sizes.are_awaited(at(20)));
        sizes.goes_on(8);
        assert!(sizes.are_awaited(at(19)));
        sizes.goes_on(7);
        assert!(!sizes.are_awaited(at(0)));
    }
}
