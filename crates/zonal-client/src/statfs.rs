//! Capacity, asked of all servers concerned at once. Below a first-level directory: of its home
//! zone, which is all that a file there can fill. In the root: of the cell. A zone's is told
//! without asking another zone.

use crate::net::Net;
use crate::operation::ClientCall;
use zonal_types::{ErrorCode, Ino, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};

/// What there is. Servers that do not answer count as full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Bytes of the targets.
    pub total: u64,
    /// Of them free.
    pub free: u64,
    /// Inodes of the shards.
    pub inodes: u64,
    /// New names that the shard of the inode asked about has room for, about.
    pub names_left: u64,
}

impl<N: Net> ClientCall<'_, N> {
    /// Bytes and inodes of the zone that `ino` is homed in, or of the cell for what is in the root,
    /// and room for names beside it.
    ///
    /// # Errors
    /// Never today; reserved.
    pub async fn statfs(&self, ino: Ino) -> Result<Capacity, ErrorCode> {
        let map = self.map();
        let own = map.shard_of(ino.partition());
        let zone = own.filter(|own| own.id != ShardId(0)).map(|own| own.zone);
        let own = own.map(|own| own.id);
        let mut started = Vec::new();
        for target in &map.targets {
            let node = map.node(target.node);
            if let Some(node) = node.filter(|node| zone.is_none_or(|zone| node.zone == zone)) {
                let epoch = zonal_types::Epoch(0);
                let place = crate::placement::TargetPlace {
                    target: target.id,
                    node: node.id,
                    address: node.address.clone(),
                    slot: (zonal_types::StripeSetId(0), 0),
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
        let asked = map.shards.iter();
        for shard in asked.filter(|shard| zone.is_none() || own == Some(shard.id)) {
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
