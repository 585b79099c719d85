//! Unlink: removes a name of an inode that is not a directory. Writes: entry, directory's inode,
//! inode (removed or with one link less), deletion or orphan, slot.

use super::{Result, remove};
use crate::permission::{EXEC, Victim, check, may_delete};
use crate::tx::Tx;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino, Name};

pub(crate) fn unlink(tx: &mut Tx<'_>, who: &Credentials, parent: Ino, name: &Name) -> Result {
    let mut dir = tx.directory(parent)?;
    check(tx, who, &dir, EXEC)?;
    let (cookie, found) = tx.lookup(parent, name)?.ok_or(ErrorCode::NotFound)?;
    if found.kind == FileKind::Directory && !tx.is_ours(found.ino) {
        // The inode is elsewhere; the caller's rights to the root decide the error.
        check(tx, who, &dir, crate::permission::WRITE | EXEC)?;
        return Err(ErrorCode::IsDirectory);
    }
    let inode = tx.target(found.ino)?;
    may_delete(tx, who, &dir, Victim::from(&inode), false)?;
    tx.remove_entry(parent, cookie)?;
    dir.size = dir.size.saturating_sub(1);
    dir.modified(tx.now.wall);
    tx.save(dir);
    let gone = remove::drop_link(tx, inode)?;
    Ok(remove::removed(gone.as_ref()))
}
