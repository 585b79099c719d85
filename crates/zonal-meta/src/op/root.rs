//! First-level directories: the root shard has their entries, the zones' shards their inodes (junctions).
//!
//! Each operation here first gets what it needs from the zone's shard (it then runs again from its start with the
//! answer in `tx.facts`), then changes entry and junction in one effect, then tells the zone's shard. What gets lost in
//! between is settled by the zone's shard, which asks for the entry of each directory that stays detached.

use super::{Result, entry, mkdir::Mkdir, new, rename::Place};
use crate::acl::Acl;
use crate::dentry::Dentry;
use crate::inode::{FLAG_CLOSING, FLAG_DETACHED, Inode};
use crate::keys;
use crate::outcome::{JunctionChange, Question};
use crate::permission::{EXEC, Victim, WRITE, check, is_root, may_delete};
use crate::tx::{Tx, Volatile};
use zonal_types::{
    Attr, Blob, Codec, Credentials, ErrorCode, FileKind, Ino, KvRead, Name, Timestamp, ZoneId,
    codec_struct,
};
use zonal_wire::meta::AttrChange;
use zonal_wire::{MetaReply, MetaRequest};

codec_struct! {
    /// The stored value of a directory that is not settled.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DetachedRecord {
        /// The root shard's token; 0 where the directory is about to be removed.
        token: u64,
        /// Since when.
        since: Timestamp,
    }
}

fn path_of(name: &Name) -> String {
    format!("/{}", String::from_utf8_lossy(name.as_bytes()))
}

/// mkdir in the root: a detached directory in the zone's shard, then the entry.
pub(crate) fn mkdir(
    tx: &mut Tx<'_>,
    who: &Credentials,
    mut dir: Inode,
    request: &Mkdir<'_>,
    mode: u32,
) -> Result {
    let zone = new::home_zone(tx, &dir, request.zone)?;
    if tx.env.map.shard_of_zone(zone).is_none() {
        return Err(ErrorCode::NotReady);
    }
    let kind = FileKind::Directory;
    let Some((_, ino)) = tx.facts.made else {
        let default = new::default_acl(tx, &dir)?;
        let rights = new::rights(tx, who, &dir, kind, mode, 0)?;
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
        return Err(tx.ask(zone, ask, Question::Make(zone)));
    };
    if tx.is_ours(ino) || !ino.is_valid() {
        return Err(ErrorCode::Protocol);
    }
    tx.add_entry(dir.ino, request.name, ino, kind)?;
    dir.size = dir.size.saturating_add(1);
    dir.nlink = dir.nlink.saturating_add(1);
    dir.modified(tx.now.wall);
    tx.save(dir.clone());
    let path = path_of(request.name);
    tx.junctions.push(JunctionChange::Add { ino, path, zone });
    tx.after.push((zone, MetaRequest::AttachDir { ino }));
    if dir.policy.is_some() {
        let policy = MetaRequest::SetPolicy {
            who: Credentials::root(),
            dir: ino,
            policy: dir.policy,
        };
        tx.after.push((zone, policy));
    }
    let entry = entry(tx, &dir, ino, kind)?;
    Ok(MetaReply::Entry { entry })
}

/// Owner of an inode elsewhere, where the sticky bit makes it matter; `None`: it is gone there.
fn remote_attr(tx: &mut Tx<'_>, ino: Ino) -> Result<Option<Attr>> {
    if let Some((_, attr)) = tx.facts.attrs.iter().find(|(of, _)| *of == ino) {
        return Ok(*attr);
    }
    let zone = tx.zone_of(ino)?;
    let ask = MetaRequest::GetAttr { ino, data: false };
    Err(tx.ask(zone, ask, Question::Attr(ino)))
}

/// `may_delete` for a directory elsewhere.
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

/// Makes the directory elsewhere refuse entries; it must be empty.
fn detach(tx: &mut Tx<'_>, ino: Ino) -> Result<ZoneId> {
    let zone = tx.zone_of(ino)?;
    if tx.facts.detached == Some((zone, ino)) {
        return Ok(zone);
    }
    let ask = MetaRequest::DetachDir { ino };
    Err(tx.ask(zone, ask, Question::Detach(zone, ino)))
}

/// rmdir in the root of a directory elsewhere.
pub(crate) fn rmdir(
    tx: &mut Tx<'_>,
    who: &Credentials,
    mut dir: Inode,
    cookie: u64,
    found: &Dentry,
) -> Result {
    may_delete_remote(tx, who, &dir, found.ino, true)?;
    let zone = detach(tx, found.ino)?;
    tx.remove_entry(dir.ino, cookie)?;
    dir.size = dir.size.saturating_sub(1);
    dir.nlink = dir.nlink.saturating_sub(1);
    dir.modified(tx.now.wall);
    tx.save(dir);
    let ino = found.ino;
    tx.junctions.push(JunctionChange::Remove { ino });
    tx.after.push((zone, MetaRequest::DropDir { ino }));
    Ok(MetaReply::Done)
}

/// Rename inside the root where the source, or what it replaces, is a directory elsewhere.
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
            tx.set_entry(dir.ino, source.0, &renamed(target, &from.name, &source.1));
            let there = Dentry {
                ino: source.1.ino,
                kind: source.1.kind,
                ..target.clone()
            };
            tx.set_entry(dir.ino, *cookie, &there);
            moved(tx, target, &from.name)?;
        }
        (Some((cookie, target)), false) => {
            if tx.is_ours(target.ino) {
                let victim = tx.target(target.ino)?;
                super::remove::drop_link(tx, victim)?;
            } else {
                let zone = detach(tx, target.ino)?;
                let ino = target.ino;
                tx.junctions.push(JunctionChange::Remove { ino });
                tx.after.push((zone, MetaRequest::DropDir { ino }));
                dir.nlink = dir.nlink.saturating_sub(1);
            }
            let there = Dentry {
                ino: source.1.ino,
                kind: source.1.kind,
                ..target.clone()
            };
            tx.set_entry(dir.ino, *cookie, &there);
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

/// The entry at `place` (which keeps its name and chain mark), leading to what `target` leads to.
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

/// What a renamed thing itself notices: its change time, and a junction its path.
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
    let zone = tx.zone_of(ino)?;
    tx.after
        .push((zone, MetaRequest::SetAttr { who, ino, change }));
    Ok(())
}

// --- the zone shard's side ---

/// A directory inode without an entry; the same token gives the same one until it is attached.
pub(crate) fn make_detached(
    tx: &mut Tx<'_>,
    owner: (u32, u32),
    mode: u32,
    default_acl: Option<&Blob>,
    token: u64,
) -> Result {
    if tx.env.config.is_root() {
        return Err(ErrorCode::NotOwner);
    }
    for (ino, record) in unsettled(tx.kv(), tx.env.partitions, usize::MAX)? {
        if record.token == token && token != 0 {
            // The root shard is about to make its entry, still.
            save_detached(tx, ino, token);
            return Ok(MetaReply::Detached { ino });
        }
    }
    let default = match default_acl {
        Some(bytes) => Acl::parse(&bytes.0)?,
        None => None,
    };
    let kind = FileKind::Directory;
    let rights = new::with_default(kind, mode & 0o7777, 0, owner.1, default);
    let partition = new::partition_for_directory(tx, Ino(0))?;
    let ino = tx.new_ino(partition)?;
    let home = tx.env.config.zone;
    let mut inode = Inode::new(ino, kind, Ino::ROOT, home, tx.now.wall);
    inode.uid = owner.0;
    inode.gid = owner.1;
    inode.mode = rights.mode;
    inode.set(FLAG_DETACHED, true);
    new::set_acls(tx, &mut inode, &rights);
    tx.save(inode);
    tx.volatile.push(Volatile::InodeMade);
    save_detached(tx, ino, token);
    Ok(MetaReply::Detached { ino })
}

fn save_detached(tx: &mut Tx<'_>, ino: Ino, token: u64) {
    let since = tx.now.wall;
    let record = DetachedRecord { token, since };
    tx.put(keys::detached(ino), record.to_bytes());
}

/// Its entry was made. (Entries were accepted before: who knows the inode knows it from its entry.) That may be old news: where
/// the root shard has begun to remove it since, it stays detached until it is dropped or settled.
pub(crate) fn attach(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let dir = first_level(tx, ino)?;
    if dir.has(FLAG_CLOSING) {
        return Ok(MetaReply::Done);
    }
    has_entry(tx, dir)
}

/// Its entry is there now.
fn has_entry(tx: &mut Tx<'_>, mut dir: Inode) -> Result {
    let ino = dir.ino;
    if dir.has(FLAG_DETACHED) {
        dir.set(FLAG_DETACHED | FLAG_CLOSING, false);
        tx.save(dir);
        tx.remove(keys::detached(ino));
    }
    Ok(MetaReply::Done)
}

/// It is about to be removed: must be empty, takes no entries from now on.
pub(crate) fn detach_dir(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let mut dir = first_level(tx, ino)?;
    if dir.size > 0 {
        return Err(ErrorCode::NotEmpty);
    }
    if !dir.has(FLAG_CLOSING) {
        dir.set(FLAG_DETACHED | FLAG_CLOSING, true);
        tx.save(dir);
    }
    save_detached(tx, ino, 0);
    Ok(MetaReply::Done)
}

/// Its entry is gone, or was never made.
pub(crate) fn drop_dir(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let dir = match first_level(tx, ino) {
        Ok(dir) => dir,
        Err(ErrorCode::Stale) => return Ok(MetaReply::Done),
        Err(code) => return Err(code),
    };
    if !dir.has(FLAG_DETACHED) {
        return Err(ErrorCode::Invalid);
    }
    if dir.size > 0 {
        return Err(ErrorCode::NotEmpty);
    }
    tx.remove(keys::detached(ino));
    super::remove::delete(tx, &dir)?;
    Ok(MetaReply::Done)
}

/// What the root shard said of a directory that nobody settled.
pub(crate) fn settle(tx: &mut Tx<'_>, ino: Ino, since: Timestamp, has_entry: bool) -> Result {
    let record = tx.get(&keys::detached(ino))?;
    let record = record.map(|bytes| DetachedRecord::from_bytes(&bytes));
    let record = record.transpose().map_err(|_error| ErrorCode::Corrupt)?;
    if record.is_none_or(|record| record.since != since) {
        zonal_types::mark!(SettledMeanwhile);
        return Ok(MetaReply::Done);
    }
    if has_entry {
        let dir = first_level(tx, ino)?;
        self::has_entry(tx, dir)
    } else {
        drop_dir(tx, ino)
    }
}

fn first_level(tx: &mut Tx<'_>, ino: Ino) -> Result<Inode> {
    let dir = tx.inode(ino)?;
    if !dir.is_dir() || dir.parent != Ino::ROOT || ino == Ino::ROOT {
        return Err(ErrorCode::Invalid);
    }
    Ok(dir)
}

/// Directories that are not settled, at most `limit`. There are few at any time.
pub(crate) fn unsettled(
    kv: &dyn KvRead,
    partitions: &[zonal_types::PartitionId],
    limit: usize,
) -> Result<Vec<(Ino, DetachedRecord)>> {
    let mut found = Vec::new();
    let mut broken = false;
    for partition in partitions {
        let (start, end) = keys::tag_range(partition.0, keys::TAG_DETACHED);
        kv.scan(&start, &end, &mut |key, value| {
            match (keys::ino_of(key), DetachedRecord::from_bytes(value)) {
                (Some(ino), Ok(record)) => found.push((ino, record)),
                _ => broken = true,
            }
            found.len() < limit && !broken
        })?;
    }
    if broken {
        Err(ErrorCode::Corrupt)
    } else {
        Ok(found)
    }
}
