//! What the kernel's pages show of files that are read through them: their ends, and what is changed round them.
//!
//! The kernel fills the page in which a read ends with zeros, and shows them as soon as it hears of a longer file, from an answer
//! with attributes or from a write of this mount that goes round the pages. So a page that ends short is dropped before a greater
//! size is told, and the pages under a write before it is answered. A read that meets a size told meanwhile is done again.
//!
//! Behind the end a mapping may hold bytes that a program stored there; the kernel sends none of them while it knows the old end. So where a file
//! grows they are dropped before it hears of that, or masked: before a truncation is answered it writes no page.
//!
//! Pages come from reads, from writes through them, and from handles of before; a file has none where there was neither, and nothing is dropped
//! then. Whoever may write a file that has pages may have stored into one: nobody else knows before the kernel writes it.
//!
//! Kept for files that are open for reading, or are changed round the pages just now: bounded by those. Per operation: one lock, one look-up.

use crate::masks::{Change, Masks, Range};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_types::Ino;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// How often a change that waits for a write of pages looks whether its caller is dying.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Tail {
    /// Handles that may read through pages.
    opens: u32,
    /// Of those, handles that may write: a mapping may be stored into through them.
    writers: u32,
    /// Changes round the pages that were not carried out yet.
    changes: u32,
    /// Reads that are being answered: first byte, behind the last.
    reading: Vec<(u64, u64)>,
    /// The lowest end of a read that may be in pages.
    short: Option<u64>,
    /// How often a read ended short: what was dropped before the last of them is not all.
    reads: u64,
    /// The size that the kernel was told last.
    shown: u64,
    /// The kernel takes no byte behind this for the file's.
    end: u64,
    /// The kernel may have pages.
    has_pages: bool,
    /// It has asked for some, or filled some, since the first handle was opened.
    is_used: bool,
    /// It was told that the file takes no space, though it has a length.
    is_told_empty: bool,
    masks: Masks,
}

/// Pages to be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale {
    /// The first byte.
    pub from: u64,
    /// Behind the last byte.
    pub to: u64,
    /// Reads that had ended short then.
    reads: u64,
    /// What is masked until then.
    change: Option<Change>,
}

/// What a handle may do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Access {
    /// Write.
    pub writes: bool,
    /// See pages of earlier handles.
    pub keeps_pages: bool,
}

/// Ends of files by inode.
#[derive(Debug, Default)]
pub struct Tails {
    files: Mutex<BTreeMap<Ino, Tail>>,
    /// A write of pages has ended.
    is_less: Condvar,
}

impl Tail {
    fn ends_at(&mut self, end: u64) {
        self.short = Some(self.short.map_or(end, |short| short.min(end)));
        self.reads = self.reads.wrapping_add(1);
    }

    fn stale(&self, from: u64, to: u64, change: Option<Change>) -> Stale {
        let reads = self.reads;
        Stale {
            from,
            to,
            reads,
            change,
        }
    }

    /// Bytes behind the end that may have been stored, up to `to`: those of the last page.
    fn behind(&self, to: u64) -> Option<Range> {
        let is_mapped = self.writers > 0 && self.short.is_some();
        let range = (self.end, to.min(self.end.next_multiple_of(PAGE)));
        (is_mapped && range.0 < range.1).then_some(range)
    }

    fn may_be_dirty(&self) -> bool {
        self.writers > 0 && self.has_pages
    }

    /// The kernel fills pages. True where what it was told of the file's space is no longer so, perhaps.
    fn uses(&mut self) -> bool {
        let was_clean = !self.may_be_dirty();
        self.has_pages = true;
        self.is_used = true;
        was_clean && self.may_be_dirty() && std::mem::take(&mut self.is_told_empty)
    }

    fn is_over(&self) -> bool {
        self.opens == 0 && self.changes == 0
    }
}

impl Tails {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Ino, Tail>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files known now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// One more handle that may read through pages, of a file of this size that takes so much space. True where the kernel is to ask for attributes.
    pub fn open(&self, ino: Ino, (size, allocated): (u64, u64), access: Access) -> bool {
        let mut all = self.all();
        let tail = all.entry(ino).or_default();
        tail.opens = tail.opens.saturating_add(1);
        tail.writers = tail.writers.saturating_add(access.writes.into());
        tail.has_pages |= access.keeps_pages;
        if tail.has_pages {
            tail.ends_at(size);
        }
        tail.shown = tail.shown.max(size);
        tail.end = tail.end.max(size);
        let is_told_empty = size > 0 && allocated == 0;
        tail.is_told_empty |= is_told_empty;
        tail.may_be_dirty() && std::mem::take(&mut tail.is_told_empty)
    }

    /// One handle less.
    pub fn close(&self, ino: Ino, writes: bool) {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return;
        };
        tail.opens -= 1;
        tail.writers -= u32::from(writes);
        if tail.is_over() {
            all.remove(&ino);
        }
    }

    /// A read for pages begins to be answered. True where the kernel is to ask for attributes before it is.
    #[must_use]
    pub fn read_begins(&self, ino: Ino, from: u64, to: u64) -> bool {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return false;
        };
        tail.reading.push((from, to));
        tail.masks.refilled(from, to);
        tail.uses()
    }

    /// It is answered.
    pub fn read_ends(&self, ino: Ino, from: u64, to: u64) {
        if let Some(tail) = self.all().get_mut(&ino)
            && let Some(at) = tail.reading.iter().position(|read| *read == (from, to))
        {
            tail.reading.swap_remove(at);
        }
    }

    /// A program writes through pages. Returns a change where it leaves out bytes behind the end that may have been stored; and whether the kernel
    /// is to ask for attributes.
    #[must_use]
    pub fn page_write(&self, ino: Ino, from: u64, to: u64) -> (Option<(Change, Range)>, bool) {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return (None, false);
        };
        tail.masks.refilled(from, to);
        let behind = tail.behind(from);
        let gap = behind.map(|range| (tail.masks.begin([range]), range));
        tail.changes += u32::from(gap.is_some());
        tail.end = tail.end.max(to);
        (gap, tail.uses())
    }

    /// Pages of a write through pages that a read under way may fill without it: the kernel dropped them when it had sent the write.
    #[must_use]
    pub fn crossed(&self, ino: Ino, from: u64, to: u64) -> Option<Stale> {
        let all = self.all();
        let tail = all.get(&ino)?;
        let is_crossed = tail.reading.iter().any(|read| read.0 < to && from < read.1);
        let from = tail.short.map_or(from, |short| short.min(from));
        is_crossed.then_some(tail.stale(from, to, None))
    }

    /// The kernel writes pages that a mapping has changed: the write's number, and what of it is to be written.
    #[must_use]
    pub fn write_back_begins(&self, ino: Ino, from: u64, to: u64) -> (u64, Vec<Range>) {
        match self.all().get_mut(&ino) {
            Some(tail) => tail.masks.write_begins(from, to),
            None => (0, vec![(from, to)]),
        }
    }

    /// It has ended.
    pub fn write_back_ends(&self, ino: Ino, number: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.masks.write_ends(number);
            self.is_less.notify_all();
        }
    }

    /// A change of bytes round the pages is about to be carried out: it may be when this returns. `None`: `is_given_up` said so meanwhile.
    #[must_use]
    pub fn change_begins(
        &self,
        ino: Ino,
        (from, to): Range,
        is_given_up: impl Fn() -> bool,
    ) -> Option<Change> {
        let mut all = self.all();
        let tail = all.entry(ino).or_default();
        tail.changes += 1;
        let change = tail.masks.begin(
            tail.behind(from)
                .into_iter()
                .chain((from < to).then_some((from, to))),
        );
        let is_crossed = |all: &BTreeMap<Ino, Tail>| {
            let tail = all.get(&ino);
            tail.is_some_and(|tail| tail.masks.is_crossed(change))
        };
        while is_crossed(&all) {
            let waited = self.is_less.wait_timeout(all, LOOK);
            let (again, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            all = again;
            if waited.timed_out() {
                drop(all);
                if is_given_up() {
                    self.change_ends(ino, change, (0, 0), false);
                    return None;
                }
                all = self.all();
            }
        }
        Some(change)
    }

    /// Before a truncation to `size` is carried out: the bytes stored behind the end do not come into the file.
    #[must_use]
    pub fn growth_begins(&self, ino: Ino, size: u64) -> Option<(Change, Range)> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        let range = tail.behind(size)?;
        tail.changes += 1;
        Some((tail.masks.begin([range]), range))
    }

    /// A change is carried out, of these bytes, or has failed. The pages to be dropped before it is answered, if there may be any. `grows`: the file
    /// is that long at least; then a change of no bytes is growth alone.
    pub fn change_ends(
        &self,
        ino: Ino,
        change: Change,
        (from, to): Range,
        grows: bool,
    ) -> Option<Stale> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.changes -= 1;
        let is_longer = grows && to > tail.end;
        if grows {
            tail.shown = tail.shown.max(to);
            tail.end = tail.end.max(to);
        }
        let is_any = tail.has_pages && (from < to || is_longer);
        let from = tail.short.map_or(from, |short| short.min(from));
        let stale = match tail.is_used {
            _none if !is_any || from >= to => None,
            true => Some(tail.stale(from, to, Some(change))),
            // Of handles of before: once, for all that follows.
            false => Some(tail.stale(0, u64::MAX, Some(change))),
        };
        if stale.is_some() {
            tail.masks.done(change);
        } else {
            tail.masks.end(change);
        }
        if tail.is_over() {
            all.remove(&ino);
        }
        stale
    }

    /// Bytes behind the end were left out of the file: the page of them, to be dropped.
    pub fn behind_ends(&self, ino: Ino, change: Change, range: Range) -> Option<Stale> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.changes -= 1;
        tail.masks.done(change);
        Some(tail.stale(range.0, range.1, Some(change)))
    }

    /// A read ended at the end of the file, there. True where the kernel was told of a longer file: it is to be done again.
    #[must_use]
    pub fn read_short(&self, ino: Ino, end: u64) -> bool {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return false;
        };
        tail.ends_at(end);
        tail.shown > end
    }

    /// The kernel is about to hear of this size. The pages to be dropped before.
    #[must_use]
    pub fn show(&self, ino: Ino, size: u64) -> Option<Stale> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.shown = size;
        tail.end = tail.end.max(size);
        let from = tail.short.filter(|short| *short < size)?;
        Some(tail.stale(from, size, None))
    }

    /// The kernel is about to take this size, whatever it knew, and to drop all pages behind it.
    pub fn cut(&self, ino: Ino, size: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.end = size;
            if size == 0 && tail.reading.is_empty() {
                tail.has_pages = false;
            }
        }
    }

    /// What the kernel is told that a file of this size takes: at least a page where it may have bytes that nobody else knows. Programs take a file
    /// without space for one hole.
    #[must_use]
    pub fn space(&self, ino: Ino, size: u64, allocated: u64) -> u64 {
        if allocated > 0 || size == 0 {
            return allocated;
        }
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return 0;
        };
        if tail.may_be_dirty() {
            return PAGE;
        }
        tail.is_told_empty = true;
        0
    }

    /// Whether the kernel may have bytes of the file that a program has stored into a mapping.
    #[must_use]
    pub fn may_be_dirty(&self, ino: Ino) -> bool {
        self.all().get(&ino).is_some_and(Tail::may_be_dirty)
    }

    /// All pages of the file are about to be dropped: a greater size that is told then has nothing to wait for.
    #[must_use]
    pub fn whole(&self, ino: Ino) -> Option<Stale> {
        Some(self.all().get(&ino)?.stale(0, u64::MAX, None))
    }

    /// They are dropped. Until then whoever tells a size has to wait.
    pub fn dropped(&self, ino: Ino, stale: Stale) {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return;
        };
        if let Some(change) = stale.change {
            tail.masks.end(change);
        }
        if tail.reads == stale.reads {
            tail.short = tail.short.filter(|short| *short >= stale.to);
        }
        let is_all = (stale.from, stale.to) == (0, u64::MAX);
        if is_all && !tail.is_used {
            tail.has_pages = false;
        }
    }

    /// Whether pages are to be dropped before the kernel hears of this size. Where not, it is noted as told.
    #[must_use]
    pub fn holds_back(&self, ino: Ino, size: u64) -> bool {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return false;
        };
        let is_short = tail.short.is_some_and(|short| short < size);
        if !is_short {
            tail.shown = size;
            tail.end = tail.end.max(size);
        }
        is_short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(5);
    const KEPT: Access = Access {
        writes: false,
        keeps_pages: true,
    };
    const MAPPED: Access = Access {
        writes: true,
        keeps_pages: true,
    };

    fn range(stale: Option<Stale>) -> Option<(u64, u64)> {
        stale.map(|stale| (stale.from, stale.to))
    }

    fn open(tails: &Tails, size: u64, access: Access) {
        tails.open(F, (size, size), access);
    }

    /// A write round the pages, whole; what is to be dropped then.
    fn wrote(tails: &Tails, from: u64, to: u64) -> Option<Stale> {
        let change = tails.change_begins(F, (from, to), || false);
        change.and_then(|change| tails.change_ends(F, change, (from, to), true))
    }

    fn read(tails: &Tails, from: u64, to: u64) -> bool {
        let asks = tails.read_begins(F, from, to);
        tails.read_ends(F, from, to);
        asks
    }

    #[test]
    fn a_short_page_is_dropped_before_a_greater_size_is_told() {
        let tails = Tails::default();
        assert_eq!(tails.show(F, 10), None, "nobody reads it");
        open(&tails, 10, KEPT);
        assert_eq!(tails.show(F, 10), None);
        let stale = tails.show(F, 11);
        assert_eq!(range(stale), Some((10, 11)), "of an earlier handle");
        assert_eq!(range(tails.show(F, 12)), Some((10, 12)), "not yet dropped");
        assert!(tails.holds_back(F, 12));
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(tails.show(F, 12), None);
        assert!(tails.read_short(F, 11), "12 was told meanwhile");
        assert!(!tails.read_short(F, 12));
        let stale = tails.show(F, 20);
        assert_eq!(range(stale), Some((11, 20)));
        assert!(tails.read_short(F, 13));
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(range(tails.show(F, 20)), Some((11, 20)), "read meanwhile");
        assert_eq!(tails.show(F, 5), None);
        assert!(!tails.read_short(F, 5));
        tails.close(F, false);
        assert_eq!((tails.len(), tails.show(F, 30)), (0, None));
    }

    #[test]
    fn a_size_waits_for_nothing_where_all_pages_were_dropped() {
        let tails = Tails::default();
        assert_eq!(tails.whole(F), None);
        open(&tails, 10, KEPT);
        let stale = tails.whole(F);
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(tails.show(F, 11), None);
        let stale = tails.whole(F);
        assert!(!tails.read_short(F, 11));
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(range(tails.show(F, 20)), Some((11, 20)), "read meanwhile");
    }

    #[test]
    fn a_write_is_crossed_by_a_read_of_its_pages_under_way() {
        let tails = Tails::default();
        assert_eq!(tails.crossed(F, 0, 10), None);
        open(&tails, 100, KEPT);
        assert!(!tails.read_begins(F, 0, 50) && !tails.read_begins(F, 40, 60));
        assert_eq!(range(tails.crossed(F, 49, 70)), Some((49, 70)));
        assert_eq!(range(tails.crossed(F, 59, 170)), Some((59, 170)));
        tails.read_ends(F, 40, 60);
        assert_eq!(tails.crossed(F, 50, 70), None);
        tails.read_ends(F, 0, 50);
        assert_eq!(tails.crossed(F, 0, 70), None);
    }

    #[test]
    fn pages_under_a_write_are_dropped_and_the_short_one_before_it() {
        let tails = Tails::default();
        assert_eq!(wrote(&tails, 0, 10), None);
        assert_eq!(tails.len(), 0);
        for _ in 0..2 {
            tails.open(F, (100, 100), Access::default());
        }
        tails.close(F, false);
        assert_eq!(wrote(&tails, 20, 30), None, "there are no pages");
        read(&tails, 0, 100);
        assert!(!tails.read_short(F, 100));
        assert_eq!(range(wrote(&tails, 20, 30)), Some((20, 30)));
        let stale = wrote(&tails, 200, 210);
        assert_eq!(range(stale), Some((100, 210)));
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(range(wrote(&tails, 210, 220)), Some((210, 220)));
        assert!(tails.read_short(F, 215));
        let change = tails.change_begins(F, (300, 300), || false);
        let stale = change.and_then(|change| tails.change_ends(F, change, (300, 300), true));
        assert_eq!(range(stale), Some((215, 300)), "growth alone");
        let change = tails.change_begins(F, (250, 250), || false);
        let stale = change.and_then(|change| tails.change_ends(F, change, (250, 250), true));
        assert_eq!(stale, None, "neither growth nor bytes");
    }

    #[test]
    fn pages_of_earlier_handles_are_dropped_once() {
        let tails = Tails::default();
        open(&tails, 100, KEPT);
        let stale = wrote(&tails, 20, 30);
        assert_eq!(range(stale), Some((0, u64::MAX)));
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(wrote(&tails, 20, 30), None);
        read(&tails, 0, 100);
        assert_eq!(range(wrote(&tails, 20, 30)), Some((20, 30)));
        tails.cut(F, 0);
        assert_eq!(wrote(&tails, 20, 30), None);
    }

    #[test]
    fn bytes_stored_behind_the_end_are_left_out_where_the_file_grows() {
        let tails = Tails::default();
        assert_eq!(tails.growth_begins(F, 9000), None);
        open(&tails, 5000, MAPPED);
        assert!(tails.growth_begins(F, 5000).is_none() && tails.growth_begins(F, 400).is_none());
        let Some((change, behind)) = tails.growth_begins(F, 9000) else {
            panic!("nothing is left out");
        };
        assert_eq!(behind, (5000, 8192));
        assert_eq!(tails.write_back_begins(F, 4096, 8192).1, [(4096, 5000)]);
        tails.cut(F, 9000);
        let stale = tails.behind_ends(F, change, behind);
        assert_eq!(range(stale), Some((5000, 8192)));
        assert_eq!(tails.write_back_begins(F, 4096, 8192).1, [(4096, 5000)]);
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(tails.write_back_begins(F, 4096, 8192).1, [(4096, 8192)]);
        // By a write through pages: what lies between.
        assert!(!tails.read_short(F, 9000));
        let (gap, _) = tails.page_write(F, 9100, 9200);
        assert_eq!(gap.map(|(_change, range)| range), Some((9000, 9100)));
        assert_eq!(tails.page_write(F, 9200, 9300).0, None);
        read(&tails, 8192, 12_288);
        assert_eq!(
            tails.write_back_begins(F, 8192, 9300).1,
            [(8192, 9000), (9100, 9300)],
            "it is not carried out"
        );
    }

    #[test]
    fn who_may_have_stored_into_a_page_is_known_to_take_space() {
        let tails = Tails::default();
        assert_eq!(tails.space(F, 10, 0), 0);
        let access = Access {
            writes: true,
            keeps_pages: false,
        };
        assert!(!tails.open(F, (10, 0), access));
        assert!(!tails.may_be_dirty(F));
        assert_eq!((tails.space(F, 10, 0), tails.space(F, 10, 512)), (0, 512));
        assert!(read(&tails, 0, 4096), "the kernel knows of no space");
        assert!(!read(&tails, 0, 4096));
        assert!(tails.may_be_dirty(F));
        assert_eq!((tails.space(F, 10, 0), tails.space(F, 0, 0)), (PAGE, 0));
        tails.close(F, true);
        assert!(tails.open(F, (10, 0), MAPPED));
    }

    #[test]
    fn a_change_waits_for_a_write_of_its_pages_or_is_given_up() {
        let tails = Tails::default();
        open(&tails, 5000, MAPPED);
        let (number, _) = tails.write_back_begins(F, 0, 4096);
        assert_eq!(tails.change_begins(F, (10, 20), || true), None);
        assert_eq!(tails.write_back_begins(F, 0, 4096).1, [(0, 4096)]);
        std::thread::scope(|scope| {
            let change = scope.spawn(|| tails.change_begins(F, (5000, 5010), || false));
            assert!(change.join().is_ok_and(|change| change.is_some()));
            let change = scope.spawn(|| tails.change_begins(F, (10, 20), || false));
            for number in [number, number + 2, number + 1] {
                tails.write_back_ends(F, number);
            }
            assert!(change.join().is_ok_and(|change| change.is_some()));
        });
    }
}
