//! Entries of a replicated log, and the members of its group.

use zonal_types::codec::{Blob, Codec, CodecError, Reader};
use zonal_types::{codec_enum, codec_struct};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl Codec for $name {
            fn put(&self, out: &mut Vec<u8>) { self.0.put(out); }
            fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> { Ok(Self(u64::get(from)?)) }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { self.0.fmt(f) }
        }
    )*};
}

numbers! {
    /// A member's number in its group, never used again for another one. 0 is "none".
    ReplicaId;
    /// The place of an entry in the log; 1 is the first. 0 is "none".
    LogIndex;
    /// The reign of one leader; rises with each election.
    Term;
}

codec_struct! {
    /// The members of a group.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Membership {
        /// Those whose majority elects and commits.
        voters: Vec<ReplicaId>,
        /// Those who get the log and have no vote.
        learners: Vec<ReplicaId>,
        /// Voters of before, whose majority counts as well until a change is finished.
        outgoing: Vec<ReplicaId>,
        /// Voters of before that become learners then.
        demoted: Vec<ReplicaId>,
        /// The change finishes by itself.
        finishes: bool,
    }
}

/// Most voters of a group.
pub const VOTERS_MAX: usize = 5;
/// Most learners of a group.
pub const LEARNERS_MAX: usize = 1000;

impl Membership {
    /// A group of these voters.
    #[must_use]
    pub fn of_voters(voters: impl IntoIterator<Item = ReplicaId>) -> Self {
        Self {
            voters: voters.into_iter().collect(),
            ..Self::default()
        }
    }

    /// Everybody who gets messages.
    pub fn all(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        let lists = [&self.voters, &self.learners, &self.outgoing, &self.demoted];
        lists.into_iter().flatten().copied()
    }

    /// True where the member belongs to the group.
    #[must_use]
    pub fn has(&self, member: ReplicaId) -> bool {
        self.all().any(|one| one == member)
    }

    /// True where the member has a vote.
    #[must_use]
    pub fn votes(&self, member: ReplicaId) -> bool {
        self.voters.contains(&member) || self.outgoing.contains(&member)
    }

    /// True where the lists are bounded, and name nobody twice or as "none".
    #[must_use]
    pub fn is_sane(&self) -> bool {
        let bounded = (1..=VOTERS_MAX).contains(&self.voters.len())
            && self.outgoing.len() <= VOTERS_MAX
            && self.learners.len() <= LEARNERS_MAX
            && self.demoted.len() <= VOTERS_MAX;
        let distinct = |lists: &[&Vec<ReplicaId>]| {
            let mut seen = std::collections::BTreeSet::new();
            let mut all = lists.iter().flat_map(|list| list.iter());
            all.all(|member| member.0 != 0 && seen.insert(*member))
        };
        let demoted_leave = self.demoted.iter().all(|one| self.outgoing.contains(one));
        bounded
            && distinct(&[&self.voters, &self.learners, &self.demoted])
            && distinct(&[&self.outgoing, &self.learners])
            && demoted_leave
    }

    /// The greatest number that a majority has reached; of both majorities during a change.
    #[must_use]
    pub fn majority_of(&self, number: impl Fn(ReplicaId) -> u64) -> u64 {
        let of = |members: &[ReplicaId]| {
            let mut numbers: Vec<u64> = members.iter().map(|one| number(*one)).collect();
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            numbers.get(numbers.len() / 2).copied()
        };
        let voters = of(&self.voters).unwrap_or(0);
        of(&self.outgoing).map_or(voters, |outgoing| outgoing.min(voters))
    }
}

codec_struct! {
    /// A change of the members.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct MemberChange {
        /// Become voters.
        voters: Vec<ReplicaId>,
        /// Become learners.
        learners: Vec<ReplicaId>,
        /// Leave the group.
        removed: Vec<ReplicaId>,
    }
}

codec_enum! {
    /// The contents of an entry.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum EntryBody {
        /// Nothing: the first entry of a term.
        TermStart = 0,
        /// An effect, in the bytes of its owner.
        Effect = 1 {
            /// As its owner encodes it.
            bytes: Blob,
        },
        /// A change of the members.
        Members = 2 {
            /// Those who join and leave.
            change: MemberChange,
            /// The form of the library.
            library: Blob,
        },
    }
}

codec_struct! {
    /// One entry of the log.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LogEntry {
        /// Its place.
        index: LogIndex,
        /// The term of the leader that made it.
        term: Term,
        /// Its contents.
        body: EntryBody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(numbers: &[u64]) -> Vec<ReplicaId> {
        numbers.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn a_majority_reaches_the_middle_number() {
        let group = Membership::of_voters(members(&[1, 2, 3]));
        assert_eq!(group.majority_of(|one| one.0 * 10), 20);
        let pair = Membership::of_voters(members(&[1, 2]));
        assert_eq!(pair.majority_of(|one| one.0 * 10), 10);
        let one = Membership::of_voters(members(&[4]));
        assert_eq!(one.majority_of(|one| one.0), 4);
        let changing = Membership {
            outgoing: members(&[1, 2, 3]),
            ..Membership::of_voters(members(&[7, 8, 9]))
        };
        assert_eq!(changing.majority_of(|one| one.0), 2);
        assert_eq!(Membership::default().majority_of(|_| 9), 0);
    }

    #[test]
    fn members_are_bounded_and_named_once() {
        let sane = |voters: &[u64], learners: &[u64]| {
            let group = Membership {
                learners: members(learners),
                ..Membership::of_voters(members(voters))
            };
            group.is_sane()
        };
        assert!(sane(&[1, 2, 3], &[4]));
        for (voters, learners) in [
            (&[][..], &[][..]),
            (&[1, 1], &[]),
            (&[1, 2], &[2]),
            (&[0], &[]),
            (&[1, 2, 3, 4, 5, 6], &[]),
        ] {
            assert!(!sane(voters, learners), "{voters:?} {learners:?}");
        }
    }
}
