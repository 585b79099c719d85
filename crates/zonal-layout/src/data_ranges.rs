//! Merges the columns' data ranges into those of the file, for SEEK_DATA and SEEK_HOLE.
//!
//! Each query costs one binary search a column, whatever the stripe unit and however long the
//! ranges. A terabyte of data in one range is not walked unit by unit. A column's list may end
//! early, because its reply had a limit. A query whose answer depends on the rest returns
//! [`Seek::Ask`].

use crate::stripe::{file_offset_of, object_bytes};
use zonal_types::{Column, Component};

/// The known data ranges of one column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnRanges {
    /// Data ranges (object offset, length), sorted, without overlap.
    pub ranges: Vec<(u64, u64)>,
    /// Object offset up to which `ranges` is complete (`u64::MAX`: to the end).
    pub known_to: u64,
}

/// The result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// The byte is at this file offset.
    Found(u64),
    /// There is none at or behind the start.
    None,
    /// The caller must first ask this column for its ranges from this object offset.
    Ask(Column, u64),
}

/// The first range of `column` that ends behind `from`.
fn first_behind(column: &ColumnRanges, from: u64) -> usize {
    column
        .ranges
        .partition_point(|(start, length)| start.saturating_add(*length) <= from)
}

/// The nearest offset over all columns; `step` gives one column's offset in its object, if any.
fn nearest(
    component: &Component,
    columns: &[ColumnRanges],
    from: u64,
    step: impl Fn(&ColumnRanges, u64) -> Option<u64>,
) -> Seek {
    let mut best: Option<(u64, Seek)> = None;
    for (index, ranges) in columns.iter().enumerate() {
        let column = Column(u16::try_from(index).unwrap_or(u16::MAX));
        let start = object_bytes(component, from, column);
        let (object_offset, known) = match step(ranges, start) {
            Some(offset) if offset < ranges.known_to => (offset, true),
            None if ranges.known_to == u64::MAX => continue,
            _ => (ranges.known_to.max(start), false),
        };
        let offset = file_offset_of(component, column, object_offset);
        if best.is_none_or(|(nearest, _)| offset < nearest) {
            let answer = if known {
                Seek::Found(offset)
            } else {
                Seek::Ask(column, object_offset)
            };
            best = Some((offset, answer));
        }
    }
    best.map_or(Seek::None, |(_, answer)| answer)
}

/// The first byte at or behind `from` that is data.
#[must_use]
pub fn next_data(component: &Component, columns: &[ColumnRanges], from: u64) -> Seek {
    nearest(component, columns, from, |column, start| {
        column
            .ranges
            .get(first_behind(column, start))
            .map(|(range, _)| (*range).max(start))
    })
}

/// The first byte at or behind `from` that is a hole. The caller applies the end of the file.
#[must_use]
pub fn next_hole(component: &Component, columns: &[ColumnRanges], from: u64) -> Seek {
    nearest(component, columns, from, |column, start| {
        let mut at = start;
        for (range, length) in column.ranges.iter().skip(first_behind(column, start)) {
            if *range > at {
                break;
            }
            at = range.saturating_add(*length);
        }
        Some(at)
    })
}

/// Data ranges (start, end) of a file, and the column and object offset to ask for more.
pub type MergedRanges = (Vec<(u64, u64)>, Option<(Column, u64)>);

/// Data ranges (start, end) of the file in `from..size`, at most `limit`, merged. Stops at the
/// first unknown byte; the second value then names the column and offset to ask.
#[must_use]
pub fn merge_data_ranges(
    component: &Component,
    columns: &[ColumnRanges],
    from: u64,
    size: u64,
    limit: usize,
) -> MergedRanges {
    let mut out = Vec::new();
    let mut at = from;
    while out.len() < limit && at < size {
        let start = match next_data(component, columns, at) {
            Seek::Found(start) if start < size => start,
            Seek::Ask(column, offset) if file_offset_of(component, column, offset) < size => {
                return (out, Some((column, offset)));
            }
            Seek::Found(_) | Seek::Ask(..) | Seek::None => break,
        };
        let end = match next_hole(component, columns, start) {
            Seek::Found(end) => end.min(size),
            Seek::Ask(column, offset) if file_offset_of(component, column, offset) < size => {
                return (out, Some((column, offset)));
            }
            Seek::Ask(..) | Seek::None => size,
        };
        out.push((start, end));
        at = end;
    }
    (out, None)
}
