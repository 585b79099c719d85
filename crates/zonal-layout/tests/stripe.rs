//! Properties of the striping arithmetic.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use zonal_layout::*;
use zonal_testkit::Rng;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Column, DataId, Layout, Redundancy, StripePolicy, StripeSetId, ZoneId};

fn layout(unit_shift: u32, count: u16, width: u16, data_id: u64) -> Layout {
    let policy = StripePolicy {
        unit: 65_536 << unit_shift,
        count,
        redundancy: Redundancy::None,
    };
    new_layout(&policy, StripeSetId(1), width, ZoneId(1), DataId(data_id)).unwrap()
}

/// Lays `columns` out naively, in steps of 4 KiB.
fn naive_ranges(
    component: &zonal_types::Component,
    columns: &[ColumnRanges],
    size: u64,
) -> Vec<(u64, u64)> {
    let step = 4096;
    let mut out: Vec<(u64, u64)> = Vec::new();
    for offset in (0..size).step_by(step as usize) {
        let piece = component_pieces(component, offset, step, component.count).unwrap()[0];
        let data = columns[usize::from(piece.column.0)]
            .ranges
            .iter()
            .any(|(start, length)| (*start..start + length).contains(&piece.object_offset));
        if data {
            match out.last_mut() {
                Some(last) if last.1 == offset => last.1 += step,
                _ => out.push((offset, offset + step)),
            }
        }
    }
    out
}

/// Generated cases of one property.
const CASES: u64 = 512;

/// A number small enough to work with, or any.
fn size_of_a_file(rng: &mut Rng) -> u64 {
    if rng.chance(50) {
        rng.below(50_000_000)
    } else {
        rng.bits() >> 1
    }
}

#[test]
fn pieces_tile_the_range_and_invert() {
    for case in 0..CASES {
        let mut rng = Rng(case);
        let count = 1 + rng.below(8) as u16;
        let width = count + rng.below(5) as u16;
        let layout = layout(rng.below(11) as u32, count, width, rng.bits());
        let from_end = if rng.chance(50) {
            FILE_BYTES_MAX - 100_000_000
        } else {
            0
        };
        let offset = from_end + rng.below(100_000_000);
        let length = rng.below(20_000_000).min(FILE_BYTES_MAX - offset);
        let component = &layout.components[0];
        let mut at = offset;
        let found = pieces(&layout, offset, length, |_| width).unwrap();
        for piece in &found {
            assert_eq!(piece.file_offset, at, "case {case}");
            assert!(piece.length > 0 && piece.slot < width && piece.column.0 < count);
            assert_eq!(
                file_offset_of(component, piece.column, piece.object_offset),
                at
            );
            let last = piece.object_offset + piece.length - 1;
            assert_eq!(
                file_offset_of(component, piece.column, last),
                at + piece.length - 1
            );
            assert_eq!(
                object_bytes(component, at, piece.column),
                piece.object_offset
            );
            assert_eq!(slot_of(component, piece.column, width).unwrap(), piece.slot);
            at += piece.length;
        }
        assert_eq!(at, offset + length, "case {case}");
        assert!(count > 1 || found.len() <= 1, "case {case}");
    }
}

#[test]
fn object_lengths_sum_to_the_file_size() {
    for case in 0..CASES {
        let mut rng = Rng(case);
        let count = 1 + rng.below(8) as u16;
        let layout = layout(rng.below(11) as u32, count, count, 0);
        let size = size_of_a_file(&mut rng);
        let component = &layout.components[0];
        let columns: Vec<u64> = (0..count)
            .map(|column| object_bytes(component, size, Column(column)))
            .collect();
        assert_eq!(columns.iter().sum::<u64>(), size, "case {case}");
        assert_eq!(
            file_size_from_columns(component, &columns),
            size,
            "case {case}"
        );
    }
}

#[test]
fn merged_ranges_match_a_walk() {
    for case in 0..CASES {
        let mut rng = Rng(case);
        let count = 1 + rng.below(3) as u16;
        let layout = layout(0, count, count, 0);
        let component = &layout.components[0];
        let mut column = || {
            let mut at = 0;
            let mut ranges = Vec::new();
            for _ in 0..rng.below(6) {
                let (gap, length) = (rng.below(8), 1 + rng.below(39));
                ranges.push(((at + gap) * 4096, length * 4096));
                at += gap + length;
            }
            ColumnRanges {
                ranges,
                known_to: u64::MAX,
            }
        };
        let columns: Vec<ColumnRanges> = (0..count).map(|_| column()).collect();
        let (size, from) = (600 * 4096, rng.below(64) * 4096);
        let want: Vec<_> = naive_ranges(component, &columns, size)
            .into_iter()
            .filter(|(_, end)| *end > from)
            .map(|(start, end)| (start.max(from), end))
            .collect();
        let (got, ask) = merge_data_ranges(component, &columns, from, size, 1000);
        assert_eq!(ask, None, "case {case}");
        assert_eq!(got, want, "case {case}");
    }
}

#[test]
fn a_column_known_in_part_is_asked_for_the_rest() {
    let layout = layout(0, 2, 2, 0);
    let component = &layout.components[0];
    let known = ColumnRanges {
        ranges: vec![],
        known_to: u64::MAX,
    };
    let partly = ColumnRanges {
        ranges: vec![(0, 65_536)],
        known_to: 65_536,
    };
    let columns = [known, partly];
    assert_eq!(next_data(component, &columns, 0), Seek::Found(65_536));
    assert_eq!(next_hole(component, &columns, 65_536), Seek::Found(131_072));
    assert_eq!(
        next_data(component, &columns, 131_072),
        Seek::Ask(Column(1), 65_536)
    );
    let (ranges, ask) = merge_data_ranges(component, &columns, 0, 1 << 30, 10);
    assert_eq!(ranges, vec![(65_536, 131_072)]);
    assert_eq!(ask, Some((Column(1), 65_536)));
}

#[test]
fn small_files_spread_over_the_targets() {
    let mut hits = [0; 3];
    for id in 0..300 {
        let layout = layout(4, 0, 3, id);
        assert_eq!(layout.components[0].count, 3);
        hits[usize::from(pieces(&layout, 0, 100, |_| 3).unwrap()[0].slot)] += 1;
    }
    assert_eq!(hits, [100, 100, 100]);
}

#[test]
fn a_range_without_a_component_is_an_error() {
    let mut layout = layout(0, 2, 2, 0);
    layout.components[0].end = 1000;
    let width = |_: &zonal_types::Component| 2;
    assert_eq!(
        pieces(&layout, 900, 200, width),
        Err(LayoutError::NotCovered { offset: 1000 })
    );
    assert_eq!(
        pieces(&Layout::default(), 0, 1, width),
        Err(LayoutError::NotCovered { offset: 0 })
    );
    assert_eq!(
        pieces(&layout, u64::MAX, 2, width),
        Err(LayoutError::TooBig { offset: u64::MAX })
    );
    let mut second = layout.components[0].clone();
    (second.start, second.end) = (1000, u64::MAX);
    layout.components.push(second);
    assert_eq!(pieces(&layout, 900, 200, width).unwrap().len(), 2);
}

#[test]
fn hostile_components_are_refused() {
    let good = layout(0, 2, 2, 0).components.remove(0);
    for change in 0..5 {
        let mut bad = good.clone();
        match change {
            0 => bad.unit = 0,
            1 => bad.count = 0,
            2 => bad.unit = 65_537,
            3 => bad.span = 1,
            _ => bad.count = 300,
        }
        assert!(component_pieces(&bad, 0, 10, 300).is_err());
        assert_eq!(object_bytes(&bad, u64::MAX, Column(0)), 0);
        let _ = file_offset_of(&bad, Column(u16::MAX), u64::MAX);
        let _ = file_size_from_columns(&bad, &[u64::MAX; 3]);
    }
    assert!(component_pieces(&good, 0, 10, 1).is_err());
}
