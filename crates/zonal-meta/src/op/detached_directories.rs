//! Detached directories: the zone shard's side of first-level directories, whose entries are in the
//! root shard.
//!
//! A directory is detached until its entry is made, and again once its entry is about to go.
//! Housekeeping settles directories that stay detached: it asks the root shard for the entry.

use super::{Result, new_inode};
use crate::acl::Acl;
use crate::inode::{FLAG_CLOSING, FLAG_DETACHED, Inode};
use crate::inode_records;
use crate::keys;
use crate::tx::{MemoryChange, Tx};
use zonal_types::{
    Blob, Codec, ErrorCode, FileKind, Ino, KvRead, PartitionId, Timestamp, codec_struct,
};
use zonal_wire::MetaReply;

codec_struct! {
    /// The stored value of a directory that is not settled.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct DetachedRecord {
        /// The root shard's token; 0 where the directory is about to be removed.
        token: u64,
        /// The time since which it is detached.
        since: Timestamp,
    }
}

/// Makes a directory inode without an entry. The same token gives the same inode until it is
/// attached.
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
    for (ino, record) in unsettled(tx.kv(), tx.env.partitions)? {
        if record.token == token && token != 0 {
            // Its partition may be leaving.
            tx.inode(ino)?;
            // The root shard is still about to make its entry.
            save_detached(tx, ino, token);
            return Ok(MetaReply::Detached { ino });
        }
    }
    let default = match default_acl {
        Some(bytes) => Acl::parse(&bytes.0)?,
        None => None,
    };
    let kind = FileKind::Directory;
    let rights = new_inode::with_default(kind, mode & 0o7777, 0, owner.1, default);
    let partition = new_inode::partition_of_subtree(tx)?;
    let ino = tx.new_ino(partition)?;
    let home = tx.env.config.zone;
    let mut inode = Inode::new(ino, kind, Ino::ROOT, home, tx.now.wall);
    inode.uid = owner.0;
    inode.gid = owner.1;
    inode.mode = rights.mode;
    inode.set(FLAG_DETACHED, true);
    new_inode::set_acls(tx, &mut inode, &rights);
    tx.save(inode);
    save_detached(tx, ino, token);
    Ok(MetaReply::Detached { ino })
}

fn save_detached(tx: &mut Tx<'_>, ino: Ino, token: u64) {
    let since = tx.now.wall;
    let record = DetachedRecord { token, since };
    tx.put(keys::detached(ino), record.to_bytes());
}

/// Attaches a directory: its entry was made. It accepted entries before, because only its entry
/// leads to its inode. The message may be old: where the root shard has begun to remove it since,
/// it stays detached until it is dropped or settled.
pub(crate) fn attach(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let dir = first_level(tx, ino)?;
    if dir.has(FLAG_CLOSING) {
        return Ok(MetaReply::Done);
    }
    has_entry(tx, dir)
}

/// Clears the detached state: the entry is there now.
fn has_entry(tx: &mut Tx<'_>, mut dir: Inode) -> Result {
    let ino = dir.ino;
    if dir.has(FLAG_DETACHED) {
        dir.set(FLAG_DETACHED | FLAG_CLOSING, false);
        tx.save(dir);
        tx.remove(keys::detached(ino));
    }
    Ok(MetaReply::Done)
}

/// Detaches a directory that is about to be removed: it must be empty and takes no entries from now
/// on.
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

/// Drops a directory whose entry is gone, or was never made.
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
    tx.volatile
        .push(MemoryChange::PartitionLeft(ino.partition()));
    Ok(MetaReply::Done)
}

/// Settles a detached directory by the root shard's answer.
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

/// Directories that are not settled.
pub(crate) fn unsettled(
    kv: &dyn KvRead,
    partitions: &[PartitionId],
) -> Result<Vec<(Ino, DetachedRecord)>> {
    inode_records::all(kv, partitions, keys::TAG_DETACHED)
}
