//! Create: a new inode that is not a directory, opened at once where wanted.
//!
//! Reads: the directory's inode, the name's place (2 keys). Writes: entry, inode, directory's
//! inode, slot (4 keys). One more key for each 1,024 inodes (the number range), and one for an
//! inherited ACL.

use super::new_inode::CreationSite;
use super::{Result, entry, new_inode, open};
use crate::permission::{EXEC, check, is_root, may_create};
use crate::tx::{MemoryChange, Tx};
use zonal_types::limits::SYMLINK_BYTES_MAX;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino, Name};
use zonal_wire::MetaReply;
use zonal_wire::meta::NewKind;

/// The fields of the request.
pub(crate) struct Create<'a> {
    pub parent: Ino,
    pub name: &'a Name,
    pub kind: &'a NewKind,
    pub mode: u32,
    pub umask: u32,
    pub site: CreationSite,
    pub open: bool,
    pub open_flags: u32,
    pub exclusive: bool,
}

pub(crate) fn create(tx: &mut Tx<'_>, who: &Credentials, request: &Create<'_>) -> Result {
    let mut dir = tx.directory(request.parent)?;
    check(tx, who, &dir, EXEC)?;
    if let Some((_, found)) = tx.lookup(dir.ino, request.name)? {
        if request.exclusive || !request.open {
            return Err(ErrorCode::Exists);
        }
        return match found.kind {
            FileKind::File => {
                let opened = open::open_existing(tx, who, found.ino, request.open_flags)?;
                let entry = entry(tx, &dir, found.ino, found.kind)?;
                Ok(opened.into_reply(entry))
            }
            FileKind::Directory => Err(ErrorCode::IsDirectory),
            // A link that must be followed, or a special file: the caller looks it up again.
            _ => Err(ErrorCode::Stale),
        };
    }
    may_create(tx, who, &dir)?;
    let (kind, rdev) = match request.kind {
        NewKind::File => (FileKind::File, 0),
        NewKind::Symlink { .. } => (FileKind::Symlink, 0),
        NewKind::Fifo => (FileKind::Fifo, 0),
        NewKind::Socket => (FileKind::Socket, 0),
        NewKind::CharDevice { rdev } => (FileKind::CharDevice, *rdev),
        NewKind::BlockDevice { rdev } => (FileKind::BlockDevice, *rdev),
    };
    // A whiteout (device 0:0) is no device that anybody could use.
    let is_whiteout = kind == FileKind::CharDevice && rdev == 0;
    let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    if is_device && !is_whiteout && !is_root(who) {
        return Err(ErrorCode::NotPermitted);
    }
    let rights = new_inode::rights(tx, who, &dir, kind, request.mode, request.umask)?;
    let mut inode = new_inode::inode(tx, who, &dir, kind, &rights, request.site)?;
    inode.rdev = rdev;
    if let NewKind::Symlink { text } = request.kind {
        match text.0.len() {
            0 => return Err(ErrorCode::NotFound),
            1..=SYMLINK_BYTES_MAX => {}
            _ => return Err(ErrorCode::NameTooLong),
        }
        inode.size = text.0.len() as u64;
        inode.inline = text.clone();
    }
    let ino = inode.ino;
    let data = inode.data(tx.map_version());
    tx.save(inode);
    tx.add_entry(dir.ino, request.name, ino, kind)?;
    dir.size = dir.size.saturating_add(1);
    dir.modified(tx.now.wall);
    tx.save(dir.clone());
    let entry = entry(tx, &dir, ino, kind)?;
    if request.open && kind == FileKind::File {
        open::check_room(tx)?;
        tx.volatile.push(MemoryChange::Open(ino));
        tx.volatile.push(MemoryChange::Owned(ino));
        let push = false;
        return Ok(MetaReply::Opened { entry, data, push });
    }
    Ok(MetaReply::Entry { entry })
}
