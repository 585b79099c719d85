//! Messages that reach a member.

use raft::eraftpb::MessageType;
use raft::{ProgressState, SnapshotStatus, StateRole};

use super::GroupMember;
use crate::entry::{LogIndex, ReplicaId};
use crate::entry_log::EntryLog;
use crate::error::ConsensusError;
use crate::message_guard::{self, GuardedState};
use crate::peer_message::PeerMessage;
use crate::raft_bridge;

/// How far ahead of a member's generation a message may be.
const GENERATION_LEAP_MAX: u64 = 1 << 16;

impl<L: EntryLog> GroupMember<L> {
    /// Takes in a message of another member. The shell has made sure that it is the sender's,
    /// and that the sender may belong to the group. A leader may have joined by entries that this
    /// member does not have yet.
    ///
    /// # Errors
    /// The message is refused, and has changed nothing: it is another group's, or makes no sense.
    /// After `Superseded` this member must not go on.
    pub fn receive(&mut self, message: &PeerMessage) -> Result<(), ConsensusError> {
        if message.group != self.config.group || message.to != self.config.own {
            return Err(ConsensusError::WrongGroup);
        }
        let from = message.from;
        if from == self.config.own || from.0 == 0 {
            return Err(ConsensusError::Senseless(
                "a message of this member to itself",
            ));
        }
        self.check_generation(message)?;
        // An earlier life may have acknowledged what this one has lost.
        let known = self.lives.get(&from).copied().unwrap_or(0);
        if message.life < known {
            return Ok(());
        }
        self.lives.insert(from, message.life);
        let clock = self.clock;
        self.quarantine.hear(from, message.is_quarantined, clock);
        if message.is_quarantined && self.node.raft.state == StateRole::Leader {
            self.guard_ward(from, message.life);
        }
        if !message.is_quarantined {
            self.quarantine.unguard(from);
        }
        self.hear_raft(message)?;
        self.hear_rest(message);
        self.redraw();
        Ok(())
    }

    /// Refuses members of another generation. Those of an older one are told, and must not go on.
    /// A member that has nothing of a group yet may join any.
    fn check_generation(&mut self, message: &PeerMessage) -> Result<(), ConsensusError> {
        let (theirs, own) = (message.generation, self.config.generation);
        if theirs == own || theirs == 0 || own == 0 {
            return Ok(());
        }
        if theirs < own {
            if !self.outbox.contains(&message.from) {
                self.outbox.push(message.from);
            }
            return Err(ConsensusError::OlderGeneration(theirs));
        }
        Err(match theirs - own {
            0..=GENERATION_LEAP_MAX => ConsensusError::Superseded(theirs),
            _ => ConsensusError::FutureGeneration(theirs),
        })
    }

    /// Forgets how far the log of a member went that may have lost entries.
    fn guard_ward(&mut self, ward: ReplicaId, life: u64) {
        let last = self.last();
        if !self.quarantine.guard(ward, life, last) {
            return;
        }
        self.flushes.forget(ward);
        if let Some(progress) = self.node.raft.mut_prs().get_mut(ward.0) {
            progress.matched = 0;
            progress.become_probe();
            progress.next_idx = last.0 + 1;
        }
    }

    fn hear_raft(&mut self, message: &PeerMessage) -> Result<(), ConsensusError> {
        let Some(part) = message.raft.clone() else {
            return Ok(());
        };
        let mut raft = raft_bridge::to_raft_message(part, (message.from, message.to))?;
        let state = GuardedState {
            log: self.log(),
            term: self.term(),
            committed: self.committed(),
            last: self.last(),
            leads: self.node.raft.state == StateRole::Leader,
            is_quarantined: self.quarantine.is_on(),
        };
        message_guard::check(&mut raft, &state)?;
        let asks_for_vote = matches!(
            raft.msg_type,
            MessageType::MsgRequestVote
                | MessageType::MsgRequestPreVote
                | MessageType::MsgTimeoutNow
        );
        if asks_for_vote && !self.may_vote() {
            return Ok(());
        }
        if raft.msg_type == MessageType::MsgHeartbeatResponse && raft.term == self.term().0 {
            self.note_snapshot_taken(message.from, raft.commit);
        }
        let term = self.term();
        // Refused by the library: a message of somebody who left, and the like.
        let _ = self.node.step(raft);
        if self.term() != term {
            self.quarantine.forget_wards();
        }
        Ok(())
    }

    /// As leader: a member that was offered a snapshot has taken it in, as what it has committed
    /// shows. It has started anew and acknowledges nothing by itself: the library would wait.
    fn note_snapshot_taken(&mut self, member: ReplicaId, committed: u64) {
        let progress = self.node.raft.prs().get(member.0);
        let is_taken = progress.is_some_and(|one| {
            one.state == ProgressState::Snapshot && committed >= one.pending_snapshot
        });
        if is_taken {
            self.node.report_snapshot(member.0, SnapshotStatus::Finish);
        }
    }

    /// Takes in what every message tells besides.
    fn hear_rest(&mut self, message: &PeerMessage) {
        let (term, from) = (self.term(), message.from);
        if message.term != term {
            return;
        }
        // Only who leads sends its clock: a leader of before that stands again is none.
        if self.node.raft.leader_id == from.0 && message.clock > 0 {
            self.quarantine.hear_leader();
            let newest = match self.heard {
                (heard_term, clock) if heard_term == term => clock.max(message.clock),
                _ => message.clock,
            };
            self.heard = (term, newest);
            if message.released == self.config.life {
                self.quarantine.end();
            }
            if message.wanted > LogIndex(0) {
                self.ask_flush(message.wanted);
            }
        }
        if self.node.raft.state == StateRole::Leader {
            self.lease.note(term, from, message.echo);
            self.flushes.note(term, from, message.flushed);
        }
    }
}
