//! Lookup: the inode that a name leads to. Reads: the directory's inode, the entry, its inode.

use super::{Result, entry};
use crate::permission::{EXEC, check};
use crate::tx::Tx;
use zonal_types::{Credentials, DataId, ErrorCode, FileKind, Ino, Name};
use zonal_wire::MetaReply;

pub(crate) fn lookup(tx: &mut Tx<'_>, who: &Credentials, parent: Ino, name: &Name) -> Result {
    let dir = tx.directory(parent)?;
    check(tx, who, &dir, EXEC)?;
    match tx.lookup(parent, name)? {
        Some((_, found)) => {
            let entry = entry(tx, &dir, found.ino, found.kind)?;
            Ok(MetaReply::Entry { entry })
        }
        None => {
            tx.lease = Some(parent);
            let entry_ms = 1;
            Ok(MetaReply::NoEntry { entry_ms })
        }
    }
}

/// The directory that holds an inode; for the root, the root itself.
pub(crate) fn parent(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let inode = tx.inode(ino)?;
    let parent = if ino == Ino::ROOT {
        Ino::ROOT
    } else {
        inode.parent
    };
    Ok(MetaReply::Parent { parent })
}

/// The file that has the bytes of a data id.
pub(crate) fn file_of(tx: &Tx<'_>, data_id: DataId) -> Result {
    if !tx.is_ours(Ino(data_id.0)) {
        return Err(ErrorCode::NotOwner);
    }
    let ino = tx.file_of(data_id)?.ok_or(ErrorCode::Stale)?;
    Ok(MetaReply::File { ino })
}

/// The first-level directory of this name, in the root shard.
pub(crate) fn first_level(tx: &mut Tx<'_>, name: &Name) -> Result {
    if !tx.env.config.is_root() {
        return Err(ErrorCode::NotOwner);
    }
    let found = tx.lookup(Ino::ROOT, name)?.map(|(_, found)| found);
    let found = found.filter(|found| found.kind == FileKind::Directory && !tx.is_ours(found.ino));
    Ok(MetaReply::Child {
        ino: found.map(|found| found.ino),
    })
}

/// Whether the root directory has an entry for this inode. Rare, so it scans all entries.
pub(crate) fn has_entry(tx: &mut Tx<'_>, ino: Ino) -> Result {
    if !tx.env.config.is_root() {
        return Err(ErrorCode::NotOwner);
    }
    let mut yes = false;
    let mut broken = false;
    let (start, end) = crate::keys::dentries(Ino::ROOT);
    tx.kv().scan(&start, &end, &mut |_key, value| {
        match crate::dentry::Dentry::decode(value) {
            Ok(dentry) => yes = dentry.ino == ino,
            Err(_) => broken = true,
        }
        !yes
    })?;
    if broken && !yes {
        return Err(ErrorCode::Corrupt);
    }
    Ok(MetaReply::Yes { yes })
}
