//! Page tails: what the kernel's pages show at the ends of files, and changes that bypass the
//! pages.
//!
//! The kernel fills the page in which a read ends with zeros. It shows the zeros as soon as it
//! learns of a longer file, from attributes or from a bypassing write of this mount. So a page that
//! ends short is dropped before a greater size is sent, and the pages under a write before its
//! answer. A read during which a greater size was sent is repeated.
//!
//! A mapping may hold bytes that a program stored behind the end. The kernel sends none of them
//! while it knows the old end. So where a file grows, these bytes are dropped before the kernel
//! learns of it. For a truncation they are masked, because the kernel writes no page before its
//! answer.
//!
//! Pages come from reads, from writes through them, and from earlier handles; a file without these
//! has none, and nothing is dropped. A handle that may write a file may have stored into its pages.
//! The mount learns of that only when the kernel writes them.
//!
//! Bound: files open for reading, and files with a bypassing change in flight. Cost per operation:
//! one lock, one look-up.

use crate::page_masks::{ByteRange, DirectChange, PageMasks};
use crate::page_races::{PageDrop, PageRaces};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::Ino;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// How often a change that waits for writeback checks whether its caller is dying.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
struct Tail {
    /// Handles that may read through pages.
    opens: u32,
    /// Those of them that may write, and so store through a mapping.
    writers: u32,
    /// Bypassing changes in flight.
    changes: u32,
    /// Lowest end of a short read that may be in pages.
    short: Option<u64>,
    /// Number of short reads: a drop begun before the last of them does not cover it.
    reads: u64,
    /// The size sent to the kernel last.
    shown: u64,
    /// Offset behind which the kernel knows no byte of the file.
    end: u64,
    /// Offset before which the kernel certainly knows all bytes. It may have ignored the size sent
    /// last.
    sure: u64,
    /// Whether the kernel may have pages.
    has_pages: bool,
    /// Whether the kernel read or filled a page since the first handle was opened.
    is_used: bool,
    /// Whether the kernel was told that the file takes no space, though it has a length.
    is_told_empty: bool,
    masks: PageMasks,
    crossings: PageRaces,
}

/// Pages to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StalePages {
    /// The first byte.
    pub from: u64,
    /// Offset behind the last byte.
    pub to: u64,
    /// Number of short reads at that time.
    reads: u64,
    /// The change masked until the drop.
    change: Option<DirectChange>,
}

/// Access of a handle.
#[derive(Debug, Clone, Copy, Default)]
pub struct PageAccess {
    /// Whether it may write.
    pub writes: bool,
    /// Whether it sees pages of earlier handles.
    pub keeps_pages: bool,
}

/// Tails of files by inode.
#[derive(Debug, Default)]
pub struct PageTails {
    files: Mutex<BTreeMap<Ino, Tail>>,
    /// Notified when writeback ends.
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

    /// Bytes of the last page behind the end, up to `to`, that a program may have stored.
    fn behind(&self, to: u64) -> Option<ByteRange> {
        let is_mapped = self.writers > 0 && self.short.is_some();
        let range = (self.end, to.min(self.end.next_multiple_of(PAGE)));
        (is_mapped && range.0 < range.1).then_some(range)
    }

    fn may_be_dirty(&self) -> bool {
        self.writers > 0 && self.has_pages
    }

    /// Notes that the kernel fills pages. True where the space sent to it may be wrong now.
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

    /// Files in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all().len()
    }

    /// Adds a handle that may read through pages, of a file of this size and space. True where the
    /// kernel must fetch the attributes.
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

    /// Ends a handle.
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

    /// Notes an open that drops the file's pages, before its answer.
    pub fn open_drops(&self, ino: Ino) {
        let mut all = self.all();
        let tail = all.entry(ino).or_default();
        tail.crossings.open_begins(Instant::now());
    }

    /// Notes the first use or the close of its handle: the pages are dropped.
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

    /// Begins a drop of pages of the file.
    #[must_use]
    pub fn drop_begins(&self, ino: Ino) -> PageDrop {
        let mut all = self.all();
        all.entry(ino).or_default().crossings.drop_begins()
    }

    /// Ends a drop; `is_whole`: of all pages.
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

    /// Begins a read into pages by a thread. True where the kernel must fetch the attributes before
    /// the answer.
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

    /// Ends a read.
    pub fn read_ends(&self, ino: Ino, range: ByteRange, thread: u32) {
        if let Some(tail) = self.all().get_mut(&ino) {
            let may_write = tail.writers > 0;
            tail.crossings.read_ends(range, thread, may_write);
        }
    }

    /// Begins a write through pages. Returns a mask, if bytes behind the end may have been stored
    /// and must be omitted. Also returns whether the kernel must fetch the attributes.
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

    /// Ends a write through pages by a thread. Returns pages that a read may have filled without
    /// it, see [`crate::page_races`]. Drop them before [`Self::page_write_ends`]. `None`:
    /// [`Self::page_write_ends`] is done.
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

    /// Notes that a write through pages is about to be answered.
    pub fn page_write_ends(&self, ino: Ino) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.crossings.write_ends();
        }
    }

    /// Pages of a writeback that a read in flight may fill without it.
    #[must_use]
    pub fn crossed(&self, ino: Ino, from: u64, to: u64) -> Option<StalePages> {
        let all = self.all();
        let tail = all.get(&ino)?;
        let is_crossed = tail.crossings.is_read((from, to));
        is_crossed.then(|| tail.crossed(from, to))
    }

    /// Begins writeback of a mapping: returns its number, and the ranges to write.
    #[must_use]
    pub fn write_back_begins(&self, ino: Ino, from: u64, to: u64) -> (u64, Vec<ByteRange>) {
        match self.all().get_mut(&ino) {
            Some(tail) => tail.masks.write_begins(from, to),
            None => (0, vec![(from, to)]),
        }
    }

    /// Ends writeback.
    pub fn write_back_ends(&self, ino: Ino, number: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.masks.write_ends(number);
            self.is_less.notify_all();
        }
    }

    /// Begins a bypassing change of bytes, after it has waited for overlapping writeback. `None`:
    /// `is_given_up` returned true meanwhile.
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

    /// Masks bytes stored behind the end before a truncation to `size`, so that they do not enter
    /// the file.
    #[must_use]
    pub fn growth_begins(&self, ino: Ino, size: u64) -> Option<(DirectChange, ByteRange)> {
        let mut all = self.all();
        let tail = all.get_mut(&ino)?;
        let range = tail.behind(size)?;
        tail.changes += 1;
        Some((tail.masks.begin([range]), range))
    }

    /// Ends a change of these bytes, carried out or failed. Returns the pages to drop before its
    /// answer. `grows`: the file is at least that long; a change of no bytes is then growth only.
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
            // Pages of earlier handles: dropped once, for all later changes.
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

    /// Ends a mask of bytes behind the end; returns their page, to be dropped.
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

    /// Notes a read that ended at the end of the file. True where the kernel was told of a longer
    /// file: repeat the read.
    #[must_use]
    pub fn read_short(&self, ino: Ino, end: u64) -> bool {
        let mut all = self.all();
        let Some(tail) = all.get_mut(&ino) else {
            return false;
        };
        tail.ends_at(end);
        tail.shown > end
    }

    /// Notes a size before the kernel gets it. Returns the pages to drop before.
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

    /// Whether the kernel may know a shorter length of an open file.
    #[must_use]
    pub fn may_be_longer(&self, ino: Ino, size: u64) -> bool {
        self.all().get(&ino).is_some_and(|tail| tail.sure < size)
    }

    /// Notes that the kernel knows at least this length.
    pub fn lengthened(&self, ino: Ino, size: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.sure = tail.sure.max(size);
        }
    }

    /// Notes a size that the kernel is about to take, and behind which it drops all pages.
    pub fn truncate(&self, ino: Ino, size: u64) {
        if let Some(tail) = self.all().get_mut(&ino) {
            tail.end = size;
            tail.sure = size;
            if size == 0 && tail.crossings.is_unread() {
                tail.has_pages = false;
            }
        }
    }

    /// Space to send to the kernel: at least a page, where it may have bytes that nobody else
    /// knows. Programs take a file without space for one hole.
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

    /// Whether the kernel may have bytes that a program stored into a mapping.
    #[must_use]
    pub fn may_be_dirty(&self, ino: Ino) -> bool {
        self.all().get(&ino).is_some_and(Tail::may_be_dirty)
    }

    /// All pages of the file, to be dropped: a greater size sent afterwards need not wait.
    #[must_use]
    pub fn whole(&self, ino: Ino) -> Option<StalePages> {
        Some(self.all().get(&ino)?.stale(0, u64::MAX, None))
    }

    /// Notes that pages are dropped. Until then a greater size has to wait.
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

    /// Whether pages must be dropped before the kernel gets this size. If not, notes the size as
    /// sent.
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
