//! Changes of names and attributes that a shard acknowledged and has not been asked to make
//! durable, and in which of its lives.
//!
//! A shard that lost its power may have lost them. Whoever syncs such an inode must hear of it,
//! once. *Invariant*: a change is noted under the life that was known when it was asked for, so one
//! that is too new to be lost may be told as lost, never the other way round.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::Ino;
use zonal_wire::MetaRequest;

/// Inodes that one link remembers; past it they are one.
pub(crate) const CHANGES_MAX: usize = 65_536;

/// Stands for inodes that are not remembered one by one.
const ANY: Ino = Ino(0);

/// What is remembered of one shard.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedChanges {
    /// By inode and life: number of the newest change.
    open: BTreeMap<Ino, BTreeMap<u32, u64>>,
    /// Inodes with changes that are lost.
    lost: BTreeSet<Ino>,
    /// Changes that were acknowledged, of whatever inode.
    count: u64,
    /// Those of them that are durable or lost.
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
            // Durable when it is acknowledged.
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
    /// A change was acknowledged by the shard in this life.
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

    /// To be asked before a sync is sent: what it covers.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether the shard acknowledged something that it was not asked to make durable.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.count > self.settled
    }

    /// The shard made durable, in this life, what was acknowledged up to `count`.
    pub(crate) fn synced(&mut self, kept: u32, count: u64) {
        self.settled = self.settled.max(count);
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

    /// Whether a change of this inode is lost; told once.
    pub(crate) fn take_lost(&mut self, ino: Ino) -> bool {
        let one = self.lost.remove(&ino);
        self.lost.remove(&ANY) || one
    }

    /// Whether any change is lost; told once.
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
    fn a_change_of_another_life_is_lost_and_told_once() {
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
