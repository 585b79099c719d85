//! Access times: reads that the shards have not heard of yet. This mount lays the time of its read
//! over the attributes from the shard.
//!
//! Bound: `names` reports the reads when there are `GATHERED_MAX` of them.

use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use std::collections::BTreeMap;
use zonal_types::{Attr, Ino, Timestamp};

/// Time of the last unreported read, by file.
pub(crate) type Touches = BTreeMap<Ino, Timestamp>;

impl InodeCache {
    /// Lays an unreported read over the attributes from the shard.
    pub(crate) fn lay_touch(&self, attr: &mut Attr) {
        if let Some(read) = lock(&self.access_times).get(&attr.ino)
            && *read > attr.ctime
        {
            attr.atime = attr.atime.max(*read);
        }
    }
}
