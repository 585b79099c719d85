//! Unsynced writes: acknowledgements of targets and of the shard for one file that are not durable
//! yet, with the verifier or boot of each.
//!
//! A target that lost its power may have lost acknowledged writes, and has a new verifier. Its Sync
//! in the new boot does not cover the old one's writes: the fsync must report a loss. A restarted
//! shard is asked for its state and gets the report again.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{TargetId, Timestamp};

/// State of a file that was reported to the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReportedState {
    pub(crate) size: u64,
    pub(crate) mtime: Option<Timestamp>,
    /// The last truncation known then: a smaller file after a later truncation has lost nothing.
    pub(crate) truncate_seq: u64,
}

/// Acknowledgements of one target.
#[derive(Debug, Clone, Default)]
struct Acknowledged {
    verifiers: BTreeSet<u64>,
    /// Rises with each acknowledgement, to tell those after a copy from those in it.
    count: u64,
}

/// Verifiers of acknowledgements by target, and the reported state.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnsyncedWrites {
    targets: BTreeMap<TargetId, Acknowledged>,
    /// The shard's boot at the first report; later boots may not know it.
    pub(crate) shard_boot: Option<u64>,
    pub(crate) told: Option<ReportedState>,
}

impl UnsyncedWrites {
    /// Notes an acknowledgement of a target.
    pub(crate) fn insert(&mut self, target: TargetId, verifier: u64) {
        let of_target = self.targets.entry(target).or_default();
        of_target.verifiers.insert(verifier);
        of_target.count += 1;
    }

    /// Adds a target that must be synced whatever it acknowledged.
    pub(crate) fn insert_any(&mut self, target: TargetId) {
        self.targets.entry(target).or_default();
    }

    /// Adds the entries of another set.
    pub(crate) fn append(&mut self, other: Self) {
        for (target, more) in other.targets {
            let of_target = self.targets.entry(target).or_default();
            of_target.verifiers.extend(more.verifiers);
            of_target.count += more.count.max(1);
        }
        if let Some(boot) = other.shard_boot {
            self.tell(boot, other.told);
        }
    }

    /// Notes that the shard, at `boot` or later, acknowledged `told` or sent the file's state.
    pub(crate) fn tell(&mut self, boot: u64, told: Option<ReportedState>) {
        self.shard_boot.get_or_insert(boot);
        let Some(new) = told else { return };
        self.told = Some(match self.told {
            Some(old) if old.truncate_seq > new.truncate_seq => old,
            Some(old) if old.truncate_seq == new.truncate_seq => ReportedState {
                size: old.size.max(new.size),
                mtime: old.mtime.max(new.mtime),
                ..new
            },
            _ => new,
        });
    }

    /// Notes that the shard made its reports of this boot durable. False: it got a report in
    /// another boot.
    #[must_use]
    pub(crate) fn shard_synced(&mut self, boot: u64) -> bool {
        if self.shard_boot.is_some_and(|known| known != boot) {
            return false;
        }
        self.shard_boot = Some(boot);
        self.told = None;
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.told.is_none()
    }

    pub(crate) fn targets(&self) -> Vec<TargetId> {
        self.targets.keys().copied().collect()
    }

    /// Removes the targets of a copy that are now durable or lost, except those in `left`. Later
    /// acknowledgements and the reported state stay.
    pub(crate) fn settle(&mut self, copy: &Self, left: &[TargetId]) {
        self.targets.retain(|target, now| {
            let then = copy.targets.get(target);
            left.contains(target) || then.is_none_or(|then| then.count != now.count)
        });
    }

    /// Forgets the acknowledgements of a target.
    pub(crate) fn forget(&mut self, target: TargetId) {
        self.targets.remove(&target);
    }

    /// A copy with the targets only.
    pub(crate) fn of_targets(&self) -> Self {
        Self {
            targets: self.targets.clone(),
            ..Self::default()
        }
    }

    /// Takes out the targets; the reported state stays.
    pub(crate) fn take_targets(&mut self) -> Self {
        Self {
            targets: std::mem::take(&mut self.targets),
            ..Self::default()
        }
    }

    /// Notes that the target made durable what it acknowledged under `verifier`. False: it
    /// acknowledged writes under another verifier, which are lost.
    #[must_use]
    pub(crate) fn synced(&mut self, target: TargetId, verifier: u64) -> bool {
        let known = self.targets.remove(&target).unwrap_or_default();
        let mut verifiers = known.verifiers.iter();
        verifiers.all(|acknowledged| *acknowledged == verifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TargetId = TargetId(1);

    #[test]
    fn a_sync_covers_one_verifier_only() {
        let mut unsynced = UnsyncedWrites::default();
        unsynced.insert(T, 7);
        unsynced.insert(T, 7);
        assert!(unsynced.synced(T, 7) && unsynced.is_empty());
        unsynced.insert(T, 7);
        assert!(!unsynced.synced(T, 8), "lost with the power");
        assert!(unsynced.synced(T, 8), "told once");
        unsynced.insert(T, 7);
        let mut other = UnsyncedWrites::default();
        other.insert(T, 8);
        other.insert_any(TargetId(2));
        unsynced.append(other);
        assert_eq!(unsynced.targets(), [T, TargetId(2)]);
        assert!(!unsynced.synced(T, 8), "the first half is lost");
        assert!(unsynced.synced(TargetId(2), 9));
    }

    #[test]
    fn unreachable_targets_and_later_acknowledgements_stay_unsynced() {
        let (silent, busy) = (TargetId(2), TargetId(3));
        let mut own = UnsyncedWrites::default();
        for target in [T, silent, busy] {
            own.insert(target, 7);
        }
        let copy = own.clone();
        let mut all = copy.clone();
        own.insert(busy, 7);
        // The first target lost its power, and the second one did not answer.
        assert!(!all.synced(T, 8) && all.synced(busy, 7));
        own.settle(&copy, &all.targets());
        assert_eq!(own.targets(), [silent, busy]);
        assert!(own.synced(silent, 7) && own.synced(busy, 7) && own.is_empty());
    }

    #[test]
    fn a_restarted_shard_gets_the_largest_size_since_the_last_truncation() {
        let told = |size, truncate_seq| ReportedState {
            size,
            mtime: None,
            truncate_seq,
        };
        let mut unsynced = UnsyncedWrites::default();
        unsynced.tell(3, None);
        unsynced.tell(3, Some(told(10, 0)));
        unsynced.tell(4, Some(told(7, 0)));
        assert!(!unsynced.shard_synced(4) && !unsynced.is_empty());
        assert_eq!(unsynced.told, Some(told(10, 0)));
        unsynced.tell(4, Some(told(5, 1)));
        unsynced.tell(4, Some(told(9, 0)));
        assert_eq!(unsynced.told, Some(told(5, 1)));
        unsynced.shard_boot = Some(4);
        assert!(unsynced.shard_synced(4) && unsynced.is_empty());
    }
}
