//! Inline data: the first bytes of a file, where its layout leaves them to the shard
//! (docs/rfcs/2026-11-22-small-files.md).
//!
//! They have a key of their own, so that listings and attributes do not read them.
//!
//! *Invariants*: no inline byte lies at or behind the file's size, nor behind what the layout
//! leaves to the shard. There is no key where there is no byte. `allocated` counts them in units of
//! [`UNIT`].

use super::Result;
use crate::inode::Inode;
use crate::keys;
use crate::tx::Tx;
use zonal_basics::to_usize;
use zonal_types::{Blob, ErrorCode, Ino};
use zonal_wire::MetaReply;

/// Unit in which inline bytes count as allocated: that of `st_blocks`.
const UNIT: usize = 512;

/// Allocated bytes that `bytes` inline bytes count as.
pub(crate) fn allocated(bytes: usize) -> u64 {
    bytes.next_multiple_of(UNIT) as u64
}

/// Offset and bytes of a request's inline part.
pub(crate) fn written(inline: Option<&(u32, Blob)>) -> Option<(u32, &[u8])> {
    inline.map(|(offset, bytes)| (*offset, bytes.0.as_slice()))
}

/// Reads the inline bytes, also those of a recently removed file.
pub(crate) fn read(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let inode = match tx.inode(ino) {
        Err(ErrorCode::Stale) => {
            let kept = tx.env.recent.get(ino).ok_or(ErrorCode::Stale)?;
            let bytes = Blob(kept.inline.clone());
            return Ok(MetaReply::Inline { bytes });
        }
        found => found?,
    };
    let bytes = Blob(stored(tx, &inode)?);
    Ok(MetaReply::Inline { bytes })
}

/// The stored inline bytes of a file.
pub(crate) fn stored(tx: &Tx<'_>, inode: &Inode) -> Result<Vec<u8>> {
    if inode.layout.inline_bytes() == 0 {
        return Ok(Vec::new());
    }
    Ok(tx.get(&keys::inline(inode.ino))?.unwrap_or_default())
}

/// Fills inline bytes that are missing before `end` with zeros, within the file.
pub(crate) fn allocate(tx: &mut Tx<'_>, inode: &mut Inode, end: u32) -> Result<()> {
    let end = to_usize(u64::from(end.min(inode.layout.inline_bytes())).min(inode.size));
    let mut stored = stored(tx, inode)?;
    let before = stored.len();
    if before < end {
        stored.resize(end, 0);
        count(inode, before, end);
        tx.put(keys::inline(inode.ino), stored);
    }
    Ok(())
}

/// Writes inline bytes; the size follows.
pub(crate) fn write(tx: &mut Tx<'_>, inode: &mut Inode, offset: u32, bytes: &[u8]) -> Result<()> {
    let (from, end) = (offset as usize, offset as usize + bytes.len());
    if bytes.is_empty() || end > inode.layout.inline_bytes() as usize {
        return Err(ErrorCode::Invalid);
    }
    let mut stored = stored(tx, inode)?;
    let before = stored.len();
    if stored.len() < end {
        stored.resize(end, 0);
    }
    stored[from..end].copy_from_slice(bytes);
    count(inode, before, stored.len());
    inode.size = inode.size.max(end as u64);
    tx.put(keys::inline(inode.ino), stored);
    Ok(())
}

/// Truncates the inline bytes to `size`.
pub(crate) fn truncate(tx: &mut Tx<'_>, inode: &mut Inode, size: u64) -> Result<()> {
    if inode.size <= size || size >= u64::from(inode.layout.inline_bytes()) {
        return Ok(());
    }
    let mut stored = stored(tx, inode)?;
    let before = stored.len();
    if (before as u64) <= size {
        return Ok(());
    }
    stored.truncate(usize::try_from(size).unwrap_or(before));
    count(inode, before, stored.len());
    store(tx, keys::inline(inode.ino), stored);
    Ok(())
}

/// For repairs: truncates inline bytes behind the file's size or the layout's inline part.
pub(crate) fn truncate_to_fit(tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
    let key = keys::inline(inode.ino);
    let Some(mut stored) = tx.get(&key)? else {
        return Ok(());
    };
    let room = inode.size.min(inode.layout.inline_bytes().into());
    let before = stored.len();
    stored.truncate(usize::try_from(room).unwrap_or(before));
    count(inode, before, stored.len());
    store(tx, key, stored);
    Ok(())
}

/// Raises the allocated bytes to at least those of the inline data.
pub(crate) fn count_own(tx: &Tx<'_>, inode: &mut Inode) -> Result<()> {
    let own = allocated(stored(tx, inode)?.len()).cast_signed();
    let missing = own.saturating_sub(inode.allocated.cast_signed());
    inode.count_allocated(missing.max(0));
    Ok(())
}

fn store(tx: &mut Tx<'_>, key: Vec<u8>, bytes: Vec<u8>) {
    if bytes.is_empty() {
        tx.remove(key);
    } else {
        tx.put(key, bytes);
    }
}

fn count(inode: &mut Inode, before: usize, after: usize) {
    inode.count_allocated(allocated(after).cast_signed() - allocated(before).cast_signed());
}
