//! Access times: the client gathers reads for which the shard applies relatime, and reports them
//! together a moment later. No read waits for the report.
//!
//! Until then this mount lays the time of its read over the attributes from the shard. A report
//! that fails is dropped: an access time is not worth a retry.

use crate::client::ClientCall;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use zonal_types::limits::TOUCHES_MAX;
use zonal_types::{ErrorCode, Ino, Timestamp};
use zonal_wire::MetaRequest;

/// Reads gathered before they are reported together.
const GATHERED_MAX: usize = 256;

impl<N: Net> ClientCall<'_, N> {
    /// Notes a read of a file whose access time may be due. The shard hears of it with the next
    /// [`Self::keep_house`].
    ///
    /// # Errors
    /// Those of the shard, where many reads wait and are sent at once.
    pub async fn touch(&self, ino: Ino) -> Result<(), ErrorCode> {
        let count = {
            let mut touches = self.inode_cache.touches();
            touches.insert(ino, self.net.wall());
            touches.len()
        };
        if count >= GATHERED_MAX {
            self.send_touches().await
        } else {
            Ok(())
        }
    }

    /// Reports gathered reads to the shards.
    pub(crate) async fn send_touches(&self) -> Result<(), ErrorCode> {
        let touches = self.inode_cache.touches().clone();
        let mut by_shard = BTreeMap::<_, Vec<(Ino, Timestamp)>>::new();
        let map = self.map();
        for (ino, read) in touches {
            let shard = map.shard_of(ino.partition()).map(|shard| shard.id);
            by_shard.entry(shard).or_default().push((ino, read));
        }
        let mut done = Ok(());
        for (shard, reads) in by_shard {
            for reads in reads.chunks(TOUCHES_MAX) {
                let told = match shard {
                    Some(shard) => {
                        let reads = reads.to_vec();
                        let link = self.link(shard);
                        self.meta(&link, &MetaRequest::Touch { reads }).await
                    }
                    None => Err(ErrorCode::Stale),
                };
                done = done.and(told.map(drop));
                self.inode_cache.forget_touched(reads);
                // Until here the reads were laid over attributes that did not include them. An
                // entry that was read again meanwhile stays.
                let mut touches = self.inode_cache.touches();
                for (ino, read) in reads {
                    if touches.get(ino) == Some(read) {
                        touches.remove(ino);
                    }
                }
            }
        }
        done
    }

    /// Reports gathered reads before the times of a file are set, to keep that order.
    pub(crate) async fn settle_touch(&self, ino: Ino) {
        let is_waiting = self.inode_cache.touches().contains_key(&ino);
        if is_waiting {
            self.send_touches().await.ok();
        }
    }
}
