//! Why a member refuses.

use crate::entry::{LogIndex, ReplicaId, Term};

/// Why a member refuses a message or a proposal, or cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConsensusError {
    /// Another member leads, or nobody.
    #[error("this member does not lead its group")]
    NotLeader(Option<ReplicaId>),
    /// Too much waits for its commit, or the lead is being handed over.
    #[error("the group takes no more entries now")]
    Busy,
    /// The message is for another group or member.
    #[error("a message of another group, or for another member")]
    WrongGroup,
    /// The term is further ahead than elections can have brought it.
    #[error("a message is of term {0}, far ahead of this member's")]
    FutureTerm(Term),
    /// The sender's group ended with a recovery that it missed.
    #[error("a message of generation {0} of the group, which a recovery has ended")]
    OlderGeneration(u64),
    /// The group went on without this member.
    #[error("the group went on without this member, in generation {0}")]
    Superseded(u64),
    /// The generation is further ahead than recoveries can have brought it.
    #[error("a message is of generation {0}, far ahead of this member's")]
    FutureGeneration(u64),
    /// The leader's log contradicts an entry that this member knows as committed: it is not the
    /// same log.
    #[error("the leader's log differs from this one at entry {0}, which was committed")]
    Diverged(LogIndex),
    /// No sane member sends this.
    #[error("a message makes no sense: {0}")]
    Senseless(&'static str),
    /// The configuration of the member makes no sense.
    #[error("the member's configuration makes no sense")]
    BadConfig,
    /// The log cannot be read.
    #[error("the log cannot be read")]
    LogUnread,
}
