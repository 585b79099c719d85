//! O_TMPFILE: a file without a name. It is an orphan from its birth, held by the session that made
//! it. Until it is linked its back-link is 0.

use super::new_inode::CreationSite;
use super::{Result, new_inode, open, remove};
use crate::inode::FLAG_UNLINKABLE;
use crate::permission::may_create;
use crate::tx::{MemoryChange, Tx};
use std::collections::BTreeSet;
use zonal_types::{Credentials, FileKind, Ino};
use zonal_wire::MetaReply;
use zonal_wire::meta::Entry;

pub(crate) fn tmpfile(
    tx: &mut Tx<'_>,
    who: &Credentials,
    parent: Ino,
    (mode, umask): (u32, u32),
    site: CreationSite,
    exclusive: bool,
) -> Result {
    let dir = tx.directory(parent)?;
    may_create(tx, who, &dir)?;
    open::check_room(tx)?;
    let kind = FileKind::File;
    let rights = new_inode::rights(tx, who, &dir, kind, mode, umask)?;
    let mut inode = new_inode::inode(tx, who, &dir, kind, &rights, site)?;
    inode.nlink = 0;
    inode.parent = Ino(0);
    inode.set(FLAG_UNLINKABLE, exclusive);
    let ino = inode.ino;
    let data = inode.data(tx.map_version());
    remove::make_orphan(tx, inode, BTreeSet::from([tx.session]));
    tx.volatile.push(MemoryChange::Open(ino));
    tx.volatile.push(MemoryChange::Owned(ino));
    let entry = Entry {
        ino,
        kind,
        attr: Some(tx.target(ino)?.attr()),
        entry_ms: 0,
        attr_ms: 0,
    };
    let push = false;
    Ok(MetaReply::Opened { entry, data, push })
}
