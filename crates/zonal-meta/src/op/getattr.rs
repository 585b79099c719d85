//! Attributes of an inode, with its layout where wanted.

use super::Result;
use crate::tx::Tx;
use zonal_types::Ino;
use zonal_wire::MetaReply;

pub(crate) fn getattr(tx: &mut Tx<'_>, ino: Ino, data: bool) -> Result {
    let inode = tx.inode_or_removed(ino)?;
    tx.lease = Some(inode.parent);
    let is_covered = inode.is_dir() || inode.nlink == 1;
    Ok(MetaReply::Attr {
        attr: inode.attr(),
        data: data.then(|| inode.data(tx.map_version())),
        attr_ms: u32::from(is_covered),
    })
}
