//! A record of the log and its encoding.
//!
//! Payload, little-endian:
//!
//! 1. `count u32`, then for each change: `op u8` (0 remove, 1 put), `key length u16`, key, and for
//!    a put `value length u32`, value.
//! 2. `note length u32`, note; nothing after it.

use zonal_types::KvChange;

use crate::files::error::DiskError;

/// Longest key, in bytes.
pub const MAX_KEY: usize = 4096;
/// Longest payload of a record, in bytes; also bounded by a quarter of the log.
pub const MAX_PAYLOAD: usize = 4 << 20;

const OP_REMOVE: u8 = 0;
const OP_PUT: u8 = 1;

/// A position in the log in bytes since formatting. The end of a record is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// One atomic step: changes of the store, and a note that only the caller understands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Record {
    /// Changes of the ordered store, in order.
    pub changes: Vec<KvChange>,
    /// Redo bytes of the caller, passed to it by replay.
    pub note: Vec<u8>,
}

/// Appends the encoding to `out`.
///
/// # Errors
/// `TooBig` where a key or the whole exceeds its limit.
pub fn encode(out: &mut Vec<u8>, changes: &[KvChange], note: &[u8]) -> Result<(), DiskError> {
    let size = encoded_size(changes, note);
    check(size, MAX_PAYLOAD)?;
    out.reserve(size);
    out.extend_from_slice(&length(changes.len()).to_le_bytes());
    for change in changes {
        check(change.key.len(), MAX_KEY)?;
        let key_length = u16::try_from(change.key.len()).unwrap_or(u16::MAX);
        out.push(if change.value.is_some() {
            OP_PUT
        } else {
            OP_REMOVE
        });
        out.extend_from_slice(&key_length.to_le_bytes());
        out.extend_from_slice(&change.key);
        if let Some(value) = &change.value {
            out.extend_from_slice(&length(value.len()).to_le_bytes());
            out.extend_from_slice(value);
        }
    }
    out.extend_from_slice(&length(note.len()).to_le_bytes());
    out.extend_from_slice(note);
    Ok(())
}

/// Bytes that [`encode`] would append.
#[must_use]
pub fn encoded_size(changes: &[KvChange], note: &[u8]) -> usize {
    let change_size = |change: &KvChange| {
        3 + change.key.len() + change.value.as_ref().map_or(0, |value| 4 + value.len())
    };
    8 + changes.iter().map(change_size).sum::<usize>() + note.len()
}

/// Decodes a payload; `None` where it is not exactly one record.
#[must_use]
pub fn decode(payload: &[u8]) -> Option<Record> {
    let mut rest = payload;
    let count = take_u32(&mut rest)? as usize;
    // A change takes at least 3 bytes: a hostile count cannot cause an allocation larger than its
    // payload.
    if count > rest.len() / 3 {
        return None;
    }
    let mut changes = Vec::with_capacity(count);
    for _ in 0..count {
        let op = *take(&mut rest, 1)?.first()?;
        let key_length = u16::from_le_bytes(take(&mut rest, 2)?.try_into().ok()?) as usize;
        if key_length > MAX_KEY {
            return None;
        }
        let key = take(&mut rest, key_length)?.to_vec();
        let value = match op {
            OP_REMOVE => None,
            OP_PUT => {
                let value_length = take_u32(&mut rest)? as usize;
                Some(take(&mut rest, value_length)?.to_vec())
            }
            _ => return None,
        };
        changes.push(KvChange { key, value });
    }
    let note_length = take_u32(&mut rest)? as usize;
    let note = take(&mut rest, note_length)?.to_vec();
    rest.is_empty().then_some(Record { changes, note })
}

fn check(size: usize, limit: usize) -> Result<(), DiskError> {
    if size > limit {
        return Err(DiskError::TooBig { size, limit });
    }
    Ok(())
}

/// Encodes a length; lengths are bounded by [`MAX_PAYLOAD`] before they come here.
fn length(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    Some(head)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(take(rest, 4)?.try_into().ok()?))
}
