//! Requests to a replica: messages of other replicas, snapshots, and questions of commands.

use super::disk::ReplicaDisk;
use super::outbox::{member_on, node_of};
use super::{ReplicaLife, ReplicaRole};
use crate::timers::block_on;
use std::sync::Arc;
use zonal_consensus::{MemberRole, PeerMessage};
use zonal_disk::ReplicaProgress;
use zonal_disk::replica::APPLIED_KEY;
use zonal_driver::{ReplicaDriver, ReplicaStatus};
use zonal_net::{Peer, ReplyBuilder};
use zonal_types::{Codec, ErrorCode, KvRead, NodeId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, ReplicaPart, ReplicaReply, ReplicaReport, ReplicaRequest};

impl ReplicaRole {
    /// Answers a request.
    pub(crate) fn handle(
        &self,
        (peer, header): (&Peer, &Header),
        request: &ReplicaRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> ReplicaReply {
        let answered = match self.life() {
            Some(life) => self.answer(&life, (peer, header), request, payload, reply),
            None if matches!(request, ReplicaRequest::Status { .. }) => {
                Ok(match self.superseded_in() {
                    Some(_) => without_life(ReplicaPart::Superseded),
                    None => without_life(ReplicaPart::Starts),
                })
            }
            None => Err(ErrorCode::NotReady),
        };
        answered.unwrap_or_else(|code| ReplicaReply::Failed {
            code: ErrorNumber(code),
            detail: String::new(),
        })
    }

    fn answer(
        &self,
        life: &Arc<ReplicaLife>,
        (peer, header): (&Peer, &Header),
        request: &ReplicaRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<ReplicaReply, ErrorCode> {
        Ok(match request {
            ReplicaRequest::Exchange { .. } => {
                let messages = Vec::<PeerMessage>::from_bytes(payload);
                let messages = messages.map_err(|_garbled| ErrorCode::Protocol)?;
                if messages.is_empty() {
                    // A replica that is new: its place is in the newest map.
                    self.parts.map.at_least(header.map_version);
                }
                // Without any lock: a checkpoint may have to make room.
                life.store.engine().wait_for_room()?;
                let is_wanted = |node| {
                    let map = self.parts.map.at_least(header.map_version);
                    let shard = map.shard(self.parts.config.shard);
                    shard.is_some_and(|shard| shard.replicas.contains(&node))
                };
                // One that has not joined yet, or is to join again, knows nobody.
                let own = member_on(self.parts.node);
                let (knows, is_member) = life.driver.has_members(own, member_on(peer.node));
                // A lost replica that comes back after a recovery is told so, and refused.
                let generation = life.store.generation();
                let is_older = |one: &PeerMessage| (1..generation).contains(&one.generation);
                let is_lost = !messages.is_empty() && messages.iter().all(is_older);
                if knows && !is_member && !is_lost && !is_wanted(peer.node) {
                    return Err(ErrorCode::NotPermitted);
                }
                if !self.is_newest_image(&life.store, peer.node, &messages) {
                    return Err(ErrorCode::NotReady);
                }
                let take_in = || take_in(&life.driver, peer.node, &messages);
                let back = self.outbox.answering(peer.node, take_in);
                if !back.is_empty() {
                    let bytes = back.to_bytes();
                    reply.payload_mut(bytes.len()).copy_from_slice(&bytes);
                }
                ReplicaReply::Exchanged
            }
            ReplicaRequest::SnapshotBegin { .. } => {
                let view = life.store.engine().view()?;
                let index = life.store.applied_entry().0;
                block_on(life.driver.lendable(index))?;
                let progress = view.get(APPLIED_KEY)?.ok_or(ErrorCode::Corrupt)?;
                let progress = ReplicaProgress::from_bytes(&progress);
                if progress
                    .map_err(|_damaged| ErrorCode::Corrupt)?
                    .is_changing()
                {
                    return Err(ErrorCode::Busy);
                }
                ReplicaReply::Snapshot {
                    snapshot: self.snapshots.add(view)?,
                }
            }
            ReplicaRequest::SnapshotRead {
                snapshot, after, ..
            } => {
                let (entries, end) = self.snapshots.read(*snapshot, &after.0)?;
                ReplicaReply::Entries { entries, end }
            }
            ReplicaRequest::Status { .. } => report(&life.driver.status(), self.parts.node),
            ReplicaRequest::Starts { .. } => ReplicaReply::Starts {
                start: self.own_starts()?,
            },
            ReplicaRequest::HandOver { to, .. } => {
                life.driver.reign().ok_or(ErrorCode::NotOwner)?;
                if !life.driver.status().members.votes(member_on(*to)) {
                    return Err(ErrorCode::Invalid);
                }
                life.driver.hand_over(member_on(*to));
                ReplicaReply::Done
            }
        })
    }
}

/// Takes in messages that came from a node; others' are refused.
pub(super) fn take_in(driver: &ReplicaDriver<ReplicaDisk>, from: NodeId, messages: &[PeerMessage]) {
    if !are_senders(from, messages) {
        tracing::warn!(
            node = from.0,
            "refused: messages in the name of another replica"
        );
        return;
    }
    if let Err(error) = driver.receive(messages) {
        tracing::warn!(node = from.0, %error, "a message of another replica is refused");
    }
}

/// True where all messages are in the name of the node that they came from.
fn are_senders(from: NodeId, messages: &[PeerMessage]) -> bool {
    let own = member_on(from);
    messages.iter().all(|message| message.from == own)
}

fn without_life(part: ReplicaPart) -> ReplicaReply {
    ReplicaReply::Status {
        part,
        leader: NodeId(0),
        term: 0,
        last: 0,
        committed: 0,
        others: Vec::new(),
    }
}

fn report(status: &ReplicaStatus, own: NodeId) -> ReplicaReply {
    let (part, leader) = match status.role {
        MemberRole::Leads => (ReplicaPart::Leads, own),
        MemberRole::Follows(leader) => (ReplicaPart::Follows, node_of(leader)),
        MemberRole::TakesOver | MemberRole::Seeks if status.members.voters.is_empty() => {
            let is_empty = status.term.0 == 0 && status.last.0 == 0;
            let part = match is_empty {
                true => ReplicaPart::Empty,
                false => ReplicaPart::Starts,
            };
            (part, NodeId(0))
        }
        MemberRole::TakesOver | MemberRole::Seeks => (ReplicaPart::Seeks, NodeId(0)),
    };
    let others = status.others.iter().map(|one| ReplicaReport {
        node: node_of(one.member),
        votes: status.members.votes(one.member),
        is_heard: one.is_heard,
        // A leader learns how far a member is from its first answer.
        lag: (one.matched.0 > 0).then(|| status.last.0.saturating_sub(one.matched.0)),
    });
    ReplicaReply::Status {
        part,
        leader,
        term: status.term.0,
        last: status.last.0,
        committed: status.committed.0,
        others: match status.role {
            MemberRole::Leads => others.collect(),
            _ => Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_consensus::{LogIndex, ReplicaId, Term};

    #[test]
    fn messages_in_the_name_of_another_replica_are_noticed() {
        let message = |from| PeerMessage {
            group: 1,
            from: ReplicaId(from),
            to: ReplicaId(1),
            generation: 1,
            life: 1,
            term: Term(1),
            is_quarantined: false,
            released: 0,
            clock: 1,
            echo: 0,
            flushed: LogIndex(0),
            wanted: LogIndex(0),
            raft: None,
        };
        assert!(are_senders(NodeId(3), &[message(3), message(3)]));
        assert!(!are_senders(NodeId(3), &[message(3), message(2)]));
        // A number that is no node's is not cut to one.
        assert!(!are_senders(NodeId(3), &[message((1 << 32) + 3)]));
    }
}
