//! Futures of a host whose calls block: ready when first polled.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// A host whose calls must block gave a future that waits. A bug of that host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a call that must block did not")]
pub struct NotReady;

/// Runs a future that is ready when first polled, on this thread, without memory of the heap.
///
/// # Errors
/// [`NotReady`]; the future is dropped, with what it had begun.
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
