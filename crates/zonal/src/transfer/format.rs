//! Frames of exported objects, in a stream of `zonal_disk::stream`. See docs/on-disk-format.md,
//! "Exported objects".

use zonal_types::{Codec, CodecError, Column, DataId, Reader, codec_struct};

/// Frame kind: start of an object.
pub const OBJECT: u8 = 1;
/// Frame kind: data of the object; its offset, then the bytes.
pub const DATA: u8 = 2;
/// Frame kind: a range of the object that cannot be read.
pub const LOST: u8 = 3;
/// Frame kind: end of an object.
pub const OBJECT_END: u8 = 4;

codec_struct! {
    /// Contents of the frame that starts an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectStart {
        data_id: DataId,
        column: Column,
        /// Length of the object: one past the last byte.
        object_bytes: u64,
        /// Number of the last truncation that the object has seen.
        truncate_seq: u64,
    }
}

codec_struct! {
    /// A range that was damaged in the exporting store.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Lost {
        offset: u64,
        length: u64,
        detail: String,
    }
}

codec_struct! {
    /// Contents of the frame that ends an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectEnd {
        /// Bytes in the object's data frames.
        data_bytes: u64,
    }
}

/// Encodes the contents of a data frame.
pub fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + bytes.len());
    offset.put(&mut out);
    out.extend_from_slice(bytes);
    out
}

/// Splits the contents of a data frame into offset and bytes.
///
/// # Errors
/// The contents are too short for an offset.
pub fn split_data(payload: &[u8]) -> Result<(u64, &[u8]), CodecError> {
    let mut from = Reader::new(payload);
    let offset = u64::get(&mut from)?;
    let rest = from.left();
    Ok((offset, from.take(rest)?))
}
