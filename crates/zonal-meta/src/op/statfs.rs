//! Statfs: the number of inodes. Counted in memory, and stored with each change of it.

use super::Result;
use crate::tx::Tx;
use zonal_wire::MetaReply;

pub(crate) fn statfs(tx: &Tx<'_>) -> Result {
    Ok(MetaReply::StatFs {
        inodes: tx.env.live_inodes,
        // The server fills this in: it knows the space of its store.
        names_left: u64::MAX,
    })
}
