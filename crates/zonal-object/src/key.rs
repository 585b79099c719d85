//! Keys of a target's index. docs/on-disk-format.md, section "Target", has the same table.
//!
//! Numbers are big-endian, so that keys order as numbers.

use crate::ids::ObjectId;
use zonal_types::{ClientId, Column, DataId, ErrorCode, HolderNumber};

/// Geometry and counters.
pub const TARGET: u8 = 0x01;
/// Allocation bitmap of a segment.
pub const SEGMENT: u8 = 0x02;
/// An object whose deletion has begun.
pub const TOMBSTONE: u8 = 0x03;
/// A pending block, stored by a checkpoint.
pub const PENDING: u8 = 0x04;
/// The lowest incarnation of a client that the target serves.
pub const FENCE: u8 = 0x05;
/// Objects: header and chunks.
pub const OBJECT: u8 = 0x10;

/// Keys from here on belong to others than the target.
pub const OTHERS: u8 = 0x80;

/// Whether a key lies in the target's part of the key space.
pub(crate) fn is_own(key: &[u8]) -> bool {
    key.first().is_some_and(|space| *space < OTHERS)
}

const HEADER: u8 = 0x00;
const CHUNK: u8 = 0x01;

/// Key of the target's own record.
#[must_use]
pub fn target() -> Vec<u8> {
    vec![TARGET]
}

/// Key of a segment's bitmap.
#[must_use]
pub fn segment(number: u32) -> Vec<u8> {
    let mut key = vec![SEGMENT];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn with_object(space: u8, object: ObjectId) -> Vec<u8> {
    let mut key = Vec::with_capacity(20);
    key.push(space);
    key.extend_from_slice(&object.data_id.0.to_be_bytes());
    key.extend_from_slice(&object.column.0.to_be_bytes());
    key
}

/// Key of a tombstone.
#[must_use]
pub fn tombstone(object: ObjectId) -> Vec<u8> {
    with_object(TOMBSTONE, object)
}

/// Key of a fence.
#[must_use]
pub fn fence(client: ClientId, holder: HolderNumber) -> Vec<u8> {
    let mut key = vec![FENCE];
    key.extend_from_slice(&client.0.to_be_bytes());
    key.extend_from_slice(&holder.0.to_be_bytes());
    key
}

/// Key of a pending block kept by a checkpoint.
#[must_use]
pub fn pending(object: ObjectId, block: u64) -> Vec<u8> {
    let mut key = with_object(PENDING, object);
    key.extend_from_slice(&block.to_be_bytes());
    key
}

/// Key of an object's header.
#[must_use]
pub fn header(object: ObjectId) -> Vec<u8> {
    let mut key = with_object(OBJECT, object);
    key.push(HEADER);
    key
}

/// Key of a chunk.
#[must_use]
pub fn chunk(object: ObjectId, number: u64) -> Vec<u8> {
    let mut key = with_object(OBJECT, object);
    key.push(CHUNK);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Range of all keys of an object without its pending blocks: the first key, and the one behind the
/// last.
#[must_use]
pub fn object_range(object: ObjectId) -> (Vec<u8>, Vec<u8>) {
    let mut end = with_object(OBJECT, object);
    end.push(CHUNK + 1);
    (with_object(OBJECT, object), end)
}

/// Range of an object's pending blocks that checkpoints stored: the first key, and the one behind
/// the last.
#[must_use]
pub fn pending_range(object: ObjectId) -> (Vec<u8>, Vec<u8>) {
    let mut end = pending(object, u64::MAX);
    end.push(0);
    (pending(object, 0), end)
}

/// A decoded key of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexKey {
    /// The target's own record.
    Target,
    /// A segment's bitmap.
    Segment(u32),
    /// A tombstone.
    Tombstone(ObjectId),
    /// A pending block.
    Pending(ObjectId, u64),
    /// A fence.
    Fence(ClientId, HolderNumber),
    /// An object's header.
    Header(ObjectId),
    /// A chunk.
    Chunk(ObjectId, u64),
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], ErrorCode> {
    bytes.try_into().map_err(|_error| ErrorCode::Corrupt)
}

fn split<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), ErrorCode> {
    let (head, tail) = bytes.split_at_checked(N).ok_or(ErrorCode::Corrupt)?;
    Ok((array(head)?, tail))
}

/// Decodes a key.
///
/// # Errors
/// `Corrupt` for an unknown key.
pub fn parse(key: &[u8]) -> Result<IndexKey, ErrorCode> {
    let ([space], rest) = split::<1>(key)?;
    if space == TARGET && rest.is_empty() {
        return Ok(IndexKey::Target);
    }
    if space == SEGMENT {
        return Ok(IndexKey::Segment(u32::from_be_bytes(array(rest)?)));
    }
    if space == FENCE {
        let (client, holder) = split::<8>(rest)?;
        let client = ClientId(u64::from_be_bytes(client));
        let holder = HolderNumber(u64::from_be_bytes(array(holder)?));
        return Ok(IndexKey::Fence(client, holder));
    }
    let (data_id, rest) = split::<8>(rest)?;
    let (column, rest) = split::<2>(rest)?;
    let object = ObjectId {
        data_id: DataId(u64::from_be_bytes(data_id)),
        column: Column(u16::from_be_bytes(column)),
    };
    match (space, rest) {
        (TOMBSTONE, []) => Ok(IndexKey::Tombstone(object)),
        (PENDING, block) => Ok(IndexKey::Pending(object, u64::from_be_bytes(array(block)?))),
        (OBJECT, [HEADER]) => Ok(IndexKey::Header(object)),
        (OBJECT, [CHUNK, number @ ..]) => {
            Ok(IndexKey::Chunk(object, u64::from_be_bytes(array(number)?)))
        }
        _ => Err(ErrorCode::Corrupt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_in_order_and_decode_back() {
        let object = ObjectId {
            data_id: DataId(7),
            column: Column(3),
        };
        for (key, named) in [
            (target(), IndexKey::Target),
            (segment(9), IndexKey::Segment(9)),
            (tombstone(object), IndexKey::Tombstone(object)),
            (pending(object, 5), IndexKey::Pending(object, 5)),
            (
                fence(ClientId(7), HolderNumber(9)),
                IndexKey::Fence(ClientId(7), HolderNumber(9)),
            ),
            (header(object), IndexKey::Header(object)),
            (chunk(object, 300), IndexKey::Chunk(object, 300)),
        ] {
            assert_eq!(parse(&key), Ok(named));
            assert!(parse(&[key.as_slice(), &[0]].concat()).is_err());
        }
        assert!(header(object) < chunk(object, 0) && chunk(object, 255) < chunk(object, 256));
        assert_eq!(parse(&[]), Err(ErrorCode::Corrupt));
    }
}
