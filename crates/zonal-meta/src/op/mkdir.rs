//! Mkdir: a new directory. Writes: entry, inode, parent's inode, slot.

use super::new_inode::CreationSite;
use super::{Result, entry, first_level, new_inode};
use crate::permission::{EXEC, S_ISVTX, check, may_create};
use crate::tx::Tx;
use zonal_types::limits::LINKS_MAX;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino, Name, ZoneId};
use zonal_wire::MetaReply;

/// The fields of the request.
pub(crate) struct Mkdir<'a> {
    pub parent: Ino,
    pub name: &'a Name,
    pub mode: u32,
    pub umask: u32,
    pub zone: ZoneId,
}

pub(crate) fn mkdir(tx: &mut Tx<'_>, who: &Credentials, request: &Mkdir<'_>) -> Result {
    let mut dir = tx.directory(request.parent)?;
    check(tx, who, &dir, EXEC)?;
    if tx.lookup(dir.ino, request.name)?.is_some() {
        return Err(ErrorCode::Exists);
    }
    may_create(tx, who, &dir)?;
    if dir.nlink >= LINKS_MAX {
        return Err(ErrorCode::TooManyLinks);
    }
    let mode = request.mode & (0o777 | S_ISVTX);
    if dir.ino == Ino::ROOT {
        return first_level::mkdir(tx, who, dir, request, mode);
    }
    let kind = FileKind::Directory;
    let rights = new_inode::rights(tx, who, &dir, kind, mode, request.umask)?;
    let site = CreationSite {
        zone: request.zone,
        ..CreationSite::default()
    };
    let inode = new_inode::inode(tx, who, &dir, kind, &rights, site)?;
    let ino = inode.ino;
    tx.save(inode);
    tx.add_entry(dir.ino, request.name, ino, kind)?;
    dir.size = dir.size.saturating_add(1);
    dir.nlink = dir.nlink.saturating_add(1);
    dir.modified(tx.now.wall);
    tx.save(dir.clone());
    let entry = entry(tx, &dir, ino, kind)?;
    Ok(MetaReply::Entry { entry })
}
