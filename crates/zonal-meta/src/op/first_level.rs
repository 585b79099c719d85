//! First-level directories, the root shard's side: the root shard has their entries (junctions),
//! the zones' shards their inodes.
//!
//! Each operation first asks the zone's shard, and runs again from its start with the answer in
//! `tx.facts`. Then it changes entry and junction in one effect and tells the zone's shard
//! ([`super::detached_directories`]). The zone's shard settles directories for which a message was
//! lost.

use super::{Result, entry, mkdir::Mkdir, new_inode, rename::Place};
use crate::dentry::Dentry;
use crate::inode::Inode;
use crate::outcome::{JunctionChange, Question};
use crate::permission::{EXEC, Victim, WRITE, check, is_root, may_delete};
use crate::tx::Tx;
use zonal_types::{Attr, Blob, Credentials, ErrorCode, FileKind, Ino, Name, ShardId};
use zonal_wire::meta::AttrChange;
use zonal_wire::{MetaReply, MetaRequest};

fn path_of(name: &Name) -> String {
    format!("/{name}")
}

/// mkdir in the root: makes a detached directory in the zone's shard, then the entry.
pub(crate) fn mkdir(
    tx: &mut Tx<'_>,
    who: &Credentials,
    mut dir: Inode,
    request: &Mkdir<'_>,
    mode: u32,
) -> Result {
    let zone = new_inode::home_zone(tx, &dir, request.zone)?;
    let kind = FileKind::Directory;
    let Some((_maker, ino)) = tx.facts.made else {
        let (map, now) = (tx.env.map, tx.now.instant);
        let shard = tx.env.loads.least_loaded(map, zone, now);
        let shard = shard.ok_or(ErrorCode::NotReady)?;
        let default = new_inode::default_acl(tx, &dir)?;
        let rights = new_inode::rights(tx, who, &dir, kind, mode, 0)?;
        let set_gid = rights.mode & crate::permission::S_ISGID;
        let masked = if default.is_some() {
            mode
        } else {
            mode & !(request.umask & 0o777)
        };
        let ask = MetaRequest::MakeDetachedDir {
            uid: who.uid,
            gid: rights.gid,
            mode: masked | set_gid,
            default_acl: default.map(|acl| Blob(acl.to_bytes())),
            token: tx.token,
        };
        return Err(tx.ask(shard, ask, Question::Make(shard)));
    };
    // Its partition may have moved to another shard of the zone since it was made.
    let owner = tx.env.map.shard_of(ino.partition());
    let owner = owner.filter(|owner| ino.is_valid() && owner.zone == zone);
    let shard = owner.ok_or(ErrorCode::Protocol)?.id;
    tx.add_entry(dir.ino, request.name, ino, kind)?;
    dir.size = dir.size.saturating_add(1);
    dir.nlink = dir.nlink.saturating_add(1);
    dir.modified(tx.now.wall);
    tx.save(dir.clone());
    let path = path_of(request.name);
    tx.junctions.push(JunctionChange::Add { ino, path, zone });
    tx.after.push((shard, MetaRequest::AttachDir { ino }));
    if dir.policy.is_some() {
        let policy = MetaRequest::SetPolicy {
            who: Credentials::root(),
            dir: ino,
            policy: dir.policy,
        };
        tx.after.push((shard, policy));
    }
    let entry = entry(tx, &dir, ino, kind)?;
    Ok(MetaReply::Entry { entry })
}

/// Attributes of an inode elsewhere, whose owner the sticky bit makes relevant; `None`: it is gone
/// there.
fn remote_attr(tx: &mut Tx<'_>, ino: Ino) -> Result<Option<Attr>> {
    if let Some((_, attr)) = tx.facts.attrs.iter().find(|(of, _)| *of == ino) {
        return Ok(*attr);
    }
    let shard = tx.shard_of(ino)?;
    let ask = MetaRequest::GetAttr { ino, data: false };
    Err(tx.ask(shard, ask, Question::Attr(ino)))
}

/// `may_delete` for a directory in another shard.
fn may_delete_remote(
    tx: &mut Tx<'_>,
    who: &Credentials,
    dir: &Inode,
    ino: Ino,
    want_dir: bool,
) -> Result<()> {
    check(tx, who, dir, WRITE | EXEC)?;
    let mut victim = Victim {
        uid: who.uid,
        is_dir: true,
    };
    let is_sticky = dir.mode & crate::permission::S_ISVTX != 0;
    if is_sticky
        && !is_root(who)
        && who.uid != dir.uid
        && let Some(attr) = remote_attr(tx, ino)?
    {
        victim.uid = attr.uid;
    }
    may_delete(tx, who, dir, victim, want_dir)
}

/// Has the other shard refuse new entries in the directory, which must be empty.
fn detach(tx: &mut Tx<'_>, ino: Ino) -> Result<ShardId> {
    let shard = tx.shard_of(ino)?;
    if tx.facts.detached == Some((shard, ino)) {
        return Ok(shard);
    }
    let ask = MetaRequest::DetachDir { ino };
    Err(tx.ask(shard, ask, Question::Detach(shard, ino)))
}

/// rmdir in the root of a directory in another shard.
pub(crate) fn rmdir(
    tx: &mut Tx<'_>,
    who: &Credentials,
    mut dir: Inode,
    cookie: u64,
    found: &Dentry,
) -> Result {
    may_delete_remote(tx, who, &dir, found.ino, true)?;
    let shard = detach(tx, found.ino)?;
    tx.remove_entry(dir.ino, cookie)?;
    dir.size = dir.size.saturating_sub(1);
    dir.nlink = dir.nlink.saturating_sub(1);
    dir.modified(tx.now.wall);
    tx.save(dir);
    let ino = found.ino;
    tx.junctions.push(JunctionChange::Remove { ino });
    tx.after.push((shard, MetaRequest::DropDir { ino }));
    Ok(MetaReply::Done)
}

/// Rename inside the root where the source, or the entry that it replaces, is a directory in
/// another shard.
pub(crate) fn rename(
    tx: &mut Tx<'_>,
    who: &Credentials,
    dir: Inode,
    from: &Place,
    to: &Place,
    exchange: bool,
) -> Result {
    let source = from.found.clone().ok_or(ErrorCode::NotFound)?;
    let source_is_dir = source.1.kind == FileKind::Directory;
    let wanted = |place: &Dentry| {
        if exchange {
            place.kind == FileKind::Directory
        } else {
            source_is_dir
        }
    };
    may_remove(tx, who, &dir, &source.1, source_is_dir)?;
    if let Some((_, target)) = &to.found {
        may_remove(tx, who, &dir, target, wanted(target))?;
    }
    let mut dir = dir;
    match (&to.found, exchange) {
        (Some((cookie, target)), true) => {
            tx.set_entry(dir.ino, source.0, &renamed(target, &from.name, &source.1))?;
            let there = Dentry {
                ino: source.1.ino,
                kind: source.1.kind,
                ..target.clone()
            };
            tx.set_entry(dir.ino, *cookie, &there)?;
            moved(tx, target, &from.name)?;
        }
        (Some((cookie, target)), false) => {
            if tx.is_ours(target.ino) {
                let victim = tx.target(target.ino)?;
                super::remove::drop_link(tx, victim)?;
            } else {
                let shard = detach(tx, target.ino)?;
                let ino = target.ino;
                tx.junctions.push(JunctionChange::Remove { ino });
                tx.after.push((shard, MetaRequest::DropDir { ino }));
                dir.nlink = dir.nlink.saturating_sub(1);
            }
            let there = Dentry {
                ino: source.1.ino,
                kind: source.1.kind,
                ..target.clone()
            };
            tx.set_entry(dir.ino, *cookie, &there)?;
            tx.remove_entry(dir.ino, source.0)?;
            dir.size = dir.size.saturating_sub(1);
        }
        (None, _) => {
            tx.remove_entry(dir.ino, source.0)?;
            tx.add_entry(dir.ino, &to.name, source.1.ino, source.1.kind)?;
        }
    }
    moved(tx, &source.1, &to.name)?;
    dir.modified(tx.now.wall);
    tx.save(dir);
    Ok(MetaReply::Done)
}

/// The entry at `place`, with its own name and chain mark, leading to the inode of `target`.
fn renamed(target: &Dentry, name: &Name, place: &Dentry) -> Dentry {
    Dentry {
        ino: target.ino,
        kind: target.kind,
        chained: place.chained,
        name: name.clone(),
    }
}

fn may_remove(
    tx: &mut Tx<'_>,
    who: &Credentials,
    dir: &Inode,
    found: &Dentry,
    want_dir: bool,
) -> Result<()> {
    if tx.is_ours(found.ino) {
        let inode = tx.target(found.ino)?;
        may_delete(tx, who, dir, Victim::from(&inode), want_dir)
    } else {
        may_delete_remote(tx, who, dir, found.ino, want_dir)
    }
}

/// Updates the renamed inode's change time, and the path of a junction.
fn moved(tx: &mut Tx<'_>, found: &Dentry, name: &Name) -> Result<()> {
    if tx.is_ours(found.ino) {
        let mut inode = tx.target(found.ino)?;
        inode.changed(tx.now.wall);
        tx.save(inode);
        return Ok(());
    }
    let ino = found.ino;
    let path = path_of(name);
    tx.junctions.push(JunctionChange::Move { ino, path });
    let change = AttrChange {
        ctime: Some(tx.now.wall),
        ..AttrChange::default()
    };
    let who = Credentials::root();
    let shard = tx.shard_of(ino)?;
    tx.after
        .push((shard, MetaRequest::SetAttr { who, ino, change }));
    Ok(())
}
