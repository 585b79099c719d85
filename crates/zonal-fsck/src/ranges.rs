//! Byte ranges of a file for display; only the first ones are kept.

use std::ops::Range;
use zonal_basics::to_usize;
use zonal_types::codec_struct;

/// Ranges kept of one file. Of further ranges only their number and bytes are known.
pub const RANGES_MAX: usize = 64;

codec_struct! {
    /// Byte ranges of a file.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Ranges {
        /// The first ranges: offset and length.
        first: Vec<(u64, u64)>,
        /// Number of all ranges.
        count: u64,
        /// Bytes in all ranges.
        bytes: u64,
    }
}

impl Ranges {
    /// Adds a range behind the last one, or extends the last one where the two touch.
    pub fn push(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(length);
        if to_usize(self.count) == self.first.len()
            && let Some((start, held)) = self.first.last_mut()
            && start.saturating_add(*held) == offset
        {
            *held += length;
            return;
        }
        self.count += 1;
        if self.first.len() < RANGES_MAX {
            self.first.push((offset, length));
        }
    }

    /// The parts of a file's range `bytes` that lie in one column, of `count` columns of `unit`
    /// bytes.
    #[must_use]
    pub fn of_column(bytes: Range<u64>, unit: u64, count: u64, column: u64) -> Self {
        let mut ranges = Self::default();
        let (unit, count) = (unit.max(1), count.max(1));
        let (from, size) = (bytes.start, bytes.end);
        if count == 1 {
            ranges.push(from, size.saturating_sub(from));
            return ranges;
        }
        let row = unit.saturating_mul(count);
        let mut at = column.saturating_mul(unit);
        // The file's first bytes are in the shard; they cover few whole units.
        while at < from && at < size {
            let start = from.min(at.saturating_add(unit));
            let end = size.min(at.saturating_add(unit));
            ranges.push(start, end.saturating_sub(start));
            at = at.saturating_add(row);
        }
        while at < size {
            if ranges.first.len() == RANGES_MAX {
                // Counts the remaining ranges by arithmetic, since a file may have very many.
                let rows = (size - at).div_ceil(row);
                let last = at.saturating_add((rows - 1).saturating_mul(row));
                let bytes = (rows - 1).saturating_mul(unit) + unit.min(size - last);
                ranges.count += rows;
                ranges.bytes = ranges.bytes.saturating_add(bytes);
                break;
            }
            ranges.push(at, unit.min(size - at));
            at = at.saturating_add(row);
        }
        ranges
    }
}

impl std::fmt::Display for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes)?;
        for (at, (offset, length)) in self.first.iter().take(4).enumerate() {
            let lead = if at == 0 { " at " } else { ", " };
            write!(f, "{lead}{offset}-{}", offset + length - 1)?;
        }
        if self.count > 4 {
            write!(f, ", ... ({} ranges)", self.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_tile_a_file() {
        for (size, unit, count) in [(0, 10, 3), (95, 10, 3), (10_000, 10, 3), (7, 10, 1)] {
            for from in [0, 4, 10, 37] {
                let columns = (0..count)
                    .map(|column| Ranges::of_column(from..size, unit, count, column).bytes);
                assert_eq!(columns.sum::<u64>(), size.saturating_sub(from));
            }
        }
        let ranges = Ranges::of_column(34..95, 10, 3, 0);
        assert_eq!(ranges.first, [(34, 6), (60, 10), (90, 5)]);
        let ranges = Ranges::of_column(0..95, 10, 3, 0);
        assert_eq!(ranges.first, [(0, 10), (30, 10), (60, 10), (90, 5)]);
        assert_eq!(ranges.to_string(), "35 bytes at 0-9, 30-39, 60-69, 90-94");
        assert_eq!(Ranges::of_column(0..10_000, 10, 2, 1).count, 500);
    }
}
