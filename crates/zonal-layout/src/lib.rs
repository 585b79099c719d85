//! Layouts: how the bytes of a file map to objects of a stripe set. Pure arithmetic.
//!
//! Byte `f` of a file lies in the component whose range covers it. With `r = f - start` it is in
//! column `(r / unit) % count` of the component, at object offset `(r / (unit * count)) * unit + r
//! % unit`; the column's object lies on slot `(start_column + column) % width` of the stripe set.
//!
//! The first bytes of a `StripedInline` component are in the file's shard; this arithmetic is the
//! same, and its callers leave them out.
//!
//! Invariants, held by the tests: pieces tile a range exactly and in order; file and object offsets
//! are inverse; the object lengths of a file size sum to that size; no input makes arithmetic wrap.
#![forbid(unsafe_code)]

pub mod data_ranges;
pub mod new_layout;
pub mod stripe;

pub use data_ranges::{ColumnRanges, MergedRanges, Seek, merge_data_ranges, next_data, next_hole};
pub use new_layout::{new_layout, with_inline};
pub use stripe::{
    LayoutError, Piece, check_component, component_pieces, file_offset_of, file_size_from_columns,
    is_inline_size, object_bytes, pieces, slot_of,
};
