//! Messages of a replica that wait for a call to their receiver. One call is under way to each
//! other member; messages for the member that is being answered go back in the reply.

use crate::clock::ChangeSignal;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use zonal_consensus::{PeerMessage, ReplicaId};

/// Most messages that wait for one member.
const QUEUED_MAX: usize = 4_096;

/// The queues of one replica.
#[derive(Default)]
pub(super) struct PeerQueues {
    queues: RefCell<BTreeMap<ReplicaId, VecDeque<PeerMessage>>>,
    answering: RefCell<Option<(ReplicaId, Vec<PeerMessage>)>>,
    pub(super) changed: ChangeSignal,
}

impl PeerQueues {
    pub(super) fn add(&self, messages: Vec<PeerMessage>) {
        let mut answering = self.answering.borrow_mut();
        let mut queues = self.queues.borrow_mut();
        for message in messages {
            match answering.as_mut() {
                Some((member, back)) if *member == message.to => back.push(message),
                _ => {
                    let queue = queues.entry(message.to).or_default();
                    if queue.len() >= QUEUED_MAX {
                        queue.pop_front();
                    }
                    queue.push_back(message);
                }
            }
        }
        drop((answering, queues));
        self.changed.raise();
    }

    /// Takes the messages that wait for a member.
    pub(super) fn take(&self, to: ReplicaId) -> Vec<PeerMessage> {
        let mut queues = self.queues.borrow_mut();
        queues
            .get_mut(&to)
            .map(std::mem::take)
            .unwrap_or_default()
            .into()
    }

    /// Runs `serve`, and returns the messages that it has for `from`.
    pub(super) fn answering(&self, from: ReplicaId, serve: impl FnOnce()) -> Vec<PeerMessage> {
        *self.answering.borrow_mut() = Some((from, Vec::new()));
        serve();
        let answered = self.answering.borrow_mut().take();
        answered.map_or_else(Vec::new, |(_, back)| back)
    }
}
