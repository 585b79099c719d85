//! Unsynced changes: changes of names and attributes that a shard acknowledged and has not made
//! durable, with the shard's boot.
//!
//! A shard that lost its power may have lost them, and a sync of an affected inode must report that
//! once. *Invariant*: a change is noted under the boot known when its request was sent. So a change
//! may be reported as lost although it is not, but never the other way round.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::Ino;
use zonal_wire::MetaRequest;

/// Most inodes of one link; beyond it they count as one.
pub(crate) const CHANGES_MAX: usize = 65_536;

/// Stands for inodes that are not remembered one by one.
const ANY: Ino = Ino(0);

/// Unsynced changes at one shard.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedChanges {
    /// Number of the newest change, by inode and boot.
    open: BTreeMap<Ino, BTreeMap<u32, u64>>,
    /// Inodes with lost changes.
    lost: BTreeSet<Ino>,
    /// Number of acknowledged changes.
    count: u64,
    /// Number of those that are durable or lost.
    settled: u64,
}

/// Inodes whose durability a request changes.
pub(crate) fn touched(request: &MetaRequest) -> [Option<Ino>; 2] {
    match request {
        MetaRequest::Create { parent, .. }
        | MetaRequest::Mkdir { parent, .. }
        | MetaRequest::Unlink { parent, .. }
        | MetaRequest::Rmdir { parent, .. }
        | MetaRequest::Link { parent, .. } => [Some(*parent), None],
        MetaRequest::Rename {
            parent, new_parent, ..
        } => [Some(*parent), Some(*new_parent)],
        MetaRequest::ReportWrite {
            ino,
            inline: Some(_),
            // Durable on acknowledgement.
            sync: false,
            ..
        }
        | MetaRequest::SetAttr { ino, .. }
        | MetaRequest::TakePrivileges { ino, .. }
        | MetaRequest::Truncate { ino, .. }
        | MetaRequest::AppendEnd { ino, .. }
        | MetaRequest::SetXattr { ino, .. }
        | MetaRequest::RemoveXattr { ino, .. }
        | MetaRequest::SetPolicy { dir: ino, .. } => [Some(*ino), None],
        _ => [None, None],
    }
}

impl UnsyncedChanges {
    /// Notes a change that the shard acknowledged in this boot.
    pub(crate) fn note(&mut self, inodes: [Option<Ino>; 2], kept: u32) {
        self.count += 1;
        for ino in inodes.into_iter().flatten() {
            if self.open.len() >= CHANGES_MAX && !self.open.contains_key(&ino) {
                self.forget_which();
            }
            self.open.entry(ino).or_default().insert(kept, self.count);
        }
    }

    fn forget_which(&mut self) {
        let mut all: BTreeMap<u32, u64> = BTreeMap::new();
        for lives in std::mem::take(&mut self.open).into_values() {
            for (kept, number) in lives {
                let newest = all.entry(kept).or_default();
                *newest = number.max(*newest);
            }
        }
        self.open.insert(ANY, all);
    }

    /// Number of changes that a sync covers; read it before the sync is sent.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether some acknowledged change is not durable.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.count > self.settled
    }

    /// Notes that the shard, in this boot, made durable all changes up to `count`.
    pub(crate) fn synced(&mut self, kept: u32, count: u64) {
        assert!(
            count <= self.count,
            "a sync covers {count} changes, there are {}",
            self.count
        );
        self.settled = self.settled.max(count);
        assert!(
            self.settled <= self.count,
            "more changes are settled than there are"
        );
        let lost = &mut self.lost;
        self.open.retain(|ino, lives| {
            lives.retain(|life, number| {
                if *life != kept {
                    lost.insert(*ino);
                }
                *life == kept && *number > count
            });
            !lives.is_empty()
        });
        if self.lost.len() > CHANGES_MAX {
            self.lost.clear();
            self.lost.insert(ANY);
        }
    }

    /// Whether a change of this inode is lost; true once.
    pub(crate) fn take_lost(&mut self, ino: Ino) -> bool {
        let one = self.lost.remove(&ino);
        self.lost.remove(&ANY) || one
    }

    /// Whether any change is lost; true once.
    pub(crate) fn take_any_lost(&mut self) -> bool {
        !std::mem::take(&mut self.lost).is_empty()
    }

    /// Inodes remembered.
    pub(crate) fn len(&self) -> usize {
        self.open.len() + self.lost.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ino = Ino(10);
    const B: Ino = Ino(11);

    #[test]
    fn a_change_of_an_earlier_boot_is_reported_lost_once() {
        let mut changes = UnsyncedChanges::default();
        changes.note([Some(A), Some(B)], 1);
        changes.synced(1, changes.count());
        assert!(!changes.take_lost(A) && changes.len() == 0);
        changes.note([Some(A), None], 1);
        changes.note([Some(B), None], 2);
        changes.synced(2, changes.count());
        assert!(!changes.take_lost(B), "made durable");
        assert!(changes.take_lost(A) && !changes.take_lost(A));
    }

    #[test]
    #[should_panic(expected = "a sync covers 2 changes, there are 1")]
    fn a_sync_covers_no_change_of_the_future() {
        let mut changes = UnsyncedChanges::default();
        changes.note([Some(A), None], 1);
        changes.synced(1, 2);
    }

    #[test]
    fn a_change_after_the_sync_was_sent_stays() {
        let mut changes = UnsyncedChanges::default();
        changes.note([Some(A), None], 1);
        let count = changes.count();
        changes.note([Some(B), None], 1);
        changes.synced(1, count);
        changes.synced(2, changes.count());
        assert!(changes.take_lost(B) && !changes.take_lost(A));
    }

    #[test]
    fn too_many_inodes_become_one() {
        let mut changes = UnsyncedChanges::default();
        for ino in 1..=CHANGES_MAX as u64 + 5 {
            changes.note([Some(Ino(ino)), None], 1);
        }
        assert!(changes.len() <= CHANGES_MAX);
        changes.synced(2, changes.count());
        assert!(changes.take_lost(Ino(1)), "somebody is told");
        changes.note([Some(A), None], 2);
        changes.synced(3, changes.count());
        assert!(changes.take_any_lost() && !changes.take_any_lost());
    }
}
