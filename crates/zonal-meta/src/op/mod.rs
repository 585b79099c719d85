//! The operations, one file each. An operation reads and changes a [`Tx`] and returns the reply. A
//! `Failed` reply comes as an error, and the `Tx` is then dropped.
//!
//! Operations only mark cache terms in replies (1: may be cached under `tx.lease`). The shard
//! replaces the marks by granted terms, see `lease_grants.rs`.

pub mod access;
pub mod access_times;
pub mod append;
pub mod create;
pub mod detached_directories;
pub mod first_level;
pub mod getattr;
pub mod inline_data;
pub mod link;
pub mod lookup;
pub mod mkdir;
pub mod new_inode;
pub mod open;
pub mod policy;
pub mod readdir;
pub mod readlink;
pub mod relocations;
pub mod remove;
pub mod rename;
pub mod restripe;
pub mod rmdir;
pub mod setattr;
pub mod stale_copies;
pub mod statfs;
pub mod tmpfile;
pub mod truncate;
pub mod truncate_number;
pub mod unlink;
pub mod write_report;
pub mod xattr;

use crate::inode::Inode;
use crate::tx::Tx;
use zonal_types::{ErrorCode, FileKind, Ino};
use zonal_wire::MetaReply;
use zonal_wire::meta::Entry;

/// Result of an operation.
pub(crate) type Result<T = MetaReply, E = ErrorCode> = std::result::Result<T, E>;

/// The entry of a name in `dir`, with marks for caching. The kernel checks who may follow a cached
/// entry, by attributes and ACLs cached under the same leases.
pub(crate) fn entry(tx: &mut Tx<'_>, dir: &Inode, ino: Ino, kind: FileKind) -> Result<Entry> {
    tx.lease = Some(dir.ino);
    let entry_ms = 1;
    if !tx.is_ours(ino) {
        return Ok(Entry {
            ino,
            kind,
            attr: None,
            entry_ms,
            attr_ms: 0,
        });
    }
    let inode = tx.target(ino)?;
    let is_covered = inode.is_dir() || (inode.nlink == 1 && inode.parent == dir.ino);
    Ok(Entry {
        ino,
        kind: inode.kind,
        attr: Some(inode.attr()),
        entry_ms,
        attr_ms: u32::from(is_covered),
    })
}

/// Saves a changed inode; the reply has its new attributes, which nobody may cache.
pub(crate) fn changed(tx: &mut Tx<'_>, inode: Inode) -> MetaReply {
    tx.lease = Some(inode.parent);
    let attr = inode.attr();
    tx.save(inode);
    MetaReply::Attr {
        attr,
        data: None,
        attr_ms: 0,
    }
}
