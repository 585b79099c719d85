//! This crate's types as those of the library, and the library's view of a log.
//!
//! Messages travel in our encoding. So no byte of a peer reaches the library's decoder, and an
//! entry of the library's own (a change of members) passes through it unread.

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState, Entry,
    EntryType, HardState, Message, MessageType, Snapshot,
};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use zonal_types::codec::{Blob, Codec};

use crate::entry::{EntryBody, LogEntry, LogIndex, MemberChange, Membership, ReplicaId, Term};
use crate::entry_log::EntryLog;
use crate::error::ConsensusError;
use crate::member::Vote;
use crate::peer_message::{RaftPart, SnapshotPoint};

/// The library's view of a member's log.
pub(crate) struct RaftLogView<L> {
    pub log: L,
    pub vote: Vote,
    /// The last applied entry, its term, and the members since.
    pub applied: SnapshotPoint,
}

impl<L: EntryLog> Storage for RaftLogView<L> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard_state = HardState {
            term: self.vote.term.0,
            vote: self.vote.for_member.0,
            commit: self.applied.index.0,
            ..HardState::default()
        };
        Ok(RaftState::new(
            hard_state,
            conf_state(&self.applied.members),
        ))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low < self.log.first().0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let max_bytes = max_size.into().unwrap_or(u64::MAX);
        let entries = self
            .log
            .entries(LogIndex(low), LogIndex(high), max_bytes)
            .map_err(|_| raft::Error::Store(StorageError::Unavailable))?;
        Ok(entries.into_iter().map(to_raft_entry).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        let lost = match index < self.log.first().0 {
            true => StorageError::Compacted,
            false => StorageError::Unavailable,
        };
        let term = self.log.term(LogIndex(index));
        term.map(|term| term.0).ok_or(raft::Error::Store(lost))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.log.first().0)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.log.last().0)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        if request_index > self.applied.index.0 {
            let later = StorageError::SnapshotTemporarilyUnavailable;
            return Err(raft::Error::Store(later));
        }
        Ok(to_raft_snapshot(&self.applied))
    }
}

fn numbers(members: &[ReplicaId]) -> Vec<u64> {
    members.iter().map(|member| member.0).collect()
}

fn replicas(members: &[u64]) -> Vec<ReplicaId> {
    members.iter().copied().map(ReplicaId).collect()
}

fn conf_state(members: &Membership) -> ConfState {
    ConfState {
        voters: numbers(&members.voters),
        learners: numbers(&members.learners),
        voters_outgoing: numbers(&members.outgoing),
        learners_next: numbers(&members.demoted),
        auto_leave: members.finishes,
        ..ConfState::default()
    }
}

/// The members of the library's form.
pub(crate) fn membership(state: &ConfState) -> Membership {
    let mut members = Membership {
        voters: replicas(&state.voters),
        learners: replicas(&state.learners),
        outgoing: replicas(&state.voters_outgoing),
        demoted: replicas(&state.learners_next),
        finishes: state.auto_leave,
    };
    // The library's order is that of its hash sets.
    members.voters.sort_unstable();
    members.learners.sort_unstable();
    members.outgoing.sort_unstable();
    members.demoted.sort_unstable();
    members
}

/// A change of members in the library's form.
pub(crate) fn to_raft_change(change: &MemberChange) -> ConfChangeV2 {
    let single = |change_type, member: &ReplicaId| ConfChangeSingle {
        change_type,
        node_id: member.0,
        ..ConfChangeSingle::default()
    };
    let changes = change
        .voters
        .iter()
        .map(|one| single(ConfChangeType::AddNode, one))
        .chain(
            change
                .learners
                .iter()
                .map(|one| single(ConfChangeType::AddLearnerNode, one)),
        )
        .chain(
            change
                .removed
                .iter()
                .map(|one| single(ConfChangeType::RemoveNode, one)),
        );
    ConfChangeV2 {
        transition: ConfChangeTransition::Auto,
        changes: changes.collect(),
        ..ConfChangeV2::default()
    }
}

pub(crate) fn to_raft_entry(entry: LogEntry) -> Entry {
    let mut raft = Entry {
        index: entry.index.0,
        term: entry.term.0,
        ..Entry::default()
    };
    match entry.body {
        EntryBody::TermStart => {}
        EntryBody::Effect { bytes } => raft.data = bytes.0.into(),
        EntryBody::Members { change, library } => {
            raft.entry_type = EntryType::EntryConfChangeV2;
            raft.context = change.to_bytes().into();
            raft.data = library.0.into();
        }
    }
    raft
}

pub(crate) fn from_raft_entry(entry: &Entry) -> Result<LogEntry, ConsensusError> {
    let bytes = Blob(entry.data.to_vec());
    let body = match entry.entry_type {
        EntryType::EntryNormal if entry.data.is_empty() => EntryBody::TermStart,
        EntryType::EntryNormal => EntryBody::Effect { bytes },
        EntryType::EntryConfChange => {
            return Err(ConsensusError::Senseless("a change of an older form"));
        }
        EntryType::EntryConfChangeV2 if entry.context.is_empty() => EntryBody::Members {
            // The library ends a change of several members by an empty one.
            change: MemberChange::default(),
            library: bytes,
        },
        EntryType::EntryConfChangeV2 => EntryBody::Members {
            change: MemberChange::from_bytes(&entry.context)
                .map_err(|_| ConsensusError::Senseless("a change of members"))?,
            library: bytes,
        },
    };
    Ok(LogEntry {
        index: LogIndex(entry.index),
        term: Term(entry.term),
        body,
    })
}

fn to_raft_snapshot(point: &SnapshotPoint) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = point.index.0;
    metadata.term = point.term.0;
    metadata.set_conf_state(conf_state(&point.members));
    snapshot
}

/// The place of a snapshot; `None` for the library's empty one.
pub(crate) fn snapshot_point(snapshot: &Snapshot) -> Option<SnapshotPoint> {
    let metadata = snapshot.get_metadata();
    (metadata.index != 0).then(|| SnapshotPoint {
        index: LogIndex(metadata.index),
        term: Term(metadata.term),
        members: membership(metadata.get_conf_state()),
    })
}

/// The kinds of messages that travel, by the library's numbers in its published protocol.
const KINDS: [(u8, MessageType); 11] = [
    (3, MessageType::MsgAppend),
    (4, MessageType::MsgAppendResponse),
    (5, MessageType::MsgRequestVote),
    (6, MessageType::MsgRequestVoteResponse),
    (7, MessageType::MsgSnapshot),
    (8, MessageType::MsgHeartbeat),
    (9, MessageType::MsgHeartbeatResponse),
    (14, MessageType::MsgTimeoutNow),
    (17, MessageType::MsgRequestPreVote),
    (18, MessageType::MsgRequestPreVoteResponse),
    (16, MessageType::MsgReadIndexResp),
];

/// The library's message with its kind; refuses kinds that do not travel.
pub(crate) fn to_raft_message(
    part: RaftPart,
    (from, to): (ReplicaId, ReplicaId),
) -> Result<Message, ConsensusError> {
    let kind = KINDS.iter().find(|(kind, _)| *kind == part.kind);
    let Some((_, msg_type)) = kind else {
        return Err(ConsensusError::Senseless("an unknown kind"));
    };
    let mut message = Message {
        msg_type: *msg_type,
        from: from.0,
        to: to.0,
        term: part.term.0,
        log_term: part.log_term.0,
        index: part.index.0,
        commit: part.commit.0,
        commit_term: part.commit_term.0,
        request_snapshot: part.request_snapshot.0,
        reject: part.is_rejected,
        reject_hint: part.reject_hint.0,
        context: part.context.0.into(),
        priority: i64::from_le_bytes(part.priority.to_le_bytes()),
        ..Message::default()
    };
    message.entries = part.entries.into_iter().map(to_raft_entry).collect();
    if let Some(point) = &part.snapshot {
        message.set_snapshot(to_raft_snapshot(point));
    }
    Ok(message)
}

/// A message of the library; `None` for one that does not travel.
pub(crate) fn from_raft_message(message: &Message) -> Result<Option<RaftPart>, ConsensusError> {
    let kind = KINDS.iter().find(|(_, kind)| *kind == message.msg_type);
    let Some((kind, _)) = kind else {
        return Ok(None);
    };
    let entries: Result<Vec<LogEntry>, _> = message.entries.iter().map(from_raft_entry).collect();
    Ok(Some(RaftPart {
        kind: *kind,
        term: Term(message.term),
        log_term: Term(message.log_term),
        index: LogIndex(message.index),
        entries: entries?,
        commit: LogIndex(message.commit),
        commit_term: Term(message.commit_term),
        request_snapshot: LogIndex(message.request_snapshot),
        is_rejected: message.reject,
        reject_hint: LogIndex(message.reject_hint),
        priority: u64::from_le_bytes(message.priority.to_le_bytes()),
        context: Blob(message.context.to_vec()),
        snapshot: snapshot_point(message.get_snapshot()),
    }))
}
