//! Listing a directory, in the order of cookies. One range scan per reply; with attributes one inode read an entry.
//!
//! On Linux permission to read is checked when the directory is opened. Opening a directory is not a request of ours, so
//! it is checked where a listing starts (cookie 0), and not again for its later parts.

use super::{Result, entry};
use crate::dentry::Dentry;
use crate::keys;
use crate::permission::{READ, check};
use crate::tx::Tx;
use zonal_types::limits::{BODY_BYTES_MAX, READDIR_ENTRIES_MAX};
use zonal_types::{Credentials, ErrorCode, Ino};
use zonal_wire::MetaReply;
use zonal_wire::meta::{DirEntry, Entry};

/// Bytes of an encoded entry besides its name, rounded up.
const ENTRY_BYTES: usize = 192;

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
    let limit = (entries as usize).clamp(1, READDIR_ENTRIES_MAX);
    let mut found = Vec::new();
    let mut bytes_left = BODY_BYTES_MAX / 2;
    let mut end = true;
    let mut broken = false;
    let first = cookie.saturating_add(1);
    let (_, stop) = keys::dentries(ino);
    tx.kv()
        .scan(&keys::dentry(ino, first), &stop, &mut |key, value| {
            let (Some(cookie), Ok(dentry)) = (keys::dentry_cookie(key), Dentry::decode(value))
            else {
                broken = true;
                return false;
            };
            if dentry.is_mark() {
                return true;
            }
            let size = ENTRY_BYTES + dentry.name.as_bytes().len();
            if found.len() == limit || bytes_left < size {
                end = false;
                return false;
            }
            bytes_left -= size;
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
            entry_ms: u32::from(!plus),
            attr_ms: 0,
        };
        let entry = if plus {
            match entry(tx, &dir, dentry.ino, dentry.kind) {
                // One damaged inode does not hide the others: who asks for it hears of it.
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
    tx.lease = Some(ino);
    Ok(MetaReply::Dir { entries: list, end })
}
