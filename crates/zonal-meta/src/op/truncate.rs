//! Truncate: changes the size. A shrink of a file with data gets a number that the columns must
//! see. Growth gets a number where unreported bytes may lie behind the end (`truncate_number.rs`).

use super::truncate_number::{self, others_hold};
use super::{Result, inline_data, setattr};
use crate::inode::{FLAG_RESERVED, Inode};
use crate::permission::{WRITE, check};
use crate::tx::{MemoryChange, Tx};
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino};
use zonal_wire::MetaReply;

/// The fields of the request.
pub(crate) struct Truncate {
    pub ino: Ino,
    pub size: u64,
    pub by_handle: bool,
    pub confirmed_seq: u64,
    pub kill_suid: bool,
}

pub(crate) fn truncate(tx: &mut Tx<'_>, who: &Credentials, request: &Truncate) -> Result {
    let mut inode = tx.inode(request.ino)?;
    match inode.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(ErrorCode::IsDirectory),
        _ => return Err(ErrorCode::Invalid),
    }
    if !request.by_handle {
        check(tx, who, &inode, WRITE)?;
    }
    if request.size > FILE_BYTES_MAX {
        return Err(ErrorCode::FileTooBig);
    }
    let (is_same, gid) = (inode.size == request.size, inode.gid);
    let push = set_size(tx, &mut inode, request.size, request.confirmed_seq)?;
    if request.by_handle || !is_same {
        inode.modified(tx.now.wall);
    }
    if request.kill_suid {
        setattr::kill_set_id(tx, &mut inode, !who.in_group(gid));
    }
    setattr::drop_capability(tx, &mut inode);
    let attr = inode.attr();
    let data = inode.data(tx.map_version());
    tx.save(inode);
    Ok(MetaReply::Truncated { attr, data, push })
}

/// Sets the size; true where the columns have to be truncated.
pub(crate) fn set_size(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    size: u64,
    confirmed_seq: u64,
) -> Result<bool> {
    if confirmed_seq >= inode.truncate_seq {
        truncate_number::confirmed(inode);
    }
    let (before, inline) = (inode.size, u64::from(inode.layout.inline_bytes()));
    inline_data::truncate(tx, inode, size)?;
    let shrinks = size < before;
    // A small file has no reported bytes at the targets. But a client that is gone may have written
    // some; they are truncated when targets see the number. Other clients with the file open do not
    // know the number, and would write under the old one. So the number is pushed to the columns.
    let is_numbered = shrinks && (before > inline || others_hold(tx, inode.ino))
        || (size == 0 && inode.allocated_bytes() > 0);
    if shrinks || is_numbered {
        truncate_number::shrink(tx, inode, size, is_numbered)?;
        // An empty file with space is truncated, too: that drops the bytes of an append in flight.
        tx.volatile.push(MemoryChange::Truncated(inode.ino, size));
    } else if size > before {
        truncate_number::disown(tx, inode)?;
    }
    inode.size = size;
    Ok(is_numbered)
}

/// Disowns bytes behind the end before the session extends the file by a write, or reserves space
/// there. The reply has the new number. Without a number, others may be writing there.
pub(crate) fn disown_behind(tx: &mut Tx<'_>, ino: Ino, reserves: bool) -> Result {
    let mut inode = tx.inode(ino)?;
    if !inode.is_file() {
        return Err(ErrorCode::Invalid);
    }
    let is_disowned = truncate_number::disown(tx, &mut inode)?;
    if reserves {
        inode.set(FLAG_RESERVED, true);
    }
    let data = is_disowned.then(|| inode.data(tx.map_version()));
    let attr = inode.attr();
    tx.save(inode);
    let attr_ms = 0;
    Ok(MetaReply::Attr {
        attr,
        data,
        attr_ms,
    })
}

/// Notes that all columns have seen the truncation.
pub(crate) fn confirm(
    tx: &mut Tx<'_>,
    ino: Ino,
    truncate_seq: u64,
    allocated_delta: i64,
) -> Result {
    let mut inode = tx.inode(ino)?;
    let is_last = truncate_seq == inode.truncate_seq;
    inode.count_allocated(allocated_delta);
    if is_last {
        truncate_number::confirmed(&mut inode);
        if !others_hold(tx, ino) {
            // No other session is left with something to report. Truncated bytes that were never
            // counted were a dead client's, or the reply about them was lost.
            inline_data::count_own(tx, &mut inode)?;
        }
    }
    tx.save(inode);
    Ok(MetaReply::Done)
}
