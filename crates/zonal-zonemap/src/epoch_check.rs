//! Whether a request's sender knows the thing touched as it is: the slot of an object, the owner of
//! a shard.
//!
//! One rule for the servers and for the simulator. A look-up: nothing is walked, nothing allocated.
//!
//! Invariants: a slot's epoch is the map version that made or changed it, so no two changes have
//! the same one; a request is admitted by exactly the slot that it names, or as one of a whole
//! target (set 0, epoch 0).

use crate::map::ZoneMap;
use zonal_types::{Epoch, MapVersion, ShardId, StripeSetId, TargetId};

/// By what a sender came to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotClaim {
    /// The stripe set; 0: the target itself is meant, whatever its slots.
    pub set: StripeSetId,
    /// The slot of that set.
    pub slot: u16,
    /// The slot's epoch as the sender knows it.
    pub epoch: Epoch,
    /// The sender's map.
    pub map_version: MapVersion,
}

/// What a map says of a [`SlotClaim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotVerdict {
    /// The slot is this target's, by this epoch.
    Current,
    /// The slot has another epoch in a map that the sender does not have.
    Stale {
        /// Its target.
        target: TargetId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// There is no such slot, or it was never this target's by this epoch.
    Absent,
    /// The sender's map is newer than this one, and this one does not have what it names.
    Newer,
}

/// What a map says of the epoch by which a sender came to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardVerdict {
    /// The sender names no epoch, or the owner's.
    Current,
    /// The sender knows an earlier owner.
    Stale,
    /// The shard has another owner by now.
    Lost,
}

impl ZoneMap {
    /// Whether `target` may carry out what comes by this slot.
    #[must_use]
    pub fn judge_slot(&self, target: TargetId, claim: SlotClaim) -> SlotVerdict {
        if claim.set == StripeSetId(0) && claim.epoch == Epoch(0) {
            return SlotVerdict::Current;
        }
        let set = self.set(claim.set);
        let found = set.and_then(|set| set.slots.get(usize::from(claim.slot)));
        let is_newer = claim.map_version > self.version;
        match found {
            Some(slot) if slot.slot_epoch == claim.epoch && slot.target == target => {
                SlotVerdict::Current
            }
            Some(slot) if slot.slot_epoch == claim.epoch => SlotVerdict::Absent,
            Some(slot) if slot.slot_epoch > claim.epoch || !is_newer => SlotVerdict::Stale {
                target: slot.target,
                epoch: slot.slot_epoch,
            },
            _other if is_newer => SlotVerdict::Newer,
            _other => SlotVerdict::Absent,
        }
    }

    /// Whether the owner of a shard by the epoch `own` may carry out what comes by the epoch
    /// `claimed` (0: by none).
    #[must_use]
    pub fn judge_shard(&self, shard: ShardId, own: Epoch, claimed: Epoch) -> ShardVerdict {
        let known = self.shard(shard).map_or(Epoch(0), |shard| shard.epoch);
        if own == Epoch(0) {
            // Its first map did not have it: it knows nothing to compare with.
            ShardVerdict::Current
        } else if known.max(claimed) > own {
            ShardVerdict::Lost
        } else if claimed != Epoch(0) && claimed < own {
            ShardVerdict::Stale
        } else {
            ShardVerdict::Current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::MapEdit;
    use zonal_types::{CellId, NodeId, ZoneId};
    use zonal_wire::JoinTarget;

    fn join(id: u32) -> MapEdit {
        MapEdit::Join {
            node: NodeId(id),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: format!("127.0.0.1:{}", 7000 + id),
            shard: (id == 1).then_some(ShardId(1)),
            targets: vec![JoinTarget {
                target: TargetId(id),
                uuid: [id as u8; 16],
                capacity: 1 << 30,
            }],
        }
    }

    fn map(targets: u32) -> ZoneMap {
        let edits: Vec<MapEdit> = (1..=targets).map(join).collect();
        let map = ZoneMap::new(CellId([1; 16])).edited(&edits);
        map.expect("joins").expect("a change")
    }

    fn claim(map: &ZoneMap, set: u32, slot: u16) -> SlotClaim {
        let found = map.set(StripeSetId(set)).expect("a set");
        SlotClaim {
            set: StripeSetId(set),
            slot,
            epoch: found.slots[usize::from(slot)].slot_epoch,
            map_version: map.version,
        }
    }

    fn set_slot(map: &ZoneMap, set: u32, slot: u16, target: u32) -> ZoneMap {
        let edit = MapEdit::SetSlot {
            set: StripeSetId(set),
            slot,
            target: TargetId(target),
        };
        map.edited(&[edit]).expect("an edit").expect("a change")
    }

    #[test]
    fn exactly_the_slot_that_is_named_counts() {
        let before = map(3);
        let set = before.sets.last().expect("a set").id.0;
        let was = claim(&before, set, 0);
        assert_eq!(before.judge_slot(TargetId(1), was), SlotVerdict::Current);
        assert_eq!(before.judge_slot(TargetId(2), was), SlotVerdict::Absent);
        // Another slot's change leaves it as it is.
        let other = set_slot(&before, set, 1, 2);
        assert_eq!(other.judge_slot(TargetId(1), was), SlotVerdict::Current);
        let after = set_slot(&other, set, 0, 1);
        let stale = SlotVerdict::Stale {
            target: TargetId(1),
            epoch: Epoch(after.version.0),
        };
        assert_eq!(after.judge_slot(TargetId(1), was), stale);
        // A target that does not have the newer map yet.
        let now = claim(&after, set, 0);
        assert_eq!(other.judge_slot(TargetId(1), now), SlotVerdict::Newer);
        // No map was named that could have it.
        let made_up = SlotClaim {
            map_version: other.version,
            ..now
        };
        assert!(matches!(
            other.judge_slot(TargetId(1), made_up),
            SlotVerdict::Stale { .. }
        ));
    }

    #[test]
    fn what_does_not_exist_is_absent_and_a_whole_target_needs_no_slot() {
        let map = map(2);
        let set = map.sets.last().expect("a set").id.0;
        let good = claim(&map, set, 0);
        for bad in [
            SlotClaim { slot: 2, ..good },
            SlotClaim {
                slot: u16::MAX,
                ..good
            },
            SlotClaim {
                set: StripeSetId(set + 1),
                ..good
            },
            SlotClaim {
                set: StripeSetId(0),
                ..good
            },
        ] {
            assert_eq!(map.judge_slot(TargetId(1), bad), SlotVerdict::Absent);
            let newer = SlotClaim {
                map_version: MapVersion(map.version.0 + 1),
                ..bad
            };
            assert_eq!(map.judge_slot(TargetId(1), newer), SlotVerdict::Newer);
        }
        let none = SlotClaim {
            set: StripeSetId(0),
            epoch: Epoch(0),
            ..good
        };
        assert_eq!(map.judge_slot(TargetId(1), none), SlotVerdict::Current);
        let without = SlotClaim {
            epoch: Epoch(0),
            ..good
        };
        assert!(matches!(
            map.judge_slot(TargetId(1), without),
            SlotVerdict::Stale { .. }
        ));
    }

    #[test]
    fn an_owner_that_has_lost_its_shard_knows_by_a_newer_epoch() {
        let map = map(1);
        let judge = |own, claimed| map.judge_shard(ShardId(1), Epoch(own), Epoch(claimed));
        assert_eq!(judge(1, 0), ShardVerdict::Current);
        assert_eq!(judge(1, 1), ShardVerdict::Current);
        assert_eq!(judge(1, 2), ShardVerdict::Lost);
        assert_eq!(judge(2, 1), ShardVerdict::Stale);
        assert_eq!(judge(0, 7), ShardVerdict::Current);
        let moved = MapEdit::Join {
            node: NodeId(9),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: "127.0.0.1:7009".into(),
            shard: Some(ShardId(1)),
            targets: Vec::new(),
        };
        let map = map.edited(&[moved]).expect("an edit").expect("a change");
        for claimed in 0..3 {
            let judged = map.judge_shard(ShardId(1), Epoch(1), Epoch(claimed));
            assert_eq!(judged, ShardVerdict::Lost);
        }
    }
}
