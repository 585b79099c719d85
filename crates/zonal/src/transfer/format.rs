//! Frames of exported objects, in the stream of `zonal_disk::stream`. docs/on-disk-format.md,
//! "Exported objects".

use zonal_types::{Codec, CodecError, Column, DataId, Reader, codec_struct};

/// An object begins.
pub const OBJECT: u8 = 1;
/// Bytes of it: the offset in the object, then the bytes.
pub const DATA: u8 = 2;
/// Bytes of it that cannot be had.
pub const LOST: u8 = 3;
/// It ends.
pub const OBJECT_END: u8 = 4;

codec_struct! {
    /// What begins an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectStart {
        data_id: DataId,
        column: Column,
        /// One behind the last byte.
        object_bytes: u64,
        /// The last shrink that it has seen.
        truncate_seq: u64,
    }
}

codec_struct! {
    /// Bytes that were damaged where they lay.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Lost {
        offset: u64,
        length: u64,
        detail: String,
    }
}

codec_struct! {
    /// What ends an object.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ObjectEnd {
        /// Bytes in its data frames.
        data_bytes: u64,
    }
}

/// A data frame's contents.
pub fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + bytes.len());
    offset.put(&mut out);
    out.extend_from_slice(bytes);
    out
}

/// Offset and bytes of a data frame.
///
/// # Errors
/// Where there is no offset.
pub fn split_data(payload: &[u8]) -> Result<(u64, &[u8]), CodecError> {
    let mut from = Reader::new(payload);
    let offset = u64::get(&mut from)?;
    let rest = from.left();
    Ok((offset, from.take(rest)?))
}
