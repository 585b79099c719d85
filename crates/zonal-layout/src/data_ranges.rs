//! From the columns' data ranges to the file's: what SEEK_DATA and SEEK_HOLE need.
//!
//! Each query costs one binary search a column, whatever the stripe unit and however long the
//! ranges: a terabyte of data in one range is not walked unit by unit. What a column has told may
//! end early (its reply had a limit); a query whose answer depends on what is behind says so with
//! [`Seek::Ask`].

use crate::stripe::{file_offset_of, object_bytes};
use zonal_types::{Column, Component};

/// What one column is known to hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnRanges {
    /// Data ranges (object offset, length), sorted, without overlap.
    pub ranges: Vec<(u64, u64)>,
    /// Object offset up to which `ranges` is complete (`u64::MAX`: to the end).
    pub known_to: u64,
}

/// The answer to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// At this file offset.
    Found(u64),
    /// Nowhere behind the start.
    None,
    /// Column must first be asked for its ranges from this object offset.
    Ask(Column, u64),
}

/// The first range of `column` that ends behind `from`.
fn first_behind(column: &ColumnRanges, from: u64) -> usize {
    column
        .ranges
        .partition_point(|(start, length)| start.saturating_add(*length) <= from)
}

/// Picks the nearest of what the columns say; `step` gives (offset in the object or none).
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

/// The first byte at or behind `from` that is a hole (the end of the file is the caller's to
/// apply).
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

/// Data ranges (start, end) of a file, and what to ask to learn more.
pub type MergedRanges = (Vec<(u64, u64)>, Option<(Column, u64)>);

/// Data ranges (start, end) of the file in `from..size`, at most `limit`, merged. Stops early at
/// what is not known yet; the second value is then what to ask.
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
