//! Access times, as `relatime` wants them: after a change, or once a day.

use super::Result;
use crate::tx::Tx;
use zonal_types::Ino;
use zonal_wire::MetaReply;

const DAY_SECONDS: i64 = 86_400;

pub(crate) fn touch(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let mut inode = tx.inode(ino)?;
    let wall = tx.now.wall;
    let is_old = wall.seconds.saturating_sub(inode.atime.seconds) >= DAY_SECONDS;
    if inode.atime <= inode.mtime || inode.atime <= inode.ctime || is_old {
        inode.atime = wall;
        tx.save(inode);
    }
    Ok(MetaReply::Done)
}
