//! Changing the size. A shrink of what has data gets a number that the columns must see (ARCHITECTURE, decision 5).

use super::{Result, inline, setattr};
use crate::inode::{FLAG_UNCONFIRMED, Inode};
use crate::permission::{WRITE, check};
use crate::tx::{Tx, Volatile};
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Credentials, ErrorCode, FileData, FileKind, Ino};
use zonal_wire::MetaReply;

/// The request.
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
    let data = inode.data();
    tx.save(inode);
    Ok(MetaReply::Truncated { attr, data, push })
}

/// Sets the size; true where the columns have to be cut.
pub(crate) fn set_size(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    size: u64,
    confirmed_seq: u64,
) -> Result<bool> {
    if confirmed_seq >= inode.truncate_seq {
        inode.set(FLAG_UNCONFIRMED, false);
    }
    let (before, inline) = (inode.size, u64::from(inode.layout.inline_bytes()));
    inline::cut(tx, inode, size)?;
    let shrinks = size < before;
    let is_cut = shrinks && (before > inline || others_hold(tx, inode.ino))
        || (size == 0 && inode.allocated_bytes() > 0);
    if is_cut {
        if inode.has(FLAG_UNCONFIRMED) {
            zonal_types::mark!(TruncateUnconfirmed);
            return Err(ErrorCode::TruncateUnconfirmed);
        }
        number_shrink(inode, size);
        inode.set(FLAG_UNCONFIRMED, true);
    } else if shrinks {
        // Nothing of it is at the targets, but what a client that is gone wrote there and never told: that is cut when they see the
        // number. Others that have it open do not know the number, and would write under the old one: above.
        number_shrink(inode, size);
    }
    // An empty file that has space is cut, too: bytes of an append that is under way are gone with it.
    if shrinks || is_cut {
        tx.volatile.push(Volatile::Cut(inode.ino, size));
    }
    inode.size = size;
    Ok(is_cut)
}

/// Makes what targets may hold behind the end nobody's, without a message to them: they cut it when they see the number. `None`: not
/// done, because somebody else may be writing there, or an earlier shrink has not been seen by all.
pub(crate) fn disown_behind(tx: &mut Tx<'_>, ino: Ino) -> Result<Option<FileData>> {
    let mut inode = tx.inode(ino)?;
    if inode.has(FLAG_UNCONFIRMED) || others_hold(tx, ino) {
        return Ok(None);
    }
    let size = inode.size;
    number_shrink(&mut inode, size);
    let data = inode.data();
    tx.save(inode);
    Ok(Some(data))
}

fn number_shrink(inode: &mut Inode, size: u64) {
    inode.truncate_seq = inode.truncate_seq.saturating_add(1);
    inode.truncate_size = size;
}

/// Whether another session may have the file open.
fn others_hold(tx: &Tx<'_>, ino: Ino) -> bool {
    let holders = tx.env.opens.holders(ino);
    !tx.env.silent.is_empty() || holders.iter().any(|session| *session != tx.session)
}

/// All columns have seen the shrink.
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
        inode.set(FLAG_UNCONFIRMED, false);
        if !others_hold(tx, ino) {
            // Nobody is left who has something to tell: what was cut and never counted was a dead client's, or its reply was lost.
            inline::count_own(tx, &mut inode)?;
        }
    }
    tx.save(inode);
    Ok(MetaReply::Done)
}
