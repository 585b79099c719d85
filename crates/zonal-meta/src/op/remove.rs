//! The end of an inode: without a name it lives while it is open; then its objects are to be deleted.

use super::Result;
use crate::inode::{FLAG_ORPHAN, Inode};
use crate::keys;
use crate::tx::{OrphanRecord, Tx, Volatile};
use std::collections::BTreeSet;
use zonal_types::{Codec, Ino, SessionId};

/// One name less. The last one makes it an orphan (held open) or deletes it. Saves the inode.
pub(crate) fn drop_link(tx: &mut Tx<'_>, mut inode: Inode) -> Result<()> {
    inode.nlink = inode.nlink.saturating_sub(1);
    inode.changed(tx.now.wall);
    if inode.nlink > 0 {
        tx.save(inode);
        return Ok(());
    }
    let mut holders = tx.env.opens.holders(inode.ino);
    if inode.is_file() {
        // A session from before our restart that has not told its opens yet may hold it.
        holders.extend(tx.env.silent.iter().copied());
    }
    if holders.is_empty() {
        return delete(tx, &inode);
    }
    make_orphan(tx, inode, holders);
    Ok(())
}

/// Keeps an inode without a name for these sessions.
pub(crate) fn make_orphan(tx: &mut Tx<'_>, mut inode: Inode, holders: BTreeSet<SessionId>) {
    inode.set(FLAG_ORPHAN, true);
    let ino = inode.ino;
    tx.save(inode);
    save_orphan(tx, ino, holders);
}

/// Stores who holds an orphan.
pub(crate) fn save_orphan(tx: &mut Tx<'_>, ino: Ino, holders: BTreeSet<SessionId>) {
    let sessions = holders.iter().copied().collect();
    tx.put(keys::orphan(ino), OrphanRecord { sessions }.to_bytes());
    tx.volatile.push(Volatile::Orphaned(ino, holders));
}

/// It has a name again, or is gone.
pub(crate) fn forget_orphan(tx: &mut Tx<'_>, ino: Ino) {
    tx.remove(keys::orphan(ino));
    tx.volatile.push(Volatile::Unorphaned(ino));
}

/// Removes the inode with its attributes; its layout moves to the deletions.
pub(crate) fn delete(tx: &mut Tx<'_>, inode: &Inode) -> Result<()> {
    if inode.xattrs != 0 {
        let (start, end) = keys::xattrs(inode.ino);
        for key in tx.range(&start, &end)?.into_keys() {
            tx.remove(key);
        }
    }
    if inode.has(FLAG_ORPHAN) {
        forget_orphan(tx, inode.ino);
    }
    if !inode.layout.components.is_empty() {
        tx.put(keys::deletion(inode.ino), inode.layout.to_bytes());
    }
    tx.erase(inode.ino);
    tx.volatile.push(Volatile::InodeGone(inode.ino));
    Ok(())
}
