//! How many inodes the shard has: counted in memory, stored whenever numbers are reserved, so about
//! right.

use super::Result;
use crate::tx::Tx;
use zonal_wire::MetaReply;

pub(crate) fn statfs(tx: &Tx<'_>) -> Result {
    Ok(MetaReply::StatFs {
        inodes: tx.env.live_inodes,
        // Who has the store knows.
        names_left: u64::MAX,
    })
}
