//! Permits: bound the threads of a server that are in blocking calls. Requests past the bound are
//! parked without a thread.
//!
//! A flush covers all records appended before it. So requests that get their permit late mostly
//! find their records durable, and return it at once.

use crate::clock;
use crate::timers::Timers;
use async_lock::{Semaphore, SemaphoreGuardArc};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use zonal_driver::either;
use zonal_types::ShardId;
use zonal_types::limits::{REQUEST_DEADLINE_MS, SHARD_CALLS_MAX, SHARD_FLUSHES_MAX};

/// The right to make a blocking call while this lives.
pub(crate) type Permit = SemaphoreGuardArc;

/// Permits of one shard's server.
pub(crate) struct Permits {
    flushes: Arc<Semaphore>,
    fetches: Arc<Semaphore>,
    calls: Mutex<BTreeMap<ShardId, Arc<Semaphore>>>,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            flushes: Arc::new(Semaphore::new(SHARD_FLUSHES_MAX)),
            fetches: Arc::new(Semaphore::new(1)),
            calls: Mutex::default(),
        }
    }
}

impl Permits {
    /// A permit to flush the log.
    pub(crate) async fn flush(&self) -> Permit {
        self.flushes.acquire_arc().await
    }

    /// A permit to fetch the zone map.
    pub(crate) async fn fetch(&self) -> Permit {
        self.fetches.acquire_arc().await
    }

    /// A permit to call a shard. `None`: it was not free within a request's deadline.
    pub(crate) async fn call(&self, shard: ShardId, timers: &Timers) -> Option<Permit> {
        let calls = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let of_shard = calls.entry(shard);
            Arc::clone(of_shard.or_insert_with(|| Arc::new(Semaphore::new(SHARD_CALLS_MAX))))
        };
        let until = clock::instant().plus_ms(REQUEST_DEADLINE_MS);
        let permit = async { Some(calls.acquire_arc().await) };
        let late = async {
            timers.sleep_until(until).await;
            None
        };
        either(permit, late).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn calls_to_a_silent_shard_do_not_block_calls_to_others() {
        let (permits, timers) = (Permits::default(), Timers::default());
        let call = |shard| permits.call(ShardId(shard), &timers);
        let mut held = Vec::new();
        for _call in 0..SHARD_CALLS_MAX {
            match poll(pin!(call(1))) {
                Poll::Ready(Some(permit)) => held.push(permit),
                other => panic!("{:?}", other.is_ready()),
            }
        }
        let mut waiting = pin!(call(1));
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(poll(pin!(call(2))).is_ready());
        assert!(poll(pin!(permits.flush())).is_ready());
        held.pop();
        assert!(matches!(poll(waiting), Poll::Ready(Some(_))));
    }
}
