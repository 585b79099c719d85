//! What the kernel's pages show of the ends of files that are read through them.
//!
//! The kernel fills the page in which a read ends with zeros, and shows them as soon as it hears of a longer file, from an answer
//! with attributes or from a write of this mount that goes round the pages. So a page that ends short is dropped before a greater
//! size is told, and the pages under a write before it is answered. A read that meets a size told meanwhile is done again.
//!
//! Kept for files that are open for reading through pages: bounded by those. Per operation: one lock, one look-up.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::Ino;

#[derive(Debug)]
struct Tail {
    /// Handles that read through pages.
    opens: u32,
    /// Reads that are being answered: first byte, behind the last.
    reading: Vec<(u64, u64)>,
    /// The lowest end of a read that may be in pages.
    short: Option<u64>,
    /// How often a read ended short: what was dropped before the last of them is not all.
    reads: u64,
    /// The size that the kernel was told last.
    shown: u64,
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
}

/// Ends of files by inode.
#[derive(Debug, Default)]
pub struct Tails(Mutex<BTreeMap<Ino, Tail>>);

impl Tail {
    fn ends_at(&mut self, end: u64) {
        self.short = Some(self.short.map_or(end, |short| short.min(end)));
        self.reads = self.reads.wrapping_add(1);
    }
}

impl Tails {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Ino, Tail>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files known now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// One more handle that reads through pages, of a file of this size. Pages of earlier handles may be there.
    pub fn open(&self, ino: Ino, size: u64) {
        let mut all = self.all();
        let tail = all.entry(ino).or_insert(Tail {
            opens: 0,
            reading: Vec::new(),
            short: None,
            reads: 0,
            shown: size,
        });
        tail.opens = tail.opens.saturating_add(1);
        tail.ends_at(size);
        tail.shown = tail.shown.max(size);
    }

    /// One handle less.
    pub fn close(&self, ino: Ino) {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return;
        };
        tail.opens -= 1;
        if tail.opens == 0 {
            all.remove(&ino);
        }
    }

    /// A read for pages begins to be answered.
    pub fn read_begins(&self, ino: Ino, from: u64, to: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.reading.push((from, to));
        }
    }

    /// It is answered.
    pub fn read_ends(&self, ino: Ino, from: u64, to: u64) {
        if let Some(tail) = self.all().get_mut(&ino)
            && let Some(at) = tail.reading.iter().position(|read| *read == (from, to))
        {
            tail.reading.swap_remove(at);
        }
    }

    /// Pages of a write through pages that a read under way may fill without it: the kernel dropped them when it had sent the write.
    #[must_use]
    pub fn crossed(&self, ino: Ino, from: u64, to: u64) -> Option<Stale> {
        let all = self.all();
        let tail = all.get(&ino)?;
        let is_crossed = tail.reading.iter().any(|read| read.0 < to && from < read.1);
        let from = tail.short.map_or(from, |short| short.min(from));
        let reads = tail.reads;
        is_crossed.then_some(Stale { from, to, reads })
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
        let from = tail.short.filter(|short| *short < size)?;
        let (to, reads) = (size, tail.reads);
        Some(Stale { from, to, reads })
    }

    /// All pages of the file are about to be dropped: a greater size that is told then has nothing to wait for.
    #[must_use]
    pub fn whole(&self, ino: Ino) -> Option<Stale> {
        let reads = self.all().get(&ino)?.reads;
        let (from, to) = (0, u64::MAX);
        Some(Stale { from, to, reads })
    }

    /// They are dropped. Until then whoever tells a size has to wait.
    pub fn dropped(&self, ino: Ino, stale: Stale) {
        if let Some(tail) = self.all().get_mut(&ino)
            && tail.reads == stale.reads
        {
            tail.short = tail.short.filter(|short| *short >= stale.to);
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
        }
        is_short
    }

    /// A write round the pages is about to be answered. The pages to be dropped before.
    #[must_use]
    pub fn wrote(&self, ino: Ino, offset: u64, to: u64) -> Option<Stale> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.shown = tail.shown.max(to);
        let from = tail.short.map_or(offset, |short| short.min(offset));
        let reads = tail.reads;
        Some(Stale { from, to, reads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: Ino = Ino(5);

    fn range(stale: Option<Stale>) -> Option<(u64, u64)> {
        stale.map(|stale| (stale.from, stale.to))
    }

    #[test]
    fn a_short_page_is_dropped_before_a_greater_size_is_told() {
        let tails = Tails::default();
        assert_eq!(tails.show(F, 10), None, "nobody reads it");
        tails.open(F, 10);
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
        tails.close(F);
        assert_eq!((tails.len(), tails.show(F, 30)), (0, None));
    }

    #[test]
    fn a_size_waits_for_nothing_where_all_pages_were_dropped() {
        let tails = Tails::default();
        assert_eq!(tails.whole(F), None);
        tails.open(F, 10);
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
        tails.open(F, 100);
        tails.read_begins(F, 0, 50);
        tails.read_begins(F, 40, 60);
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
        assert_eq!(tails.wrote(F, 0, 10), None);
        tails.open(F, 100);
        tails.open(F, 100);
        tails.close(F);
        assert_eq!(range(tails.wrote(F, 20, 30)), Some((20, 30)));
        let stale = tails.wrote(F, 200, 210);
        assert_eq!(range(stale), Some((100, 210)));
        stale.into_iter().for_each(|stale| tails.dropped(F, stale));
        assert_eq!(range(tails.wrote(F, 210, 220)), Some((210, 220)));
        assert!(tails.read_short(F, 215));
    }
}
