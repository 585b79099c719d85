//! Messages that leave a member.

use raft::eraftpb::{Message, MessageType};

use super::{GroupMember, MemberWork};
use crate::entry::{LogIndex, ReplicaId};
use crate::entry_log::EntryLog;
use crate::error::ConsensusError;
use crate::peer_message::{PeerMessage, RaftPart};
use crate::raft_bridge;

impl<L: EntryLog> GroupMember<L> {
    /// A message to a member, with what every message tells.
    pub(super) fn envelope(&self, to: ReplicaId, raft: Option<RaftPart>) -> PeerMessage {
        let term = self.term();
        let leads = self.node.raft.leader_id == self.config.own.0;
        let matched = self.node.raft.prs().get(to.0);
        let matched = LogIndex(matched.map_or(0, |progress| progress.matched));
        let (heard_term, heard) = self.heard;
        // A flush of entries that the leader is about to replace is none of its entries.
        let agreed = match self.agreed {
            (agreed_term, agreed) if agreed_term == term => agreed,
            _ => LogIndex(0),
        };
        PeerMessage {
            group: self.config.group,
            from: self.config.own,
            to,
            generation: self.config.generation,
            life: self.config.life,
            term,
            is_quarantined: self.quarantine.is_on(),
            released: if leads {
                self.quarantine.released(to, matched)
            } else {
                0
            },
            clock: if leads { self.time } else { 0 },
            echo: if heard_term == term { heard } else { 0 },
            flushed: self.flushed.min(agreed),
            wanted: if leads {
                self.flushes.wanted
            } else {
                LogIndex(0)
            },
            raft,
        }
    }

    pub(super) fn send_raft(
        &mut self,
        messages: impl IntoIterator<Item = Message>,
        work: &mut MemberWork,
    ) -> Result<(), ConsensusError> {
        for message in messages {
            if message.msg_type == MessageType::MsgAppendResponse && !message.reject {
                let (term, index) = (self.term(), LogIndex(message.index));
                self.agreed = match self.agreed {
                    (known, agreed) if known == term => (term, agreed.max(index)),
                    _ => (term, index),
                };
            }
            if let Some(part) = raft_bridge::from_raft_message(&message)? {
                work.send
                    .push(self.envelope(ReplicaId(message.to), Some(part)));
            }
        }
        Ok(())
    }
}
