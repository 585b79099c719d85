//! Layouts: how the bytes of a file map to objects of a stripe set. Pure arithmetic.
//!
//! The component whose range covers byte `f` of a file holds it. Let `r = f - start`:
//!
//! * its column is `(r / unit) % count`
//! * its object offset is `(r / (unit * count)) * unit + r % unit`
//! * the column's object is on slot `(start_column + column) % width` of the stripe set
//! * with copies, object `column + k * count` is copy `k` of the column, on the slot `k * step`
//!   behind that, modulo the width
//! * a copy may be in a set of another zone: that of column c is on slot `(data id + c) % width` of
//!   that set. The copies behind it are as if it was not there.
//!
//! A `StripedInline` component leaves its first bytes to the file's shard. The arithmetic is the
//! same; callers leave those bytes out.
//!
//! Invariants, held by the tests: pieces tile a range exactly and in order. File and object offsets
//! are inverse. The object lengths of a file size sum to that size. No input makes arithmetic wrap.
#![forbid(unsafe_code)]

pub mod data_ranges;
pub mod new_layout;
pub mod places;
pub mod stripe;

pub use data_ranges::{ColumnRanges, MergedRanges, Seek, merge_data_ranges, next_data, next_hole};
pub use new_layout::{new_layout, on_slot, with_also_zone, with_inline};
pub use places::{
    PlaceUse, leftovers, main_place, object_of, other_places, place_use, places, places_of_column,
    relocation_of, slot_of_place, staying_copies,
};
pub use stripe::{
    LayoutError, Piece, check_component, component_pieces, copies_of_column, file_offset_of,
    file_size_from_columns, is_inline_size, object_bytes, object_count, objects, pieces, set_of,
    slot_in_also_zone, slot_of,
};
