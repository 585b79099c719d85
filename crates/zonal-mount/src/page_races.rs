//! Page races: writes through pages that were overtaken by a read, so that their page lacks them.
//!
//! The kernel copies a program's bytes into a page, unlocks it, and only then sends the write to
//! the mount. If the page is dropped meanwhile, another thread may read it again and be answered
//! before the write is carried out. The kernel would then keep the old bytes. So the mount checks
//! for this at each write through pages, and drops the page before it answers the write.
//!
//! A race is possible where, since the answer to the preceding write,
//!
//! 1. pages of the file were dropped, by the mount or by an open that does not keep them; and
//! 2. a read of the write's page by another thread began, whether answered or not. (A thread's own
//!    read came before its write.)
//!
//! The kernel lets one program at a time write through the pages of a file: the bytes were copied
//! after the preceding write was answered. So at most the first write after a drop is in doubt.
//! Files without drops, and files that nobody here may write through pages, cost nothing.
//!
//! While a write from a page is in flight, the kernel drops the page neither for want of memory,
//! nor at drop_caches(5) or POSIX_FADV_DONTNEED.

use crate::page_masks::ByteRange;
use std::time::{Duration, Instant};

/// Answered reads kept apart; more are merged into one span.
const FILLS_MAX: usize = 64;
/// How long the kernel may take to drop pages at an open whose handle is not used.
const OPEN: Duration = Duration::from_secs(30);
/// The thread of merged reads, or of a process that this mount cannot see.
const UNKNOWN: u32 = 0;

/// A drop in flight, with the number of reads answered before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageDrop(u64);

#[derive(Debug, Clone, Copy)]
struct AnsweredRead {
    range: ByteRange,
    thread: u32,
    /// The clock at the answer.
    at: u64,
}

/// Reads and drops that may race with the next write through pages of one file.
#[derive(Debug, Default)]
pub struct PageRaces {
    /// Reads in flight, with their threads.
    reading: Vec<(ByteRange, u32)>,
    /// Reads answered since the last write, where they matter.
    fills: Vec<AnsweredRead>,
    /// Number of answered reads.
    clock: u64,
    /// Drops by the mount in flight.
    drops: u32,
    /// Opens that drop pages, whose handles were not used yet.
    opens: u32,
    /// Time of the last of them.
    opened: Option<Instant>,
    /// Whether pages were dropped since the answer to the last write.
    is_dropped: bool,
}

impl PageRaces {
    /// Notes an open that drops pages, before its answer.
    pub fn open_begins(&mut self, now: Instant) {
        self.opens += 1;
        self.opened = Some(now);
    }

    /// Notes the first use of its handle: the pages are dropped.
    pub fn open_ends(&mut self) {
        self.opens = self.opens.saturating_sub(1);
        self.is_dropped = true;
    }

    /// Begins a drop of pages.
    pub fn drop_begins(&mut self) -> PageDrop {
        self.drops += 1;
        PageDrop(self.clock)
    }

    /// Ends a drop; `is_whole`: of all pages of the file.
    pub fn drop_ends(&mut self, drop: PageDrop, is_whole: bool) {
        self.drops = self.drops.saturating_sub(1);
        self.is_dropped = true;
        if is_whole {
            self.fills.retain(|fill| fill.at > drop.0);
        }
    }

    /// Begins a read into pages.
    pub fn read_begins(&mut self, range: ByteRange, thread: u32) {
        self.reading.push((range, thread));
    }

    /// Ends a read. `may_write`: a handle here may write through the pages.
    pub fn read_ends(&mut self, range: ByteRange, thread: u32, may_write: bool) {
        let read = (range, thread);
        let Some(at) = self.reading.iter().position(|known| *known == read) else {
            return;
        };
        self.reading.swap_remove(at);
        self.clock += 1;
        if may_write && self.may_be_dropped(Instant::now) {
            self.filled(range, thread);
        }
    }

    fn filled(&mut self, (from, to): ByteRange, thread: u32) {
        let at = self.clock;
        if let Some(last) = self.fills.last_mut()
            && (last.range.1, last.thread) == (from, thread)
        {
            last.range.1 = to;
            last.at = at;
            return;
        }
        let range = (from, to);
        self.fills.push(AnsweredRead { range, thread, at });
        if self.fills.len() > FILLS_MAX {
            let span = |all: AnsweredRead, one: AnsweredRead| AnsweredRead {
                range: (all.range.0.min(one.range.0), all.range.1.max(one.range.1)),
                thread: match one.thread == all.thread {
                    true => all.thread,
                    false => UNKNOWN,
                },
                at,
            };
            self.fills = self.fills.drain(..).reduce(span).into_iter().collect();
        }
    }

    /// True where no read is in flight.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.reading.is_empty()
    }

    /// True where nothing remains in flight that only this table knows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.opens == 0 && self.drops == 0
    }

    fn may_be_dropped(&self, now: impl FnOnce() -> Instant) -> bool {
        let is_opening = || {
            let since = self.opened.filter(|_| self.opens > 0);
            since.is_some_and(|since| now().saturating_duration_since(since) < OPEN)
        };
        self.is_dropped || self.drops > 0 || is_opening()
    }

    /// Whether a read of these bytes is in flight.
    #[must_use]
    pub fn is_read(&self, range: ByteRange) -> bool {
        self.reading.iter().any(|read| overlap(read.0, range))
    }

    /// Whether a read may have filled pages without this write, which was carried out.
    #[must_use]
    pub fn is_crossed(&self, range: ByteRange, thread: u32) -> bool {
        let is_other = |fill: &AnsweredRead| fill.thread == UNKNOWN || fill.thread != thread;
        let mut fills = self.fills.iter();
        self.is_read(range) || fills.any(|fill| is_other(fill) && overlap(fill.range, range))
    }

    /// Notes the answer to a write: the next write's bytes are copied after it.
    pub fn write_ends(&mut self) {
        self.fills.clear();
        self.is_dropped = false;
    }
}

fn overlap(one: ByteRange, other: ByteRange) -> bool {
    one.0 < other.1 && other.0 < one.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: ByteRange = (0, 4096);
    const P: u32 = 7;
    const Q: u32 = 8;

    fn reads(crossings: &mut PageRaces, range: ByteRange, thread: u32) {
        crossings.read_begins(range, thread);
        crossings.read_ends(range, thread, true);
    }

    fn drops(crossings: &mut PageRaces) {
        let drop = crossings.drop_begins();
        crossings.drop_ends(drop, true);
    }

    /// Carries out a write through pages and answers it; true where a read raced with it.
    fn writes(crossings: &mut PageRaces, range: ByteRange, thread: u32) -> bool {
        let is_crossed = crossings.is_crossed(range, thread);
        crossings.write_ends();
        is_crossed
    }

    #[test]
    fn a_read_answered_after_a_drop_races_with_the_write_of_another_thread() {
        let mut file = PageRaces::default();
        drops(&mut file);
        reads(&mut file, PAGE, P);
        // P's bytes are copied into the page, which is then dropped; Q reads it again, and P's
        // write arrives.
        drops(&mut file);
        reads(&mut file, PAGE, Q);
        assert!(!file.is_crossed((4096, 4104), P), "another page");
        assert!(writes(&mut file, (8, 16), P));
        assert!(!writes(&mut file, (8, 16), P), "none was dropped since");
    }

    #[test]
    fn a_threads_own_read_does_not_race_with_its_write() {
        let mut file = PageRaces::default();
        for thread in [P, Q, P] {
            drops(&mut file);
            reads(&mut file, PAGE, thread);
            assert!(!writes(&mut file, (8, 16), thread));
        }
        drops(&mut file);
        reads(&mut file, PAGE, UNKNOWN);
        assert!(
            writes(&mut file, (8, 16), UNKNOWN),
            "these may be different ones"
        );
    }

    #[test]
    fn a_page_read_before_it_was_dropped_does_not_race() {
        let mut file = PageRaces::default();
        drops(&mut file);
        reads(&mut file, PAGE, Q);
        drops(&mut file);
        reads(&mut file, PAGE, P);
        assert!(!writes(&mut file, (8, 16), P));
        // Not so where the read was answered during the drop, or where only a part was dropped.
        drops(&mut file);
        let drop = file.drop_begins();
        reads(&mut file, PAGE, Q);
        file.drop_ends(drop, true);
        assert!(writes(&mut file, (8, 16), P));
        drops(&mut file);
        reads(&mut file, PAGE, Q);
        let drop = file.drop_begins();
        file.drop_ends(drop, false);
        assert!(writes(&mut file, (8, 16), P));
    }

    #[test]
    fn a_drop_counts_until_the_first_write_that_begins_after_its_end() {
        let mut file = PageRaces::default();
        let drop = file.drop_begins();
        reads(&mut file, PAGE, Q);
        assert!(writes(&mut file, (8, 16), P));
        reads(&mut file, PAGE, Q);
        file.drop_ends(drop, true);
        assert!(writes(&mut file, (8, 16), P));
        reads(&mut file, PAGE, Q);
        assert!(!writes(&mut file, (8, 16), P));
    }

    #[test]
    fn an_open_counts_as_a_drop_until_its_handle_is_used_or_time_passes() {
        let mut file = PageRaces::default();
        file.open_begins(Instant::now());
        assert!(!file.is_over());
        for _ in 0..2 {
            reads(&mut file, PAGE, Q);
            assert!(writes(&mut file, (8, 16), P));
        }
        file.open_ends();
        assert!(file.is_over());
        reads(&mut file, PAGE, Q);
        assert!(writes(&mut file, (8, 16), P), "dropped since the last one");
        reads(&mut file, PAGE, Q);
        assert!(!writes(&mut file, (8, 16), P));
        let since = Instant::now().checked_sub(OPEN);
        file.open_begins(since.expect("the clock has run for that long"));
        reads(&mut file, PAGE, Q);
        assert!(!writes(&mut file, (8, 16), P));
    }

    #[test]
    fn a_file_without_drops_or_writers_remembers_no_reads() {
        let mut file = PageRaces::default();
        reads(&mut file, PAGE, Q);
        assert!(file.fills.is_empty());
        drops(&mut file);
        file.read_begins(PAGE, Q);
        file.read_ends(PAGE, Q, false);
        assert!(file.fills.is_empty());
    }

    #[test]
    fn many_reads_are_merged_into_one_span() {
        let mut file = PageRaces::default();
        drops(&mut file);
        for at in 0..1000 {
            reads(&mut file, (at * 4096, at * 4096 + 4096), Q);
        }
        assert_eq!(file.fills.len(), 1, "one behind the other");
        for at in (1..1000).rev() {
            reads(&mut file, (at * 8192, at * 8192 + 4096), P);
        }
        assert!(file.fills.len() <= FILLS_MAX + 1);
        assert!(writes(&mut file, (0, 8), P));
        drops(&mut file);
        for at in (1..1000).rev() {
            reads(&mut file, (at * 8192, at * 8192 + 4096), P);
        }
        assert!(!writes(&mut file, (8192, 8200), P), "all are its own");
    }
}
