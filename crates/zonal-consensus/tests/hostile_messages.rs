//! Messages that no sane member sends are refused, change nothing, and end no process.

use proptest::prelude::*;
use zonal_consensus::{
    ConsensusError, EntryBody, EntryLog, GroupMember, LogEntry, LogIndex, LogUnread, MemberConfig,
    Membership, PeerMessage, ReplicaId, Term, Vote,
};
use zonal_types::codec::{Blob, Codec};

/// A log of entries 1 to 9, of terms 1 to 3.
struct FixedLog;

fn entry(index: u64) -> LogEntry {
    LogEntry {
        index: LogIndex(index),
        term: Term(index.div_ceil(3)),
        body: EntryBody::Effect {
            bytes: Blob(vec![7; 8]),
        },
    }
}

impl EntryLog for FixedLog {
    fn first(&self) -> LogIndex {
        LogIndex(1)
    }
    fn last(&self) -> LogIndex {
        LogIndex(9)
    }
    fn term(&self, index: LogIndex) -> Option<Term> {
        (index.0 <= 9).then(|| Term(index.0.div_ceil(3)))
    }
    fn entries(&self, from: LogIndex, to: LogIndex, _: u64) -> Result<Vec<LogEntry>, LogUnread> {
        Ok((from.0..to.0.min(10)).map(entry).collect())
    }
    fn membership(&self) -> (LogIndex, Membership) {
        (LogIndex(0), Membership::of_voters([1, 2, 3].map(ReplicaId)))
    }
}

fn member() -> GroupMember<FixedLog> {
    started(false)
}

fn started(may_have_lost: bool) -> GroupMember<FixedLog> {
    let config = MemberConfig {
        group: 7,
        own: ReplicaId(1),
        generation: 1,
        life: 1,
        seed: 1,
        election_ticks: 20,
        heartbeat_ticks: 4,
        may_have_lost,
    };
    let vote = Vote {
        term: Term(4),
        for_member: ReplicaId(0),
    };
    let applied = (LogIndex(6), Term(2));
    match GroupMember::new(config, FixedLog, vote, applied, LogIndex(9)) {
        Ok(member) => member,
        Err(error) => panic!("{error}"),
    }
}

fn message(kind: u8) -> PeerMessage {
    PeerMessage {
        group: 7,
        from: ReplicaId(2),
        to: ReplicaId(1),
        generation: 1,
        life: 1,
        term: Term(5),
        is_quarantined: false,
        released: 0,
        clock: 1,
        echo: 0,
        flushed: LogIndex(0),
        wanted: LogIndex(0),
        raft: Some(zonal_consensus::RaftPart {
            kind,
            term: Term(5),
            log_term: Term(3),
            index: LogIndex(9),
            ..Default::default()
        }),
    }
}

#[test]
fn other_groups_and_future_terms_are_refused() {
    let mut one = member();
    let of_group = PeerMessage {
        group: 8,
        ..message(8)
    };
    assert_eq!(one.receive(&of_group), Err(ConsensusError::WrongGroup));
    let mut of_future = message(8);
    if let Some(part) = &mut of_future.raft {
        part.term = Term(1 << 40);
    }
    let future = ConsensusError::FutureTerm(Term(1 << 40));
    assert_eq!(one.receive(&of_future), Err(future));
    assert_eq!(one.term(), Term(4));
}

/// A term is a number only: one that is far ahead costs nothing, and elections go on behind it.
#[test]
fn a_term_far_ahead_does_not_end_elections() {
    let mut one = member();
    let far = Term((1 << 32) - 1);
    let mut heartbeat = message(8);
    if let Some(part) = &mut heartbeat.raft {
        part.term = far;
    }
    assert_eq!(one.receive(&heartbeat), Ok(()));
    assert_eq!(one.term(), far);
    let mut asked = Vec::new();
    for _ in 0..200 {
        one.tick();
        while let Ok(Some(work)) = one.take_work() {
            asked.extend(work.send.into_iter().filter_map(|sent| sent.raft));
            assert!(one.finish().is_ok());
        }
    }
    let later = asked.iter().any(|part| part.term == Term(far.0 + 1));
    assert!(later, "it stands for the next term: {asked:?}");
}

/// A member on an older image of its store has a life that the others know to be over.
#[test]
fn messages_of_an_earlier_life_change_nothing() {
    let mut one = member();
    let newer = PeerMessage {
        life: 5,
        raft: None,
        ..message(8)
    };
    assert_eq!(one.receive(&newer), Ok(()));
    assert_eq!(one.receive(&message(8)), Ok(()));
    assert_eq!(one.term(), Term(4), "a heartbeat of life 1 is not heard");
}

#[test]
fn a_leader_with_another_log_is_refused() {
    let mut one = member();
    let mut append = message(3);
    if let Some(part) = &mut append.raft {
        (part.index, part.log_term) = (LogIndex(6), Term(1));
    }
    let diverged = ConsensusError::Diverged(LogIndex(6));
    assert_eq!(one.receive(&append), Err(diverged));
}

#[test]
fn a_heartbeat_commits_nothing_that_may_have_come_back() {
    for (may_have_lost, committed) in [(false, 9), (true, 6)] {
        let mut one = started(may_have_lost);
        let mut heartbeat = message(8);
        if let Some(part) = &mut heartbeat.raft {
            part.commit = LogIndex(9);
        }
        assert_eq!(one.receive(&heartbeat), Ok(()));
        assert_eq!(one.committed(), LogIndex(committed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn no_message_ends_a_member(
        kind in 0_u8..20,
        numbers in proptest::collection::vec(0_u64..14, 8),
        terms in proptest::collection::vec(0_u64..7, 6),
        big in proptest::option::of(any::<u64>()),
        flags in any::<(bool, bool, bool)>(),
        ticks in 0_u64..60,
    ) {
        let mut one = member();
        for _ in 0..ticks {
            one.tick();
            while let Ok(Some(_)) = one.take_work() {
                prop_assert!(one.finish().is_ok());
            }
        }
        let mut sent = message(kind);
        sent.term = Term(terms[0]);
        sent.is_quarantined = flags.0;
        sent.flushed = LogIndex(numbers[0]);
        sent.wanted = LogIndex(big.unwrap_or(numbers[1]));
        if let Some(part) = &mut sent.raft {
            part.term = Term(terms[1]);
            part.log_term = Term(terms[2]);
            part.index = LogIndex(big.unwrap_or(numbers[2]));
            part.commit = LogIndex(big.unwrap_or(numbers[3]));
            part.commit_term = Term(terms[3]);
            part.reject_hint = LogIndex(numbers[4]);
            part.is_rejected = flags.1;
            if flags.2 {
                part.entries = (numbers[5]..numbers[6]).map(entry).collect();
            }
        }
        let _ = one.receive(&sent);
        for _ in 0..100 {
            match one.take_work() {
                Ok(Some(_)) => prop_assert!(one.finish().is_ok()),
                _ => break,
            }
        }
    }

    #[test]
    fn no_bytes_end_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = PeerMessage::from_bytes(&bytes);
    }
}
