//! Entries that a majority has flushed.

use std::collections::BTreeMap;

use crate::entry::{LogIndex, Membership, ReplicaId, Term};

/// The flushes that members have told the leader of one term.
#[derive(Debug, Default)]
pub(crate) struct FlushProgress {
    term: Term,
    flushed: BTreeMap<ReplicaId, LogIndex>,
    /// The leader wants all entries up to here flushed.
    pub(crate) wanted: LogIndex,
}

impl FlushProgress {
    /// Notes how far a member has flushed.
    pub(crate) fn note(&mut self, term: Term, from: ReplicaId, flushed: LogIndex) {
        self.enter(term);
        let known = self.flushed.entry(from).or_default();
        *known = flushed.max(*known);
    }

    /// Forgets a member's flushes: it may have lost them.
    pub(crate) fn forget(&mut self, member: ReplicaId) {
        self.flushed.remove(&member);
    }

    /// Raises the wanted flush.
    pub(crate) fn want(&mut self, term: Term, index: LogIndex) {
        self.enter(term);
        self.wanted = self.wanted.max(index);
    }

    /// The last entry that a majority has flushed. `matched` is how far a member's log is known to
    /// be the leader's: flushes beyond do not count.
    pub(crate) fn durable(
        &self,
        term: Term,
        members: &Membership,
        matched: impl Fn(ReplicaId) -> LogIndex,
    ) -> LogIndex {
        if self.term != term {
            return LogIndex(0);
        }
        LogIndex(members.majority_of(|member| {
            let flushed = self.flushed.get(&member).copied().unwrap_or_default();
            flushed.min(matched(member)).0
        }))
    }

    fn enter(&mut self, term: Term) {
        if self.term != term {
            self.term = term;
            self.flushed.clear();
            self.wanted = LogIndex(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durable_is_what_a_majority_has_of_the_leaders_log() {
        let members = Membership::of_voters([1, 2, 3].map(ReplicaId));
        let mut progress = FlushProgress::default();
        let all = |_| LogIndex(100);
        progress.note(Term(2), ReplicaId(1), LogIndex(50));
        assert_eq!(progress.durable(Term(2), &members, all), LogIndex(0));
        progress.note(Term(2), ReplicaId(3), LogIndex(40));
        assert_eq!(progress.durable(Term(2), &members, all), LogIndex(40));
        let few = |member| LogIndex(if member == ReplicaId(3) { 7 } else { 100 });
        assert_eq!(progress.durable(Term(2), &members, few), LogIndex(7));
        assert_eq!(progress.durable(Term(3), &members, all), LogIndex(0));
        progress.forget(ReplicaId(3));
        assert_eq!(progress.durable(Term(2), &members, all), LogIndex(0));
    }
}
