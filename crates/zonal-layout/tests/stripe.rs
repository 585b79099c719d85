//! Properties of the striping arithmetic.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use proptest::prelude::*;
use zonal_layout::*;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{
    Column, DataId, Layout, Placement, Redundancy, StripePolicy, StripeSetId, ZoneId,
};

fn layout(unit_shift: u32, count: u16, width: u16, data_id: u64) -> Layout {
    let policy = StripePolicy {
        unit: 65_536 << unit_shift,
        count,
        redundancy: Redundancy::None,
        placement: Placement::Zone,
    };
    new_layout(
        &policy,
        StripeSetId(1),
        (width, 1),
        ZoneId(1),
        DataId(data_id),
    )
    .unwrap()
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

/// A number small enough to work with, or any.
fn file_size() -> impl Strategy<Value = u64> {
    prop_oneof![0..50_000_000_u64, 0..=u64::MAX >> 1]
}

/// Ranges of data in one column, in steps of 4 KiB: gap and length of each.
fn column_ranges() -> impl Strategy<Value = ColumnRanges> {
    prop::collection::vec((0..8_u64, 1..40_u64), 0..6).prop_map(|steps| {
        let mut at = 0;
        let mut ranges = Vec::new();
        for (gap, length) in steps {
            ranges.push(((at + gap) * 4096, length * 4096));
            at += gap + length;
        }
        ColumnRanges {
            ranges,
            known_to: u64::MAX,
        }
    })
}

proptest! {
    #[test]
    fn pieces_tile_the_range_and_invert(
        (unit_shift, count, spare, id) in (0..11_u32, 1..9_u16, 0..5_u16, any::<u64>()),
        near in 0..100_000_000_u64,
        is_far in any::<bool>(),
        length in 0..20_000_000_u64,
    ) {
        let width = count + spare;
        let layout = layout(unit_shift, count, width, id);
        let offset = near + if is_far { FILE_BYTES_MAX - 100_000_000 } else { 0 };
        let length = length.min(FILE_BYTES_MAX - offset);
        let component = &layout.components[0];
        let mut at = offset;
        let found = pieces(&layout, offset, length, |_| width).unwrap();
        for piece in &found {
            prop_assert_eq!(piece.file_offset, at);
            prop_assert!(piece.length > 0 && piece.slot < width && piece.column.0 < count);
            let first = file_offset_of(component, piece.column, piece.object_offset);
            prop_assert_eq!(first, at);
            let last = piece.object_offset + piece.length - 1;
            let last = file_offset_of(component, piece.column, last);
            prop_assert_eq!(last, at + piece.length - 1);
            prop_assert_eq!(object_bytes(component, at, piece.column), piece.object_offset);
            prop_assert_eq!(slot_of(component, piece.column, width).unwrap(), piece.slot);
            at += piece.length;
        }
        prop_assert_eq!(at, offset + length);
        prop_assert!(count > 1 || found.len() <= 1);
    }

    #[test]
    fn object_lengths_sum_to_the_file_size(
        (unit_shift, count) in (0..11_u32, 1..9_u16),
        size in file_size(),
    ) {
        let layout = layout(unit_shift, count, count, 0);
        let component = &layout.components[0];
        let columns: Vec<u64> = (0..count)
            .map(|column| object_bytes(component, size, Column(column)))
            .collect();
        prop_assert_eq!(columns.iter().sum::<u64>(), size);
        prop_assert_eq!(file_size_from_columns(component, &columns), size);
    }

    #[test]
    fn merged_ranges_match_a_walk(
        columns in prop::collection::vec(column_ranges(), 1..4),
        from in 0..64_u64,
    ) {
        let count = columns.len() as u16;
        let layout = layout(0, count, count, 0);
        let component = &layout.components[0];
        let (size, from) = (600 * 4096, from * 4096);
        let want: Vec<_> = naive_ranges(component, &columns, size)
            .into_iter()
            .filter(|(_, end)| *end > from)
            .map(|(start, end)| (start.max(from), end))
            .collect();
        let (got, ask) = merge_data_ranges(component, &columns, from, size, 1000);
        prop_assert_eq!(ask, None);
        prop_assert_eq!(got, want);
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
