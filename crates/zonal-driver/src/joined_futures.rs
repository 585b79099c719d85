//! Futures together: the first one that is ready decides, or all are waited for.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Resolves with the first future that is ready and drops the other.
pub async fn either<T>(one: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(ready) = one.as_mut().poll(context) {
            return Poll::Ready(ready);
        }
        other.as_mut().poll(context)
    })
    .await
}

/// Waits until all futures are ready.
pub(crate) async fn all(futures: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut left: Vec<_> = futures.map(Box::pin).collect();
    poll_fn(|context| {
        left.retain_mut(|future| future.as_mut().poll(context).is_pending());
        match left.is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
