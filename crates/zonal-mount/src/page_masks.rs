//! Bytes of one file that were changed round the kernel's pages: a page that the kernel filled
//! before must not bring the old ones back.
//!
//! The kernel writes a page that a mapping has changed as a whole. So a write of pages leaves out
//! what was changed since they were filled, by a write round them, by fallocate, by a copy, or by
//! growth over bytes that were stored behind the end. The bytes of a change are masked
//! 1. before it is carried out, and it waits for writes of pages under way that overlap them: those
//!    took no notice of it;
//! 2. until the pages are dropped, which waits for their writes; or, once it is carried out, until
//!    the kernel asks for a page anew: then the old page is gone, with all its writes; or until a
//!    program writes the bytes through the pages.
//!
//! Only bytes that are changed are masked. A store into one of these that is left out was made
//! while the change was under way: it came before it. A store that is made after the change
//! returned goes into a page that was filled after it.
//!
//! Bounded: by changes under way, and jobs of the thread that drops pages. Per write of pages: one
//! look at a list that is nearly always empty.

/// Behind the last byte, from the first.
pub type ByteRange = (u64, u64);

/// A change of bytes round the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectChange(u64);

#[derive(Debug)]
struct Mask {
    change: DirectChange,
    ranges: Vec<ByteRange>,
    /// Carried out.
    is_done: bool,
}

/// The masks of a file.
#[derive(Debug, Default)]
pub struct PageMasks {
    masks: Vec<Mask>,
    /// Writes of pages under way.
    writing: Vec<(u64, ByteRange)>,
    next: u64,
}

impl PageMasks {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A change of these bytes begins. It is to be carried out when [`Self::is_crossed`] is false.
    pub fn begin(&mut self, ranges: impl IntoIterator<Item = ByteRange>) -> DirectChange {
        let change = DirectChange(self.number());
        let ranges = Vec::from_iter(ranges);
        let is_done = false;
        self.masks.push(Mask {
            change,
            ranges,
            is_done,
        });
        change
    }

    /// Whether writes of pages that began before it overlap the change.
    #[must_use]
    pub fn is_crossed(&self, change: DirectChange) -> bool {
        let mask = self.masks.iter().find(|mask| mask.change == change);
        mask.is_some_and(|mask| {
            let earlier = self.writing.iter().filter(|(at, _)| *at < change.0);
            let mut ranges = earlier.map(|(_, range)| *range);
            ranges.any(|range| mask.ranges.iter().any(|other| overlap(*other, range)))
        })
    }

    /// It is carried out, or has failed.
    pub fn done(&mut self, change: DirectChange) {
        let mut masks = self.masks.iter_mut();
        if let Some(mask) = masks.find(|mask| mask.change == change) {
            mask.is_done = true;
        }
    }

    /// Pages that were filled before it are gone.
    pub fn end(&mut self, change: DirectChange) {
        self.masks.retain(|mask| mask.change != change);
    }

    /// The kernel asks for the pages of these bytes, or has them from a program: what it writes of
    /// them from now on is newer than the changes carried out.
    pub fn refilled(&mut self, from: u64, to: u64) {
        for mask in self.masks.iter_mut().filter(|mask| mask.is_done) {
            mask.ranges = without(&mask.ranges, (from, to));
        }
    }

    /// A write of pages begins: its number, and what of it is to be written.
    pub fn write_begins(&mut self, from: u64, to: u64) -> (u64, Vec<ByteRange>) {
        let number = self.number();
        self.writing.push((number, (from, to)));
        let masked = self.masks.iter().flat_map(|mask| &mask.ranges);
        let left = masked.fold(vec![(from, to)], |left, range| without(&left, *range));
        (number, left)
    }

    /// It has ended.
    pub fn write_ends(&mut self, number: u64) {
        self.writing.retain(|(other, _)| *other != number);
    }
}

fn overlap(one: ByteRange, other: ByteRange) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// What is left of the ranges without `cut`.
fn without(ranges: &[ByteRange], cut: ByteRange) -> Vec<ByteRange> {
    let parts = ranges.iter().flat_map(|&(from, to)| {
        let before = (from, to.min(cut.0));
        let behind = (from.max(cut.1), to);
        if overlap((from, to), cut) {
            [before, behind]
        } else {
            [(from, to), (to, to)]
        }
    });
    parts.filter(|(from, to)| from < to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_leave_out_what_was_changed_until_they_are_gone() {
        let mut masks = PageMasks::default();
        let change = masks.begin([(10, 20)]);
        let (one, left) = masks.write_begins(0, 100);
        assert_eq!(left, [(0, 10), (20, 100)]);
        masks.write_ends(one);
        masks.done(change);
        assert_eq!(masks.write_begins(12, 18).1, []);
        assert_eq!(masks.write_begins(15, 30).1, [(20, 30)]);
        masks.end(change);
        assert_eq!(masks.write_begins(0, 100).1, [(0, 100)]);
    }

    #[test]
    fn a_change_waits_for_earlier_writes_of_its_bytes() {
        let mut masks = PageMasks::default();
        let (one, _) = masks.write_begins(0, 10);
        let (other, _) = masks.write_begins(20, 30);
        let change = masks.begin([(5, 15)]);
        assert!(masks.is_crossed(change));
        let (later, _) = masks.write_begins(0, 10);
        masks.write_ends(one);
        assert!(!masks.is_crossed(change), "the later one left them out");
        for number in [other, later] {
            masks.write_ends(number);
        }
        masks.end(change);
        assert!(masks.masks.is_empty() && masks.writing.is_empty());
    }

    #[test]
    fn a_page_that_is_asked_for_anew_has_the_changes_carried_out() {
        let mut masks = PageMasks::default();
        let (change, under_way) = (masks.begin([(10, 50)]), masks.begin([(30, 40)]));
        masks.refilled(0, 100);
        assert_eq!(masks.write_begins(0, 100).1, [(0, 10), (50, 100)]);
        masks.done(change);
        masks.refilled(20, 45);
        assert_eq!(
            masks.write_begins(0, 100).1,
            [(0, 10), (20, 30), (40, 45), (50, 100)]
        );
        masks.done(under_way);
        masks.refilled(0, 100);
        assert_eq!(masks.write_begins(0, 100).1, [(0, 100)]);
        let none = masks.begin([]);
        assert_eq!(masks.write_begins(0, 100).1, [(0, 100)]);
        masks.end(none);
    }
}
