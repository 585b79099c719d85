//! Access times by the rules of `relatime`: updated after a change, or once a day.

use super::Result;
use crate::tx::Tx;
use zonal_types::limits::TOUCHES_MAX;
use zonal_types::{ErrorCode, Ino, Timestamp};
use zonal_wire::MetaReply;

const DAY_SECONDS: i64 = 86_400;

/// Applies access times of reads. Skips inodes that are gone, and inodes changed since the read: a
/// time set after the read stays.
pub(crate) fn touch(tx: &mut Tx<'_>, reads: &[(Ino, Timestamp)]) -> Result {
    if reads.len() > TOUCHES_MAX {
        return Err(ErrorCode::Invalid);
    }
    let wall = tx.now.wall;
    for (ino, read) in reads {
        let mut inode = match tx.inode(*ino) {
            Ok(inode) => inode,
            Err(ErrorCode::Stale) => continue,
            Err(code) => return Err(code),
        };
        let is_old = wall.seconds.saturating_sub(inode.atime.seconds) >= DAY_SECONDS;
        let is_due = inode.atime <= inode.mtime || inode.atime <= inode.ctime || is_old;
        if is_due && *read > inode.ctime && *read > inode.atime {
            // A client's clock may be ahead.
            inode.atime = wall.min(*read);
            tx.save(inode);
        }
    }
    Ok(MetaReply::Done)
}
