//! Allocation windows: objects that are written at the same time lie apart, in runs of their own.
//!
//! Next-fit alone puts pieces of several objects in turn, as they come. With two copies each column
//! lies between the pieces of another column's copy. A reader of one then jumps over the other, and
//! the kernel's readahead fetches both.
//!
//! A window is a hint and holds nothing: its units are free until they are handed out. Other writes
//! may take them where nothing else is left. A restart forgets all windows.

use super::{Space, find};
use crate::ids::{Extent, ObjectId, Place};
use zonal_basics::SplitMix64;

/// Windows at a time. Objects share them by their hash.
const WINDOWS: usize = 8;
/// Most units of a window: 4 MiB.
const WINDOW_UNITS_MAX: u32 = 1024;
/// Windows in a segment, at least.
const IN_SEGMENT_MIN: u32 = 8;
/// Writes below this part of a window lie beside one another, whatever their objects. They are
/// mostly small files, which are read in the order in which they came.
const LARGE_PART: u32 = 32;

/// The windows in use.
#[derive(Debug, Default)]
pub(super) struct AllocationWindows([AllocationWindow; WINDOWS]);

/// Units `at.unit..end` of a segment.
#[derive(Debug, Default, Clone, Copy)]
struct AllocationWindow {
    at: Place,
    end: u32,
}

impl Space {
    /// As [`Self::allocate`], near the units that the object got before.
    pub fn allocate_for(&mut self, object: ObjectId, count: u32) -> Option<Vec<Extent>> {
        match self.take_in_window(object, count) {
            Some(extent) => Some(vec![extent]),
            None => self.allocate(count),
        }
    }

    fn take_in_window(&mut self, object: ObjectId, count: u32) -> Option<Extent> {
        let units = (self.units / IN_SEGMENT_MIN).min(WINDOW_UNITS_MAX);
        if !(units.div_ceil(LARGE_PART)..=units).contains(&count) {
            return None;
        }
        let bits = SplitMix64(object.data_id.0 ^ SplitMix64(object.column.0.into()).bits()).bits();
        let number = zonal_basics::to_usize(bits % WINDOWS as u64);
        let mut window = self.windows.0[number];
        if !self.has_free(&window, count) {
            window = self.begin_window(units)?;
        }
        let at = window.at;
        window.at.unit += count;
        self.windows.0[number] = window;
        Some(self.mark_busy(at.segment, at.unit, count))
    }

    fn has_free(&self, window: &AllocationWindow, count: u32) -> bool {
        let (from, end) = (window.at.unit, window.at.unit + count);
        let segment = self.segments.get(window.at.segment as usize);
        let is_usable = self.usable.is_none_or(|usable| window.at.segment < usable);
        is_usable
            && end <= window.end
            && segment.is_some_and(|segment| find(&segment.busy, from, end, true) == end)
    }

    /// A run of free units. Other writes go on behind it.
    fn begin_window(&mut self, units: u32) -> Option<AllocationWindow> {
        let at = self.find_run(units)?;
        let end = at.unit + units;
        self.cursor = Place { unit: end, ..at };
        Some(AllocationWindow { at, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TargetConfig;
    use zonal_types::{Column, DataId};

    fn object(data_id: u64, column: u16) -> ObjectId {
        ObjectId {
            data_id: DataId(data_id),
            column: Column(column),
        }
    }

    fn space() -> Space {
        Space::new(&TargetConfig {
            segment_units: 16_384,
            segments: 2,
            pending_blocks_max: 8,
        })
    }

    /// Runs of units of an object, with adjacent extents joined.
    fn runs(extents: &[Extent]) -> usize {
        let joins = extents.windows(2).filter(|pair| {
            pair[0].segment == pair[1].segment && pair[0].unit + pair[0].count == pair[1].unit
        });
        extents.len() - joins.count()
    }

    #[test]
    fn objects_that_are_written_in_turn_lie_in_runs_of_their_own() {
        let mut space = space();
        space.allocate(1).unwrap();
        let (mut one, mut other) = (Vec::new(), Vec::new());
        for _piece in 0..32 {
            one.extend(space.allocate_for(object(7, 0), 64).unwrap());
            other.extend(space.allocate_for(object(7, 4), 64).unwrap());
        }
        assert_eq!((runs(&one), runs(&other)), (2, 2));
    }

    #[test]
    fn small_writes_lie_beside_one_another() {
        let mut space = space();
        let mut all = Vec::new();
        for file in 0..64 {
            all.extend(space.allocate_for(object(file, 0), 16).unwrap());
        }
        assert_eq!(runs(&all), 1);
    }

    #[test]
    fn a_window_is_taken_where_nothing_else_is_free() {
        let mut space = space();
        let first = space.allocate_for(object(7, 0), 64).unwrap();
        let free = u32::try_from(space.free()).unwrap();
        let rest = space.allocate(free).unwrap();
        assert_eq!(space.free(), 0);
        assert_eq!(space.allocate_for(object(7, 0), 64), None);
        space.release(&rest);
        space.release(&first);
        assert!(space.allocate_for(object(7, 0), 64).is_some());
    }
}
