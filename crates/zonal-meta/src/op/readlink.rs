//! The text of a symbolic link.

use super::Result;
use crate::tx::Tx;
use zonal_types::{ErrorCode, FileKind, Ino};
use zonal_wire::MetaReply;

pub(crate) fn readlink(tx: &mut Tx<'_>, ino: Ino) -> Result {
    let inode = tx.inode_or_removed(ino)?;
    if inode.kind != FileKind::Symlink {
        return Err(ErrorCode::Invalid);
    }
    Ok(MetaReply::Text { text: inode.inline })
}
