//! Capacity of the cell, asked of every server at once, and what a shard has room for.

use crate::client::Client;
use crate::net::Net;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};

/// What there is. Servers that do not answer count as full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Bytes of all targets.
    pub total: u64,
    /// Of them free.
    pub free: u64,
    /// Inodes of all shards.
    pub inodes: u64,
    /// New names that the shard of the inode asked about has room for, about.
    pub names_left: u64,
}

impl<N: Net> Client<N> {
    /// Bytes and inodes of the cell, and room for names beside `ino`.
    ///
    /// # Errors
    /// Never today; reserved.
    pub async fn statfs(&self, ino: Ino) -> Result<Capacity, ErrorCode> {
        let map = self.map();
        let mut started = Vec::new();
        for target in &map.targets {
            if let Some(node) = map.node(target.node) {
                let epoch = zonal_types::Epoch(0);
                let place = crate::places::Place {
                    target: target.id,
                    address: node.address.clone(),
                    epoch,
                };
                let pending =
                    self.start_storage(&place, &StorageRequest::StatFs { target: target.id });
                started.push((place, pending));
            }
        }
        let mut capacity = Capacity::default();
        for (place, pending) in started {
            if let Ok((StorageReply::StatFs { total, free, .. }, _)) =
                self.storage_reply(&place, pending, None).await
            {
                capacity.total = capacity.total.saturating_add(total);
                capacity.free = capacity.free.saturating_add(free);
            }
        }
        let own = map.shard_of(ino.partition()).map(|shard| shard.id);
        for shard in &map.shards {
            if let Ok(MetaReply::StatFs { inodes, names_left }) =
                self.meta(&self.link(shard.id), &MetaRequest::StatFs).await
            {
                capacity.inodes = capacity.inodes.saturating_add(inodes);
                if own == Some(shard.id) {
                    capacity.names_left = names_left;
                }
            }
        }
        Ok(capacity)
    }
}
