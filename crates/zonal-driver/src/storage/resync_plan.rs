//! The shards that a target asks for its stale copies, and when.
//!
//! Marks are set while the target is out. So once it is back it asks all shards, and each again
//! until nothing of its files is left. A shard that knew an old map may set a mark late. So the
//! target asks the shards of its zone again at times, and seldom all. It asks all each second while
//! objects of other targets of its zone move.

use std::collections::BTreeSet;
use zonal_types::{Epoch, Instant, ShardId, TargetId};
use zonal_zonemap::{Target, ZoneMap};

/// Time between two questions to a shard of the own zone that had nothing, ms.
const ASK_AGAIN_MS: u64 = 10_000;
/// Time between two questions to the root's shard, ms.
const ASK_ROOT_AGAIN_MS: u64 = 120_000;
/// Time between two questions to all shards, ms: files of other zones get a copy here, or lose it.
const ASK_ALL_AGAIN_MS: u64 = 600_000;
/// As [`ASK_AGAIN_MS`], while objects of another target move to this one, ms.
const ASK_FOR_MOVED_MS: u64 = 1_000;

/// The shards to ask.
#[derive(Debug, Default)]
pub struct ResyncPlan {
    /// The newest slot of the target when all shards were to be asked.
    slots: Option<Epoch>,
    left: BTreeSet<ShardId>,
    asked: Option<Instant>,
    asked_root: Option<Instant>,
    asked_all: Option<Instant>,
}

impl ResyncPlan {
    /// The shards to ask now: none while the target is out.
    pub fn shards(&mut self, map: &ZoneMap, target: TargetId, now: Instant) -> Vec<ShardId> {
        let sets = map.sets.iter();
        let slots = sets.flat_map(|set| &set.slots);
        let own = slots.filter(|slot| slot.target == target);
        let newest = own.map(|slot| slot.slot_epoch).max();
        if newest.is_none() || map.is_out(target) {
            return Vec::new();
        }
        if self.slots < newest {
            self.slots = newest;
            self.left = map.shards.iter().map(|shard| shard.id).collect();
            self.asked = Some(now);
            self.asked_root = Some(now);
            self.asked_all = Some(now);
        }
        let zone_of = |target: &Target| map.node(target.node).map(|node| node.zone);
        let zone = map.target(target).and_then(zone_of);
        let mut near = map.targets.iter().filter(|of| zone_of(of) == zone);
        let has_leaving = near.any(|of| of.state.is_leaving() || of.state.is_shedding());
        let is_due = |asked: Option<Instant>, pause| {
            asked.is_none_or(|asked: Instant| now.ms_since(asked) >= pause)
        };
        let pause = match has_leaving {
            true => ASK_FOR_MOVED_MS,
            false => ASK_AGAIN_MS,
        };
        if is_due(self.asked, pause) {
            self.asked = Some(now);
            // Files of any zone may have copies here.
            let shards = map.shards.iter();
            let near = shards.filter(|shard| has_leaving || Some(shard.zone) == zone);
            self.left.extend(near.map(|shard| shard.id));
        }
        // It has files of all zones, and there may be many targets.
        let pause = match has_leaving {
            true => ASK_FOR_MOVED_MS,
            false => ASK_ROOT_AGAIN_MS,
        };
        if is_due(self.asked_root, pause) {
            self.asked_root = Some(now);
            self.left.insert(ShardId(0));
        }
        if is_due(self.asked_all, ASK_ALL_AGAIN_MS) {
            self.asked_all = Some(now);
            self.left.extend(map.shards.iter().map(|shard| shard.id));
        }
        self.left.iter().copied().collect()
    }

    /// Notes that a shard has no file left with stale copies on the target.
    pub fn done(&mut self, shard: ShardId) {
        self.left.remove(&shard);
    }
}
