//! Races two futures: the first one that is ready decides.

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
