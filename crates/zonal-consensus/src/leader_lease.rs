//! How long a leader may answer reads by itself.
//!
//! A member votes for nobody for an election time-out after it heard its leader. So a leader knows
//! that no other was elected within that time from the sending of the message that a majority has
//! heard. It counts on three quarters of it; the rest is for clocks that run apart.

use std::collections::BTreeMap;

use crate::entry::{Membership, ReplicaId, Term};

/// The lease of a leader for one term.
#[derive(Debug, Default)]
pub(crate) struct LeaderLease {
    term: Term,
    echoes: BTreeMap<ReplicaId, u64>,
}

impl LeaderLease {
    /// Notes the newest clock that a member has seen of the leader of `term`.
    pub(crate) fn note(&mut self, term: Term, from: ReplicaId, echo: u64) {
        if self.term != term {
            self.term = term;
            self.echoes.clear();
        }
        let known = self.echoes.entry(from).or_default();
        *known = echo.max(*known);
    }

    /// True while the leader of `term` may answer at `clock`.
    pub(crate) fn holds(
        &self,
        term: Term,
        (own, clock): (ReplicaId, u64),
        members: &Membership,
        election_ticks: u64,
    ) -> bool {
        let seen = |member: ReplicaId| match member == own {
            true => clock,
            false if self.term != term => 0,
            false => self.echoes.get(&member).copied().unwrap_or(0),
        };
        let heard = members.majority_of(seen);
        heard != 0 && clock.saturating_sub(heard) < election_ticks * 3 / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_a_majoritys_and_of_one_term() {
        let members = Membership::of_voters([1, 2, 3].map(ReplicaId));
        let own = ReplicaId(1);
        let mut lease = LeaderLease::default();
        assert!(!lease.holds(Term(4), (own, 100), &members, 10));
        lease.note(Term(4), ReplicaId(2), 95);
        assert!(lease.holds(Term(4), (own, 100), &members, 10));
        assert!(!lease.holds(Term(4), (own, 103), &members, 10));
        assert!(!lease.holds(Term(5), (own, 100), &members, 10));
        lease.note(Term(4), ReplicaId(2), 80);
        assert!(lease.holds(Term(4), (own, 100), &members, 10));
        let alone = Membership::of_voters([own]);
        assert!(lease.holds(Term(9), (own, 7), &alone, 10));
    }
}
