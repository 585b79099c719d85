//! Answers that tell the kernel a size, on their way into it.
//!
//! A read behind the end that the kernel knows asks for attributes, once. The kernel takes none
//! from an answer beside which the inode was invalidated, from the question on until the thread
//! that asked has taken it over: then that read ends at the old end. So whoever invalidates an open
//! file looks first whether a question for its attributes is under way, or was answered with
//! another size a moment before, and comes later. A read or a write of the thread that asked says
//! that it has taken the answer over.

use std::time::{Duration, Instant};

/// A thread that others kept from running takes an answer over within this time.
const SETTLE: Duration = Duration::from_millis(20);

/// Of one file.
#[derive(Debug, Default)]
pub struct SizeReplies {
    /// Questions under way.
    asked: u32,
    /// The last answer with another size than the one before: who asked, and when it was given.
    told: Option<(u32, Instant)>,
}

impl SizeReplies {
    /// A question for attributes has come.
    pub fn ask_begins(&mut self) {
        self.asked += 1;
    }

    /// It is answered; `is_news`: with another size than the kernel was told before.
    pub fn ask_ends(&mut self, thread: u32, is_news: bool, now: Instant) {
        self.asked = self.asked.saturating_sub(1);
        if is_news {
            self.told = Some((thread, now));
        }
    }

    /// A thread reads or writes.
    pub fn goes_on(&mut self, thread: u32) {
        self.told.take_if(|(asker, _at)| *asker == thread);
    }

    /// Whether an invalidation now may make the kernel leave a size out.
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
    fn a_size_is_awaited_from_the_question_on_until_its_asker_goes_on_or_long_enough() {
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
