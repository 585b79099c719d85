//! Detached directories: a crash left them between the two steps of making or removing them.

use zonal_types::ShardId;
use zonal_wire::{MetaReply, MetaRequest};

use super::host::ShardNote;
use super::{ShardDriver, ShardHost};

/// Directories looked at in one round.
const AT_ONCE: usize = 512;

impl<H: ShardHost> ShardDriver<H> {
    /// Asks the root shard for the entry of each, and keeps or drops the directory.
    pub(super) async fn settle_detached(&self) {
        let (kv, now) = (self.host.store(), self.host.now());
        let found = self.lock().shard.detached(kv, now, AT_ONCE);
        let found = match found {
            Ok(found) => found,
            Err(code) => return self.host.note(ShardNote::UnreadDetached(code)),
        };
        for directory in found {
            let ino = directory.ino;
            let question = MetaRequest::HasEntry { ino };
            let answer = self.host.call_shard(ShardId(0), &question).await;
            let Ok(MetaReply::Yes { yes: has_entry }) = answer else {
                self.host.note(ShardNote::NotSettled(ino));
                let again = self.host.now().instant.plus_ms(self.pace.deletions_ms.1);
                self.lock().detached_at = Some(again);
                continue;
            };
            let request = MetaRequest::SettleDir {
                ino,
                since: directory.since,
                has_entry,
            };
            let reply = self.serve_own(&request).await;
            self.host.note(ShardNote::Settled(ino, &reply));
        }
    }
}
