//! Race: the first of two futures.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Ends with the first of both; the other is dropped.
pub(crate) async fn either(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        other.as_mut().poll(context)
    })
    .await;
}
