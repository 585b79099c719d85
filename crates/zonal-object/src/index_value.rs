//! Encoding of index values: a version byte, the contents, a crc32c over key and value.
//!
//! The checksum covers the key, so that a value found under another key counts as damaged.

use zonal_types::limits::{FILE_BYTES_MAX, TRUNCATION_NUMBER_MAX};
use zonal_types::{Codec, ErrorCode, codec_struct};

const VERSION: u8 = 1;

#[expect(clippy::cast_possible_truncation, reason = "CRC-32C has 32 bits")]
fn crc(key: &[u8], value: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(value);
    digest.update(key);
    digest.finalize() as u32
}

/// Builds the value to store under `key`; `fill` writes its contents.
#[must_use]
pub(crate) fn seal(key: &[u8], fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::with_capacity(384);
    out.push(VERSION);
    fill(&mut out);
    let sum = crc(key, &out);
    sum.put(&mut out);
    out
}

/// Checks a value and returns its contents.
///
/// # Errors
/// `Corrupt` where the checksum does not fit, `WrongVersion` for a newer format.
pub(crate) fn open<'a>(key: &[u8], value: &'a [u8]) -> Result<&'a [u8], ErrorCode> {
    let at = value.len().checked_sub(4).ok_or(ErrorCode::Corrupt)?;
    let (body, sum) = value.split_at(at);
    if u32::from_bytes(sum) != Ok(crc(key, body)) {
        return Err(ErrorCode::Corrupt);
    }
    match body.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some(_) => Err(ErrorCode::WrongVersion),
        None => Err(ErrorCode::Corrupt),
    }
}

/// [`open`], then decode.
pub(crate) fn decode<T: Codec>(key: &[u8], value: &[u8]) -> Result<T, ErrorCode> {
    T::from_bytes(open(key, value)?).map_err(|_error| ErrorCode::Corrupt)
}

/// Encode, then [`seal`].
pub(crate) fn encode<T: Codec>(key: &[u8], value: &T) -> Vec<u8> {
    seal(key, |out| value.put(out))
}

codec_struct! {
    /// The index record of an object, besides its chunks.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ObjectHeader {
        /// Number of the last truncation applied.
        truncate_seq: u64,
        /// One past the last byte that was written and not truncated since.
        object_bytes: u64,
        /// Blocks that are allocated or pending.
        blocks: u64,
        /// Reserved for snapshots: the epoch of its birth.
        birth_epoch: u64,
        /// The highest order of a change (`change_orders.rs`); 0 without copies.
        order: u64,
        /// Deletion has begun: the object reads as absent and refuses writes.
        deleting: bool,
    }
}

impl ObjectHeader {
    /// Whether the numbers are within the bounds that arithmetic on offsets and truncations relies
    /// on.
    pub(crate) fn is_sound(&self) -> bool {
        self.object_bytes <= FILE_BYTES_MAX && self.truncate_seq <= TRUNCATION_NUMBER_MAX
    }
}

codec_struct! {
    /// The target's own record: geometry and counters.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub(crate) struct TargetRecord {
        /// Units of a segment; never changes.
        segment_units: u32,
        /// Objects that exist.
        objects: u64,
        /// Reserved.
        epoch: u64,
    }
}
