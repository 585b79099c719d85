//! Steps by which a leader brings the members of its group to those that are wanted.

use zonal_consensus::{MemberChange, ReplicaId};

use super::ReplicaStatus;

/// Entries that a learner may lack when it becomes a voter.
const LAG_MAX: u64 = 256;

/// The next step towards the wanted members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberStep {
    /// A change to propose.
    Change(MemberChange),
    /// The leader itself is to leave: this member leads next.
    HandOver(ReplicaId),
}

/// The next step of a leader, one at a time: new members learn, those that are up to date vote, and
/// nobody leaves before.
#[must_use]
pub fn next_step(
    wanted: &[ReplicaId],
    own: ReplicaId,
    status: &ReplicaStatus,
) -> Option<MemberStep> {
    let members = &status.members;
    if !members.outgoing.is_empty() || wanted.is_empty() {
        return None;
    }
    let progress = |member| status.others.iter().find(|one| one.member == member);
    let is_ready = |member: &&ReplicaId| {
        progress(**member).is_some_and(|one| {
            let has_state = one.matched.0 > 0 && !one.is_ward;
            one.is_heard && has_state && status.last.0 - one.matched.0 <= LAG_MAX
        })
    };
    if !members.votes(own) {
        // It was elected before it had the entry that removes it.
        return members
            .voters
            .iter()
            .find(is_ready)
            .copied()
            .map(MemberStep::HandOver);
    }
    let change = |change| Some(MemberStep::Change(change));
    if let Some(new) = wanted.iter().find(|one| !members.has(**one)) {
        return change(MemberChange {
            learners: vec![*new],
            ..MemberChange::default()
        });
    }
    let mut learners = members.learners.iter().filter(|one| wanted.contains(one));
    if let Some(ready) = learners.find(is_ready) {
        return change(MemberChange {
            voters: vec![*ready],
            ..MemberChange::default()
        });
    }
    // Nobody leaves before those who are wanted vote.
    if wanted.iter().any(|one| !members.voters.contains(one)) {
        return None;
    }
    let leaves = members.all().find(|one| !wanted.contains(one))?;
    if leaves != own {
        return change(MemberChange {
            removed: vec![leaves],
            ..MemberChange::default()
        });
    }
    wanted
        .iter()
        .find(is_ready)
        .copied()
        .map(MemberStep::HandOver)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_consensus::member::MemberProgress;
    use zonal_consensus::{LogIndex, MemberRole, Membership, Term};

    fn status(voters: &[u64], learners: &[u64], ready: &[u64]) -> ReplicaStatus {
        let members = |list: &[u64]| list.iter().copied().map(ReplicaId).collect();
        let others = voters.iter().chain(learners).map(|member| MemberProgress {
            member: ReplicaId(*member),
            matched: LogIndex(if ready.contains(member) { 999 } else { 5 }),
            is_heard: true,
            is_ward: false,
        });
        ReplicaStatus {
            role: MemberRole::Leads,
            term: Term(3),
            last: LogIndex(1000),
            committed: LogIndex(1000),
            is_quarantined: false,
            members: Membership {
                voters: members(voters),
                learners: members(learners),
                ..Membership::default()
            },
            others: others.filter(|one| one.member != ReplicaId(1)).collect(),
        }
    }

    #[test]
    fn a_group_grows_by_learners_and_shrinks_by_who_is_not_wanted() {
        let wanted =
            |list: &[u64]| -> Vec<ReplicaId> { list.iter().copied().map(ReplicaId).collect() };
        let step =
            |want: &[u64], status: &ReplicaStatus| next_step(&wanted(want), ReplicaId(1), status);
        let learns = step(&[1, 2, 3], &status(&[1], &[], &[]));
        let learner = |member| MemberChange {
            learners: vec![ReplicaId(member)],
            ..MemberChange::default()
        };
        assert_eq!(learns, Some(MemberStep::Change(learner(2))));
        // A learner that lags does not vote; the next one is brought in meanwhile.
        let learns = step(&[1, 2, 3], &status(&[1], &[2], &[]));
        assert_eq!(learns, Some(MemberStep::Change(learner(3))));
        // Nor does one that has nothing, of a short log.
        let mut short = status(&[1], &[2], &[]);
        short.last = LogIndex(9);
        short.others[0].matched = LogIndex(0);
        assert_eq!(step(&[1, 2], &short), None);
        let votes = step(&[1, 2, 3], &status(&[1], &[2, 3], &[3]));
        let voter = MemberChange {
            voters: vec![ReplicaId(3)],
            ..MemberChange::default()
        };
        assert_eq!(votes, Some(MemberStep::Change(voter)));
        // Nobody leaves before the wanted ones vote.
        assert_eq!(step(&[1, 3], &status(&[1, 2], &[3], &[])), None);
        let removed = MemberChange {
            removed: vec![ReplicaId(2)],
            ..MemberChange::default()
        };
        assert_eq!(
            step(&[1, 3], &status(&[1, 2, 3], &[], &[])),
            Some(MemberStep::Change(removed))
        );
        // A leader that is to leave hands over first.
        let gone = step(&[1, 2, 3], &status(&[2, 3], &[], &[2]));
        assert_eq!(gone, Some(MemberStep::HandOver(ReplicaId(2))));
        let leaves = step(&[2, 3], &status(&[1, 2, 3], &[], &[3]));
        assert_eq!(leaves, Some(MemberStep::HandOver(ReplicaId(3))));
        assert_eq!(step(&[1, 2, 3], &status(&[1, 2, 3], &[], &[])), None);
    }
}
