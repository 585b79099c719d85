//! Checks the invariants of the lock table.

use super::LockTable;

impl LockTable {
    /// Every broken invariant as text.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let (mut ranges, mut waiting) = (0, 0);
        for (ino, file) in &self.files {
            waiting += file.queue.len();
            for space in [&file.posix, &file.flock] {
                for (owner, held) in space {
                    ranges += held.len();
                    if !held.is_canonical() {
                        wrong.push(format!(
                            "lock ranges of {owner:?} on {ino} are not canonical"
                        ));
                    }
                    for (other, theirs) in space.range((
                        std::ops::Bound::Excluded(*owner),
                        std::ops::Bound::Unbounded,
                    )) {
                        if held.iter().any(|range| theirs.conflict(&range).is_some()) {
                            wrong.push(format!(
                                "locks of {owner:?} and {other:?} conflict on {ino}"
                            ));
                        }
                    }
                    if !self.sessions.get(&owner.0).is_some_and(|s| s.contains(ino)) {
                        wrong.push(format!("lock of {owner:?} on {ino} is not in the index"));
                    }
                }
            }
            for waiter in &file.queue {
                if self.waiters.get(&(waiter.session, waiter.waiter)) != Some(ino) {
                    wrong.push(format!(
                        "waiter {} on {ino} is not in the index",
                        waiter.waiter
                    ));
                }
            }
        }
        if (ranges, waiting) != (self.ranges, self.waiters.len()) {
            wrong.push(format!(
                "{ranges} ranges and {waiting} waiters, counted {} and {}",
                self.ranges,
                self.waiters.len()
            ));
        }
        if self.ranges + 2 * self.waiters.len() > self.ranges_max {
            wrong.push(format!("{} lock ranges are over the bound", self.ranges));
        }
        wrong
    }
}
