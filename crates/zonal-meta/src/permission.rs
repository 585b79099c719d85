//! Permission checks: those that Linux makes on a local file system.
//!
//! `EACCES` is for mode bits and ACLs, `EPERM` for ownership and privilege. User 0 has every
//! privilege, but executes only files with an execute bit.

use crate::acl::Acl;
use crate::inode::Inode;
use crate::keys;
use crate::tx::Tx;
use zonal_types::{Attr, Credentials, ErrorCode, FileKind};
use zonal_wire::meta::flags::{O_ACCMODE, O_EXEC, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search a directory.
pub const EXEC: u32 = 1;

/// Set-user-id bit.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u32 = 0o2000;
/// Sticky bit.
pub const S_ISVTX: u32 = 0o1000;
/// Execute bit of the group.
pub const S_IXGRP: u32 = 0o010;

/// True for the superuser.
#[must_use]
pub fn is_root(who: &Credentials) -> bool {
    who.uid == 0
}

/// True for the owner and the superuser.
#[must_use]
pub fn is_owner(who: &Credentials, inode: &Inode) -> bool {
    is_root(who) || who.uid == inode.uid
}

/// Checks `mask` (of READ, WRITE, EXEC) against mode and ACL.
pub(crate) fn check(
    tx: &Tx<'_>,
    who: &Credentials,
    inode: &Inode,
    mask: u32,
) -> Result<(), ErrorCode> {
    let acl = if inode.has_acl() && !is_root(who) && who.uid != inode.uid && inode.mode & 0o070 != 0
    {
        load_acl(tx, inode)?
    } else {
        None
    };
    if allows(
        who,
        inode.kind,
        inode.mode,
        (inode.uid, inode.gid),
        acl.as_ref(),
        mask,
    ) {
        Ok(())
    } else {
        Err(ErrorCode::Access)
    }
}

fn load_acl(tx: &Tx<'_>, inode: &Inode) -> Result<Option<Acl>, ErrorCode> {
    let key = keys::xattr(inode.ino, crate::acl::ACCESS_NAME);
    match tx.get(&key)? {
        Some(bytes) => Ok(Acl::parse(&bytes).map_err(|_error| ErrorCode::Corrupt)?),
        None => Ok(None),
    }
}

/// The decision alone. `owner`: uid and gid of the inode.
#[must_use]
pub fn allows(
    who: &Credentials,
    kind: FileKind,
    mode: u32,
    owner: (u32, u32),
    acl: Option<&Acl>,
    mask: u32,
) -> bool {
    let mask = mask & 7;
    if is_root(who) {
        return mask & EXEC == 0 || kind == FileKind::Directory || mode & 0o111 != 0;
    }
    let (uid, gid) = owner;
    if who.uid == uid {
        return mask & !(mode >> 6) == 0;
    }
    if let Some(acl) = acl
        && mode & 0o070 != 0
    {
        return acl.allows(who, gid, mask);
    }
    let bits = if who.in_group(gid) { mode >> 3 } else { mode };
    mask & !bits == 0
}

/// Permissions that an open with these flags needs.
#[must_use]
pub fn open_mask(open_flags: u32) -> u32 {
    let mut mask = match open_flags & O_ACCMODE {
        O_RDONLY if open_flags & O_EXEC != 0 => EXEC,
        O_RDONLY => READ,
        O_WRONLY => WRITE,
        O_RDWR => READ | WRITE,
        _ => READ | WRITE,
    };
    if open_flags & O_TRUNC != 0 {
        mask |= WRITE;
    }
    mask
}

/// True where the sticky bit of `dir` forbids the caller to touch an entry that belongs to
/// `victim_uid`.
#[must_use]
pub fn is_sticky_refused(who: &Credentials, dir: &Inode, victim_uid: u32) -> bool {
    dir.mode & S_ISVTX != 0 && !is_root(who) && who.uid != victim_uid && who.uid != dir.uid
}

/// The inode behind an entry that is to be removed or replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Victim {
    pub uid: u32,
    pub is_dir: bool,
}

impl From<&Inode> for Victim {
    fn from(inode: &Inode) -> Self {
        Self {
            uid: inode.uid,
            is_dir: inode.is_dir(),
        }
    }
}

impl From<&Attr> for Victim {
    fn from(attr: &Attr) -> Self {
        Self {
            uid: attr.uid,
            is_dir: attr.kind == FileKind::Directory,
        }
    }
}

/// Linux's `may_delete`: write and search permission in the directory, the sticky bit, the wanted
/// type.
pub(crate) fn may_delete(
    tx: &Tx<'_>,
    who: &Credentials,
    dir: &Inode,
    victim: Victim,
    want_dir: bool,
) -> Result<(), ErrorCode> {
    check(tx, who, dir, WRITE | EXEC)?;
    if is_sticky_refused(who, dir, victim.uid) {
        return Err(ErrorCode::NotPermitted);
    }
    match (want_dir, victim.is_dir) {
        (true, false) => Err(ErrorCode::NotDirectory),
        (false, true) => Err(ErrorCode::IsDirectory),
        _ => Ok(()),
    }
}

/// Linux's `may_create`: write and search permission in the directory, which must not be on its way
/// out.
pub(crate) fn may_create(tx: &Tx<'_>, who: &Credentials, dir: &Inode) -> Result<(), ErrorCode> {
    if dir.has(crate::inode::FLAG_CLOSING) {
        return Err(ErrorCode::NotFound);
    }
    check(tx, who, dir, WRITE | EXEC)
}

/// The set-id bits that remain after a write, truncation or change of the owner by `who` (Linux's
/// `setattr_should_drop_suidgid`).
#[must_use]
pub fn without_set_id(mode: u32, drops_group: bool) -> u32 {
    let mut left = mode & !S_ISUID;
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || drops_group) {
        left &= !S_ISGID;
    }
    left
}
