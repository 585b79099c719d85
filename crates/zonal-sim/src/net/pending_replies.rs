//! Pending replies: the place where a reply arrives, and the future that waits for it.

use super::SimReply;
use crate::clock::{Sleep, VirtualClock};
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use zonal_client::NetFailure;
use zonal_types::Instant;
use zonal_wire::Header;

/// The place where a reply arrives.
#[derive(Default)]
pub(super) struct ReplySlot {
    pub(super) outcome: RefCell<Option<Result<(Header, SimReply), NetFailure>>>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl ReplySlot {
    pub(super) fn fill(&self, outcome: Result<(Header, SimReply), NetFailure>) {
        let mut place = self.outcome.borrow_mut();
        if place.is_none() {
            *place = Some(outcome);
            drop(place);
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }
}

/// Breaks the connection where its server dies before it has replied.
pub(super) struct Broken(pub(super) Option<Rc<ReplySlot>>);

impl Drop for Broken {
    fn drop(&mut self) {
        if let Some(place) = self.0.take() {
            place.fill(Err(NetFailure::Unreachable));
        }
    }
}

/// A pending reply.
pub struct PendingReply {
    pub(super) place: Rc<ReplySlot>,
    pub(super) deadline: Instant,
    pub(super) clock: VirtualClock,
}

impl PendingReply {
    /// Waits until one of these has its outcome, or until `end`.
    pub async fn await_first(pending: &[&Self], mut end: Sleep) -> Option<usize> {
        std::future::poll_fn(|context| {
            let has_outcome = |one: &&Self| one.place.outcome.borrow().is_some();
            if let Some(first) = pending.iter().position(has_outcome) {
                return Poll::Ready(Some(first));
            }
            for one in pending {
                *one.place.waker.borrow_mut() = Some(context.waker().clone());
            }
            Pin::new(&mut end).poll(context).map(|()| None)
        })
        .await
    }

    /// Waits for the reply or the deadline.
    ///
    /// # Errors
    /// `TimedOut`, `Unreachable`.
    pub async fn receive(self) -> Result<(Header, SimReply), NetFailure> {
        let mut sleep: Sleep = self.clock.sleep_until(self.deadline);
        std::future::poll_fn(|context| {
            if let Some(outcome) = self.place.outcome.borrow_mut().take() {
                return Poll::Ready(outcome);
            }
            *self.place.waker.borrow_mut() = Some(context.waker().clone());
            Pin::new(&mut sleep)
                .poll(context)
                .map(|()| Err(NetFailure::TimedOut))
        })
        .await
    }
}
