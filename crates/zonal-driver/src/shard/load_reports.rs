//! Load reports: a zone's shard tells the root's shard every few seconds how much it has.
//!
//! A report that is lost is not repeated: the next one is newer.

use zonal_types::{ErrorCode, SessionId, ShardId};
use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest};

use super::waits::Key;
use super::{ShardDriver, ShardHost};
use crate::joined_futures::either;

impl<H: ShardHost> ShardDriver<H> {
    /// Reports this shard's load every [`super::ShardPace::load_ms`], until [`Self::stop`].
    pub async fn report_loads(&self) {
        while !self.is_stopping() {
            let (wait, request) = {
                let state = self.lock();
                let request = MetaRequest::ReportShardLoad {
                    shard: self.id,
                    inodes: state.shard.inodes(),
                    requests: state.requests,
                };
                (self.waits.register(Key::LoadReports), request)
            };
            // The root's shard misses nothing by a report that does not arrive.
            let _answer = self.host.call_shard(ShardId(0), &request).await;
            let next = self.host.now().instant.plus_ms(self.pace.load_ms);
            either(wait, self.host.sleep_until(next)).await;
        }
    }

    /// Answers reports and questions about loads, which only the root's shard knows.
    pub(super) fn answer_about_loads(&self, header: &Header, request: &MetaRequest) -> MetaReply {
        if self.id != ShardId(0) || header.session != SessionId(0) {
            let code = ErrorNumber(ErrorCode::NotOwner);
            return MetaReply::Failed { code };
        }
        let now = self.host.now().instant;
        let mut state = self.lock();
        self.adopt_map(&mut state);
        match request {
            MetaRequest::ReportShardLoad {
                shard,
                inodes,
                requests,
            } => {
                state.shard.take_load(*shard, (*inodes, *requests), now);
                MetaReply::Done
            }
            _ => MetaReply::ShardLoads {
                loads: state.shard.shard_loads(now),
            },
        }
    }
}
