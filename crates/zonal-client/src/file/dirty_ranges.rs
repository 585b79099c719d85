//! Dirty ranges: gathered writes of one file as exact byte ranges, never rounded, sorted, not
//! overlapping.
//!
//! Adjacent ranges are joined, so that a stream of small writes becomes one run. Long runs that own
//! their memory are not joined.

use crate::transport::run::Run;
use std::collections::BTreeMap;
use zonal_basics::to_usize;

/// Most bytes copied from the front of a run to the run before it. A long write has as much room
/// behind it.
const MISSING_MAX: u64 = 4096;

/// A run of this length may cover a stripe unit, or soon does. (Behind a file's first bytes a
/// shorter one is enough.)
const LONG_BYTES: usize = 32 << 10;

/// Byte ranges that are newer than the targets' copies.
#[derive(Debug, Default)]
pub struct DirtyRanges {
    runs: BTreeMap<u64, Run>,
    bytes: usize,
    /// A run may have become long since the last search found none that covers a unit. It avoids
    /// repeated searches through many short runs.
    has_long: bool,
}

impl DirtyRanges {
    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of runs.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Whether [`Self::take_full`] may find something.
    #[must_use]
    pub fn has_long(&self) -> bool {
        self.has_long
    }

    /// True where there are no dirty bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Writes `data` at `offset` over earlier bytes.
    pub fn insert(&mut self, offset: u64, data: &[u8]) {
        self.insert_in(offset, data, Run::with_room);
    }

    /// Takes `run` at `offset` without a copy, where it touches no other run.
    ///
    /// A run before it that ends short of a multiple of `unit` gets the few missing bytes as a
    /// copy. A stream from memory that does not begin on a page comes in pieces that end just
    /// before a unit.
    ///
    /// # Errors
    /// Returns the run where it overlaps or touches another run in any other way.
    pub fn adopt(&mut self, offset: u64, mut run: Run, unit: u64) -> Result<(), Run> {
        let end = offset + run.len() as u64;
        let before = self.runs.range_mut(..=end).next_back();
        let mut begin = offset;
        match before {
            _ if run.is_empty() => return Err(run),
            Some((at, before)) if at + before.len() as u64 == offset => {
                let missing = offset.next_multiple_of(unit) - offset;
                if missing > MISSING_MAX || missing >= run.len() as u64 {
                    return Err(run);
                }
                before.extend(&run[..to_usize(missing)]);
                run.skip(to_usize(missing));
                self.bytes += to_usize(missing);
                begin += missing;
            }
            Some((at, before)) if at + before.len() as u64 > offset => return Err(run),
            _ => {}
        }
        self.bytes += run.len();
        self.has_long |= run.len() >= LONG_BYTES;
        self.runs.insert(begin, run);
        self.assert_apart(begin);
        Ok(())
    }

    /// [`Self::insert`]; `room` makes the memory of a new run of so many bytes.
    pub fn insert_in(&mut self, offset: u64, data: &[u8], room: impl Fn(usize) -> Run) {
        if data.is_empty() {
            return;
        }
        let end = offset + data.len() as u64;
        // The common case: the write continues the run before it, and no run begins within it.
        let follows = self.runs.range(offset..=end).next().is_some();
        if let Some((start, run)) = self.runs.range_mut(..offset).next_back() {
            let run_end = start + run.len() as u64;
            if run_end >= offset {
                let at = to_usize(offset - start);
                let within = run.len().min(at + data.len());
                if run_end >= end {
                    run.put(at, data);
                    return;
                }
                if !follows {
                    run.put(at, &data[..within - at]);
                    make_room(run, data.len() - (within - at), &room);
                    run.extend(&data[within - at..]);
                    self.has_long |= run.len() >= LONG_BYTES;
                    self.bytes += data.len() - (within - at);
                    return;
                }
            }
        }
        self.insert_slowly(offset, data, room);
    }

    fn insert_slowly(&mut self, offset: u64, data: &[u8], room: impl Fn(usize) -> Run) {
        let end = offset + data.len() as u64;
        self.remove(offset, end);
        let mut start = offset;
        let before = self
            .runs
            .range(..offset)
            .next_back()
            .map(|(at, run)| (*at, run.len()));
        let joined = before.filter(|(at, length)| at + *length as u64 == offset);
        let mut run = match joined.and_then(|(at, _length)| Some((at, self.runs.remove(&at)?))) {
            Some((at, left)) => {
                start = at;
                left
            }
            None => room(room_for(data.len())),
        };
        let right = self.runs.remove(&end);
        let behind = right.as_ref().map_or(0, |right| right.len());
        make_room(&mut run, data.len() + behind, &room);
        run.extend(data);
        if let Some(right) = right {
            run.extend(&right);
        }
        self.bytes += data.len();
        self.has_long |= run.len() >= LONG_BYTES;
        self.runs.insert(start, run);
        self.assert_apart(start);
    }

    /// Counts bytes that have left the runs.
    fn uncount(&mut self, bytes: usize) {
        assert!(
            bytes <= self.bytes,
            "{bytes} bytes left, {} were dirty",
            self.bytes
        );
        self.bytes -= bytes;
        assert!(
            !self.runs.is_empty() || self.bytes == 0,
            "{} dirty bytes are in no run",
            self.bytes
        );
    }

    /// The run at `start` overlaps neither of its neighbours.
    fn assert_apart(&self, start: u64) {
        let mut from = self.runs.range(start..);
        let end = from.next().map_or(start, |(at, run)| at + run.len() as u64);
        let behind = from.next().map(|(at, _run)| *at);
        let before = self.runs.range(..start).next_back();
        let before = before.map_or(0, |(at, run)| at + run.len() as u64);
        assert!(
            before <= start && behind.is_none_or(|behind| end <= behind),
            "runs overlap: {before}, {start}..{end}, {behind:?}"
        );
    }

    /// Removes `from..to`.
    pub fn remove(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let first = self
            .runs
            .range(..from)
            .next_back()
            .map_or(from, |(at, _run)| *at);
        let touched: Vec<u64> = self.runs.range(first..to).map(|(at, _run)| *at).collect();
        for at in touched {
            let Some(mut run) = self.runs.remove(&at) else {
                continue;
            };
            let end = at + run.len() as u64;
            if end <= from {
                self.runs.insert(at, run);
                continue;
            }
            if end > to {
                self.runs.insert(to, run.split_off(to_usize(to - at)));
            }
            if at < from {
                run.truncate(to_usize(from - at));
                self.runs.insert(at, run);
            }
            self.uncount(to_usize(end.min(to) - at.max(from)));
        }
    }

    /// Takes out the covered part of the first run that covers multiples of `unit`, from `behind`
    /// on.
    pub fn take_full(&mut self, unit: u64, behind: u64) -> Option<(u64, Run)> {
        if !self.has_long {
            return None;
        }
        let found = self.runs.iter().find_map(|(start, run)| {
            let from = if *start <= behind {
                behind
            } else {
                start.next_multiple_of(unit)
            };
            let end = start + run.len() as u64;
            let to = end - end % unit;
            (to > from).then_some((*start, from, to))
        });
        self.has_long = found.is_some();
        let (start, from, to) = found?;
        let mut run = self.runs.remove(&start)?;
        if start + run.len() as u64 > to {
            self.runs.insert(to, run.split_off(to_usize(to - start)));
        }
        if from > start {
            // The part that stays is the shorter one.
            self.runs
                .insert(start, run.split_front(to_usize(from - start)));
        }
        self.uncount(run.len());
        Some((from, run))
    }

    /// Takes the first run from `behind` on out.
    pub fn take_first(&mut self, behind: u64) -> Option<(u64, Run)> {
        let before = self.runs.range(..behind).next_back();
        let crossing = before.and_then(|(start, run)| {
            let end = start + run.len() as u64;
            (end > behind).then_some(*start)
        });
        let (start, run) = match crossing {
            Some(start) => {
                let run = self.runs.get_mut(&start)?;
                (behind, run.split_off(to_usize(behind - start)))
            }
            None => {
                let start = *self.runs.range(behind..).next()?.0;
                (start, self.runs.remove(&start)?)
            }
        };
        self.uncount(run.len());
        Some((start, run))
    }

    /// Takes out the first runs from `behind` on: at most `runs`, until they have `bytes` bytes.
    pub fn take_many(&mut self, behind: u64, runs: usize, bytes: usize) -> Vec<(u64, Run)> {
        let mut taken = Vec::new();
        let mut left = bytes;
        while taken.len() < runs && left > 0 {
            let Some((at, run)) = self.take_first(behind) else {
                break;
            };
            left = left.saturating_sub(run.len());
            taken.push((at, run));
        }
        taken
    }

    /// Takes the first run before `end` out.
    pub fn take_before(&mut self, end: u64) -> Option<(u64, Run)> {
        let start = *self.runs.range(..end).next()?.0;
        let mut run = self.runs.remove(&start)?;
        if start + run.len() as u64 > end {
            self.runs.insert(end, run.split_off(to_usize(end - start)));
        }
        self.uncount(run.len());
        Some((start, run))
    }

    /// Whether there are dirty bytes behind `behind`.
    #[must_use]
    pub fn has_behind(&self, behind: u64) -> bool {
        self.end() > behind
    }

    /// Copies of the dirty bytes of `offset..end`: (offset, bytes).
    #[must_use]
    pub fn copies(&self, offset: u64, end: u64) -> Vec<(u64, Vec<u8>)> {
        let first = self
            .runs
            .range(..=offset)
            .next_back()
            .map_or(offset, |(at, _run)| *at);
        let touched = self.runs.range(first..end.max(first));
        touched
            .filter_map(|(at, run)| overlap(*at, run, offset, end))
            .collect()
    }

    /// Offset behind the last range; 0 where there is none.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.runs
            .last_key_value()
            .map_or(0, |(at, run)| at + run.len() as u64)
    }
}

/// A run of this length gets room for a unit: it is a stream, or several processes write it in
/// turn.
const LARGE: usize = 64 << 10;
const UNIT: usize = 1 << 20;

/// Room for a run that begins with `bytes`. A large write that does not begin on a page comes in
/// two requests. The second has a few bytes and must not move the first.
fn room_for(bytes: usize) -> usize {
    if bytes < LARGE {
        bytes
    } else {
        bytes.next_multiple_of(UNIT)
    }
}

/// Moves a run that becomes large to memory with room for a unit and for the write that goes beyond
/// it. So later writes do not move it again.
fn make_room(run: &mut Run, more: usize, room: impl Fn(usize) -> Run) {
    let length = run.len() + more;
    if (LARGE..=UNIT).contains(&length) && !run.has_room(more) {
        let mut moved = room(UNIT + LARGE);
        moved.extend(run);
        *run = moved;
    }
}

/// The part of `run` (which lies at `at`) within `offset..end`, copied.
#[must_use]
pub fn overlap(at: u64, run: &[u8], offset: u64, end: u64) -> Option<(u64, Vec<u8>)> {
    let from = at.max(offset);
    let to = (at + run.len() as u64).min(end);
    (from < to).then(|| (from, run[to_usize(from - at)..to_usize(to - at)].to_vec()))
}

/// Copies the part of `run` (which lies at `at`) that falls within `out` (which lies at `offset`).
pub fn copy_overlap(at: u64, run: &[u8], offset: u64, out: &mut [u8]) {
    let from = at.max(offset);
    let to = (at + run.len() as u64).min(offset + out.len() as u64);
    if from < to {
        let source = &run[to_usize(from - at)..to_usize(to - at)];
        out[to_usize(from - offset)..to_usize(to - offset)].copy_from_slice(source);
    }
}

#[cfg(test)]
mod model_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "runs overlap")]
    fn overlapping_runs_are_noticed() {
        let mut dirty = DirtyRanges::default();
        dirty.insert(10, &[1; 10]);
        dirty.runs.insert(15, Run::from(&[2; 10][..]));
        dirty.assert_apart(15);
    }

    #[test]
    #[should_panic(expected = "were dirty")]
    fn bytes_that_leave_were_counted() {
        let mut dirty = DirtyRanges::default();
        dirty.runs.insert(0, Run::from(&[1; 10][..]));
        let _taken = dirty.take_first(0);
    }

    #[test]
    fn a_stream_of_small_writes_is_one_run_and_full_units_leave() {
        let mut dirty = DirtyRanges::default();
        for index in 0..100_u64 {
            dirty.insert(10 + index * 1000, &[1; 1000]);
        }
        assert!(dirty.take_full(51_200, 0).is_none());
        assert!(!dirty.has_long());
        dirty.insert(100_010, &[2; 3000]);
        assert!(dirty.has_long());
        let full = dirty.take_full(51_200, 0);
        assert_eq!(full.map(|run| run.0), Some(51_200));
        assert_eq!(dirty.end(), 103_010);
    }

    #[test]
    fn a_stream_of_long_writes_from_unaligned_memory_is_not_copied() {
        const UNIT: usize = 1 << 20;
        let mut dirty = DirtyRanges::default();
        let mut at = 0;
        let mut places = Vec::new();
        // The kernel splits 4 MiB that begin at byte 32 of a page like this.
        for (index, length) in [UNIT - 32, UNIT, UNIT, UNIT, 32].into_iter().enumerate() {
            let memory: Box<Vec<u8>> = Box::new(vec![index as u8; UNIT + 8192]);
            places.push(memory.as_ptr().addr());
            let run = Run::new(memory, 4096..4096 + length);
            if let Err(run) = dirty.adopt(at, run, UNIT as u64) {
                dirty.insert(at, &run);
            }
            at += length as u64;
        }
        for (index, place) in places.into_iter().take(4).enumerate() {
            let (at, run) = dirty.take_full(UNIT as u64, 0).unwrap();
            assert_eq!((at, run.len()), ((index * UNIT) as u64, UNIT));
            let skipped = if index == 0 { 0 } else { 32 };
            assert_eq!(run.as_ptr().addr(), place + 4096 + skipped);
            let next = u8::try_from(index).unwrap() + 1;
            assert!(run[..UNIT - 32].iter().all(|byte| *byte == next - 1));
            assert_eq!(run[UNIT - 32..], [next; 32]);
        }
        assert!(dirty.is_empty() && dirty.bytes() == 0);
    }

    #[test]
    fn a_run_that_grows_by_short_writes_moves_once() {
        let mut dirty = DirtyRanges::default();
        let places = std::cell::RefCell::new(Vec::new());
        let room = |bytes| {
            places.borrow_mut().push(bytes);
            Run::with_room(bytes)
        };
        // Two processes in turn, the second ahead.
        for turn in 0..11_u64 {
            for record in [2 * turn + 1, 2 * turn] {
                dirty.insert_in(record * 47_008, &[record as u8; 47_008], room);
            }
        }
        let moves = places
            .borrow()
            .iter()
            .filter(|bytes| **bytes > 47_008)
            .count();
        assert_eq!(moves, 1);
        let (at, run) = dirty.take_full(1 << 19, 0).unwrap();
        assert_eq!((at, run.len()), (0, 1 << 19));
        for (at, byte) in run.iter().enumerate() {
            assert_eq!(usize::from(*byte), at / 47_008);
        }
    }

    #[test]
    fn many_runs_are_taken_in_order_up_to_a_bound() {
        let mut dirty = DirtyRanges::default();
        for index in (0..10_u64).rev() {
            dirty.insert(index * 100, &[index as u8; 40]);
        }
        assert_eq!((dirty.runs(), dirty.bytes()), (10, 400));
        let taken =
            |taken: Vec<(u64, Run)>| taken.into_iter().map(|(at, _run)| at).collect::<Vec<_>>();
        // The run across the first byte is split there.
        assert_eq!(taken(dirty.take_many(110, 3, 1000)), [110, 200, 300]);
        assert_eq!(taken(dirty.take_many(110, 9, 41)), [400, 500]);
        assert_eq!(taken(dirty.take_many(1000, 9, 41)), [0; 0]);
        assert_eq!(
            taken(dirty.take_many(0, 100, 1000)),
            [0, 100, 600, 700, 800, 900]
        );
        assert!(dirty.is_empty() && dirty.bytes() == 0);
    }

    #[test]
    fn inline_bytes_are_not_taken_for_targets() {
        let mut dirty = DirtyRanges::default();
        dirty.insert(0, &[1; 1024]);
        dirty.has_long = true;
        let bytes = |taken: Option<(u64, Run)>| taken.map(|(at, run)| (at, run.to_vec()));
        assert_eq!(bytes(dirty.take_full(512, 100)), Some((100, vec![1; 924])));
        assert!(!dirty.has_behind(100));
        dirty.insert(90, &[2; 20]);
        assert_eq!(bytes(dirty.take_first(100)), Some((100, vec![2; 10])));
        assert!(dirty.take_first(100).is_none());
        assert_eq!(dirty.take_before(50).map(|run| run.1.len()), Some(50));
        assert_eq!(dirty.take_before(100).map(|run| run.0), Some(50));
        assert!(dirty.is_empty() && dirty.bytes() == 0);
    }
}
