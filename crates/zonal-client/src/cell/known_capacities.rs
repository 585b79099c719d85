//! Last figures of each target and each shard, for a server that does not answer.
//!
//! *Bound*: the targets and shards of the map at the last [`KnownCapacities::keep_only`].

use crate::transport::mutex::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use zonal_types::{ShardId, TargetId};
use zonal_zonemap::ZoneMap;

/// Two figures: total and free bytes of a target, or inodes of a shard and room for names.
pub(crate) type Figures = (u64, u64);

/// The last figures of servers.
#[derive(Debug, Default)]
pub(crate) struct KnownCapacities {
    targets: Mutex<BTreeMap<TargetId, Figures>>,
    shards: Mutex<BTreeMap<ShardId, Figures>>,
}

impl KnownCapacities {
    /// The last figures of a target.
    pub(crate) fn target(&self, target: TargetId) -> Option<Figures> {
        lock(&self.targets).get(&target).copied()
    }

    /// The last figures of a shard.
    pub(crate) fn shard(&self, shard: ShardId) -> Option<Figures> {
        lock(&self.shards).get(&shard).copied()
    }

    /// Notes the figures of a target.
    pub(crate) fn note_target(&self, target: TargetId, figures: Figures) {
        lock(&self.targets).insert(target, figures);
    }

    /// Notes the figures of a shard.
    pub(crate) fn note_shard(&self, shard: ShardId, figures: Figures) {
        lock(&self.shards).insert(shard, figures);
    }

    /// Forgets targets and shards that the map does not have.
    pub(crate) fn keep_only(&self, map: &ZoneMap) {
        lock(&self.targets).retain(|id, _| map.targets.iter().any(|target| target.id == *id));
        lock(&self.shards).retain(|id, _| map.shards.iter().any(|shard| shard.id == *id));
    }
}
