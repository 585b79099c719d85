//! Capacity, from all concerned servers in parallel. Below a first-level directory it is its home
//! zone's, because files there can fill no other zone. In the root it is the cell's. A zone's
//! figures need no other zone.

use crate::client::ClientCall;
use crate::transport::net::Net;
use zonal_types::{ErrorCode, Ino, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};

/// Capacity and free space. Servers that do not answer count as full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Bytes of the targets.
    pub total: u64,
    /// Free bytes of the targets.
    pub free: u64,
    /// Inodes of the shards.
    pub inodes: u64,
    /// Estimate of new names for which the shard of the inode has room.
    pub names_left: u64,
}

impl<N: Net> ClientCall<'_, N> {
    /// Bytes and inodes of the home zone of `ino` (of the cell, for the root's entries), and room
    /// for names beside it.
    ///
    /// # Errors
    /// None at present.
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
                let place = crate::cell::placement::TargetPlace {
                    target: target.id,
                    node: node.id,
                    zone: node.zone,
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
