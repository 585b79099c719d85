//! access(2), and the check that comes before opening a directory or changing into it.

use super::Result;
use crate::permission::check;
use crate::tx::Tx;
use zonal_types::{Credentials, Ino};
use zonal_wire::MetaReply;

pub(crate) fn access(tx: &mut Tx<'_>, who: &Credentials, ino: Ino, mask: u32) -> Result {
    let inode = tx.inode(ino)?;
    check(tx, who, &inode, mask)?;
    Ok(MetaReply::Done)
}
