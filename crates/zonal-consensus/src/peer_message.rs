//! Messages between members of a group.
//!
//! A message has Raft's part in our own encoding. Beside it are the sender's generation and life,
//! its quarantine, its flushes, and the clock of the leader's lease.

use zonal_types::codec::Blob;
use zonal_types::codec_struct;

use crate::entry::{LogEntry, LogIndex, Membership, ReplicaId, Term};

codec_struct! {
    /// A message from one member to another.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct PeerMessage {
        /// The group.
        group: u64,
        /// The sender.
        from: ReplicaId,
        /// The receiver.
        to: ReplicaId,
        /// The generation of the sender's group; 0: it has nothing of a group yet.
        generation: u64,
        /// Counts the starts of the sender: later lives may know less than earlier ones.
        life: u64,
        /// The sender's term.
        term: Term,
        /// The sender may have lost entries, and promises nothing.
        is_quarantined: bool,
        /// The life of the receiver that its leader, the sender, has brought up to date. 0: none.
        released: u64,
        /// The leader's clock, in ticks.
        clock: u64,
        /// The newest clock of this term's leader that the sender has seen.
        echo: u64,
        /// The sender has flushed all entries up to here, and they are those of its leader.
        flushed: LogIndex,
        /// The leader wants all entries up to here flushed.
        wanted: LogIndex,
        /// Raft's part, if there is one.
        raft: Option<RaftPart>,
    }
}

codec_struct! {
    /// Raft's part of a message: the fields of the library's message.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RaftPart {
        /// The kind, by the library's number.
        kind: u8,
        /// The term that the message is of.
        term: Term,
        /// The term of the entry at `index`.
        log_term: Term,
        /// An entry: the one before `entries`, the last one of a candidate, or one acknowledged.
        index: LogIndex,
        /// Entries to append.
        entries: Vec<LogEntry>,
        /// Committed up to here.
        commit: LogIndex,
        /// The term of the entry at `commit`.
        commit_term: Term,
        /// Place of a snapshot that the sender asks for.
        request_snapshot: LogIndex,
        /// The answer is no.
        is_rejected: bool,
        /// Where the sender's log may agree.
        reject_hint: LogIndex,
        /// Priority of a candidate, as bits.
        priority: u64,
        /// The kind of an election.
        context: Blob,
        /// A snapshot that is offered.
        snapshot: Option<SnapshotPoint>,
    }
}

codec_struct! {
    /// The place of a snapshot: the state after the entry at `index`.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SnapshotPoint {
        /// The last entry in it.
        index: LogIndex,
        /// That entry's term.
        term: Term,
        /// The members then.
        members: Membership,
    }
}
