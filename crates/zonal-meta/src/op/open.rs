//! Open and close of files. Opens are counted in memory. O_TRUNC writes, and so does the open of an
//! inode without a name.
//!
//! *Invariant*: an inode without a name lives as long as any session has it open. So its record
//! names each of these sessions:
//!
//! * sessions that had it open when it lost its name ([`remove::drop_link`])
//! * sessions that open it later ([`remove::hold`])
//! * after a start of the shard, all sessions that have not reclaimed their opens yet

use super::{Result, entry, inline_data, remove, truncate};
use crate::inode::Inode;
use crate::permission::{READ, WRITE, check, open_mask};
use crate::tx::{MemoryChange, Tx};
use zonal_types::{Blob, Credentials, ErrorCode, FileData, FileKind, Ino};
use zonal_wire::meta::flags::O_TRUNC;
use zonal_wire::{Entry, MetaReply};

/// Result of opening an existing file.
pub(crate) struct Opened {
    data: FileData,
    push: bool,
    /// All bytes of a small file that is opened for reading.
    bytes: Option<Blob>,
}

impl Opened {
    pub(crate) fn into_reply(self, entry: Entry) -> MetaReply {
        let Self { data, push, bytes } = self;
        match bytes {
            Some(bytes) => MetaReply::OpenedSmall { entry, data, bytes },
            None => MetaReply::Opened { entry, data, push },
        }
    }
}

pub(crate) fn open(tx: &mut Tx<'_>, who: &Credentials, ino: Ino, open_flags: u32) -> Result {
    if matches!(tx.inode(ino), Err(ErrorCode::Stale)) {
        remove::bring_back(tx, ino)?;
    }
    let opened = open_existing(tx, who, ino, open_flags)?;
    let inode = tx.inode(ino)?;
    let parent = match tx.find(inode.parent)? {
        Some(dir) if dir.is_dir() => dir,
        _ => Inode::new(
            inode.parent,
            FileKind::Directory,
            inode.parent,
            inode.home,
            inode.btime,
        ),
    };
    let mut entry = entry(tx, &parent, ino, inode.kind)?;
    // The request named an inode, not a name.
    entry.entry_ms = 0;
    Ok(opened.into_reply(entry))
}

/// Checks permission, truncates where asked, and counts the open.
pub(crate) fn open_existing(
    tx: &mut Tx<'_>,
    who: &Credentials,
    ino: Ino,
    open_flags: u32,
) -> Result<Opened> {
    let mut inode = tx.inode(ino)?;
    let mask = open_mask(open_flags);
    match inode.kind {
        FileKind::File => {}
        FileKind::Symlink => return Err(ErrorCode::Loop),
        FileKind::Directory if mask & WRITE != 0 => {
            return Err(ErrorCode::IsDirectory);
        }
        FileKind::Directory => {}
        _ => return Err(ErrorCode::NoDevice),
    }
    check(tx, who, &inode, mask)?;
    check_room(tx)?;
    let mut push = false;
    if open_flags & O_TRUNC != 0 && inode.is_file() {
        push = truncate::set_size(tx, &mut inode, 0, 0)?;
        inode.modified(tx.now.wall);
        super::setattr::kill_privileges(tx, who, &mut inode)?;
        tx.save(inode.clone());
    }
    if inode.is_file() {
        tx.volatile.push(MemoryChange::Open(ino));
        remove::hold(tx, ino);
    }
    let is_small = inode.is_file()
        && mask & READ != 0
        && (1..=u64::from(inode.layout.inline_bytes())).contains(&inode.size);
    let bytes = if is_small {
        Some(Blob(inline_data::stored(tx, &inode)?))
    } else {
        None
    };
    let data = inode.data(tx.map_version());
    Ok(Opened { data, push, bytes })
}

/// Refuses an open past the bound of the table.
pub(crate) fn check_room(tx: &Tx<'_>) -> Result<()> {
    if tx.env.opens.len() < tx.env.config.opens_max {
        Ok(())
    } else {
        Err(ErrorCode::Overloaded)
    }
}

/// Removes the session from an orphan's holders; deletes the orphan when none is left.
pub(crate) fn release_orphan(tx: &mut Tx<'_>, ino: Ino) -> Result<()> {
    let session = tx.session;
    let Some(sessions) = tx.env.opens.orphans.get(&ino) else {
        return Ok(());
    };
    let mut left = sessions.clone();
    if !left.remove(&session) {
        return Ok(());
    }
    if left.is_empty() {
        // A loss of power may have taken the record of their opens.
        left.extend(tx.env.silent.iter().filter(|silent| **silent != session));
    }
    if left.is_empty() {
        zonal_types::mark!(OrphanGone);
        match tx.find(ino)? {
            Some(inode) => remove::delete(tx, &inode)?,
            None => remove::forget_orphan(tx, ino),
        }
    } else {
        remove::save_orphan(tx, ino, left);
    }
    Ok(())
}
