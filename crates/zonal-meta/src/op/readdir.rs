//! Readdir: lists a directory in the order of cookies. One range scan per reply; with attributes
//! one inode read per entry.
//!
//! Linux checks read permission when a directory is opened. Opening a directory is no request to a
//! shard. So the shard checks where a listing starts (cookie 0), and not again for later parts.

use super::{Result, entry};
use crate::dentry::Dentry;
use crate::inode::Inode;
use crate::keys;
use crate::permission::{READ, check};
use crate::tx::Tx;
use zonal_types::limits::{BODY_BYTES_MAX, READDIR_ENTRIES_MAX, READDIR_TOGETHER_MAX};
use zonal_types::{Credentials, ErrorCode, Ino};
use zonal_wire::MetaReply;
use zonal_wire::meta::{DirEntry, Entry, Listing};

/// Bytes of an encoded entry besides its name, rounded up.
const ENTRY_BYTES: usize = 192;

/// Bytes that the entries of the requested directory may fill.
const ROOM: usize = BODY_BYTES_MAX / 2;
/// Bytes of a reply that the directories behind the first may fill: a program that walks a tree
/// waits for the first.
const TOGETHER_BYTES_MAX: usize = 64 << 10;

pub(crate) fn readdir(
    tx: &mut Tx<'_>,
    who: &Credentials,
    ino: Ino,
    cookie: u64,
    entries: u32,
    plus: bool,
) -> Result {
    let dir = tx.directory(ino)?;
    if cookie == 0 {
        check(tx, who, &dir, READ)?;
    }
    let part = Part {
        cookie,
        entries,
        plus,
    };
    let Listing { entries, end, .. } = list(tx, &dir, part, &mut { ROOM })?;
    tx.lease = Some(ino);
    Ok(MetaReply::Dir { entries, end })
}

/// Lists several directories from their start. Errors of those behind the first are dropped: a
/// client that requests one of them alone gets its error.
pub(crate) fn readdirs(tx: &mut Tx<'_>, who: &Credentials, dirs: &[Ino], entries: u32) -> Result {
    let (first, others) = dirs.split_first().ok_or(ErrorCode::Invalid)?;
    if dirs.len() > READDIR_TOGETHER_MAX {
        return Err(ErrorCode::Invalid);
    }
    let part = Part {
        cookie: 0,
        entries,
        plus: true,
    };
    let start = |tx: &mut Tx<'_>, ino: Ino, room: &mut usize| {
        let dir = tx.directory(ino)?;
        check(tx, who, &dir, READ)?;
        list(tx, &dir, part, room)
    };
    let mut listings = vec![start(tx, *first, &mut { ROOM })?];
    let mut room = TOGETHER_BYTES_MAX;
    for ino in others {
        match start(tx, *ino, &mut room) {
            Ok(listing) if listing.entries.is_empty() && !listing.end => break,
            Ok(listing) => listings.push(listing),
            Err(_told_when_asked_alone) => {}
        }
    }
    Ok(MetaReply::Dirs { listings })
}

/// The requested part of a listing.
#[derive(Clone, Copy)]
struct Part {
    /// Entries behind this cookie.
    cookie: u64,
    entries: u32,
    plus: bool,
}

/// Lists as many entries as fit in `room`, and subtracts them from it.
fn list(tx: &mut Tx<'_>, dir: &Inode, part: Part, room: &mut usize) -> Result<Listing> {
    let limit = (part.entries as usize).clamp(1, READDIR_ENTRIES_MAX);
    let mut found = Vec::new();
    let mut end = true;
    let mut broken = false;
    let first = part.cookie.saturating_add(1);
    let (_, stop) = keys::dentries(dir.ino);
    tx.kv()
        .scan(&keys::dentry(dir.ino, first), &stop, &mut |key, value| {
            let (Some(cookie), Ok(dentry)) = (keys::dentry_cookie(key), Dentry::decode(value))
            else {
                broken = true;
                return false;
            };
            if dentry.is_mark() {
                return true;
            }
            let size = ENTRY_BYTES + dentry.name.as_bytes().len();
            if found.len() == limit || *room < size {
                end = false;
                return false;
            }
            *room -= size;
            found.push((cookie, dentry));
            true
        })?;
    if broken {
        return Err(ErrorCode::Corrupt);
    }
    let mut list = Vec::with_capacity(found.len());
    for (cookie, dentry) in found {
        let bare = Entry {
            ino: dentry.ino,
            kind: dentry.kind,
            attr: None,
            entry_ms: u32::from(!part.plus),
            attr_ms: 0,
        };
        let entry = if part.plus {
            match entry(tx, dir, dentry.ino, dentry.kind) {
                // A damaged inode does not hide other entries: a request for its attributes reports
                // the damage.
                Err(ErrorCode::Corrupt) => bare,
                other => other?,
            }
        } else {
            bare
        };
        let name = dentry.name;
        list.push(DirEntry {
            name,
            cookie,
            entry,
        });
    }
    Ok(Listing {
        dir: dir.ino,
        entries: list,
        end,
        term_ms: 1,
    })
}
