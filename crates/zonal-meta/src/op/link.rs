//! Link: one more name for an inode that is not a directory. Reads and writes: directory's inode,
//! entry, inode, slot.

use super::{Result, entry, remove};
use crate::inode::{FLAG_ORPHAN, FLAG_UNLINKABLE};
use crate::permission::{EXEC, check, may_create};
use crate::tx::Tx;
use zonal_types::limits::LINKS_MAX;
use zonal_types::{Credentials, ErrorCode, Ino, Name};
use zonal_wire::MetaReply;

pub(crate) fn link(
    tx: &mut Tx<'_>,
    who: &Credentials,
    ino: Ino,
    parent: Ino,
    name: &Name,
) -> Result {
    if ino.is_valid() && !tx.is_ours(ino) {
        let is_here = tx.is_ours(parent);
        // Both may have moved to one other shard.
        return Err(if is_here {
            ErrorCode::CrossShard
        } else {
            ErrorCode::NotOwner
        });
    }
    let mut dir = match tx.directory(parent) {
        Err(ErrorCode::NotOwner) => return Err(ErrorCode::CrossShard),
        other => other?,
    };
    let mut inode = tx.inode(ino)?;
    check(tx, who, &dir, EXEC)?;
    if tx.lookup(parent, name)?.is_some() {
        return Err(ErrorCode::Exists);
    }
    may_create(tx, who, &dir)?;
    if inode.is_dir() {
        return Err(ErrorCode::NotPermitted);
    }
    if inode.nlink == 0 {
        // Only an inode made by O_TMPFILE gets a first name; an inode that lost its last name does
        // not come back.
        let is_tmpfile = inode.parent == Ino(0);
        if !is_tmpfile || inode.has(FLAG_UNLINKABLE) {
            return Err(ErrorCode::NotFound);
        }
        inode.set(FLAG_ORPHAN, false);
        inode.parent = parent;
        remove::forget_orphan(tx, ino);
    }
    if inode.nlink >= LINKS_MAX {
        return Err(ErrorCode::TooManyLinks);
    }
    inode.nlink = inode.nlink.saturating_add(1);
    inode.changed(tx.now.wall);
    let kind = inode.kind;
    tx.save(inode);
    tx.add_entry(parent, name, ino, kind)?;
    dir.size = dir.size.saturating_add(1);
    dir.modified(tx.now.wall);
    tx.save(dir.clone());
    let entry = entry(tx, &dir, ino, kind)?;
    Ok(MetaReply::Entry { entry })
}
