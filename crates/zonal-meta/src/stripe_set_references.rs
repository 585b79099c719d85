//! References to stripe sets in a shard's store: a set without references can be removed.

use crate::inode::Inode;
use crate::keys;
use zonal_types::{Codec, ErrorCode, Ino, Layout};

/// The layout in an entry, with its inode. The entry is a file's inode, or the deletion of a
/// removed file. `None` for entries of other kinds.
///
/// # Errors
/// `Corrupt` where it cannot be decoded.
pub fn layout_of(key: &[u8], value: &[u8]) -> Result<Option<(Ino, Layout)>, ErrorCode> {
    let (partition, rest) = key.split_first_chunk::<4>().ok_or(ErrorCode::Corrupt)?;
    let tag = *rest.first().ok_or(ErrorCode::Corrupt)?;
    if u32::from_be_bytes(*partition) == keys::SHARD_PARTITION {
        return Ok(None);
    }
    let ino = || keys::ino_of(key).ok_or(ErrorCode::Corrupt);
    let layout = match tag {
        keys::TAG_INODE => Inode::decode(ino()?, value)?.layout,
        keys::TAG_DELETION => Layout::from_bytes(value).map_err(|_error| ErrorCode::Corrupt)?,
        _ => return Ok(None),
    };
    Ok(Some((ino()?, layout)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_entry_are_an_error() {
        assert_eq!(layout_of(b"", b""), Err(ErrorCode::Corrupt));
        assert_eq!(layout_of(b"\0\0\0\x01", b""), Err(ErrorCode::Corrupt));
        let mut key = vec![0, 0, 0, 1, keys::TAG_INODE];
        key.extend([0; 8]);
        assert_eq!(layout_of(&key, b"short"), Err(ErrorCode::Corrupt));
        key[4] = keys::TAG_DELETION;
        assert_eq!(layout_of(&key, b"short"), Err(ErrorCode::Corrupt));
    }
}
