//! Locks that were asked for since the shard's start while sessions from before had not told what they hold: what they tell later must not be
//! one that others have had meanwhile, and perhaps given back.
//!
//! *Bound*: as many as locks may be held; past it every lock counts as given.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Ino, SessionId};
use zonal_wire::{LockKind, LockRange};

/// By whom, whether of the whole file, how, from where to where.
type Of = (SessionId, bool, LockKind, u64, u64);

#[derive(Debug, Default)]
pub(super) struct Given {
    files: BTreeMap<Ino, BTreeSet<Of>>,
    count: usize,
    is_full: bool,
}

impl Given {
    pub(super) fn note(&mut self, session: SessionId, ino: Ino, range: LockRange, max: usize) {
        let of = (
            session,
            range.whole_file,
            range.kind,
            range.start,
            range.end,
        );
        let is_new = self.files.entry(ino).or_default().insert(of);
        self.count += usize::from(is_new);
        if self.count > max {
            (self.is_full, self.count) = (true, 0);
            self.files.clear();
        }
    }

    /// Whether another session asked for a lock with which this one cannot be.
    pub(super) fn conflicts(&self, session: SessionId, ino: Ino, range: &LockRange) -> bool {
        let of = self.files.get(&ino).into_iter().flatten();
        let mut others = of.filter(|(by, ..)| *by != session);
        self.is_full
            || others.any(|(_by, whole_file, kind, start, end)| {
                let is_exclusive = [*kind, range.kind].contains(&LockKind::Exclusive);
                let meet = *start <= range.end && range.start <= *end;
                *whole_file == range.whole_file && is_exclusive && meet
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, kind: LockKind) -> LockRange {
        LockRange {
            whole_file: false,
            owner: 1,
            handle: 1,
            number: 1,
            pid: 1,
            kind,
            start,
            end,
        }
    }

    #[test]
    fn what_was_given_is_in_the_way_of_what_cannot_be_beside_it() {
        let (one, two, file) = (SessionId(1), SessionId(2), Ino(5));
        let mut given = Given::default();
        let shared = range(10, 19, LockKind::Shared);
        for _again in 0..2 {
            given.note(one, file, shared, 2);
        }
        let exclusive = |start, end| range(start, end, LockKind::Exclusive);
        assert!(given.conflicts(two, file, &exclusive(19, 30)));
        assert!(!given.conflicts(one, file, &exclusive(19, 30)), "its own");
        assert!(!given.conflicts(two, file, &exclusive(20, 30)));
        assert!(!given.conflicts(two, file, &shared));
        assert!(!given.conflicts(two, Ino(6), &exclusive(10, 19)));
        given.note(one, Ino(6), exclusive(0, 9), 2);
        assert!(given.conflicts(two, Ino(6), &range(9, 19, LockKind::Shared)));
        given.note(one, Ino(7), exclusive(0, 9), 2);
        assert!(given.conflicts(two, Ino(8), &shared), "too many to tell");
    }
}
