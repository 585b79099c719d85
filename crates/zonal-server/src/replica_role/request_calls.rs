//! The thread of a request that waits for a commit makes the calls to the other replicas by itself.
//! It sends the entry, and takes the first answer. So a create wakes no other thread of its leader.
//!
//! One thread at a time makes calls, for all requests: it *carries* them. It leaves as soon as its
//! own request has its reply. Where others wait then, the oldest carries on. Else the calls stay in
//! their lanes ([`LaneCall::Left`]): the next request takes their answers, or a lane's thread does
//! at the next tick.
//!
//! A voter that does not answer within [`LATE`] is late: all others are asked, and later requests
//! ask them first.
//!
//! *Invariant*: a thread that stops carrying hands over all that others wait for. So nobody waits
//! for a call that no thread looks at.

use super::outbox::{LaneCall, Outbox, OutboxState};
use crate::peers::messages_of;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use zonal_consensus::{PeerMessage, ReplicaId};
use zonal_net::DetachedCall;
use zonal_types::Codec;

/// A round trip on a zone's switch takes less.
const LATE: Duration = Duration::from_micros(500);

thread_local! {
    /// The outbox whose calls this thread makes.
    static BY: RefCell<Option<Arc<Outbox>>> = const { RefCell::new(None) };
}

/// Whether this thread makes the calls of an outbox.
pub(super) fn is_by(outbox: &Arc<Outbox>) -> bool {
    BY.with_borrow(|by| by.as_ref().is_some_and(|by| Arc::ptr_eq(by, outbox)))
}

/// This thread is about to wait for something else: others send what it has added.
pub(crate) fn leave_to_others() {
    BY.with_borrow(|by| {
        if let Some(outbox) = by {
            outbox.state().hand_to_lanes();
        }
    });
}

/// Calls that the thread of a request makes while it waits.
pub(crate) struct RequestCalls {
    outbox: Arc<Outbox>,
    /// The calls under way, while this thread carries.
    calls: Vec<(ReplicaId, Box<DetachedCall>)>,
    carries: bool,
    is_answered: bool,
    /// A voter was late.
    is_late: bool,
    /// [`LATE`], but for tests.
    late: Duration,
}

impl RequestCalls {
    /// Begins: messages that this thread adds are sent by [`Self::carry`].
    pub(super) fn begin(outbox: &Arc<Outbox>) -> Self {
        BY.set(Some(Arc::clone(outbox)));
        Self {
            outbox: Arc::clone(outbox),
            calls: Vec::new(),
            carries: false,
            is_answered: false,
            is_late: false,
            late: LATE,
        }
    }

    /// The request has its reply.
    pub(crate) fn end(mut self) {
        self.is_answered = true;
    }

    /// Makes calls until one is answered, at most this long. False where there is nothing to do, or
    /// another thread does it: it unparks this one.
    pub(crate) fn carry(&mut self, limit: Duration) -> bool {
        while let Some(ready) = self.take_calls() {
            let is_complete = ready.is_empty();
            for (to, messages) in ready {
                self.send(to, messages);
            }
            if is_complete || !self.calls.is_empty() {
                break;
            }
        }
        if !self.carries {
            return false;
        }
        if self.calls.is_empty() {
            let outbox = Arc::clone(&self.outbox);
            let mut state = outbox.state();
            self.stop_carrying(&mut state);
            state.waiting.push_back(std::thread::current());
            return false;
        }
        let limit = match self.is_late {
            true => limit,
            false => limit.min(self.late),
        };
        let mut waiter = std::mem::take(&mut self.outbox.state().waiter);
        let calls = self.calls.iter().map(|(_, call)| &**call);
        let first = DetachedCall::await_first(calls, &mut waiter, limit);
        let answered = first.map(|first| self.calls.swap_remove(first));
        if let Some((to, call)) = answered {
            self.outbox.take_in(to, messages_of(*call));
            self.free(to);
        }
        let mut state = self.outbox.state();
        state.waiter = waiter;
        if first.is_none() && !self.is_late {
            self.is_late = true;
            self.calls.iter().for_each(|(to, _)| state.note_late(*to));
        }
        true
    }

    /// Takes the calls that were left, and messages to send now. `None` where another thread
    /// carries.
    fn take_calls(&mut self) -> Option<Vec<(ReplicaId, Vec<PeerMessage>)>> {
        let mut state = self.outbox.state();
        let own = std::thread::current().id();
        if state.is_carried && !self.carries {
            if state.waiting.iter().all(|one| one.id() != own) {
                state.waiting.push_back(std::thread::current());
            }
            return None;
        }
        if !self.carries {
            state.waiting.retain(|one| one.id() != own);
        }
        (state.is_carried, self.carries) = (true, true);
        let ready = state.take_ready(self.is_late);
        for (to, lane) in &mut state.lanes {
            if let LaneCall::Left(_) = &lane.call
                && let LaneCall::Left(call) = std::mem::replace(&mut lane.call, LaneCall::Taken)
            {
                self.calls.push((*to, call));
            }
        }
        Some(ready)
    }

    fn send(&mut self, to: ReplicaId, messages: Vec<PeerMessage>) {
        match self.outbox.begin(to, &messages.to_bytes()) {
            Ok(Some(call)) => self.calls.push((to, call)),
            // Connecting may take long: the lane's thread does it.
            Ok(None) | Err(_) => {
                let mut state = self.outbox.state();
                if let Some(lane) = state.lanes.get_mut(&to) {
                    lane.call = LaneCall::Free;
                    for message in messages.into_iter().rev() {
                        lane.queue.push_front(message);
                    }
                    lane.wake();
                }
            }
        }
    }

    fn free(&self, to: ReplicaId) {
        if let Some(lane) = self.outbox.state().lanes.get_mut(&to) {
            lane.call = LaneCall::Free;
        }
    }

    fn stop_carrying(&mut self, state: &mut OutboxState) {
        if std::mem::take(&mut self.carries) {
            state.is_carried = false;
        }
        for (to, call) in self.calls.drain(..) {
            if let Some(lane) = state.lanes.get_mut(&to) {
                lane.call = LaneCall::Left(call);
            }
        }
    }
}

impl Drop for RequestCalls {
    fn drop(&mut self) {
        BY.set(None);
        let outbox = Arc::clone(&self.outbox);
        let mut state = outbox.state();
        let own = std::thread::current().id();
        state.waiting.retain(|one| one.id() != own);
        self.stop_carrying(&mut state);
        if state.is_carried {
            return;
        }
        if !self.is_answered {
            state.hand_to_lanes();
        } else if !state.hand_to_waiting() {
            state.hand_full_to_lanes();
        }
    }
}

#[cfg(test)]
mod tests;
