//! End of an inode: without a name it lives while it is open; then its objects are deleted.

use super::{Result, inline_data};
use crate::inode::{FLAG_ORPHAN, FLAG_STRAYED, Inode};
use crate::keys;
use crate::recent_removals::RemovedInode;
use crate::tx::{MemoryChange, OrphanRecord, Tx};
use std::collections::BTreeSet;
use zonal_types::{Attr, Codec, ErrorCode, Ino, SessionId};
use zonal_wire::MetaReply;

/// The reply to a removal. It has the attributes of an inode other than a file that lost its last
/// name, because nobody can ask for them later.
pub(crate) fn removed(inode: Option<&Inode>) -> MetaReply {
    match inode {
        Some(inode) if !inode.is_file() => MetaReply::Attr {
            attr: Attr {
                nlink: 0,
                ..inode.attr()
            },
            data: None,
            attr_ms: 0,
        },
        _ => MetaReply::Done,
    }
}

/// Removes one name. Losing the last one makes the inode an orphan (where it is open) or deletes
/// it. Saves the inode; returns it where that was the last name.
pub(crate) fn drop_link(tx: &mut Tx<'_>, mut inode: Inode) -> Result<Option<Inode>> {
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.changed(tx.now.wall);
    if inode.nlink > 0 {
        inode.set(FLAG_STRAYED, true);
        tx.save(inode);
        return Ok(None);
    }
    let mut holders = tx.env.opens.holders(inode.ino);
    if inode.is_file() {
        // A session from before our restart that has not reclaimed its opens yet may have it open.
        holders.extend(tx.env.silent.iter().copied());
    }
    if holders.is_empty() {
        delete(tx, &inode)?;
    } else {
        make_orphan(tx, inode.clone(), holders);
    }
    Ok(Some(inode))
}

/// Makes an inode without a name an orphan of these sessions.
pub(crate) fn make_orphan(tx: &mut Tx<'_>, mut inode: Inode, holders: BTreeSet<SessionId>) {
    inode.set(FLAG_ORPHAN, true);
    let ino = inode.ino;
    tx.save(inode);
    save_orphan(tx, ino, holders);
}

/// Stores the holders of an orphan.
pub(crate) fn save_orphan(tx: &mut Tx<'_>, ino: Ino, holders: BTreeSet<SessionId>) {
    let sessions = holders.iter().copied().collect();
    tx.put(keys::orphan(ino), OrphanRecord { sessions }.to_bytes());
    tx.volatile.push(MemoryChange::Orphaned(ino, holders));
}

/// Adds this session, which opens the inode, to the holders of an orphan.
pub(crate) fn hold(tx: &mut Tx<'_>, ino: Ino) {
    let Some(holders) = tx.env.opens.orphans.get(&ino) else {
        return;
    };
    if holders.contains(&tx.session) {
        return;
    }
    let mut holders = holders.clone();
    holders.insert(tx.session);
    save_orphan(tx, ino, holders);
}

/// Adds a session that reclaims its open of an inode after our start. The orphan's record may lack
/// it: a loss of power took the record of its open, or an earlier session of the client ended. A
/// recently removed file comes back.
pub(crate) fn reclaim_orphan(tx: &mut Tx<'_>, ino: Ino) -> Result<()> {
    match tx.inode(ino) {
        Err(ErrorCode::Stale) => bring_back(tx, ino),
        _known => {
            hold(tx, ino);
            Ok(())
        }
    }
}

/// Removes the orphan's record: the inode has a name again, or is gone.
pub(crate) fn forget_orphan(tx: &mut Tx<'_>, ino: Ino) {
    tx.remove(keys::orphan(ino));
    tx.volatile.push(MemoryChange::Unorphaned(ino));
}

/// Deletes the inode with its attributes; its layout moves to the deletions.
pub(crate) fn delete(tx: &mut Tx<'_>, inode: &Inode) -> Result<()> {
    let mut xattrs = Vec::new();
    if inode.xattrs != 0 {
        let (start, end) = keys::xattrs(inode.ino);
        for (key, value) in tx.range(&start, &end)? {
            tx.remove(key.clone());
            xattrs.push((key, value));
        }
    }
    let inline = inline_data::stored(tx, inode)?;
    if !inline.is_empty() {
        tx.remove(keys::inline(inode.ino));
    }
    if inode.has(FLAG_ORPHAN) {
        forget_orphan(tx, inode.ino);
    }
    if !inode.layout.components.is_empty() {
        tx.put(keys::deletion(inode.ino), inode.layout.to_bytes());
    }
    tx.erase(inode.ino);
    let mut inode = inode.clone();
    inode.nlink = 0;
    let removed = Box::new(RemovedInode {
        inode,
        xattrs,
        inline,
    });
    tx.volatile.push(MemoryChange::InodeGone(removed));
    Ok(())
}

/// Brings back a recently removed file as an orphan that this session holds. `Stale` where it is
/// not kept.
pub(crate) fn bring_back(tx: &mut Tx<'_>, ino: Ino) -> Result<()> {
    let kept = tx.env.recent.get(ino).cloned();
    let kept = kept.filter(|kept| kept.inode.is_file());
    let RemovedInode {
        inode,
        xattrs,
        inline,
    } = kept.ok_or(ErrorCode::Stale)?;
    if !inline.is_empty() {
        tx.put(keys::inline(ino), inline);
    }
    for (key, value) in xattrs {
        tx.put(key, value);
    }
    if !inode.layout.components.is_empty() {
        tx.remove(keys::deletion(ino));
    }
    make_orphan(tx, inode, BTreeSet::from([tx.session]));
    tx.volatile.push(MemoryChange::InodeBack(ino));
    Ok(())
}
