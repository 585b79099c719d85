//! Access times: the client gathers reads for which the shard applies relatime, and reports them
//! together a moment later. No read waits for the report.
//!
//! Until then this mount lays the time of its read over the attributes from the shard. A report
//! that fails is dropped: an access time is not worth a retry.

use crate::client::ClientCall;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use zonal_types::limits::TOUCHES_MAX;
use zonal_types::{Ino, Timestamp};
use zonal_wire::MetaRequest;

/// Most gathered reads; later ones are dropped until the next report.
const GATHERED_MAX: usize = 8_192;
/// How long one report waits for its shard, ms: a subtree that moves, or a shard that starts, must
/// not hold up the others' reports.
const REPORT_WAIT_MS: u64 = 1_000;

impl<N: Net> ClientCall<'_, N> {
    /// Notes a read of a file whose access time may be due. The shard hears of it with the next
    /// [`Self::keep_house`].
    pub fn touch(&self, ino: Ino) {
        let mut touches = self.inode_cache.touches();
        if touches.len() < GATHERED_MAX || touches.contains_key(&ino) {
            touches.insert(ino, self.net.wall());
        }
    }

    /// Reports gathered reads to the shards.
    pub(crate) async fn send_touches(&self) {
        let touches = self.inode_cache.touches().clone();
        // A request about a subtree that moves is refused as a whole.
        let mut by_partition = BTreeMap::<_, Vec<(Ino, Timestamp)>>::new();
        for (ino, read) in touches {
            let of = by_partition.entry(ino.partition()).or_default();
            of.push((ino, read));
        }
        for reads in by_partition.into_values() {
            for reads in reads.chunks(TOUCHES_MAX) {
                self.report_touches(reads).await;
            }
        }
    }

    /// Reports gathered reads of one partition.
    async fn report_touches(&self, reads: &[(Ino, Timestamp)]) {
        let Some((first, _read)) = reads.first() else {
            return;
        };
        if let Ok(link) = self.link_of(*first) {
            let request = MetaRequest::Touch {
                reads: reads.to_vec(),
            };
            let call = self.briefly(REPORT_WAIT_MS);
            call.meta(&link, &request).await.ok();
        }
        self.inode_cache.forget_touched(reads);
        // Until here the reads were laid over attributes that did not include them. An entry that
        // was read again meanwhile stays.
        let mut touches = self.inode_cache.touches();
        for (ino, read) in reads {
            if touches.get(ino) == Some(read) {
                touches.remove(ino);
            }
        }
    }

    /// Reports the gathered read of a file before its times are set, to keep that order.
    pub(crate) async fn settle_touch(&self, ino: Ino) {
        let read = self.inode_cache.touches().get(&ino).copied();
        if let Some(read) = read {
            self.report_touches(&[(ino, read)]).await;
        }
    }
}
