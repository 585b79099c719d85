//! Ready futures: polls a future once, for hosts whose calls block instead of waiting.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The future was not ready when first polled: a host whose calls must block returned one that
/// waits. A bug of that host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a call that must block was not done when it returned")]
pub struct NotReady;

/// Polls a future once on this thread, without a heap allocation.
///
/// # Errors
/// [`NotReady`] where it is not ready; the future is dropped with the work that it had begun.
pub fn at_once<T>(future: impl Future<Output = T>) -> Result<T, NotReady> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Ok(done),
        Poll::Pending => Err(NotReady),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_an_error() {
        assert_eq!(at_once(async { 7 }), Ok(7));
        assert_eq!(at_once(std::future::pending::<()>()), Err(NotReady));
    }
}
