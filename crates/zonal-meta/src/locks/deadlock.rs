//! Deadlock detection: cycles of owners that wait for one another.

use super::{LockOwner, LockTable};
use std::collections::BTreeSet;
use zonal_types::Ino;
use zonal_wire::meta::LockRange;

/// Owners visited by one search; past it the search assumes a deadlock.
const DEADLOCK_OWNERS_MAX: usize = 4096;

impl LockTable {
    /// True where waiting for `range` would close a cycle of waiting owners.
    pub(super) fn would_deadlock(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> bool {
        let mut seen = BTreeSet::new();
        let mut open: Vec<LockOwner> = self.blockers_of(ino, owner, range);
        while let Some(next) = open.pop() {
            if next == owner {
                return true;
            }
            if !seen.insert(next) || seen.len() > DEADLOCK_OWNERS_MAX {
                continue;
            }
            for (at, number) in self.waiting_owners.get(&next).into_iter().flatten() {
                let Some(file) = self.files.get(at) else {
                    continue;
                };
                let waits = file
                    .queue
                    .iter()
                    .filter(|w| w.session == next.0 && w.waiter == *number);
                for waiter in waits {
                    open.extend(file.blockers(next, &waiter.range).map(|(other, _)| other));
                }
            }
        }
        false
    }

    fn blockers_of(&self, ino: Ino, owner: LockOwner, range: &LockRange) -> Vec<LockOwner> {
        self.files.get(&ino).map_or_else(Vec::new, |file| {
            file.blockers(owner, range)
                .map(|(other, _)| other)
                .collect()
        })
    }
}
