//! Parked requests: an answer that is not ready is kept by its connection, without a thread.

use crate::meta_role::Answer;
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

/// Polls an answer. Where it is pending, the connection is asked for a wake-up, and the answer is
/// polled again with it: what woke it between both is not lost. An answer that is ready at once
/// costs nothing but its poll.
pub(crate) fn poll(answer: &mut Answer, reply: &mut ReplyBuilder) -> Poll<MetaReply> {
    let mut context = Context::from_waker(Waker::noop());
    if let Poll::Ready(ready) = answer.as_mut().poll(&mut context) {
        return Poll::Ready(ready);
    }
    // Without one the server is ending, and the connection with it.
    let Some(resumer) = reply.resumer() else {
        return Poll::Pending;
    };
    let waker = Waker::from(Arc::new(Resume(resumer)));
    answer.as_mut().poll(&mut Context::from_waker(&waker))
}
