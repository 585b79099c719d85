//! What the kernel's pages show of files that are read through them: their ends, and what is
//! changed round them.
//!
//! The kernel fills the page in which a read ends with zeros, and shows them as soon as it hears of
//! a longer file, from an answer with attributes or from a write of this mount that goes round the
//! pages. So a page that ends short is dropped before a greater size is told, and the pages under a
//! write before it is answered. A read that meets a size told meanwhile is done again.
//!
//! Behind the end a mapping may hold bytes that a program stored there; the kernel sends none of
//! them while it knows the old end. So where a file grows they are dropped before it hears of that,
//! or masked: before a truncation is answered it writes no page.
//!
//! Pages come from reads, from writes through them, and from handles of before; a file has none
//! where there was neither, and nothing is dropped then. Whoever may write a file that has pages
//! may have stored into one: nobody else knows before the kernel writes it.
//!
//! Kept for files that are open for reading, or are changed round the pages just now: bounded by
//! those. Per operation: one lock, one look-up.

use crate::page_masks::{ByteRange, DirectChange, PageMasks};
use crate::page_races::{PageDrop, PageRaces};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
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
    /// The lowest end of a read that may be in pages.
    short: Option<u64>,
    /// How often a read ended short: what was dropped before the last of them is not all.
    reads: u64,
    /// The size that the kernel was told last.
    shown: u64,
    /// The kernel takes no byte behind this for the file's.
    end: u64,
    /// The kernel takes all bytes before this for the file's. It may not have taken the size that
    /// it was told last.
    sure: u64,
    /// The kernel may have pages.
    has_pages: bool,
    /// It has asked for some, or filled some, since the first handle was opened.
    is_used: bool,
    /// It was told that the file takes no space, though it has a length.
    is_told_empty: bool,
    masks: PageMasks,
    crossings: PageRaces,
}

/// Pages to be dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StalePages {
    /// The first byte.
    pub from: u64,
    /// Behind the last byte.
    pub to: u64,
    /// Reads that had ended short then.
    reads: u64,
    /// What is masked until then.
    change: Option<DirectChange>,
}

/// What a handle may do.
#[derive(Debug, Clone, Copy, Default)]
pub struct PageAccess {
    /// Write.
    pub writes: bool,
    /// See pages of earlier handles.
    pub keeps_pages: bool,
}

/// Ends of files by inode.
#[derive(Debug, Default)]
pub struct PageTails {
    files: Mutex<BTreeMap<Ino, Tail>>,
    /// A write of pages has ended.
    is_less: Condvar,
}

impl Tail {
    fn ends_at(&mut self, end: u64) {
        self.short = Some(self.short.map_or(end, |short| short.min(end)));
        self.reads = self.reads.wrapping_add(1);
    }

    fn stale(&self, from: u64, to: u64, change: Option<DirectChange>) -> StalePages {
        let reads = self.reads;
        StalePages {
            from,
            to,
            reads,
            change,
        }
    }

    fn crossed(&self, from: u64, to: u64) -> StalePages {
        let from = self.short.map_or(from, |short| short.min(from));
        self.stale(from, to, None)
    }

    /// Bytes behind the end that may have been stored, up to `to`: those of the last page.
    fn behind(&self, to: u64) -> Option<ByteRange> {
        let is_mapped = self.writers > 0 && self.short.is_some();
        let range = (self.end, to.min(self.end.next_multiple_of(PAGE)));
        (is_mapped && range.0 < range.1).then_some(range)
    }

    fn may_be_dirty(&self) -> bool {
        self.writers > 0 && self.has_pages
    }

    /// The kernel fills pages. True where what it was told of the file's space is no longer so,
    /// perhaps.
    fn uses(&mut self) -> bool {
        let was_clean = !self.may_be_dirty();
        self.has_pages = true;
        self.is_used = true;
        was_clean && self.may_be_dirty() && std::mem::take(&mut self.is_told_empty)
    }

    fn is_over(&self) -> bool {
        self.opens == 0 && self.changes == 0 && self.crossings.is_over()
    }
}

impl PageTails {
    fn all(&self) -> MutexGuard<'_, BTreeMap<Ino, Tail>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files known now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// One more handle that may read through pages, of a file of this size that takes so much
    /// space. True where the kernel is to ask for attributes.
    pub fn open(&self, ino: Ino, (size, allocated): (u64, u64), access: PageAccess) -> bool {
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

    /// An open is about to be answered at which the kernel drops the file's pages.
    pub fn open_drops(&self, ino: Ino) {
        let mut all = self.all();
        let tail = all.entry(ino).or_default();
        tail.crossings.open_begins(Instant::now());
    }

    /// Its handle is used, or closed: they are dropped.
    pub fn open_dropped(&self, ino: Ino) {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return;
        };
        tail.crossings.open_ends();
        if tail.is_over() {
            all.remove(&ino);
        }
    }

    /// Pages of the file are about to be dropped.
    #[must_use]
    pub fn drop_begins(&self, ino: Ino) -> PageDrop {
        let mut all = self.all();
        all.entry(ino).or_default().crossings.drop_begins()
    }

    /// They are dropped; `is_whole`: all of them.
    pub fn drop_ends(&self, ino: Ino, drop: PageDrop, is_whole: bool) {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return;
        };
        tail.crossings.drop_ends(drop, is_whole);
        if tail.is_over() {
            all.remove(&ino);
        }
    }

    /// A read for pages begins to be answered, for that thread. True where the kernel is to ask for
    /// attributes before it is.
    #[must_use]
    pub fn read_begins(&self, ino: Ino, (from, to): ByteRange, thread: u32) -> bool {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return false;
        };
        tail.crossings.read_begins((from, to), thread);
        tail.masks.refilled(from, to);
        tail.uses()
    }

    /// It is answered.
    pub fn read_ends(&self, ino: Ino, range: ByteRange, thread: u32) {
        if let Some(tail) = self.all().get_mut(&ino) {
            let may_write = tail.writers > 0;
            tail.crossings.read_ends(range, thread, may_write);
        }
    }

    /// A program writes through pages. Returns a change where it leaves out bytes behind the end
    /// that may have been stored; and whether the kernel is to ask for attributes.
    #[must_use]
    pub fn page_write(
        &self,
        ino: Ino,
        from: u64,
        to: u64,
    ) -> (Option<(DirectChange, ByteRange)>, bool) {
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

    /// A write through pages is carried out, for that thread. The pages that a read may have filled
    /// without it, see [`crate::page_races`]: they are to be dropped before
    /// [`Self::page_write_ends`]. `None`: that is done.
    #[must_use]
    pub fn page_written(&self, ino: Ino, (from, to): ByteRange, thread: u32) -> Option<StalePages> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.sure = tail.sure.max(to);
        if !tail.crossings.is_crossed((from, to), thread) {
            tail.crossings.write_ends();
            return None;
        }
        Some(tail.crossed(from, to))
    }

    /// It is about to be answered.
    pub fn page_write_ends(&self, ino: Ino) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.crossings.write_ends();
        }
    }

    /// Pages of a write of pages that a read under way may fill without it.
    #[must_use]
    pub fn crossed(&self, ino: Ino, from: u64, to: u64) -> Option<StalePages> {
        let all = self.all();
        let tail = all.get(&ino)?;
        let is_crossed = tail.crossings.is_read((from, to));
        is_crossed.then(|| tail.crossed(from, to))
    }

    /// The kernel writes pages that a mapping has changed: the write's number, and what of it is to
    /// be written.
    #[must_use]
    pub fn write_back_begins(&self, ino: Ino, from: u64, to: u64) -> (u64, Vec<ByteRange>) {
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

    /// A change of bytes round the pages is about to be carried out: it may be when this returns.
    /// `None`: `is_given_up` said so meanwhile.
    #[must_use]
    pub fn change_begins(
        &self,
        ino: Ino,
        (from, to): ByteRange,
        is_given_up: impl Fn() -> bool,
    ) -> Option<DirectChange> {
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

    /// Before a truncation to `size` is carried out: the bytes stored behind the end do not come
    /// into the file.
    #[must_use]
    pub fn growth_begins(&self, ino: Ino, size: u64) -> Option<(DirectChange, ByteRange)> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        let range = tail.behind(size)?;
        tail.changes += 1;
        Some((tail.masks.begin([range]), range))
    }

    /// A change is carried out, of these bytes, or has failed. The pages to be dropped before it is
    /// answered, if there may be any. `grows`: the file is that long at least; then a change of no
    /// bytes is growth alone.
    pub fn change_ends(
        &self,
        ino: Ino,
        change: DirectChange,
        (from, to): ByteRange,
        grows: bool,
    ) -> Option<StalePages> {
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
    pub fn behind_ends(
        &self,
        ino: Ino,
        change: DirectChange,
        range: ByteRange,
    ) -> Option<StalePages> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.changes -= 1;
        tail.masks.done(change);
        Some(tail.stale(range.0, range.1, Some(change)))
    }

    /// A read ended at the end of the file, there. True where the kernel was told of a longer file:
    /// it is to be done again.
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
    pub fn show(&self, ino: Ino, size: u64) -> Option<StalePages> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        tail.shown = size;
        tail.end = tail.end.max(size);
        tail.sure = tail.sure.min(size);
        let from = tail.short.filter(|short| *short < size)?;
        Some(tail.stale(from, size, None))
    }

    /// Whether the kernel may take an open file to be shorter than that.
    #[must_use]
    pub fn may_be_longer(&self, ino: Ino, size: u64) -> bool {
        self.all().get(&ino).is_some_and(|tail| tail.sure < size)
    }

    /// The kernel has been made to take the file to be that long at least.
    pub fn lengthened(&self, ino: Ino, size: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.sure = tail.sure.max(size);
        }
    }

    /// The kernel is about to take this size, whatever it knew, and to drop all pages behind it.
    pub fn cut(&self, ino: Ino, size: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.end = size;
            tail.sure = size;
            if size == 0 && tail.crossings.is_unread() {
                tail.has_pages = false;
            }
        }
    }

    /// What the kernel is told that a file of this size takes: at least a page where it may have
    /// bytes that nobody else knows. Programs take a file without space for one hole.
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

    /// All pages of the file are about to be dropped: a greater size that is told then has nothing
    /// to wait for.
    #[must_use]
    pub fn whole(&self, ino: Ino) -> Option<StalePages> {
        Some(self.all().get(&ino)?.stale(0, u64::MAX, None))
    }

    /// They are dropped. Until then whoever tells a size has to wait.
    pub fn dropped(&self, ino: Ino, stale: StalePages) {
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

    /// Whether pages are to be dropped before the kernel hears of this size. Where not, it is noted
    /// as told.
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
            tail.sure = tail.sure.min(size);
        }
        is_short
    }
}

#[cfg(test)]
mod tests;
