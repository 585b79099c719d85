//! Compares the copies of each column of a file with one another, and chooses those that are right.
//!
//! A wrong finding is worse than a missed one. So only copies are compared that should be equal:
//!
//! | not compared | why |
//! | --- | --- |
//! | on a target that is marked as stale | it misses changes, and its target fills it |
//! | of an object that is under way to another place, or is missing | the same |
//! | on a target that is out, or cannot be read | nobody knows what it missed |
//! | behind in truncations | it is cut before it is read |
//! | with bytes behind the file's size | a change that nobody reported yet |
//! | with a block that is lost, or an index record that is | known to be damaged |
//!
//! A target that has no object has a copy of zeros.
//!
//! Where copies differ, those with the highest order of changes are right. Among these the contents
//! that most of them have are right, and then those of the copy with the lowest number.

use super::{FoundObject, Group, JoinOutcome, ObjectJoin};
use crate::data_fact::DataOwner;
use crate::finding::{ColumnCopy, CopyChoice, FindingKind};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use zonal_layout::{copies_of_column, object_bytes, relocation_of};
use zonal_types::{Column, Component};
use zonal_zonemap::SlotState;

/// A copy that should be equal to the others of its column.
#[derive(Debug, Clone, Copy)]
struct Comparable {
    copy: ColumnCopy,
    truncate_seq: Option<u64>,
    order: u64,
    digest: u64,
}

impl ObjectJoin<'_> {
    /// Reports the columns whose copies differ.
    pub(super) fn compare_copies(
        &mut self,
        group: &Group,
        (owner, seq): (&DataOwner, u64),
        component: &Component,
    ) {
        if component.redundancy.copies() < 2 {
            return;
        }
        for column in 0..component.count {
            let objects = copies_of_column(component, column);
            let copies =
                objects.filter_map(|object| self.comparable(group, owner, component, object));
            let copies = in_step(copies.collect(), seq);
            let Some((digest, chosen)) = right_contents(&copies) else {
                continue;
            };
            let (right, wrong): (Vec<_>, Vec<_>) =
                copies.iter().partition(|copy| copy.digest == digest);
            let named = |copies: Vec<Comparable>| copies.iter().map(|of| of.copy).collect();
            let what = FindingKind::CopiesDiffer {
                ino: owner.ino,
                data_id: group.data_id,
                column: Column(column),
                right: named(right),
                wrong: named(wrong),
                chosen,
            };
            (self.tell)(JoinOutcome::Wrong(None, *owner, what));
        }
    }

    /// The copy of a column that is this object, if it should be equal to the others.
    fn comparable(
        &self,
        group: &Group,
        owner: &DataOwner,
        component: &Component,
        object: Column,
    ) -> Option<Comparable> {
        if relocation_of(component, object).is_some() {
            return None;
        }
        let slot = self.map.slot_of_place(component, object)?.slot;
        let target = slot.target;
        let is_stale = group.stale.contains(&(owner.ino, target));
        if slot.state != SlotState::Serving || is_stale || !(self.is_there)(target) {
            return None;
        }
        let mut objects = group.found.iter();
        let is_its = |found: &&FoundObject| found.column == object.0 && found.target == target;
        let Some(found) = objects.find(is_its) else {
            let blocks = 0;
            return Some(Comparable {
                copy: ColumnCopy {
                    object,
                    target,
                    blocks,
                },
                truncate_seq: None,
                order: 0,
                digest: 0,
            });
        };
        let size = owner.size.max(owner.inline);
        if found.deleting || found.bytes > object_bytes(component, size, object) {
            return None;
        }
        Some(Comparable {
            copy: ColumnCopy {
                object,
                target,
                blocks: found.blocks,
            },
            truncate_seq: Some(found.truncate_seq),
            order: found.order,
            digest: found.digest?,
        })
    }
}

/// Leaves out the copies that are behind in truncations. `seq`: the last truncation of the file.
fn in_step(mut copies: Vec<Comparable>, seq: u64) -> Vec<Comparable> {
    let last = copies.iter().filter_map(|copy| copy.truncate_seq).max();
    // Where all are behind, nobody knows what a copy without an object would have been cut to.
    let counts_none = last.is_none_or(|last| last >= seq);
    copies.retain(|copy| match copy.truncate_seq {
        None => counts_none,
        of_object => of_object == last,
    });
    copies
}

/// The contents that are right, and why; `None` where all copies are equal.
fn right_contents(copies: &[Comparable]) -> Option<(u64, CopyChoice)> {
    let first = copies.first()?;
    if copies.iter().all(|copy| copy.digest == first.digest) {
        return None;
    }
    let newest = copies.iter().map(|copy| copy.order).max()?;
    // Contents of the newest copies: how many have them, and the first that does.
    let mut votes: BTreeMap<u64, (u32, Reverse<usize>)> = BTreeMap::new();
    for (at, copy) in copies.iter().enumerate() {
        if copy.order == newest {
            votes.entry(copy.digest).or_insert((0, Reverse(at))).0 += 1;
        }
    }
    let (digest, (most, _)) = votes.iter().max_by_key(|(_, vote)| **vote)?;
    let is_tie = votes.values().filter(|(count, _)| count == most).count() > 1;
    let chosen = match (votes.len(), is_tie) {
        (1, _) => CopyChoice::Newest,
        (_, false) => CopyChoice::Majority,
        (_, true) => CopyChoice::First,
    };
    Some((*digest, chosen))
}

#[cfg(test)]
mod tests;
