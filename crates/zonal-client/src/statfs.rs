//! Capacity of the cell, asked of every server at once.

use crate::client::Client;
use crate::net::Net;
use zonal_types::ErrorCode;
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
impl<N: Net> Client<N> {
    /// (bytes in all, bytes free, inodes) of the cell. Servers that do not answer count as full.
    ///
    /// # Errors
    /// Never today; reserved.
    pub async fn statfs(&self) -> Result<(u64, u64, u64), ErrorCode> {
        let map = self.map();
        let mut started = Vec::new();
        for target in &map.targets {
            if let Some(node) = map.node(target.node) {
                let epoch = zonal_types::Epoch(0);
                let place = crate::storage::Place {
                    target: target.id,
                    address: node.address.clone(),
                    epoch,
                };
                let pending =
                    self.start_storage(&place, &StorageRequest::StatFs { target: target.id }, &[]);
                started.push((place, pending));
            }
        }
        let (mut total, mut free, mut inodes) = (0_u64, 0_u64, 0_u64);
        for (place, pending) in started {
            if let Ok((
                StorageReply::StatFs {
                    total: all,
                    free: left,
                    ..
                },
                _,
            )) = self.storage_reply(&place, pending, None).await
            {
                total = total.saturating_add(all);
                free = free.saturating_add(left);
            }
        }
        for shard in &map.shards {
            if let Ok(MetaReply::StatFs { inodes: some }) =
                self.meta(&self.link(shard.id), &MetaRequest::StatFs).await
            {
                inodes = inodes.saturating_add(some);
            }
        }
        Ok((total, free, inodes))
    }
}
