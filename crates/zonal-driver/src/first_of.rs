//! Race: the first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Ends with the first of both; the other is dropped.
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
