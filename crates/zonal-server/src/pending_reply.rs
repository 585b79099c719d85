//! Pending replies: the connection keeps a reply that is not ready, without a thread.

use crate::meta_role::ReplyFuture;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
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
