//! Epoch check: compares the epoch that a request names with the map, for a slot of a stripe set or
//! the owner of a shard.
//!
//! Servers and the simulator share this rule. Each check is a look-up: it walks nothing and
//! allocates nothing.
//!
//! Invariants:
//! 1. A slot's epoch is the map version that made or changed it, so no two changes have the same
//!    epoch.
//! 2. A target admits a request only by the exact slot that the request names, or as one for the
//!    whole target (set 0, epoch 0).

use crate::map::ZoneMap;
use zonal_types::{Epoch, MapVersion, ShardId, StripeSetId, TargetId};

/// The slot that a request to a target names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotClaim {
    /// The stripe set; 0: the request is for the whole target.
    pub set: StripeSetId,
    /// Index of the slot in the set.
    pub slot: u16,
    /// The slot's epoch in the sender's map.
    pub epoch: Epoch,
    /// Version of the sender's map.
    pub map_version: MapVersion,
}

/// Result of checking a [`SlotClaim`] against a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotVerdict {
    /// The slot is this target's, with this epoch.
    Current,
    /// The slot has another epoch in a newer map than the sender's.
    Stale {
        /// The slot's target.
        target: TargetId,
        /// The slot's epoch.
        epoch: Epoch,
    },
    /// The slot does not exist, or was never this target's with this epoch.
    Absent,
    /// The sender's map is newer, and this map does not have the slot with that epoch.
    Newer,
}

/// Result of checking the epoch that a request to a shard names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardVerdict {
    /// The request names no epoch, or the owner's.
    Current,
    /// The request names an earlier owner's epoch.
    Stale,
    /// The request names a later owner's epoch: this server has lost the shard.
    Lost,
}

impl ZoneMap {
    /// Checks whether `target` may execute a request that names this slot.
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

    /// Checks whether the owner of a shard with epoch `own` may execute a request with epoch
    /// `claimed` (0: none named).
    #[must_use]
    pub fn judge_shard(&self, shard: ShardId, own: Epoch, claimed: Epoch) -> ShardVerdict {
        let known = self.shard(shard).map_or(Epoch(0), |shard| shard.epoch);
        if own == Epoch(0) {
            // The owner started with a map without this shard, so it has no epoch to compare with.
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
    fn only_the_named_slot_admits_a_request() {
        let before = map(3);
        let set = before.sets.last().expect("a set").id.0;
        let was = claim(&before, set, 0);
        assert_eq!(before.judge_slot(TargetId(1), was), SlotVerdict::Current);
        assert_eq!(before.judge_slot(TargetId(2), was), SlotVerdict::Absent);
        // A change of another slot leaves this one as it is.
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
        // The claim names a map that cannot have had this slot.
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
    fn an_unknown_slot_is_absent_and_a_whole_target_claim_needs_none() {
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
    fn a_newer_epoch_tells_an_owner_that_it_lost_the_shard() {
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
