//! Page masks: bytes of one file that were changed bypassing the kernel's pages. An older page must
//! not bring the old bytes back.
//!
//! The kernel writes a page that a mapping has changed as a whole. So writeback omits bytes changed
//! since the page was filled. They were changed by a bypassing write, by fallocate, by a copy, or
//! by growth over bytes stored behind the end.
//!
//! The bytes of a change are masked before it is carried out. The change first waits for
//! overlapping writeback in flight, which did not know of it. The mask ends with one of these:
//!
//! - The pages are dropped, which waits for their writes.
//! - The kernel reads a page again after the change: then the old page is gone, with all its
//!   writes.
//! - A program writes the bytes through the pages.
//!
//! Only changed bytes are masked. A store into a masked byte was made while the change was in
//! flight, so it came before the change. A store after the change returned goes into a page that
//! was filled after it.
//!
//! Bound: changes in flight, and jobs of the thread that drops pages. Cost per writeback: one look
//! at a list that is almost always empty.

/// First byte, and the offset behind the last.
pub type ByteRange = (u64, u64);

/// A change of bytes that bypasses the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectChange(u64);

#[derive(Debug)]
struct Mask {
    change: DirectChange,
    ranges: Vec<ByteRange>,
    /// Whether the change is carried out.
    is_done: bool,
}

/// The masks of a file.
#[derive(Debug, Default)]
pub struct PageMasks {
    masks: Vec<Mask>,
    /// Writeback in flight.
    writing: Vec<(u64, ByteRange)>,
    next: u64,
}

impl PageMasks {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Begins a change of these bytes. Carry it out when [`Self::is_crossed`] is false.
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

    /// Whether earlier writeback in flight overlaps the change.
    #[must_use]
    pub fn is_crossed(&self, change: DirectChange) -> bool {
        let mask = self.masks.iter().find(|mask| mask.change == change);
        mask.is_some_and(|mask| {
            let earlier = self.writing.iter().filter(|(at, _)| *at < change.0);
            let mut ranges = earlier.map(|(_, range)| *range);
            ranges.any(|range| mask.ranges.iter().any(|other| overlap(*other, range)))
        })
    }

    /// Notes that a change is carried out, or has failed.
    pub fn done(&mut self, change: DirectChange) {
        let mut masks = self.masks.iter_mut();
        if let Some(mask) = masks.find(|mask| mask.change == change) {
            mask.is_done = true;
        }
    }

    /// Removes a change: pages from before it are gone.
    pub fn end(&mut self, change: DirectChange) {
        self.masks.retain(|mask| mask.change != change);
    }

    /// Unmasks bytes that the kernel reads again, or gets from a program: its later writes of them
    /// are newer than the changes carried out.
    pub fn refilled(&mut self, from: u64, to: u64) {
        for mask in self.masks.iter_mut().filter(|mask| mask.is_done) {
            mask.ranges = without(&mask.ranges, (from, to));
        }
    }

    /// Begins writeback: returns its number, and the ranges to write.
    pub fn write_begins(&mut self, from: u64, to: u64) -> (u64, Vec<ByteRange>) {
        let number = self.number();
        self.writing.push((number, (from, to)));
        let masked = self.masks.iter().flat_map(|mask| &mask.ranges);
        let left = masked.fold(vec![(from, to)], |left, range| without(&left, *range));
        (number, left)
    }

    /// Ends writeback.
    pub fn write_ends(&mut self, number: u64) {
        self.writing.retain(|(other, _)| *other != number);
    }
}

fn overlap(one: ByteRange, other: ByteRange) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// The ranges without `cut`.
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
    fn writeback_omits_changed_bytes_until_the_pages_are_dropped() {
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
    fn a_change_waits_for_earlier_writeback_of_its_bytes() {
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
    fn a_page_read_again_contains_the_changes_carried_out() {
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
