//! Rmdir: removes an empty directory.

use super::{Result, first_level, remove};
use crate::permission::{EXEC, Victim, check, may_delete};
use crate::tx::Tx;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino, Name};

pub(crate) fn rmdir(tx: &mut Tx<'_>, who: &Credentials, parent: Ino, name: &Name) -> Result {
    let mut dir = tx.directory(parent)?;
    check(tx, who, &dir, EXEC)?;
    let (cookie, found) = tx.lookup(parent, name)?.ok_or(ErrorCode::NotFound)?;
    if found.kind == FileKind::Directory && !tx.is_ours(found.ino) {
        return first_level::rmdir(tx, who, dir, cookie, &found);
    }
    let mut inode = tx.target(found.ino)?;
    may_delete(tx, who, &dir, Victim::from(&inode), true)?;
    if inode.size > 0 {
        return Err(ErrorCode::NotEmpty);
    }
    tx.remove_entry(parent, cookie)?;
    dir.size = dir.size.saturating_sub(1);
    dir.nlink = dir.nlink.saturating_sub(1);
    dir.modified(tx.now.wall);
    tx.save(dir);
    inode.changed(tx.now.wall);
    remove::delete(tx, &inode)?;
    Ok(remove::removed(Some(&inode)))
}
