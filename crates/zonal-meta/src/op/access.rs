//! access(2), and the permission check before a directory is opened or entered.

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
