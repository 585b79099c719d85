//! Setattr: mode, owner and times. Rules and their order are those of Linux's `setattr_prepare` and
//! `notify_change`.

use super::{Result, changed};
use crate::acl::{ACCESS_NAME, Acl};
use crate::inode::{FLAG_MTIME_SET, Inode};
use crate::keys;
use crate::permission::{S_ISGID, WRITE, check, is_owner, is_root, without_set_id};
use crate::tx::Tx;
use zonal_types::limits::xattr_flags;
use zonal_types::{Credentials, ErrorCode, Ino, Timestamp};
use zonal_wire::meta::{AttrChange, SetTime};

pub(crate) fn setattr(tx: &mut Tx<'_>, who: &Credentials, ino: Ino, change: &AttrChange) -> Result {
    let mut inode = tx.inode(ino)?;
    may_change(tx, who, &inode, change)?;
    let is_chown = change.uid.is_some() || change.gid.is_some();
    // chown(-1, -1) comes without any field; it counts as a change of the owner.
    let is_empty = *change == AttrChange::default();
    if (is_chown || is_empty) && !inode.is_dir() {
        chown_clears(tx, who, &mut inode, change)?;
    }
    inode.uid = change.uid.unwrap_or(inode.uid);
    inode.gid = change.gid.unwrap_or(inode.gid);
    if let Some(mode) = change.mode {
        let mut mode = mode & 0o7777;
        if !is_root(who) && !who.in_group(inode.gid) {
            mode &= !S_ISGID;
        }
        inode.mode = mode;
        chmod_acl(tx, &mut inode)?;
    }
    set_times(tx.now.wall, &mut inode, change)?;
    inode.changed(tx.now.wall);
    if let Some(ctime) = change.ctime
        && is_root(who)
    {
        inode.ctime = ctime;
    }
    Ok(changed(tx, inode))
}

fn may_change(tx: &Tx<'_>, who: &Credentials, inode: &Inode, change: &AttrChange) -> Result<()> {
    let owner = is_owner(who, inode);
    let refuse_unless = |allowed: bool| {
        if allowed {
            Ok(())
        } else {
            Err(ErrorCode::NotPermitted)
        }
    };
    let both_now = change.atime == Some(SetTime::Now) && change.mtime == Some(SetTime::Now);
    if both_now && !owner {
        check(tx, who, inode, WRITE)?;
    }
    if let Some(uid) = change.uid {
        refuse_unless(is_root(who) || (owner && uid == inode.uid))?;
    }
    if let Some(gid) = change.gid {
        refuse_unless(is_root(who) || (owner && (gid == inode.gid || who.in_group(gid))))?;
    }
    if change.uid == Some(u32::MAX) || change.gid == Some(u32::MAX) {
        return Err(ErrorCode::Invalid);
    }
    if change.mode.is_some() {
        if inode.kind == zonal_types::FileKind::Symlink {
            return Err(ErrorCode::NotSupported);
        }
        refuse_unless(owner)?;
    }
    if (change.atime.is_some() || change.mtime.is_some()) && !both_now {
        refuse_unless(owner)?;
    }
    Ok(())
}

/// A change of the owner clears set-id bits and capabilities of an inode that is not a directory.
fn chown_clears(
    tx: &mut Tx<'_>,
    who: &Credentials,
    inode: &mut Inode,
    change: &AttrChange,
) -> Result<()> {
    let outside = !is_root(who) && !who.in_group(change.gid.unwrap_or(inode.gid));
    let left = without_set_id(inode.mode, outside);
    // For a write through its page cache that clears these bits, the kernel sends the same request;
    // its caller may write.
    let is_write = *change == AttrChange::default() && check(tx, who, inode, WRITE).is_ok();
    if left != inode.mode && !is_owner(who, inode) && !is_write {
        return Err(ErrorCode::NotPermitted);
    }
    inode.mode = left;
    drop_capability(tx, inode);
    Ok(())
}

fn chmod_acl(tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
    if !inode.has_acl() {
        return Ok(());
    }
    let key = keys::xattr(inode.ino, ACCESS_NAME);
    let Some(bytes) = tx.get(&key)? else {
        return Ok(());
    };
    let acl = Acl::parse(&bytes).map_err(|_error| ErrorCode::Corrupt)?;
    if let Some(mut acl) = acl {
        acl.chmod(inode.mode);
        tx.put(key, acl.to_bytes());
    }
    Ok(())
}

fn set_times(wall: Timestamp, inode: &mut Inode, change: &AttrChange) -> Result<()> {
    let value = |set: SetTime| match set {
        SetTime::Now => Ok(wall),
        SetTime::At { time } if time.nanos < 1_000_000_000 => Ok(time),
        SetTime::At { .. } => Err(ErrorCode::Invalid),
    };
    if let Some(atime) = change.atime {
        inode.atime = value(atime)?;
    }
    if let Some(mtime) = change.mtime {
        inode.mtime = value(mtime)?;
        inode.set(FLAG_MTIME_SET, true);
        inode.times_set = wall;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        inode.time_seq = inode.time_seq.wrapping_add(1);
    }
    Ok(())
}

/// Clears set-id bits after a write or truncation by `who`, unless the caller is privileged, and
/// capabilities.
pub(crate) fn kill_privileges(tx: &mut Tx<'_>, who: &Credentials, inode: &mut Inode) -> Result<()> {
    if !is_root(who) {
        inode.mode = without_set_id(inode.mode, !who.in_group(inode.gid));
    }
    drop_capability(tx, inode);
    Ok(())
}

/// Clears privileges before a write by an unprivileged process through an open file.
pub(crate) fn take_privileges(tx: &mut Tx<'_>, who: &Credentials, ino: Ino) -> Result {
    let mut inode = tx.inode(ino)?;
    if inode.is_dir() {
        return Err(ErrorCode::IsDirectory);
    }
    let drops_group = !who.in_group(inode.gid);
    kill_set_id(tx, &mut inode, drops_group);
    inode.changed(tx.now.wall);
    Ok(changed(tx, inode))
}

/// Clears set-id bits after a write by an unprivileged process. `drops_group`: the process is not
/// in the inode's group either.
pub(crate) fn kill_set_id(tx: &mut Tx<'_>, inode: &mut Inode, drops_group: bool) {
    inode.mode = without_set_id(inode.mode, drops_group);
    drop_capability(tx, inode);
}

/// Drops the file's capabilities: every write and every truncation does, by any user.
pub(crate) fn drop_capability(tx: &mut Tx<'_>, inode: &mut Inode) {
    if inode.xattrs & xattr_flags::CAPABILITY != 0 {
        inode.xattrs &= !xattr_flags::CAPABILITY;
        tx.remove(keys::xattr(inode.ino, xattr_flags::CAPABILITY_NAME));
    }
}
