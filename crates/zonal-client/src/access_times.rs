//! Access times: reads that the shard is to apply relatime to. They are told together, a moment
//! later: a read waits for none.
//!
//! Until then this mount sees the time of its read laid over what the shard says. One that cannot
//! be told is lost: an access time is no reason to try again.

use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::lock;
use std::collections::BTreeMap;
use zonal_types::limits::TOUCHES_MAX;
use zonal_types::{Attr, ErrorCode, Ino, Timestamp};
use zonal_wire::MetaRequest;

/// Reads that are gathered before they are told at once.
const GATHERED_MAX: usize = 256;

/// When what was read that the shard does not know of.
pub(crate) type Touches = BTreeMap<Ino, Timestamp>;

impl<N: Net> ClientCall<'_, N> {
    /// A file was read whose access time may be due: its shard hears of it with the next
    /// [`Self::keep_house`].
    ///
    /// # Errors
    /// What the shard answers, where many wait.
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

    /// Tells the shards what was read.
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
                // Until here they were laid over what the shard said without them. One that was
                // read again meanwhile stays.
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

    /// Tells what was read of a file before its times are set: in that order.
    pub(crate) async fn settle_touch(&self, ino: Ino) {
        let is_waiting = lock(&self.access_times).contains_key(&ino);
        if is_waiting {
            self.send_touches().await.ok();
        }
    }

    /// Lays the read of a file over what the shard says of it.
    pub(crate) fn lay_touch(&self, attr: &mut Attr) {
        if let Some(read) = lock(&self.access_times).get(&attr.ino)
            && *read > attr.ctime
        {
            attr.atime = attr.atime.max(*read);
        }
    }
}
