//! Pending replies: the connection keeps a reply that is not ready, without a thread.

use crate::meta_role::ReplyFuture;
use crate::replica_role::RequestCalls;
use crate::timers::Unpark;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use zonal_net::{ReplyBuilder, Resumer};
use zonal_wire::MetaReply;

struct Resume(Resumer);

impl Wake for Resume {
    fn wake(self: Arc<Self>) {
        self.0.resume();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.resume();
    }
}

/// Time that a thread waits for the commit of a request before it parks the request: some round
/// trips on a zone's switch. Parking costs two more wake-ups.
const COMMIT_WAIT: Duration = Duration::from_millis(2);

/// As [`poll`]; waits a moment on this thread for a reply that is pending, and makes the calls to
/// other replicas that it depends on.
pub(crate) fn poll_briefly(
    answer: &mut ReplyFuture,
    reply: &mut ReplyBuilder,
    mut calls: RequestCalls,
) -> Poll<MetaReply> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let until = Instant::now() + COMMIT_WAIT;
    loop {
        if let Poll::Ready(ready) = answer.as_mut().poll(&mut context) {
            calls.end();
            return Poll::Ready(ready);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            drop(calls);
            return poll(answer, reply);
        }
        if !calls.carry(left) {
            std::thread::park_timeout(left);
        }
    }
}

/// Polls a reply. Where it is pending, polls it again with the connection's resumer as waker, so
/// that no wake-up in between is lost. A reply that is ready at once costs one poll only.
pub(crate) fn poll(answer: &mut ReplyFuture, reply: &mut ReplyBuilder) -> Poll<MetaReply> {
    let mut context = Context::from_waker(Waker::noop());
    if let Poll::Ready(ready) = answer.as_mut().poll(&mut context) {
        return Poll::Ready(ready);
    }
    // No resumer: the server is ending, and the connection with it.
    let Some(resumer) = reply.resumer() else {
        return Poll::Pending;
    };
    let waker = Waker::from(Arc::new(Resume(resumer)));
    answer.as_mut().poll(&mut Context::from_waker(&waker))
}
