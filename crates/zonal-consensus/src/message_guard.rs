//! Refuses messages that no sane member sends. The library panics on some of them, since it trusts
//! its peers; a damaged or forged message must not end a server.

use raft::eraftpb::{Message, MessageType};

use crate::entry::{LogIndex, Term};
use crate::entry_log::EntryLog;
use crate::error::ConsensusError;
use crate::raft_bridge::snapshot_point;

/// How far ahead of a member's term a message may be.
const TERM_LEAP_MAX: u64 = 1 << 32;
/// Bound of all numbers, far from overflow.
const NUMBER_END: u64 = 1 << 62;

/// The state of a member that messages are compared with.
pub(crate) struct GuardedState<'a, L> {
    pub log: &'a L,
    pub term: Term,
    pub committed: LogIndex,
    /// The last entry, also where it is not yet written.
    pub last: LogIndex,
    /// This member leads.
    pub leads: bool,
    /// This member may have lost entries.
    pub is_quarantined: bool,
}

/// Checks a message, and lowers the commit of a heartbeat to what this member has.
pub(crate) fn check<L: EntryLog>(
    message: &mut Message,
    state: &GuardedState<'_, L>,
) -> Result<(), ConsensusError> {
    let numbers = [
        message.term,
        message.log_term,
        message.index,
        message.commit,
    ];
    if numbers.iter().any(|number| *number >= NUMBER_END) {
        return Err(ConsensusError::Senseless("a number past its bound"));
    }
    if message.term == 0 {
        return Err(ConsensusError::Senseless("a term of 0"));
    }
    if message.term > state.term.0.saturating_add(TERM_LEAP_MAX) {
        return Err(ConsensusError::FutureTerm(Term(message.term)));
    }
    match message.msg_type {
        MessageType::MsgAppend => check_append(message, state),
        MessageType::MsgHeartbeat => {
            // A leader counts on what this member had acknowledged. Where that may be lost, an
            // older entry may lie at the place of a committed one.
            let known = match state.is_quarantined {
                true => state.committed,
                false => state.last,
            };
            message.commit = message.commit.min(known.0);
            Ok(())
        }
        MessageType::MsgAppendResponse => {
            let ours = state.leads && message.term == state.term.0;
            if ours && !message.reject && message.index > state.last.0 {
                return Err(ConsensusError::Senseless("acknowledges an entry to come"));
            }
            Ok(())
        }
        MessageType::MsgSnapshot => {
            let point = snapshot_point(message.get_snapshot());
            match point {
                Some(point) if point.members.is_sane() && point.index.0 < NUMBER_END => Ok(()),
                _ => Err(ConsensusError::Senseless("a snapshot")),
            }
        }
        _ => Ok(()),
    }
}

fn check_append<L: EntryLog>(
    message: &Message,
    state: &GuardedState<'_, L>,
) -> Result<(), ConsensusError> {
    let (mut index, mut term) = (message.index, message.log_term);
    if (index == 0) != (term == 0) {
        return Err(ConsensusError::Senseless("an entry without its term"));
    }
    for entry in &message.entries {
        if entry.index != index + 1 || entry.term < term || entry.term > message.term {
            return Err(ConsensusError::Senseless("entries out of order"));
        }
        (index, term) = (entry.index, entry.term);
    }
    // A leader of an older term is answered, and changes nothing.
    if message.term < state.term.0 {
        return Ok(());
    }
    let named = std::iter::once((message.index, message.log_term));
    let entries = message
        .entries
        .iter()
        .map(|entry| (entry.index, entry.term));
    for (index, term) in named.chain(entries) {
        if index > state.committed.0 {
            break;
        }
        let known = state.log.term(LogIndex(index));
        if known.is_some_and(|known| known.0 != term) {
            return Err(ConsensusError::Diverged(LogIndex(index)));
        }
    }
    Ok(())
}
