//! Own changes: inodes that this client is changing. A shard sends a client no events for its own
//! changes, so a reply that crossed one is not kept.
//!
//! *Invariant*: a reply is kept only where, since its request, no change of its inode was in
//! flight. A change without an answer may be executed late; its inode is not cached for
//! [`DOUBT_MS`] after that. Bound: [`OWN_CHANGES_MAX`] inodes; where there are more, replies of
//! requests from before are not kept, or nothing is cached until the doubt is over.
//!
//! Cost per change: two locks. Per reply: one.

use std::collections::BTreeMap;
use zonal_types::{Ino, Instant};

/// Inodes with ended or doubtful changes that are remembered.
pub(crate) const OWN_CHANGES_MAX: usize = 4_096;
/// Longest time in which a change without an answer may still be executed, ms.
const DOUBT_MS: u64 = 60_000;

/// Inodes with changes of this client.
#[derive(Debug, Default)]
pub(crate) struct OwnChanges {
    /// Counts ended changes.
    ended: u64,
    in_flight: BTreeMap<Ino, u32>,
    /// Number of the last ended change, by inode.
    last: BTreeMap<Ino, u64>,
    /// Changes up to this number are of any inode.
    floor: u64,
    /// End of the doubt about an inode.
    doubts: BTreeMap<Ino, Instant>,
    /// End of the doubt about every inode.
    doubt_all: Instant,
}

impl OwnChanges {
    /// Number of the last change that ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// A change of these inodes begins.
    pub(crate) fn begin(&mut self, inodes: &[Ino]) {
        for ino in inodes {
            *self.in_flight.entry(*ino).or_default() += 1;
        }
    }

    /// A change of these inodes was executed or refused.
    pub(crate) fn end(&mut self, inodes: &[Ino]) {
        self.ended += 1;
        for ino in inodes {
            self.leave(*ino);
        }
        if self.last.len() + inodes.len() > OWN_CHANGES_MAX {
            self.last.clear();
            self.floor = self.ended;
        }
        for ino in inodes {
            self.last.insert(*ino, self.ended);
        }
    }

    /// A change of any inode was executed or refused.
    pub(crate) fn end_of_all(&mut self) {
        self.ended += 1;
        self.last.clear();
        self.floor = self.ended;
    }

    /// A change of any inode got no answer.
    pub(crate) fn doubt_all(&mut self, now: Instant) {
        self.doubts.clear();
        self.doubt_all = now.plus_ms(DOUBT_MS);
    }

    /// A change of these inodes got no answer.
    pub(crate) fn doubt(&mut self, inodes: &[Ino], now: Instant) {
        let until = now.plus_ms(DOUBT_MS);
        for ino in inodes {
            self.doubts.insert(*ino, until);
        }
        if self.doubts.len() > OWN_CHANGES_MAX {
            self.doubts.retain(|_ino, until| *until > now);
        }
        if self.doubts.len() > OWN_CHANGES_MAX {
            self.doubt_all(now);
        }
        self.end(inodes);
    }

    /// Whether a reply about `ino` may be kept whose request began after change `since` ended.
    pub(crate) fn allows(&self, ino: Ino, since: u64, now: Instant) -> bool {
        let is_doubtful = self.doubts.get(&ino).is_some_and(|until| *until > now);
        let last = self.last.get(&ino).copied().unwrap_or(0);
        !self.in_flight.contains_key(&ino)
            && !is_doubtful
            && self.doubt_all <= now
            && last.max(self.floor) <= since
    }

    fn leave(&mut self, ino: Ino) {
        let count = self.in_flight.get_mut(&ino);
        let left = count.map(|count| {
            *count -= 1;
            *count
        });
        assert!(left.is_some(), "a change of {ino} ended that did not begin");
        if left == Some(0) {
            self.in_flight.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ino = Ino(5);
    const B: Ino = Ino(6);

    #[test]
    fn a_reply_that_crossed_a_change_is_not_kept() {
        let (mut changes, now) = (OwnChanges::default(), Instant(1));
        let before = changes.ended();
        assert!(changes.allows(A, before, now));
        changes.begin(&[A]);
        changes.begin(&[A]);
        changes.end(&[A]);
        assert!(!changes.allows(A, changes.ended(), now), "one is in flight");
        changes.end(&[A]);
        assert!(!changes.allows(A, before, now));
        assert!(changes.allows(A, changes.ended(), now) && changes.allows(B, before, now));
    }

    #[test]
    fn a_change_without_an_answer_is_doubted_for_a_time() {
        let (mut changes, now) = (OwnChanges::default(), Instant(1));
        changes.begin(&[A]);
        changes.doubt(&[A], now);
        assert!(!changes.allows(A, changes.ended(), now.plus_ms(DOUBT_MS - 1)));
        assert!(changes.allows(A, changes.ended(), now.plus_ms(DOUBT_MS)));
    }

    #[test]
    fn past_the_bounds_less_is_kept() {
        let (mut changes, now) = (OwnChanges::default(), Instant(1));
        let before = changes.ended();
        for ino in 0..=OWN_CHANGES_MAX as u64 {
            changes.begin(&[Ino(ino)]);
            changes.end(&[Ino(ino)]);
        }
        assert!(!changes.allows(Ino(u64::MAX), before, now));
        assert!(changes.allows(Ino(u64::MAX), changes.ended(), now));
        for ino in 0..=OWN_CHANGES_MAX as u64 {
            changes.begin(&[Ino(ino)]);
            changes.doubt(&[Ino(ino)], now);
        }
        assert!(!changes.allows(Ino(u64::MAX), changes.ended(), now));
        let later = now.plus_ms(DOUBT_MS);
        assert!(changes.allows(Ino(u64::MAX), changes.ended(), later));
    }

    #[test]
    #[should_panic(expected = "did not begin")]
    fn a_change_does_not_end_twice() {
        let mut changes = OwnChanges::default();
        changes.begin(&[A]);
        changes.end(&[A]);
        changes.end(&[A]);
    }
}
