//! A member that may have lost entries promises nothing.
//!
//! Raft counts on it that a member keeps what it acknowledged. A member whose power failed may have
//! lost unflushed entries. Until a leader has brought it up to date it does not vote and does not
//! stand. Where the others are no majority, no leader is possible: two of three are in this state,
//! or one of two. Then members return to the vote, and the most complete of their logs becomes the
//! group's.

use std::collections::BTreeMap;

use crate::entry::{LogIndex, Membership, ReplicaId};

/// The quarantine of this member, and those it has heard of.
#[derive(Debug, Default)]
pub(crate) struct Quarantine {
    is_on: bool,
    /// Ticks since a leader was heard.
    silent: u64,
    /// Other members in quarantine, with the tick at which they last said so.
    others: BTreeMap<ReplicaId, u64>,
    /// As their leader: members in quarantine, their lives, and the entry that ends it.
    wards: BTreeMap<ReplicaId, (u64, LogIndex)>,
}

impl Quarantine {
    pub(crate) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            ..Self::default()
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Ends it: the leader has brought this member up to date.
    pub(crate) fn end(&mut self) {
        self.is_on = false;
        self.others.clear();
    }

    /// A leader was heard.
    pub(crate) fn hear_leader(&mut self) {
        self.silent = 0;
    }

    /// Another member says whether it is in quarantine.
    pub(crate) fn hear(&mut self, from: ReplicaId, is_quarantined: bool, clock: u64) {
        if is_quarantined && self.is_on {
            self.others.insert(from, clock);
        } else {
            self.others.remove(&from);
        }
    }

    /// One tick. Returns true where the quarantine has ended because the others are no majority.
    pub(crate) fn tick(
        &mut self,
        (own, clock): (ReplicaId, u64),
        members: &Membership,
        patience: u64,
    ) -> bool {
        if !self.is_on {
            return false;
        }
        self.silent += 1;
        self.others
            .retain(|_, heard| clock.saturating_sub(*heard) <= patience);
        let shares = |member| member == own || self.others.contains_key(&member);
        let others_lead = members.majority_of(|member| u64::from(!shares(member))) == 1;
        let nobody_leads = !others_lead && !members.voters.is_empty();
        if nobody_leads && self.silent > patience {
            self.end();
            return true;
        }
        false
    }

    /// As leader: hears that a member is in quarantine in this life. Returns true for news, on
    /// which the leader forgets how far the member's log went.
    pub(crate) fn guard(&mut self, ward: ReplicaId, life: u64, last: LogIndex) -> bool {
        if self
            .wards
            .get(&ward)
            .is_some_and(|(known, _)| *known == life)
        {
            return false;
        }
        self.wards.insert(ward, (life, last));
        true
    }

    /// As leader: the life of the member whose quarantine is over, as its log reaches `matched`.
    pub(crate) fn released(&self, ward: ReplicaId, matched: LogIndex) -> u64 {
        match self.wards.get(&ward) {
            Some((life, until)) if matched >= *until => *life,
            _ => 0,
        }
    }

    /// As leader: whether a member is in quarantine, as it said last.
    pub(crate) fn guards(&self, member: ReplicaId) -> bool {
        self.wards.contains_key(&member)
    }

    /// As leader: hears that a member is in quarantine no more.
    pub(crate) fn unguard(&mut self, member: ReplicaId) {
        self.wards.remove(&member);
    }

    /// A new term: another leader's wards are not this one's.
    pub(crate) fn forget_wards(&mut self) {
        self.wards.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_in_quarantine_ends_it_after_patience() {
        let members = Membership::of_voters([1, 2, 3].map(ReplicaId));
        let own = ReplicaId(1);
        let mut quarantine = Quarantine::new(true);
        for clock in 1..100 {
            assert!(!quarantine.tick((own, clock), &members, 30));
        }
        quarantine.hear(ReplicaId(2), true, 100);
        assert!(quarantine.tick((own, 101), &members, 30));
        assert!(!quarantine.is_on());
    }

    /// Of two members, one that had lost its power kept the other from leading for ever.
    #[test]
    fn one_of_two_ends_it_and_one_of_three_does_not() {
        let own = ReplicaId(1);
        let ends = |members: Membership| {
            let mut quarantine = Quarantine::new(true);
            (1..100).any(|clock| quarantine.tick((own, clock), &members, 30))
        };
        let of = |voters: &[u64]| Membership::of_voters(voters.iter().copied().map(ReplicaId));
        assert!(ends(of(&[1, 2])));
        assert!(!ends(of(&[1, 2, 3])));
        assert!(!ends(Membership::default()));
        let grows = Membership {
            outgoing: vec![own],
            ..of(&[1, 2, 3])
        };
        assert!(ends(grows), "its own vote alone counts as well");
    }

    #[test]
    fn a_leaders_ward_is_released_with_what_the_leader_had() {
        let mut quarantine = Quarantine::default();
        assert!(quarantine.guard(ReplicaId(2), 7, LogIndex(20)));
        assert!(!quarantine.guard(ReplicaId(2), 7, LogIndex(30)));
        assert_eq!(quarantine.released(ReplicaId(2), LogIndex(19)), 0);
        assert_eq!(quarantine.released(ReplicaId(2), LogIndex(20)), 7);
        assert!(quarantine.guard(ReplicaId(2), 8, LogIndex(30)));
    }
}
