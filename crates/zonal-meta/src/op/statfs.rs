//! Statfs: the approximate number of inodes. Counted in memory, and stored whenever numbers are
//! reserved.

use super::Result;
use crate::tx::Tx;
use zonal_wire::MetaReply;

pub(crate) fn statfs(tx: &Tx<'_>) -> Result {
    Ok(MetaReply::StatFs {
        inodes: tx.env.live_inodes,
        // The driver fills this in: the host knows the store's space.
        names_left: u64::MAX,
    })
}
