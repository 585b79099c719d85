//! Access times: the client gathers reads for which the shard applies relatime, and reports them
//! together a moment later. No read waits for the report.
//!
//! Until then this mount lays the time of its read over the attributes from the shard. A report
//! that fails is dropped: an access time is not worth a retry.

use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::lock;
use std::collections::BTreeMap;
use zonal_types::limits::TOUCHES_MAX;
use zonal_types::{Attr, ErrorCode, Ino, Timestamp};
use zonal_wire::MetaRequest;

/// Reads gathered before they are reported together.
const GATHERED_MAX: usize = 256;

/// Time of the last unreported read, by file.
pub(crate) type Touches = BTreeMap<Ino, Timestamp>;

impl<N: Net> ClientCall<'_, N> {
    /// Notes a read of a file whose access time may be due. The shard hears of it with the next
    /// [`Self::keep_house`].
    ///
    /// # Errors
    /// Those of the shard, where many reads wait and are sent at once.
    pub async fn touch(&self, ino: Ino) -> Result<(), ErrorCode> {
        let count = {
            let mut touches = lock(&self.access_times);
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
        let touches = lock(&self.access_times).clone();
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
                self.readdir_prefetch.forget_touched(reads);
                // Until here the reads were laid over attributes that did not include them. An
                // entry that was read again meanwhile stays.
                let mut touches = lock(&self.access_times);
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
        let is_waiting = lock(&self.access_times).contains_key(&ino);
        if is_waiting {
            self.send_touches().await.ok();
        }
    }

    /// Lays an unreported read over the attributes from the shard.
    pub(crate) fn lay_touch(&self, attr: &mut Attr) {
        if let Some(read) = lock(&self.access_times).get(&attr.ino)
            && *read > attr.ctime
        {
            attr.atime = attr.atime.max(*read);
        }
    }
}
