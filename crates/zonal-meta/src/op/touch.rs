//! Access times, as `relatime` wants them: after a change, or once a day.

use super::Result;
use crate::tx::Tx;
use zonal_types::limits::TOUCHES_MAX;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::MetaReply;

const DAY_SECONDS: i64 = 86_400;

/// Each of these was read a moment ago. What is gone is left out.
pub(crate) fn touch(tx: &mut Tx<'_>, inos: &[Ino]) -> Result {
    if inos.len() > TOUCHES_MAX {
        return Err(ErrorCode::Invalid);
    }
    let wall = tx.now.wall;
    for ino in inos {
        let mut inode = match tx.inode(*ino) {
            Ok(inode) => inode,
            Err(ErrorCode::Stale) => continue,
            Err(code) => return Err(code),
        };
        let is_old = wall.seconds.saturating_sub(inode.atime.seconds) >= DAY_SECONDS;
        if inode.atime <= inode.mtime || inode.atime <= inode.ctime || is_old {
            inode.atime = wall;
            tx.save(inode);
        }
    }
    Ok(MetaReply::Done)
}
