//! The allocator: which units of which segments are in use.
//!
//! Each unit has two bits:
//!
//! * `live`: an index record refers to it. A checkpoint stores this bit.
//! * `busy`: it must not be handed out. It is live, or held by a write in flight, or freed since
//!   the last checkpoint. In the last case a crash would bring back the record that refers to it.
//!
//! Next-fit, whole runs first, so that data written together lies together. Large writes of an
//! object lie near its others ([`allocation_windows`]).
//!
//! Invariants: live is a subset of busy; `free` counts the units that are not busy.

mod allocation_windows;

use crate::ids::{Extent, Place, TargetConfig};
use crate::{index_value, key};
use allocation_windows::AllocationWindows;
use std::collections::BTreeSet;
use zonal_types::{ErrorCode, KvChange};

const ANY_RUN: u32 = u32::MAX;

#[derive(Debug)]
struct Segment {
    busy: Vec<u64>,
    live: Vec<u64>,
    free: u32,
    /// No free run of this many units exists: a bound from a failed search, until something is
    /// freed.
    no_run_of: u32,
}

/// Bits `from..end` as (word, mask).
fn words(from: u32, end: u32) -> impl Iterator<Item = (usize, u64)> {
    let mut at = from;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let bits = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - bits)) << (at % 64);
        let word = (at / 64) as usize;
        at += bits;
        Some((word, mask))
    })
}

/// First bit of `bits` at or behind `from` and before `end` that equals `value`; `end` if none.
fn find(bits: &[u64], from: u32, end: u32, value: bool) -> u32 {
    for (word, mask) in words(from, end) {
        let here = if value { bits[word] } else { !bits[word] } & mask;
        if here != 0 {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "words come from bit numbers, each a u32"
            )]
            let word = word as u32;
            return word * 64 + here.trailing_zeros();
        }
    }
    end
}

impl Segment {
    fn new(units: u32) -> Self {
        let empty = vec![0; (units as usize).div_ceil(64)];
        Self {
            busy: empty.clone(),
            live: empty,
            free: units,
            no_run_of: ANY_RUN,
        }
    }

    fn run(&mut self, from: u32, units: u32, want: u32) -> Option<u32> {
        if self.free < want || self.no_run_of <= want {
            return None;
        }
        let mut at = from;
        while at < units {
            let start = find(&self.busy, at, units, false);
            let bound = start.saturating_add(want).min(units);
            let end = find(&self.busy, start, bound, true);
            if end - start >= want {
                return Some(start);
            }
            at = end.max(start + 1);
        }
        if from == 0 {
            self.no_run_of = want;
        }
        None
    }

    fn set_busy(&mut self, from: u32, end: u32) -> u32 {
        let mut set = 0;
        for (word, mask) in words(from, end) {
            set += (mask & !self.busy[word]).count_ones();
            self.busy[word] |= mask;
        }
        assert!(
            set <= self.free,
            "a segment hands out more units than are free"
        );
        self.free -= set;
        set
    }

    fn clear_busy(&mut self, from: u32, end: u32) -> u32 {
        let mut cleared = 0;
        for (word, mask) in words(from, end) {
            let mask = mask & !self.live[word];
            cleared += (mask & self.busy[word]).count_ones();
            self.busy[word] &= !mask;
        }
        self.free += cleared;
        self.no_run_of = ANY_RUN;
        cleared
    }
}

/// All segments of a target.
#[derive(Debug)]
pub(crate) struct Space {
    units: u32,
    limit: u32,
    /// Segments from this one on cannot be created for now.
    usable: Option<u32>,
    segments: Vec<Segment>,
    cursor: Place,
    windows: AllocationWindows,
    busy: u64,
    live: u64,
    freed: Vec<Extent>,
    freed_frozen: Vec<Extent>,
    waiting: u64,
    dirty: BTreeSet<u32>,
    dirty_frozen: BTreeSet<u32>,
}

impl Space {
    pub fn new(config: &TargetConfig) -> Self {
        Self {
            units: config.segment_units,
            limit: config.segments,
            usable: None,
            segments: Vec::new(),
            cursor: Place {
                segment: 0,
                unit: 0,
            },
            windows: AllocationWindows::default(),
            busy: 0,
            live: 0,
            freed: Vec::new(),
            freed_frozen: Vec::new(),
            waiting: 0,
            dirty: BTreeSet::new(),
            dirty_frozen: BTreeSet::new(),
        }
    }

    /// Units that can be handed out.
    pub fn free(&self) -> u64 {
        let total = u64::from(self.units) * u64::from(self.limit);
        total
            .saturating_sub(self.busy)
            .saturating_sub(self.out_of_reach())
    }

    /// Number of segments in memory.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a segment's number is a u32"
    )]
    fn known(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Free units of segments that cannot be created.
    fn out_of_reach(&self) -> u64 {
        let Some(usable) = self.usable else {
            return 0;
        };
        let known = self.known();
        let unknown = u64::from(self.limit.saturating_sub(known.max(usable)));
        let behind = self.segments.iter().skip(usable as usize);
        let free: u64 = behind.map(|segment| u64::from(segment.free)).sum();
        unknown * u64::from(self.units) + free
    }

    /// The first segment that cannot be created for now.
    pub fn usable(&self) -> Option<u32> {
        self.usable
    }

    /// Stops handing out segments from `usable` on; `None`: hands out all.
    pub fn set_usable(&mut self, usable: Option<u32>) {
        self.usable = usable;
    }

    /// Units that index records refer to.
    #[cfg(test)]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Units that the next checkpoint makes free.
    pub fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Units held by writes in flight.
    pub fn in_flight(&self) -> u64 {
        self.busy
            .saturating_sub(self.live)
            .saturating_sub(self.waiting)
    }

    /// Takes `count` units. `None` where fewer are free; then nothing is taken.
    ///
    /// Prefers one run. A search looks at each 64 units of a segment once, and skips segments in
    /// which a run of that length was not found before.
    pub fn allocate(&mut self, count: u32) -> Option<Vec<Extent>> {
        if u64::from(count) > self.free() {
            return None;
        }
        let mut out = Vec::with_capacity(1);
        let (mut left, mut want) = (count, count.min(self.units));
        while left > 0 {
            want = want.min(left);
            if let Some(extent) = self.take_run(want) {
                left -= extent.count;
                out.push(extent);
            } else if want > 1 {
                want = want.div_ceil(2);
            } else {
                self.release(&out);
                return None;
            }
        }
        Some(out)
    }

    fn take_run(&mut self, want: u32) -> Option<Extent> {
        if let Some(at) = self.find_run(want) {
            return Some(self.take(at.segment, at.unit, want));
        }
        let (known, limit) = (self.known(), self.limit());
        if known < limit && want <= self.units {
            self.segments.push(Segment::new(self.units));
            return Some(self.take(known, 0, want));
        }
        None
    }

    /// The first segment that cannot be used.
    fn limit(&self) -> u32 {
        self.limit.min(self.usable.unwrap_or(u32::MAX))
    }

    /// The next run of free units in the segments that exist.
    fn find_run(&mut self, want: u32) -> Option<Place> {
        let (known, limit, units) = (self.known(), self.limit(), self.units);
        (0..=known).filter(|_step| known > 0).find_map(|step| {
            let segment = (self.cursor.segment + step) % known;
            let from = if step == 0 { self.cursor.unit } else { 0 };
            if segment >= limit {
                return None;
            }
            let unit = self.segments[segment as usize].run(from, units, want)?;
            Some(Place { segment, unit })
        })
    }

    fn take(&mut self, segment: u32, unit: u32, count: u32) -> Extent {
        self.cursor = Place {
            segment,
            unit: unit + count,
        };
        self.mark_busy(segment, unit, count)
    }

    fn mark_busy(&mut self, segment: u32, unit: u32, count: u32) -> Extent {
        let set = self.segments[segment as usize].set_busy(unit, unit + count);
        assert_eq!(set, count, "a unit is handed out twice");
        self.busy += u64::from(set);
        Extent {
            segment,
            unit,
            count,
        }
    }

    /// Gives back units that no record refers to and no crash can bring back.
    pub fn release(&mut self, extents: &[Extent]) {
        for extent in extents {
            if let Some(segment) = self.segments.get_mut(extent.segment as usize) {
                let end = extent.unit.saturating_add(extent.count).min(self.units);
                let cleared = u64::from(segment.clear_busy(extent.unit, end));
                assert!(
                    cleared <= self.busy && segment.free <= self.units,
                    "more units are released than were busy"
                );
                self.busy -= cleared;
            }
        }
    }

    fn checked(&self, extent: &Extent) -> Result<u32, ErrorCode> {
        let bound = self.limit.max(self.known());
        extent
            .unit
            .checked_add(extent.count)
            .filter(|end| *end <= self.units && extent.segment < bound && extent.count > 0)
            .ok_or(ErrorCode::Corrupt)
    }

    /// Whether records refer to all (`live`) or to none of the units of an extent.
    ///
    /// # Errors
    /// `Corrupt` where it lies outside.
    pub fn all_are(&self, extent: &Extent, live: bool) -> Result<bool, ErrorCode> {
        let end = self.checked(extent)?;
        Ok(match self.segments.get(extent.segment as usize) {
            None => !live,
            Some(segment) => words(extent.unit, end).all(|(word, mask)| {
                let set = segment.live[word] & mask;
                set == if live { mask } else { 0 }
            }),
        })
    }

    /// Makes an extent live: a record refers to it from now on.
    ///
    /// # Errors
    /// `Corrupt` where a record already refers to it, or the extent lies outside.
    pub fn adopt(&mut self, extent: &Extent) -> Result<(), ErrorCode> {
        let end = self.checked(extent)?;
        while self.segments.len() <= extent.segment as usize {
            self.segments.push(Segment::new(self.units));
        }
        let segment = &mut self.segments[extent.segment as usize];
        if words(extent.unit, end).any(|(word, mask)| segment.live[word] & mask != 0) {
            return Err(ErrorCode::Corrupt);
        }
        self.busy += u64::from(segment.set_busy(extent.unit, end));
        for (word, mask) in words(extent.unit, end) {
            segment.live[word] |= mask;
        }
        self.live += u64::from(extent.count);
        assert!(self.live <= self.busy, "a live unit is not busy");
        self.dirty.insert(extent.segment);
        Ok(())
    }

    /// Ends the reference of a record to an extent; the next checkpoint frees it.
    ///
    /// # Errors
    /// `Corrupt` where no record refers to it.
    pub fn free_later(&mut self, extent: &Extent) -> Result<(), ErrorCode> {
        let end = self.checked(extent)?;
        let segment = self
            .segments
            .get_mut(extent.segment as usize)
            .ok_or(ErrorCode::Corrupt)?;
        if words(extent.unit, end).any(|(word, mask)| !segment.live[word] & mask != 0) {
            return Err(ErrorCode::Corrupt);
        }
        for (word, mask) in words(extent.unit, end) {
            segment.live[word] &= !mask;
        }
        assert!(
            u64::from(extent.count) <= self.live,
            "more units are freed than were live"
        );
        self.live -= u64::from(extent.count);
        self.waiting += u64::from(extent.count);
        self.dirty.insert(extent.segment);
        self.freed.push(*extent);
        Ok(())
    }

    /// Adds the bitmaps that a checkpoint must store: all that changed since the last completed
    /// one.
    pub fn freeze(&mut self, changes: &mut Vec<KvChange>) {
        self.freed_frozen.append(&mut self.freed);
        self.dirty_frozen.append(&mut self.dirty);
        for number in &self.dirty_frozen {
            let key = key::segment(*number);
            let segment = &self.segments[*number as usize];
            let value = index_value::seal(&key, |out| {
                for word in &segment.live {
                    out.extend_from_slice(&word.to_le_bytes());
                }
            });
            changes.push(KvChange::put(key, value));
        }
    }

    /// The checkpoint of the last [`Self::freeze`] is durable.
    pub fn checkpoint_done(&mut self) {
        for extent in std::mem::take(&mut self.freed_frozen) {
            let count = u64::from(extent.count);
            assert!(count <= self.waiting, "more units become free than wait");
            self.waiting -= count;
            self.release(&[extent]);
        }
        self.dirty_frozen.clear();
    }

    /// Loads a stored bitmap.
    ///
    /// # Errors
    /// `Corrupt` where the value is not one.
    pub fn load(&mut self, number: u32, key: &[u8], value: &[u8]) -> Result<(), ErrorCode> {
        let body = index_value::open(key, value)?;
        let expected = self.units.div_ceil(64) * 8;
        // A gap in the numbers would be filled in memory: bound it by what the target may hold.
        let bound = self.limit.max(self.known() + 1);
        if body.len() != expected as usize || number >= bound {
            return Err(ErrorCode::Corrupt);
        }
        while self.segments.len() <= number as usize {
            self.segments.push(Segment::new(self.units));
        }
        let segment = &mut self.segments[number as usize];
        for (word, bytes) in segment.live.iter_mut().zip(body.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().map_err(|_error| ErrorCode::Corrupt)?);
        }
        let used: u32 = segment.live.iter().map(|word| word.count_ones()).sum();
        if find(&segment.live, self.units, expected * 8, true) != expected * 8 {
            return Err(ErrorCode::Corrupt);
        }
        segment.busy.clone_from(&segment.live);
        segment.free = self.units - used;
        self.busy += u64::from(used);
        self.live += u64::from(used);
        Ok(())
    }

    /// The live bits, a word for 64 units, by segment.
    pub fn live_words(&self) -> impl Iterator<Item = (u32, &[u64])> {
        (0_u32..).zip(self.segments.iter().map(|segment| segment.live.as_slice()))
    }
}

#[cfg(test)]
mod model_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        Space::new(&TargetConfig {
            segment_units: 100,
            segments: 2,
            pending_blocks_max: 8,
        })
    }

    #[test]
    fn runs_stay_whole_until_they_cannot() {
        let mut space = space();
        let first = space.allocate(60).unwrap();
        let second = space.allocate(60).unwrap();
        assert_eq!((first.len(), second.len()), (1, 1));
        let rest = space.allocate(80).unwrap();
        assert!(rest.len() > 1);
        assert_eq!(rest.iter().map(|extent| extent.count).sum::<u32>(), 80);
        assert_eq!((space.free(), space.allocate(1)), (0, None));
        space.release(&second);
        assert_eq!(space.allocate(60), Some(second));
    }

    fn extent(unit: u32, count: u32) -> Extent {
        Extent {
            segment: 0,
            unit,
            count,
        }
    }

    #[test]
    #[should_panic(expected = "a unit is handed out twice")]
    fn a_unit_handed_out_twice_is_refused() {
        let mut space = space();
        let first = space.allocate(10).unwrap();
        space.take(first[0].segment, first[0].unit, 1);
    }

    #[test]
    #[should_panic(expected = "more units are released than were busy")]
    fn a_wrong_count_of_busy_units_is_refused() {
        let mut space = space();
        let extents = space.allocate(10).unwrap();
        space.busy = 5;
        space.release(&extents);
    }

    #[test]
    #[should_panic(expected = "more units become free than wait")]
    fn an_extent_that_does_not_wait_is_refused() {
        let mut space = space();
        space.freed_frozen.push(extent(0, 10));
        space.checkpoint_done();
    }

    #[test]
    fn freed_units_are_reused_only_after_a_checkpoint() {
        let mut space = space();
        let extents = space.allocate(200).unwrap();
        extents
            .iter()
            .for_each(|extent| space.adopt(extent).unwrap());
        assert_eq!(space.adopt(&extents[0]), Err(ErrorCode::Corrupt));
        space.free_later(&extents[0]).unwrap();
        assert_eq!(space.free_later(&extents[0]), Err(ErrorCode::Corrupt));
        assert_eq!((space.free(), space.waiting()), (0, 100));
        let mut changes = Vec::new();
        space.freeze(&mut changes);
        assert_eq!(changes.len(), 2);
        space.free_later(&extents[1]).unwrap();
        space.checkpoint_done();
        assert_eq!((space.free(), space.waiting()), (100, 100));
        let mut loaded = self::space();
        for change in &changes {
            let Ok(key::IndexKey::Segment(number)) = key::parse(&change.key) else {
                panic!("a bitmap");
            };
            loaded
                .load(number, &change.key, change.value.as_deref().unwrap())
                .unwrap();
        }
        assert_eq!((loaded.free(), loaded.live()), (100, 100));
    }
}
