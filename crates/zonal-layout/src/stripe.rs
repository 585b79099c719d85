//! The arithmetic of one striped component, and of a layout made of them.
//!
//! Units: bytes. Offsets are in the file unless called object offsets. All arithmetic saturates or
//! is checked, because layouts arrive from the network.

use zonal_types::limits::{
    BLOCK_BYTES, COPIES_MAX, FILE_BYTES_MAX, INLINE_BYTES_MAX, RELOCATIONS_MAX, SLOTS_MAX,
    STRIPE_UNIT_MAX, STRIPE_UNIT_MIN,
};
use zonal_types::{Column, Component, ComponentKind, ErrorCode, Layout, Redundancy, StripeSetId};

/// The reason why a range has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Unit, count, range or width of a component make no sense.
    #[error("component at {start} has an invalid unit, count, range or span")]
    BadComponent {
        /// First byte of the component.
        start: u64,
    },
    /// No component covers this byte.
    #[error("no component covers byte {offset}")]
    NotCovered {
        /// The first byte without a place.
        offset: u64,
    },
    /// The range passes the largest file size.
    #[error("the range at {offset} passes the largest file size")]
    TooBig {
        /// Where the range begins.
        offset: u64,
    },
    /// The component does not have this column.
    #[error("column {column} is past the component's count")]
    BadColumn {
        /// The column asked for.
        column: Column,
    },
}

impl LayoutError {
    /// The code that crosses the wire.
    #[must_use]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::BadComponent { .. } | Self::BadColumn { .. } => ErrorCode::Corrupt,
            Self::NotCovered { .. } => ErrorCode::Invalid,
            Self::TooBig { .. } => ErrorCode::FileTooBig,
        }
    }
}

/// A part of a file range that is contiguous in one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Index of the component in the layout.
    pub component: usize,
    /// Column of the component; with its data id, the object.
    pub column: Column,
    /// Slot of the stripe set that the object lies on.
    pub slot: u16,
    /// First byte in the object.
    pub object_offset: u64,
    /// First byte in the file.
    pub file_offset: u64,
    /// Bytes.
    pub length: u64,
}

/// True where a file's shard may keep this many of its first bytes: whole blocks, up to the bound.
#[must_use]
pub fn is_inline_size(bytes: u32) -> bool {
    (bytes as usize).is_multiple_of(BLOCK_BYTES) && bytes as usize <= INLINE_BYTES_MAX
}

/// Checks everything about a component that the arithmetic relies on.
///
/// # Errors
/// `BadComponent`.
pub fn check_component(component: &Component) -> Result<(), LayoutError> {
    let inline_ok = match component.kind {
        ComponentKind::Striped => true,
        ComponentKind::StripedInline { bytes } => {
            component.start == 0 && is_inline_size(bytes) && bytes > 0
        }
    };
    let unit_ok = component.unit.is_power_of_two()
        && (STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&component.unit);
    let count_ok = (1..=SLOTS_MAX).contains(&usize::from(component.count));
    let copies_ok = match component.redundancy {
        Redundancy::None => true,
        Redundancy::Copies { copies, step } => {
            (1..=COPIES_MAX).contains(&copies) && (step > 0 || copies == 1)
        }
        Redundancy::AlsoZone {
            copies,
            step,
            set,
            at,
            ..
        } => {
            (1..=COPIES_MAX).contains(&copies)
                && (step > 0 || copies == 1)
                && (1..=copies).contains(&at)
                && set != component.set
        }
    };
    let relocated_ok = component.relocations.len() <= RELOCATIONS_MAX;
    // No version writes spans yet: a component with a span comes from a newer one.
    let range_ok = component.start < component.end && component.span == 0;
    if unit_ok && count_ok && inline_ok && copies_ok && relocated_ok && range_ok {
        Ok(())
    } else {
        Err(LayoutError::BadComponent {
            start: component.start,
        })
    }
}

/// All objects of a component, as the numbers by which their targets know them. The first `count`
/// are one copy of the file.
pub fn objects(component: &Component) -> impl Iterator<Item = Column> + use<> {
    (0..object_count(component)).map(Column)
}

/// The objects of one column, its first copy first.
pub fn copies_of_column(
    component: &Component,
    column: u16,
) -> impl Iterator<Item = Column> + use<> {
    let (copies, count) = (component.redundancy.copies(), component.count);
    (0..copies).map(move |copy| Column(column.saturating_add(copy.saturating_mul(count))))
}

/// Number of a component's objects.
#[must_use]
pub fn object_count(component: &Component) -> u16 {
    let copies = component.redundancy.copies();
    component.count.saturating_mul(copies)
}

/// The column of the stripe that an object holds a copy of.
fn column_of(component: &Component, object: Column) -> u16 {
    object.0 % component.count.max(1)
}

/// The slot that an object lies on, in a set of `width` slots.
///
/// # Errors
/// `BadColumn`, `BadComponent` (also for a width below the count).
#[expect(
    clippy::cast_possible_truncation,
    reason = "a slot is less than the width, a u16"
)]
pub fn slot_of(component: &Component, column: Column, width: u16) -> Result<u16, LayoutError> {
    if column.0 >= object_count(component) || is_in_also_zone(component, column) {
        return Err(LayoutError::BadColumn { column });
    }
    if width < component.count || component.start_column.0 >= width {
        return Err(LayoutError::BadComponent {
            start: component.start,
        });
    }
    let first = u32::from(component.start_column.0) + u32::from(column_of(component, column));
    let copy = column.0 / component.count;
    let is_behind = matches!(component.redundancy, Redundancy::AlsoZone { at, .. } if at < copy);
    let copy = u32::from(copy - u16::from(is_behind));
    let behind = copy * u32::from(component.redundancy.step());
    Ok(((first + behind) % u32::from(width)) as u16)
}

/// True for an object of the copy in another zone.
fn is_in_also_zone(component: &Component, object: Column) -> bool {
    let copy = object.0 / component.count.max(1);
    matches!(component.redundancy, Redundancy::AlsoZone { at, .. } if at == copy)
}

/// The set of an object's computed slot: the component's own, or that in another zone.
#[must_use]
pub fn set_of(component: &Component, object: Column) -> StripeSetId {
    match component.redundancy.also_zone() {
        Some((_, set)) if is_in_also_zone(component, object) => set,
        _ => component.set,
    }
}

/// The slot of an object of the copy in another zone, in a set of `width` slots there. A narrow set
/// has several columns in a slot.
///
/// # Errors
/// `BadColumn` for another object; `BadComponent` for a set without slots.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a slot is less than the width, a u16"
)]
pub fn slot_in_also_zone(
    component: &Component,
    object: Column,
    width: u16,
) -> Result<u16, LayoutError> {
    if !is_in_also_zone(component, object) {
        return Err(LayoutError::BadColumn { column: object });
    }
    let width = u64::from(width);
    let start = component.data_id.0.checked_rem(width);
    let start = start.ok_or(LayoutError::BadComponent {
        start: component.start,
    })?;
    Ok(((start + u64::from(column_of(component, object))) % width) as u16)
}

fn row_bytes(component: &Component) -> u64 {
    u64::from(component.unit) * u64::from(component.count)
}

/// Splits `offset..offset + length` of a file into pieces, in file order. `width_of` gives the
/// width of a component's stripe set (from the zone map).
///
/// Costs one allocation for any range; the number of pieces is known before it is made.
///
/// # Errors
/// Any [`LayoutError`]; nothing is returned for a range that is covered in part.
pub fn pieces(
    layout: &Layout,
    offset: u64,
    length: u64,
    mut width_of: impl FnMut(&Component) -> u16,
) -> Result<Vec<Piece>, LayoutError> {
    let end = offset
        .checked_add(length)
        .filter(|end| *end <= FILE_BYTES_MAX)
        .ok_or(LayoutError::TooBig { offset })?;
    let mut out = Vec::new();
    let mut at = offset;
    for (index, component) in layout.components.iter().enumerate() {
        if at >= end {
            break;
        }
        if component.end <= at {
            continue;
        }
        if component.start > at {
            return Err(LayoutError::NotCovered { offset: at });
        }
        let part = end.min(component.end) - at;
        push_pieces(component, index, at, part, width_of(component), &mut out)?;
        at += part;
    }
    if at < end {
        return Err(LayoutError::NotCovered { offset: at });
    }
    Ok(out)
}

/// [`pieces`] of a range that lies in one component.
///
/// # Errors
/// Any [`LayoutError`].
pub fn component_pieces(
    component: &Component,
    offset: u64,
    length: u64,
    width: u16,
) -> Result<Vec<Piece>, LayoutError> {
    let end = offset
        .checked_add(length)
        .ok_or(LayoutError::TooBig { offset })?;
    if offset < component.start || end > component.end {
        let uncovered = if offset < component.start {
            offset
        } else {
            offset.max(component.end)
        };
        return Err(LayoutError::NotCovered { offset: uncovered });
    }
    let mut out = Vec::new();
    push_pieces(component, 0, offset, length, width, &mut out)?;
    Ok(out)
}

fn push_pieces(
    component: &Component,
    index: usize,
    offset: u64,
    length: u64,
    width: u16,
    out: &mut Vec<Piece>,
) -> Result<(), LayoutError> {
    check_component(component)?;
    let unit = u64::from(component.unit);
    let count = u64::from(component.count);
    let mut relative = offset - component.start;
    let mut left = length;
    // A range of absurd length must not allocate without bound.
    out.reserve((length / unit).min(4096) as usize + 2);
    while left > 0 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "less than the count, a u16"
        )]
        let column = Column(((relative / unit) % count) as u16);
        let in_unit = relative % unit;
        // With one column, successive units of the file are contiguous in the object.
        let here = if count == 1 {
            left
        } else {
            left.min(unit - in_unit)
        };
        out.push(Piece {
            component: index,
            column,
            slot: slot_of(component, column, width)?,
            object_offset: (relative / (unit * count)) * unit + in_unit,
            file_offset: component.start + relative,
            length: here,
        });
        relative += here;
        left -= here;
    }
    Ok(())
}

/// Length of `column`'s object in a file of `file_size` bytes without a hole at its end. It is also
/// the smallest object offset at or behind byte `file_size`: a truncation cuts the object there. 0
/// for an invalid component. `column` may be a place: it counts for its object.
#[must_use]
pub fn object_bytes(component: &Component, file_size: u64, column: Column) -> u64 {
    if check_component(component).is_err() {
        return 0;
    }
    let unit = u64::from(component.unit);
    let relative = file_size.min(component.end).saturating_sub(component.start);
    let rest = relative % row_bytes(component);
    let before = u64::from(column_of(component, column)) * unit;
    let in_row = rest.saturating_sub(before).min(unit);
    (relative / row_bytes(component)) * unit + in_row
}

/// The file offset of a byte of `column`'s object; saturates at `u64::MAX`.
#[must_use]
pub fn file_offset_of(component: &Component, column: Column, object_offset: u64) -> u64 {
    let unit = u64::from(component.unit.max(1));
    (object_offset / unit)
        .saturating_mul(row_bytes(component))
        .saturating_add(u64::from(column_of(component, column)) * unit)
        .saturating_add(object_offset % unit)
        .saturating_add(component.start)
}

/// The smallest file size that covers all bytes of the columns' objects. `columns[c]` is the length
/// of column c's object. 0 where all are empty.
#[must_use]
pub fn file_size_from_columns(component: &Component, columns: &[u64]) -> u64 {
    columns
        .iter()
        .enumerate()
        .filter(|(_, bytes)| **bytes > 0)
        .map(|(column, bytes)| {
            let column = Column(u16::try_from(column).unwrap_or(u16::MAX));
            file_offset_of(component, column, bytes - 1).saturating_add(1)
        })
        .max()
        .unwrap_or(0)
}
